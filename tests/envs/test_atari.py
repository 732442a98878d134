"""Atari: both backends give the same, lives and scores are told apart, and running games are restored."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from rlexp.config.compose import compose
from rlexp.envs import AtariEnv
from rlexp.errors import ConfigError, EnvError
from rlexp.evaluation import Evaluator
from rlexp.runner import Runner
from tests.envs.common import play, random_actions, same_steps

pytest.importorskip("ale_py")
pytest.importorskip("cv2")


def atari(backend: str = "vector", **settings) -> AtariEnv:
    return AtariEnv(**{"game": "breakout", "backend": backend, "num_envs": 2, "noop_max": 0} | settings)


def played(env: AtariEnv, actions: np.ndarray):
    envs = env.build(seed=3)
    first = envs.reset()
    steps = play(envs, actions)
    envs.close()
    return first, steps


ACTIONS = np.random.default_rng(0).integers(0, 4, (190, 2))  # long enough for all five lives of a game


def test_both_backends_give_the_same_frames_rewards_and_ends():
    (first, steps), (other, others) = (
        played(atari(backend, max_episode_steps=45), ACTIONS[:60]) for backend in ("vector", "gym")
    )
    np.testing.assert_array_equal(first, other)
    assert same_steps(steps, others)
    assert any(step.terminated.any() for step in steps)  # lives were lost
    assert any(step.truncated.any() for step in steps)


def test_a_whole_game_ends_the_same_on_both_backends():
    settings = {"episodic_life": False, "clip_rewards": False, "num_envs": 1, "size": 36}
    (_, steps), (_, others) = (played(atari(backend, **settings), ACTIONS[:, :1]) for backend in ("vector", "gym"))
    assert same_steps(steps, others)
    assert sum(step.terminated.sum() for step in steps) == 1


def test_an_episode_begins_with_zeros_before_its_first_frame_and_shifts_by_one():
    first, steps = played(atari(), ACTIONS[:3])
    assert first.shape == (2, 4, 84, 84)
    assert first.dtype == np.uint8
    assert not first[:, :3].any()
    assert first[:, 3].any()
    np.testing.assert_array_equal(steps[0].obs[:, :3], first[:, 1:])
    np.testing.assert_array_equal(steps[1].obs[:, :3], steps[0].obs[:, 1:])
    assert atari().spec().obs.leaves[""].stack == 4


def test_a_lost_life_ends_the_episode_and_the_game_goes_on():
    _, steps = played(atari(num_envs=1, size=36), ACTIONS[:, :1])
    lost = [t for t, step in enumerate(steps) if step.terminated[0]]
    assert len(lost) == 5
    for t in lost[:4]:
        np.testing.assert_array_equal(steps[t].obs, steps[t].next_obs)
        assert steps[t].obs is not steps[t].next_obs
    assert not np.array_equal(steps[lost[4]].obs, steps[lost[4]].next_obs)  # a new game
    assert not steps[lost[4]].obs[0, :3].any()


@pytest.mark.parametrize("backend", ["vector", "gym"])
def test_every_life_begins_with_fire_however_idle_the_player(backend):
    env = atari(backend, num_envs=1, size=36)
    _, steps = played(env, np.zeros((80, 1), int))
    assert sum(step.terminated[0] for step in steps) >= 2
    _, steps = played(replace(env, fire_reset=False), np.zeros((40, 1), int))
    assert not any(step.terminated[0] for step in steps)


@pytest.mark.parametrize("backend", ["vector", "gym"])
def test_running_games_are_restored_exactly_in_the_middle_of_later_lives(backend):
    config = atari(backend, noop_max=30, sticky_actions=0.25, size=36)
    env = config.build(seed=5)
    env.reset()
    actions = random_actions(env, 60)
    before = play(env, actions[:45])[-1].obs
    state = env.snapshot()
    assert any("began" in saved for saved in state["envs"])  # not the first life
    fresh = config.build(seed=6)
    obs, inexact = fresh.restore(state)
    assert inexact == []
    np.testing.assert_array_equal(obs, before)
    assert same_steps(play(env, actions[45:]), play(fresh, actions[45:]))


@pytest.mark.parametrize("backend", ["vector", "gym"])
def test_a_game_that_comes_out_differently_begins_its_next_episode(backend):
    env = atari(backend, size=36).build(seed=5)
    env.reset()
    play(env, ACTIONS[:40])
    state = env.snapshot()
    state["envs"][1]["obs"][0] = state["envs"][1]["obs"][0] ^ 1
    fresh = atari(backend, size=36).build(seed=5)
    obs, inexact = fresh.restore(state)
    assert inexact == [1]
    assert not obs[1, :3].any()
    assert fresh.snapshot()["envs"][1]["episode"] == state["envs"][1]["episode"] + 1


def test_random_starts_differ_between_episodes_and_repeat_with_the_seed():
    env = atari(game="space_invaders", noop_max=30, num_envs=3)
    once, again = env.build(seed=1).reset(), env.build(seed=1).reset()
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once[0], once[1]) or not np.array_equal(once[0], once[2])


def test_evaluation_plays_whole_games_for_their_true_scores():
    given = ["algo=ppo", "env=atari", "env.game=freeway", "env.size=36", "env.max_episode_steps=20", "threads=1"]
    runner = Runner(compose([*given, "compile=false"]))
    judge = Evaluator(runner.env).env
    assert (runner.env.episodic_life, runner.env.clip_rewards) == (True, True)
    assert (judge.episodic_life, judge.clip_rewards) == (False, False)
    _, steps = played(AtariEnv(game="space_invaders", num_envs=1).for_evaluation(), np.full((120, 1), 1))
    assert max(step.reward[0] for step in steps) >= 5  # an invader's points, not 1


def test_a_game_that_does_not_exist_is_refused_with_those_like_it():
    with pytest.raises(EnvError, match=r"env.game=pung is no Atari game. Did you mean pong"):
        AtariEnv(game="pung").spec()


@pytest.mark.parametrize("package", ["ale_py", "cv2"])
def test_a_missing_package_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvError, match=rf"needs the package {package}.*rlexp\[atari\]"):
        AtariEnv().spec()


def test_settings_that_the_vector_backend_would_ignore_are_refused():
    with pytest.raises(ConfigError, match=r"env.backend=gym"):
        AtariEnv(wrappers=[{"_target_": "gymnasium.wrappers.ClipReward"}])
    with pytest.raises(ConfigError, match=r"env.backend=gym"):
        AtariEnv(vectorization="subprocess")
    with pytest.raises(ConfigError, match=r"env.workers=2 has no effect with env.backend=vector.*env.backend=gym"):
        AtariEnv(workers=2)


@pytest.mark.parametrize("settings", [{"frame_stack": 2}, {"frame_stack": 1, "frame_skip": 1}])
def test_colours_are_the_same_on_both_backends(settings):
    (first, steps), (other, others) = (
        played(atari(backend, grayscale=False, size=36, **settings), ACTIONS[:40]) for backend in ("vector", "gym")
    )
    assert first.shape == (2, settings["frame_stack"], 36, 36, 3)
    np.testing.assert_array_equal(first, other)
    assert same_steps(steps, others)
    assert (first[..., 0] != first[..., 2]).any()


def test_a_rom_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    for backend in ("vector", "gym"):
        with pytest.raises(EnvError, match=r"env.game=breakout: its ROM cannot be read \(.*breakout.bin"):
            atari(backend).spec()


def test_images_larger_than_anybody_means_are_refused_before_they_are_made():
    with pytest.raises(ConfigError, match=r"env.size must be at most 2048, not 100000"):
        atari(size=100_000)
