"""The component: making, wrapping and the errors a user can cause."""

import sys
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rlexp.envs import AtariEnv, GymEnv, SyncVecEnv, env_code_roots
from rlexp.envs.locate import find_registration
from rlexp.errors import ConfigError, EnvError
from tests.counting import COUNTING, CountingEnv

CONF = Path(__file__).parents[2] / "conf" / "env"


def test_a_misspelt_id_suggests_the_right_one():
    with pytest.raises(EnvError, match=r"Unknown environment id 'CartPol-v1'.*Did you mean CartPole-v1"):
        GymEnv(id="CartPol-v1").make()
    with pytest.raises(EnvError, match=r"Did you mean .*Acrobot-v1"):
        GymEnv(id="acrobot-v1").make()


def test_suggestions_are_of_the_newest_version():
    with pytest.raises(EnvError, match=r"Did you mean CartPole-v1\? An id"):
        GymEnv(id="CartPol-v0").make()
    with pytest.raises(EnvError, match=r"Did you mean Reacher-v5\?"):
        GymEnv(id="Reachr-v2").make()


def test_a_class_that_made_the_environment_is_likened_to_no_id():
    with pytest.raises(EnvError, match="Unknown environment id 'Reach2D'") as caught:
        GymEnv(id="Reach2D").make()
    assert "Did you mean" not in str(caught.value)


def test_an_id_like_no_other_is_only_called_unknown():
    with pytest.raises(EnvError, match="Unknown environment id 'Zzzzzz-v0'") as caught:
        GymEnv(id="Zzzzzz-v0").make()
    assert "Did you mean" not in str(caught.value)


def test_a_missing_version_is_unknown_but_no_version_means_the_newest():
    with pytest.raises(EnvError, match="CartPole-v99"):
        GymEnv(id="CartPole-v99").make()
    assert GymEnv(id="CartPole").make().spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    ("env_id", "module", "dropped", "line"),
    [
        ("HalfCheetah-v5", "mujoco", "gymnasium.envs.mujoco", r'pip install "rlexp\[mujoco\]"'),
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", r'pip install "rlexp\[box2d\]"'),
        ("ALE/Pong-v5", "ale_py", "ale_py", r'pip install "rlexp\[atari\]"'),
        ("FetchReach-v4", "gymnasium_robotics", "gymnasium_robotics", r'pip install "rlexp\[robotics\]"'),
        ("HalfCheetah-v3", "gymnasium_robotics", "gymnasium_robotics", r'pip install "rlexp\[robotics\]"'),
    ],
)
def test_a_missing_package_gives_the_line_that_installs_it(monkeypatch, env_id, module, dropped, line):
    for name in [name for name in sys.modules if name == dropped or name.startswith(f"{dropped}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # what import does for a package that is not there
    with pytest.raises(EnvError, match=line):
        GymEnv(id=env_id).make()


@pytest.mark.parametrize(("old", "new"), [("Ant-v2", "Ant-v5"), ("FetchReach-v1", "FetchReach-v4")])
def test_ids_of_mujoco_py_are_answered_with_the_newest(old, new):
    pytest.importorskip("gymnasium_robotics")
    with pytest.raises(EnvError, match=rf"^{old} is of mujoco_py, which nobody maintains any more: use {new}$"):
        GymEnv(id=old).make()


def test_a_missing_dependency_that_is_only_mentioned_is_recognised(monkeypatch):
    def lacking(**_):
        raise gym.error.DependencyNotInstalled("pygame is not installed, run `pip install gymnasium[classic-control]`")

    monkeypatch.setitem(gym.registry, "Lacking-v0", gym.envs.registration.EnvSpec("Lacking-v0", lacking))
    with pytest.raises(EnvError, match=r'pip install "rlexp\[classic\]"'):
        GymEnv(id="Lacking-v0").make()


def test_kwargs_that_the_constructor_does_not_take_are_named():
    with pytest.raises(EnvError, match=r"CartPole-v1.*env.kwargs=\{'gravitas': 3\}.*gravitas"):
        GymEnv(id="CartPole-v1", kwargs={"gravitas": 3}).make()


def test_a_constructor_that_raises_is_reported_with_its_reason():
    with pytest.raises(EnvError, match=r"env.kwargs=\{'end': 'sometime'\}.*AssertionError"):
        GymEnv(id=COUNTING, kwargs={"end": "sometime"}).make()


def test_kwargs_reach_the_environment_and_are_not_shared_with_it():
    env = GymEnv(id=COUNTING, kwargs={"length": 9})
    assert env.make().unwrapped.length == 9
    assert env.kwargs == {"length": 9}


def test_the_time_limit_is_the_ids_own_unless_given():
    assert GymEnv(id="CartPole-v1").spec().max_episode_steps == 500
    assert GymEnv(id="CartPole-v1", max_episode_steps=7).spec().max_episode_steps == 7


def test_no_checking_wrappers_are_left_on_the_hot_path():
    names = []
    env = GymEnv(id="CartPole-v1").make()
    while isinstance(env, gym.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names == ["TimeLimit"]


def test_an_old_version_of_an_environment_does_not_warn(recwarn):
    GymEnv(id="CartPole-v0").make()
    assert [w for w in recwarn if "out of date" in str(w.message)] == []


def test_wrappers_are_applied_innermost_first():
    wrappers = [
        {"_target_": "gymnasium.wrappers.FlattenObservation"},
        {"_target_": "gymnasium.wrappers.ClipReward", "min_reward": -1, "max_reward": 0.5},
    ]
    env = GymEnv(id=COUNTING, kwargs={"obs": "tuple"}, wrappers=wrappers).make()
    assert type(env).__name__ == "ClipReward"
    assert type(env.env).__name__ == "FlattenObservation"
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[1] == 0.5


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"_target_": "os.system"}, "os.system is not a subclass of gymnasium.Wrapper"),
        ({"_target_": "gymnasium.Env"}, "not a subclass"),
        ({"_target_": "gymnasium.wrappers.TimeLimitt"}, "cannot be imported"),
        ({"_target_": "no_such_package.Wrapper"}, "cannot be imported"),
        ({"_target_": "TimeLimit"}, "cannot be imported"),
        ({"_target_": "gymnasium.wrappers.TimeLimit", "steps": 3}, "could not be applied with {'steps': 3}.*steps"),
        ("gymnasium.wrappers.TimeLimit", "each entry is"),
        ({"max_episode_steps": 3}, "each entry is"),
    ],
)
def test_a_bad_wrapper_is_refused(entry, problem):
    with pytest.raises(EnvError, match=problem):
        GymEnv(id="CartPole-v1", wrappers=[entry]).make()


