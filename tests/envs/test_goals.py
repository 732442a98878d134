"""Goal environments: what networks see of them, and rewards for other goals than they had."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlexp.config.compose import compose
from rlexp.envs import BitFlip, GymEnv
from rlexp.envs.goals import GoalRewards
from rlexp.errors import ConfigError, DataError, EnvError
from rlexp.prediction import Predictor
from rlexp.runner import Runner
from tests.envs.common import BACKENDS, WORKERS, play, random_actions, same_steps
from tests.goal_line import LINE, GoalLine

SHORT = [
    "algo=sac",
    "env=gym",
    "trainer.total_steps=20",
    "trainer.learning_starts=19",
    "trainer.batch_size=4",
    "trainer.eval_episodes=1",
    "model.hidden=[8]",
    "threads=1",
    "compile=false",
    "device=cpu",
    "progress=none",
]
MAZES = ("point_maze", "point_maze_open", "point_maze_medium")


# ---- bit flipping


def test_a_bit_is_flipped_until_the_goal_is_reached():
    env = BitFlip(n=6)
    obs, info = env.reset(seed=4)
    assert info == {"is_success": False}
    wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
    assert 0 < len(wrong) < 6
    for count, bit in enumerate(wrong, 1):
        last = count == len(wrong)
        obs, *rest = env.step(bit)
        assert rest == [0.0 if last else -1.0, last, False, {"is_success": last}]
        np.testing.assert_array_equal(obs["observation"], obs["achieved_goal"])
        assert (obs["achieved_goal"] != obs["desired_goal"]).sum() == len(wrong) - count


def test_after_n_flips_the_episode_is_truncated():
    env = BitFlip(n=4)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(4)] if (env._bits != env._goal).sum() > 1 else None
    assert ends == [(False, False)] * 3 + [(False, True)]


@pytest.mark.parametrize("seed", range(20))
def test_it_never_begins_at_its_goal(seed):
    obs, _ = BitFlip(n=1).reset(seed=seed)
    assert obs["observation"] != obs["desired_goal"]


def test_its_number_of_bits_is_a_setting():
    assert Runner(compose(["algo=dqn", "env=bit_flip", "env.kwargs.n=7"])).spec.action.n == 7
    with pytest.raises(EnvError, match="n must be a whole number from 1"):
        GymEnv(id="BitFlip-v0", kwargs={"n": 2.5}).spec()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env_id", ["BitFlip-v0", LINE])
def test_episodes_are_restored_by_replay(env_id, backend):
    env = GymEnv(id=env_id, vectorization=backend, workers=WORKERS[backend], num_envs=2)
    first, second = env.build(5), env.build(5)
    try:
        first.reset()
        actions = random_actions(first, 30)
        play(first, actions[:11])
        _, restarted = second.restore(first.snapshot())
        assert restarted == []
        assert same_steps(play(first, actions[11:]), play(second, actions[11:]))
    finally:
        first.close()
        second.close()


# ---- what networks see


def test_networks_see_the_observation_and_the_desired_goal():
    spec = GymEnv(id=LINE).spec()
    assert spec.obs.has_goals
    assert list(spec.obs.leaves) == ["achieved_goal", "desired_goal", "observation"]
    assert list(spec.obs.seen) == ["desired_goal", "observation"]


def test_what_was_achieved_can_be_shown_too():
    assert list(GymEnv(id=LINE, show_achieved_goal=True).spec().obs.seen) == [
        "achieved_goal",
        "desired_goal",
        "observation",
    ]


class OtherForm(GoalLine):
    """Its goals cannot be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        parts = dict(self.observation_space.spaces)
        self.observation_space = spaces.Dict(parts | {"desired_goal": spaces.Box(-1, 1, (2,))})


def test_goals_of_different_forms_are_ordinary_observations():
    env = GymEnv(id="custom")
    env.factory = OtherForm
    assert not env.spec().obs.has_goals
    assert len(env.spec().obs.seen) == 3