@pytest.mark.parametrize("env_id", ["no_such_package:Thing-v0", "a:b:Thing-v0", ":Thing-v0", "module:"])
def test_a_module_that_cannot_be_imported_is_reported(env_id):
    with pytest.raises(EnvError, match=r"env\.id="):
        GymEnv(id=env_id).make()


def test_an_unsupported_space_is_reported_by_spec(monkeypatch):
    class Talker(CountingEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Text(4)

    env = GymEnv(id="talker")
    env.factory = Talker
    with pytest.raises(EnvError, match=r"Text.*wrapper"):
        env.spec()


class Liar(CountingEnv):
    """Promises four numbers and gives three."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (4,))


class OldFashioned(CountingEnv):
    """Returns a bare observation from reset, as Gym did."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


@pytest.mark.parametrize(("factory", "problem"), [(Liar, r"has shape \(3,\)"), (OldFashioned, "must return")])
def test_a_wrong_first_observation_is_reported(factory, problem):
    env = GymEnv(id="wrong")
    env.factory = factory
    with pytest.raises(EnvError, match=problem):
        env.build(seed=0).reset()


class OldSteps(CountingEnv):
    """Gives four values from step, as Gym did."""

    def step(self, action):
        return super().step(action)[:4]


class OldReset(CountingEnv):
    """Takes no seed, as Gym did."""

    def reset(self):
        return super().reset()


class Mistaken(CountingEnv):
    """Unpacks wrongly within."""

    def step(self, action):
        _first, _second, _third, _fourth, _fifth = [1, 2, 3, 4]
        return super().step(action)


def begin_and_step(vec):
    vec.reset()
    vec.step(np.zeros(1, np.int64))


FIVE = r"could not be played: ValueError: .*Gymnasium's step gives five values: observation, reward, terminated, "
SEEDED = r"could not be played: TypeError: .*Gymnasium's reset takes a seed and options: def reset\(self, \*, seed=None"


@pytest.mark.parametrize("limit", [None, 9], ids=["bare", "limited"])
@pytest.mark.parametrize(("factory", "problem"), [(OldSteps, FIVE), (OldReset, SEEDED)])
@pytest.mark.parametrize("backend", ["sync", "subprocess"])
def test_an_environment_of_the_old_api_is_told_what_gymnasium_asks(factory, problem, limit, backend):
    env = GymEnv(id="old", max_episode_steps=limit, vectorization=backend)
    env.factory = factory
    with closing(env.build(seed=0, num_envs=1)) as vec, pytest.raises(EnvError, match=problem):
        begin_and_step(vec)


def test_a_mistake_within_an_environment_stays_what_it_is():
    env = GymEnv(id="mistaken", max_episode_steps=9)
    env.factory = Mistaken
    vec = env.build(seed=0, num_envs=1)
    vec.reset()
    with pytest.raises(ValueError, match="expected 5, got 4"):
        vec.step(np.zeros(1, np.int64))


def test_a_factory_takes_the_place_of_the_id_and_keeps_limit_and_wrappers():
    env = GymEnv(id="mine", max_episode_steps=2, wrappers=[{"_target_": "gymnasium.wrappers.FlattenObservation"}])
    env.factory = partial(CountingEnv, end="never")
    spec = env.spec()
    assert (spec.id, spec.max_episode_steps) == ("CountingEnv", 2)
    vec = env.build(seed=0, num_envs=2)
    vec.reset()
    vec.step(np.zeros(2, np.int64))
    assert vec.step(np.zeros(2, np.int64)).truncated.all()


def test_a_factory_that_returns_one_environment_twice_is_refused():
    only = CountingEnv()
    env = GymEnv(id="mine", num_envs=2)
    env.factory = lambda: only
    with pytest.raises(EnvError, match="same environment twice"):
        env.build(seed=0)


def test_a_factory_that_returns_something_else_is_refused():
    env = GymEnv(id="mine")
    env.factory = dict
    with pytest.raises(EnvError, match="returned dict"):
        env.spec()


def test_rendering_needs_a_mode_that_a_factory_passes_on():
    env = GymEnv(id="mine")
    env.factory = CountingEnv  # its constructor takes render_mode
    vec = env.build(seed=0, num_envs=1, render_mode="rgb_array")
    assert isinstance(vec, SyncVecEnv)
    vec.reset()
    assert vec.render().shape == (36, 36, 3)
    env.factory = lambda: CountingEnv()
    with pytest.raises(EnvError, match="render_mode"):
        env.build(seed=0, num_envs=1, render_mode="rgb_array")


def test_a_render_mode_keeps_subprocess_environments_in_this_process():
    env = GymEnv(id=COUNTING, vectorization="subprocess")
    vec = env.build(seed=0, num_envs=1, render_mode="rgb_array")
    vec.reset()
    assert vec.render().dtype == np.uint8


@pytest.mark.parametrize("wrong", [{"num_envs": 0}, {"workers": 0}, {"action_limit": 0}, {"max_episode_steps": 0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GymEnv(id="CartPole-v1", **wrong)


def test_workers_without_worker_processes_are_refused():
    with pytest.raises(ConfigError, match=r"env\.workers=2 has no effect.*env\.vectorization=subprocess.*workers=null"):
        GymEnv(id="CartPole-v1", num_envs=4, workers=2)


def test_code_roots_name_every_package_that_would_run():
    assert env_code_roots("CartPole-v1") == {"gymnasium"}
    assert env_code_roots("CartPole") == {"gymnasium"}
    assert env_code_roots("evil.deep.module:CartPole-v1") == {"evil", "gymnasium"}
    assert env_code_roots("evil:Unheard-v0") == {"evil"}
    assert env_code_roots("Unheard-v0") == set()
    assert env_code_roots("ALE/Pong-v5") == {"ale_py"}
    wrappers = [{"_target_": "evil.wrappers.W"}, {"_target_": "gymnasium.wrappers.TimeLimit"}]
    assert env_code_roots("CartPole-v1", wrappers) == {"gymnasium", "evil"}
    assert "evil" not in sys.modules


def test_code_roots_of_callable_entry_points(monkeypatch):
    registration = gym.envs.registration.EnvSpec
    monkeypatch.setitem(gym.registry, "Class-v0", registration("Class-v0", CountingEnv))
    monkeypatch.setitem(gym.registry, "Partial-v0", registration("Partial-v0", partial(CountingEnv, length=3)))
    assert env_code_roots("Class-v0") == env_code_roots("Partial-v0") == {"tests"}


def test_a_malformed_wrapper_has_no_code_roots():
    with pytest.raises(EnvError, match="each entry is"):
        env_code_roots("CartPole-v1", ["evil.W"])


ENV_FILES = [path for path in sorted(CONF.glob("*.yaml")) if path.stem != "from_dataset"]  # which makes none


@pytest.mark.parametrize("path", ENV_FILES, ids=lambda path: path.stem)
def test_every_environment_file_says_what_it_is_and_can_be_made(path):
    text = path.read_text()
    assert text.startswith("# ")
    with initialize_config_dir(str(CONF.parent), version_base="1.3"):
        composed = compose(f"env/{path.stem}").env
    kind = AtariEnv if path.stem == "atari" else GymEnv
    assert set(composed) == {field.name for field in fields(kind) if field.init} | {"_target_"}
    if path.stem == "gym":
        assert OmegaConf.is_missing(composed, "id")
        return
    settings = OmegaConf.to_container(composed)
    assert settings.pop("_target_") == f"{kind.__module__}.{kind.__name__}"
    env = kind(**settings)
    if kind is AtariEnv:
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    elif "(robotics)" in text:
        pytest.importorskip("gymnasium_robotics")
    elif "mujoco" in str(find_registration(env.id).entry_point):
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")
    spec = env.spec()
    if "continuous" in path.stem or "continuous action" in text:
        assert spec.action.bounded