# ---- rewards for other goals


def many_goals(rng: Any, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(np.int8)


def test_rewards_and_ends_of_bits_are_those_of_the_environment():
    env, rng = BitFlip(n=2), np.random.default_rng(0)
    goals = GoalRewards(env, "BitFlip-v0")
    achieved, desired = many_goals(rng, (50, 2)), many_goals(rng, (50, 2))
    same = [a.tolist() == d.tolist() for a, d in zip(achieved, desired)]
    assert goals.reward(achieved, desired).tolist() == [0.0 if each else -1.0 for each in same]
    assert goals.terminated(achieved, desired).tolist() == same
    assert goals.terminates


def test_a_function_that_answers_once_for_all_goals_is_asked_for_each():
    goals = GoalRewards(GoalLine(), "line")
    achieved, desired = np.array([[0.0], [1.0], [2.0]], np.float32), np.array([[0.1], [0.0], [2.4]], np.float32)
    assert GoalLine().compute_terminated(achieved, desired, {}) is False
    assert goals.terminated(achieved, desired).tolist() == [True, False, True]
    assert goals.reward(achieved, desired).tolist() == [0.0, -1.0, 0.0]


class NoEnds(GoalLine):
    """As an abstract base class leaves it."""

    def compute_terminated(self, *goals: Any) -> bool:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        self.x, self.t = self.x + action, self.t + 1
        return self._observe(), self.compute_reward(self.x, self.goal, {}), False, self.t >= 8, {}


def test_an_environment_that_does_not_say_what_ends_an_episode_never_does():
    goals = GoalRewards(NoEnds(), "line")
    assert not goals.terminates
    assert not goals.terminated(np.zeros((3, 1)), np.zeros((3, 1))).any()


class Offset(GoalLine):
    """Goals that are counted from 5."""

    def __init__(self) -> None:
        super().__init__()
        goal = spaces.Discrete(4, start=5)
        self.observation_space = spaces.Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})

    def _observe(self) -> Any:
        return dict.fromkeys(self.observation_space.spaces, np.int64(6))

    def step(self, action: Any) -> Any:
        return self._observe(), 6.0, False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.asarray(achieved_goal, float)


def test_goals_are_given_back_as_the_environment_has_them():
    assert GoalRewards(Offset(), "offset").reward(np.array([0, 3]), np.array([1, 1])).tolist() == [5.0, 8.0]


class Effort(GoalLine):
    """Its reward depends on more than goals."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, -float(np.abs(action).item()), *rest)


class AsksInfo(BitFlip):
    def step(self, action: Any) -> Any:
        return self._observe(), 0.0, False, False, {"effort": 1.0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -info["effort"]


class NoReward(gym.Env):
    """Goals without a function of them."""

    observation_space, action_space = GoalLine().observation_space, GoalLine().action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return dict.fromkeys(self.observation_space.spaces, np.zeros(1)), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


class Scaled(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return 10.0 * float(reward) - 1.0


class Factor(gym.RewardWrapper):
    """Not to be seen in rewards of 0."""

    def reward(self, reward: Any) -> Any:
        return 10.0 * float(reward)


class Bonus(gym.Wrapper):
    """Rewards success, which the first steps need not meet."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, *rest = self.env.step(action)
        return obs, float(reward) + 10 * terminated, terminated, *rest


class Shaped(gym.Wrapper):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 2.0 * float(reward) - 1.0, *rest


class OldSteps(GoalLine):
    """As Gym had it."""

    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class OldReset(GoalLine):
    """As Gym had it."""

    def reset(self) -> Any:
        return super().reset()


class Elsewhere(GoalLine):
    """Rewards 1 at the goal, else 0, and no goal comes near; its observation does not tell where the point is."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 1.0 + super().compute_reward(achieved_goal, desired_goal + 100.0, info)

    def _observe(self) -> dict[str, Any]:
        return super()._observe() | {"observation": np.full(1, 7.0)}


class Broken(GoalLine):
    def step(self, action: Any) -> Any:
        raise RuntimeError("no ground")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Factor(Elsewhere()), "the wrapper Factor changes rewards"),
        (lambda: gym.wrappers.NormalizeReward(Elsewhere()), "the wrapper NormalizeReward changes rewards"),
        (Broken, "Broken could not be played: RuntimeError: no ground"),
        (NoReward, "has no compute_reward"),
        (Effort, "for the same goals. Let compute_reward give what step gives, or use buffer=replay"),
        (lambda: gym.wrappers.TimeLimit(Effort(), 9), "Let compute_reward give what step gives"),
        (OldSteps, "OldSteps could not be played: ValueError: .* Gymnasium's step gives five values: observation, "),
        (OldReset, "OldReset could not be played: TypeError: .* def reset.self, .*, seed=None, options=None"),
        (AsksInfo, "depend on the two goals alone"),
        (lambda: Scaled(GoalLine()), "Remove the wrapper that changes rewards"),
        (lambda: Shaped(GoalLine()), "for the same goals. Remove the wrapper that changes rewards, or"),
    ],
)
def test_rewards_that_cannot_be_found_are_refused_before_anything_is_written(make, problem, tmp_path):
    algo = "dqn" if make is AsksInfo else "sac"
    config = compose([f"algo={algo}", "env=gym", "env.id=own", "buffer=her", "progress=none"])
    runner = Runner(config, env_factory=make)
    with pytest.raises(EnvError, match=problem):
        runner.train(tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Late(gym.Wrapper):
    """Rewards the end of the time, as if it were worth something."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + 10 * truncated, terminated, truncated, info


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Bonus(GoalLine(length=50)), "10, but .* says 0 "),
        (lambda: Late(GoalLine(length=9)), "9, but .* says -1 "),
    ],
)
def test_a_reward_that_goals_do_not_explain_is_noticed_where_an_episode_ends(make, told, tmp_path):
    config = compose([*SHORT, "env.id=own", "buffer=her", "trainer.total_steps=400", "trainer.learning_starts=399"])
    with pytest.raises(EnvError, match=f"gave the reward {told}for the same goals"):
        Runner(config, env_factory=make).train(tmp_path / "run")


class Dense(GoalLine):
    """Far from the origin, where float32 tells points apart by 6e-5 only; the reward is the distance."""

    def _observe(self) -> dict[str, Any]:
        return {name: leaf + 1e3 for name, leaf in super()._observe().items()}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.abs(achieved_goal - desired_goal).sum(-1)


def test_rounding_of_stored_goals_is_no_other_reward(tmp_path):
    config = compose([*SHORT, "env.id=own", "buffer=her", "trainer.total_steps=1000", "trainer.learning_starts=999"])
    Runner(config, env_factory=lambda: Dense(length=2)).train(tmp_path / "run")


def test_a_reward_in_a_thousand_may_fall_on_the_other_side_by_rounding():
    goals = GoalRewards(GoalLine(), "line")
    far, near, missed, reached = np.full((3000, 1), 5.0), np.zeros((1, 1)), np.full(3000, -1.0), np.zeros(1)
    for _ in range(3):
        goals.check(far, np.zeros_like(far), missed)
        goals.check(far[:1], near, reached)  # 0 where −1 is computed
    for _ in range(5):
        goals.check(far[:1], near, reached)
    with pytest.raises(EnvError, match="gave the reward 0, but its compute_reward says -1"):
        goals.check(np.repeat(far[:1], 5, 0), np.repeat(near, 5, 0), np.repeat(reached, 5))


@pytest.mark.parametrize(("make", "ends"), [(GoalLine, nullcontext()), (Effort, pytest.raises(EnvError))])
def test_the_environment_that_is_asked_for_rewards_is_closed(make, ends, tmp_path):
    open_ones: list[Any] = []

    class Counted(make):
        def __init__(self) -> None:
            super().__init__()
            open_ones.append(self)

        def close(self) -> None:
            open_ones.remove(self)

    with ends:
        Runner(compose([*SHORT, "env.id=own", "buffer=her"]), env_factory=Counted).train(tmp_path / "run")
    assert open_ones == []


@pytest.mark.parametrize(
    ("make", "shown", "warned"), [(Elsewhere, False, 1), (Elsewhere, True, 0), (GoalLine, False, 0)]
)
def test_an_achieved_goal_that_networks_cannot_know_is_warned_of_once(make, shown, warned, tmp_path, capsys):
    config = compose([*SHORT, "env.id=own", f"env.show_achieved_goal={str(shown).lower()}", "progress=plain"])
    Runner(config, env_factory=make).train(tmp_path / "run")
    output = capsys.readouterr()
    assert (output.out + output.err).count("env.show_achieved_goal=true") == warned


def test_without_goals_there_is_nothing_to_show():
    with pytest.raises(ConfigError, match=r"env\.show_achieved_goal=true: .* is no goal environment"):
        Runner(compose(["algo=sac", "env=pendulum", "env.show_achieved_goal=true"]))


def test_an_environment_without_goals_is_refused():
    with pytest.raises(ConfigError, match="buffer=her needs a goal environment"):
        Runner(compose(["algo=sac", "env=pendulum", "buffer=her"]))


def test_repeated_actions_are_refused(tmp_path):
    runner = Runner(compose(["algo=dqn", "env=bit_flip", "env.action_repeat=2", "buffer=her", "progress=none"]))
    with pytest.raises(ConfigError, match=r"env\.action_repeat=1"):
        runner.train(tmp_path / "run")


# ---- mazes


@pytest.mark.parametrize("name", MAZES)
def test_a_maze_ends_at_its_goal_and_says_so(name):
    pytest.importorskip("gymnasium_robotics")
    config = compose(["algo=sac", f"env={name}"])["env"]
    env = GymEnv(id=config["id"], kwargs=config["kwargs"], wrappers=config["wrappers"])
    made = env.make()
    goals = GoalRewards(made, name)
    made.reset(seed=0)
    for _ in range(50):
        obs, reward, terminated, _, info = made.step(made.action_space.sample())
        near = np.linalg.norm(obs["achieved_goal"] - obs["desired_goal"]) <= 0.45
        assert (bool(reward), terminated, info["success"]) == (near, near, near)
        if terminated:
            break
    goal = obs["desired_goal"][None] + np.array([[0.0, 0.0], [0.4, 0.0], [0.5, 0.0]])
    desired = np.repeat(obs["desired_goal"][None], 3, 0)
    assert goals.terminated(goal, desired).tolist() == [True, True, False]
    at_once = made.get_wrapper_attr("compute_terminated")(goal, desired, {})
    assert at_once.tolist() == [made.unwrapped.compute_terminated(a, d, {}) for a, d in zip(goal, desired)]
    made.close()


def test_without_the_package_a_maze_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(EnvError, match=r'pip install "rlexp\[robotics\]"') as caught:
        GymEnv(id="PointMaze_UMaze-v3").spec()
    assert "\n" not in str(caught.value)


def test_an_observation_to_predict_needs_no_achieved_goal_where_networks_do_not_see_it() -> None:
    small = ["env=gym", f"env.id={LINE}", "model.hidden=[8]", "progress=none", "threads=1", "device=cpu"]
    runner = Runner(compose(["algo=sac", *small]))
    predictor = Predictor(runner.env, runner.policy())
    seen = {"observation": [0.5], "desired_goal": [1.0]}
    assert predictor(seen) == predictor(seen | {"achieved_goal": [7.0]})
    assert len(predictor([seen, seen])) == 2
    with pytest.raises(DataError, match="it needs the keys"):
        predictor({"observation": [0.5]})
    shown = Runner(compose(["algo=sac", *small, "env.show_achieved_goal=true"]))
    with pytest.raises(DataError, match="it needs the keys"):
        Predictor(shown.env, shown.policy())(seen)
