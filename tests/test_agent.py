"""The Python lifecycle: one public name per algorithm, all with learn, evaluate, predict, save, load and resume."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rlexp
from rlexp import Agent, files
from rlexp.callbacks import Callback
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, compose, register
from rlexp.config.migrating import migrated
from rlexp.config.trust import EVERYTHING
from rlexp.datasets.expert import ExpertDataset
from rlexp.datasets.replay import RunDataset
from rlexp.errors import CheckpointError, ConfigError, DataError, EnvError, RunError
from rlexp.resuming import resume_run
from rlexp.run_dir import RunDir
from rlexp.starting import find_checkpoint
from tests.algos.common import some_of
from tests.counting import CountingEnv

register()

NAMES = sorted(name for name in rlexp.__all__ if f"{name}Algorithm" in rlexp.__all__)
QUICK = ["threads=1", "compile=false", "progress=none", "device=cpu", "model.hidden=[16]"]
QUICK += ["trainer.eval_episodes=1", "trainer.eval_interval=0", "trainer.log_interval=32", "env.max_episode_steps=20"]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))


def small(name: str, steps: int = 64, *more: str) -> list[str]:
    """Overrides of a tiny run of an algorithm in its own loop and an environment it can act in."""
    cls = getattr(rlexp, f"{name}Algorithm")
    env = "cartpole" if "discrete" in cls.actions else "pendulum"
    given = [f"env={env}", *QUICK, *unscheduled(getattr(rlexp, name).algo)]
    if "on_policy" in cls.loops:
        given += [f"trainer.total_steps={steps}", "trainer.rollout_steps=32"]
        wanted = {"minibatch_size": 16, "epochs": 2}
        given += [f"algo.{key}={value}" for key, value in wanted.items() if key in cls.__dataclass_fields__]
    elif "offline" in cls.loops:
        given += [f"trainer.total_updates={steps}", "trainer.batch_size=8", "dataset.size=100"]
    else:
        given += [f"trainer.total_steps={steps}", "trainer.batch_size=8", "trainer.learning_starts=16"]
        given += [
            "buffer.capacity=200",
            *(["dataset.size=100"] if "mixed" in cls.loops and "replay" not in cls.loops else []),
        ]
    return [*given, *more]


@functools.cache
def unscheduled(algo: str) -> tuple[str, ...]:
    """A schedule follows the budget, so that a run that is extended differs from one that had it from the start."""
    schedules = compose([f"algo={algo}"])["algo"]["schedules"]
    unscheduled = [f"algo.schedules.{field}=null" for field, entry in schedules.items() if entry]
    return (*unscheduled, *(["buffer.final_beta=0.4"] if algo == "rainbow" else []))


def budget(name: str, steps: int) -> str:
    loops = getattr(rlexp, f"{name}Algorithm").loops
    return f"trainer.total_updates={steps}" if "offline" in loops else f"trainer.total_steps={steps}"


def make(name: str, steps: int = 64, *more: str) -> Agent:
    return getattr(rlexp, name)(*small(name, steps, *more))


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    """Every tensor of the agent's state, by its place, but for the generator: a policy loaded to act has its own."""
    state = tensors(agent.policy.algo.state_dict())
    del state["/generator"]
    return state


def saved_state(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the algorithm in a run's last checkpoint, the generator included."""
    checkpoint = RunDir.open(run).load("last")
    assert checkpoint is not None
    state = tensors(checkpoint.tree["policy"]["algo"])
    assert "/generator" in state
    return state


def tensors(tree: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def walk(prefix: str, node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, torch.Tensor):
                found[f"{prefix}/{key}"] = value.clone()
            elif isinstance(value, (dict, list)):
                walk(f"{prefix}/{key}", value)

    walk("", tree)
    return found


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


def observations(agent: Agent, count: int) -> list[np.ndarray]:
    size = agent.policy.spec.obs.leaves[""].shape
    return list(np.random.default_rng(0).normal(size=(count, *size)).astype(np.float32))


# ---- names


def test_there_is_one_public_name_for_every_algorithm() -> None:
    assert {getattr(rlexp, name).algo for name in NAMES} == set(choices("algo"))
    for name in NAMES:
        cls = getattr(rlexp, name)
        assert issubclass(cls, Agent)
        assert (cls.__name__, cls.__module__) == (name, "rlexp")
        assert REGISTRY["algo"][cls.algo] is getattr(rlexp, f"{name}Algorithm")
        assert cls.__doc__ == getattr(rlexp, f"{name}Algorithm").__doc__


def test_everything_public_can_be_imported_and_nothing_else() -> None:
    assert all(getattr(rlexp, name) is not None for name in rlexp.__all__)
    assert dir(rlexp) == sorted(rlexp.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'PPPO'"):
        rlexp.PPPO  # noqa: B018


# ---- the lifecycle


@pytest.mark.parametrize("name", some_of(NAMES))  # runs of all are loaded by tests/algos/test_runs.py
def test_every_agent_learns_evaluates_predicts_saves_and_loads(name: str, tmp_path: Path) -> None:
    agent = make(name, 32)
    obs = observations(agent, 5)
    untrained = weights(agent)
    assert agent.evaluate(episodes=2).summary()["episodes"] == 2  # before learning, too
    assert agent.learn(tmp_path / "run") is agent
    assert agent.summary is not None
    assert agent.summary["status"] == "completed"
    assert agent.run_dir == tmp_path / "run"
    trained = weights(agent)
    assert any(not torch.equal(untrained[key], trained[key]) for key in untrained)

    actions, returns = agent.predict(obs), agent.evaluate(2, seed=1).returns
    assert agent.save(tmp_path / "saved").is_dir()
    cls = type(agent)
    for path in (tmp_path / "saved", tmp_path / "run", tmp_path / "run" / "checkpoints" / "last"):
        loaded = cls.load(path)
        assert type(loaded) is cls
        assert_same(weights(loaded), trained)
        np.testing.assert_array_equal(loaded.predict(obs), actions)
        assert loaded.evaluate(2, seed=1).returns == returns


@pytest.mark.parametrize("name", ["PPO", "DQN", "IQL", "RLPD"])  # one for each loop; all are resumed elsewhere
def test_an_agent_that_is_loaded_can_be_extended_as_if_it_had_the_budget_from_the_start(
    name: str, tmp_path: Path
) -> None:
    agent = make(name).learn(tmp_path / "run")
    trained = weights(agent)
    resumed = type(agent).load(tmp_path / "run").resume(budget(name, 96))
    whole = make(name, 96).learn(tmp_path / "whole")
    assert_same(weights(resumed), weights(whole))
    assert_same(saved_state(tmp_path / "run"), saved_state(tmp_path / "whole"))
    assert resumed.summary is not None
    assert max(resumed.summary["env_steps"], resumed.summary["updates"]) >= 96
    assert_same(weights(agent), trained)  # the first agent is not touched by that


def test_by_default_a_run_lies_in_outputs_under_its_name(tmp_path: Path) -> None:
    agent = make("PPO", 32, "name=mine").learn()
    assert agent.run_dir == tmp_path / "outputs" / "mine"
    assert json.loads((tmp_path / "outputs" / "mine" / "summary.json").read_text())["algo"] == "ppo"


def test_resuming_a_completed_run_without_a_larger_budget_leaves_it_alone(tmp_path: Path, capsys: Any) -> None:
    agent = make("PPO", 32).learn(tmp_path / "run")
    before = weights(agent)
    agent.resume()
    assert "is completed" in capsys.readouterr().out
    assert_same(weights(agent), before)


def test_after_a_resume_the_agent_acts_with_the_new_policy(tmp_path: Path) -> None:
    agent = make("PPO", 32).learn(tmp_path / "run")
    agent.predict(observations(agent, 1)[0])
    before = weights(agent)
    agent.resume("trainer.total_steps=96")
    assert agent.config["trainer"]["total_steps"] == 96
    now = weights(agent)
    assert_same(now, weights(rlexp.PPO.load(tmp_path / "run")))
    assert any(not torch.equal(now[key], before[key]) for key in now)


def test_agent_load_opens_any_algorithm_and_a_named_class_only_its_own(tmp_path: Path) -> None:
    path = make("DQN", 32).save(tmp_path / "saved")
    assert Agent.load(path).config["algo"]["_target_"].endswith("DQN")
    with pytest.raises(ConfigError, match=r"holds dqn, not ppo\. Load it with rlexp\.Agent\.load"):
        rlexp.PPO.load(path)


def test_agent_takes_its_algorithm_from_the_overrides_and_a_named_class_refuses_another() -> None:
    assert Agent("algo=dqn", *small("DQN")).policy.algo.__class__ is rlexp.DQNAlgorithm
    with pytest.raises(ConfigError, match=r"PPO cannot be made with algo=dqn\. Use rlexp\.Agent"):
        rlexp.PPO("algo=dqn")


def test_a_preset_is_an_override_like_any_other() -> None:
    assert rlexp.PPO("zoo=ppo_cartpole", *QUICK).config["env"]["num_envs"] == 8


# ---- what is refused


def test_a_mistake_is_told_when_the_agent_is_made() -> None:
    for name, overrides, kind, message in (
        (
            "PPO",
            ["algo.clip_rang=0.1"],
            ConfigError,
            r"algo\.clip_rang: PPO has no such setting\. Did you mean clip_range",
        ),
        ("PPO", ["algo.clip_range=-1"], ConfigError, r"algo\.clip_range must be greater than 0"),
        ("SAC", ["env=cartpole"], ConfigError, "algo=sac acts in continuous action spaces"),
        ("PPO", ["env=gym", "env.id=CartPol-v1"], EnvError, "Did you mean CartPole-v1"),
    ):
        with pytest.raises(kind, match=message):
            getattr(rlexp, name)(*overrides)


def test_learning_twice_and_resuming_nothing_are_refused(tmp_path: Path) -> None:
    agent = make("PPO", 32)
    with pytest.raises(RunError, match=r"There is no run to resume yet: call learn\(\) first"):
        agent.resume()
    agent.learn(tmp_path / "run")
    with pytest.raises(RunError, match=r"has been trained already\. Continue with resume\(\)"):
        agent.learn(tmp_path / "again")
    saved = rlexp.PPO.load(agent.save(tmp_path / "saved"))
    one_answer = r"saved holds a policy to act with, not a run, so it cannot be trained further\. Load the run's dir"
    with pytest.raises(RunError, match=one_answer):
        saved.resume()
    with pytest.raises(RunError, match=one_answer):
        saved.learn(tmp_path / "again")


def test_a_directory_that_holds_another_run_is_refused_and_not_adopted(tmp_path: Path) -> None:
    first = make("PPO", 32).learn(tmp_path / "run")
    second = make("PPO", 32, "seed=1")
    with pytest.raises(RunError, match="already holds a run"):
        second.learn(tmp_path / "run")
    with pytest.raises(RunError, match="There is no run to resume"):
        second.resume()  # not the other one's
    assert second.learn(tmp_path / "elsewhere").run_dir == tmp_path / "elsewhere"
    assert_same(weights(rlexp.PPO.load(tmp_path / "run")), weights(first))


def test_saving_replaces_an_older_checkpoint_but_nothing_else(tmp_path: Path) -> None:
    first, second = make("PPO"), make("PPO", 64, "seed=1")
    first.save(tmp_path / "saved")
    second.save(tmp_path / "saved")
    assert_same(weights(rlexp.PPO.load(tmp_path / "saved")), weights(second))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="mine"):
        first.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_loading_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run directory at"):
        rlexp.PPO.load(tmp_path / "nowhere")


# ---- prediction


def test_one_observation_gives_one_action_and_several_give_a_list() -> None:
    agent = make("SAC")
    one, two = observations(agent, 2)
    action = agent.predict(one)
    assert (action.shape, action.dtype) == ((1,), np.float32)
    assert abs(action[0]) <= 2  # Pendulum's units
    both = agent.predict([one, two])
    assert isinstance(both, list)
    np.testing.assert_allclose(both[0], action, rtol=1e-5)
    np.testing.assert_array_equal(agent.predict(np.stack([one, two])), both)
    np.testing.assert_allclose(agent.predict(one.tolist()), action, rtol=1e-5)


def test_an_observation_that_does_not_fit_is_refused() -> None:
    agent = make("PPO")
    for obs in ([1.0, 2.0], [1.0, 2.0, 3.0, float("nan")], "text", None, {"a": 1}, np.zeros((2, 2, 4))):
        with pytest.raises(DataError, match="The observation does not fit the environment"):
            agent.predict(obs)


@pytest.mark.parametrize("name", some_of(NAMES))
def test_sampled_predictions_follow_the_seed(name: str) -> None:
    # by themselves they would be greedy most of the time
    more = {"DQN": ["algo.epsilon=1.0"], "Rainbow": ["algo.noisy=false", "algo.epsilon=1.0"]}.get(name, [])

    def sampled(seed: int) -> np.ndarray:
        agent = make(name, 64, f"seed={seed}", *more)
        return np.stack(agent.predict(observations(agent, 1) * 64, deterministic=False))

    first = sampled(3)
    np.testing.assert_array_equal(first, sampled(3))
    assert (first != sampled(4)).any()
    assert len(np.unique(first)) > 1


def test_sampling_goes_on_from_call_to_call_and_leaves_training_alone(tmp_path: Path) -> None:
    agent, quiet = make("PPO", 32), make("PPO", 32)
    obs = observations(agent, 1) * 64
    assert (
        np.stack(agent.predict(obs, deterministic=False)) != np.stack(agent.predict(obs, deterministic=False))
    ).any()
    agent.evaluate(2, deterministic=False)
    assert_same(weights(agent.learn(tmp_path / "a")), weights(quiet.learn(tmp_path / "b")))


# ---- environments made in Python


def make_counting() -> gym.Env:
    return CountingEnv(length=4, end="truncated")


FACTORIES: dict[str, Any] = {
    "function": make_counting,
    "lambda": lambda: CountingEnv(length=4, end="truncated"),
    "class": functools.partial(CountingEnv, 4, "truncated"),
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_an_environment_can_be_any_function_that_makes_one(kind: str, tmp_path: Path) -> None:
    factory = FACTORIES[kind]
    agent = rlexp.PPO(*small("PPO", 32)[1:], env=factory).learn(tmp_path / "run")
    assert agent.evaluate(3).returns == [10.0] * 3  # 1 + 2 + 3 + 4
    assert agent.predict(np.zeros(3, np.float32)) in (-2, -1, 0)  # its native actions
    loaded = rlexp.PPO.load(tmp_path / "run", env=factory)
    assert loaded.evaluate(3).returns == [10.0] * 3
    loaded.resume("trainer.total_steps=64")
    assert loaded.summary is not None
    assert loaded.summary["env_steps"] == 64
    assert_same(weights(rlexp.PPO.load(agent.save(tmp_path / "saved"), env=factory)), weights(agent))


def test_a_run_on_an_environment_made_in_python_asks_for_it_when_loaded(tmp_path: Path) -> None:
    rlexp.PPO(*small("PPO", 32)[1:], env=make_counting).learn(tmp_path / "run")
    with pytest.raises(EnvError, match=r"make_counting.*env="):
        rlexp.PPO.load(tmp_path / "run")


def test_a_factory_that_makes_something_else_is_refused() -> None:
    with pytest.raises(EnvError, match=r"returned int, not a gymnasium\.Env"):
        rlexp.PPO(*QUICK, env=lambda: 3)  # type: ignore[arg-type, return-value]


# ---- what the constructor takes


MORE = ["threads=1", "compile=false", "model.hidden=[8]"]


def settings(agent: Agent) -> tuple[str, int]:
    return agent.config["env"]["id"], agent.config["seed"]


@pytest.mark.parametrize(("env", "id_"), [("acrobot", "Acrobot-v1"), ("MountainCar-v0", "MountainCar-v0")])
def test_an_environment_can_be_named_by_choice_or_by_gymnasium_id(env: str, id_: str) -> None:
    assert settings(rlexp.PPO(*MORE, env=env, seed=3)) == (id_, 3)


def test_settings_at_the_top_are_keywords() -> None:
    agent = rlexp.PPO(name="it's mine", device="cpu", compile=False, threads=1, progress="none")
    assert [agent.config[key] for key in ("name", "device", "compile", "threads")] == ["it's mine", "cpu", False, 1]


def make_env() -> gym.Env:
    return CountingEnv()


CALLS = {
    "PPO('MlpPolicy', 'CartPole-v1')": "PPO: 'MlpPolicy' is not a setting. Write PPO(env='CartPole-v1', …) and",
    "PPO('acrobot', seed=3)": "PPO: 'acrobot' is not a setting. Write PPO(env='acrobot', …) and settings",
    "PPO(CountingEnv())": "PPO: CountingEnv is not a setting. Write PPO(env=CountingEnv, …) and settings",
    "PPO(gym.make('CartPole-v1'))": 'Write PPO(env="CartPole-v1", …) and',
    "SAC('MlpPolicy', gym.make('Pendulum-v1'))": 'Write SAC(env="Pendulum-v1", …) and',
    "SAC('MlpPolicy')": "SAC: 'MlpPolicy' is not a setting. Write SAC(env='Pendulum-v1', …) and",
    "Agent('algo=td3', 3)": "Agent: int is not a setting. Write Agent(env='Pendulum-v1', …) and",
    "SAC('MlpPolicy', env='MountainCarContinuous-v0')": "Write SAC(env='MountainCarContinuous-v0', …) and",
    "SAC({'gamma': 0.9}, env='Pendulum-v1')": "SAC: dict is not a setting. Write SAC(env='Pendulum-v1', …) and",
    "SAC('MlpPolicy', env=lambda: CountingEnv())": "Write SAC(env=my_function, …) and",
    "SAC('env=pendulum', 3)": 'SAC: int is not a setting. Write SAC("env=pendulum", …) and',
    "PPO(make_env)": "PPO: function is not a setting. Write PPO(env=make_env, …) and settings",
    "PPO(env=CountingEnv())": "because several are needed: env=CountingEnv or env=lambda: CountingEnv(…).",
    "SAC(env=gym.make('Pendulum-v1'))": (
        'several are needed: env="Pendulum-v1" or env=lambda: gym.make("Pendulum-v1").'
    ),
    "SAC(env=gym.make('Pendulum-v1', g=3.0))": 'several are needed: env=lambda: gym.make("Pendulum-v1", g=3.0).',
    "SAC(env=gym.wrappers.ClipAction(gym.make('Pendulum-v1')))": (
        'several are needed: env=lambda: ClipAction(gym.make("Pendulum-v1"), …).'
    ),
    "PPO(env=gym.wrappers.TimeLimit(CountingEnv(), 9))": "needed: env=lambda: TimeLimit(CountingEnv(…), …).",
    "PPO(env=3)": "PPO: env must be a function that makes an environment, because several are needed: env=my_function.",
    "PPO(env='cartpol')": "PPO: there is no environment 'cartpol'. Did you mean cartpole",
    "PPO('env=acrobot', env='cartpole')": "PPO: the environment is given twice.",
    "PPO(learning_rate=1e-3)": 'PPO: write learning_rate=0.001 as PPO("algo.learning_rate=0.001", …).',
    "PPO(total_steps=50)": 'PPO: write total_steps=50 as PPO("trainer.total_steps=50", …).',
    "PPO(n_envs=4)": 'PPO: write n_envs=4 as PPO("env.num_envs=4", …).',
    "PPO(batch_size=4)": 'PPO: write batch_size=4 as PPO("algo.minibatch_size=4", …).',
    "Agent('algo=bc', 'env=pendulum', net_arch=[8])": 'Agent: write net_arch=[8] as Agent("model.hidden=[8]", …).',
    "Agent('algo=td3', 'env=pendulum', lr=1.0)": (
        'write lr=1.0 as Agent("algo.actor_learning_rate=1.0", …) or Agent("algo.critic_learning_rate=1.0", …).'
    ),
    "SAC(zoo='td3_pendulum')": "SAC: write zoo='td3_pendulum' as SAC(\"zoo=td3_pendulum\", …).",
    "SAC(buffer='her')": "SAC: write buffer='her' as SAC(\"buffer=her\", …).",
    "SAC(model=dict(hidden=[8]))": "SAC: write model={'hidden': [8]} as SAC(\"model={hidden:[8]}\", …).",
    "SAC(**{'algo.gamma': 0.9})": 'SAC: write algo.gamma=0.9 as SAC("algo.gamma=0.9", …).',
    "SAC(buffer=CountingEnv())": 'SAC: write buffer=… as SAC("buffer=…", …).',
    "SAC(env='pendulum', ent_coef='auto')": "write ent_coef='auto' as SAC(\"algo.alpha=null\", …).",
    "SAC(env='pendulum', policy_kwargs={})": "SAC has no argument 'policy_kwargs'. Networks have settings of their own",
    "PPO(sead=3)": "PPO has no argument 'sead'. Did you mean seed?",
    "PPO().learn(total_timesteps=1000)": (
        'PPO.learn: write total_timesteps=1000 as PPO("trainer.total_steps=1000", …).'
    ),
    "PPO().learn(1000)": 'PPO.learn: write total_steps=1000 as PPO("trainer.total_steps=1000", …).',
    "Agent('algo=bc', 'env=pendulum').learn(9)": 'total_updates=9 as Agent("trainer.total_updates=9", …).',
    "PPO().learn(seed=3)": "PPO.learn: write seed=3 as PPO(seed=3, …).",
    "PPO().learn(callback=None)": "PPO.learn has no argument 'callback'. There are: run_dir.",
    "PPO().learn(env='cartpole')": "PPO.learn: write env='cartpole' as PPO(env='cartpole', …).",
    "PPO.load('x', env=gym.make('CartPole-v1'))": 'several are needed: env=lambda: gym.make("CartPole-v1").',
    "PPO.load('x', env=CountingEnv())": "PPO.load: env must be a function that makes an environment",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_answered_with_the_right_one(call: str) -> None:
    names = {"PPO": rlexp.PPO, "SAC": rlexp.SAC, "Agent": Agent, "gym": gym}
    with pytest.raises(ConfigError) as caught:
        eval(call, names | {"CountingEnv": CountingEnv, "make_env": make_env})
    assert CALLS[call] in str(caught.value)


def test_an_agent_shows_what_it_is(tmp_path: Path) -> None:
    agent = make("PPO", 32, "seed=4")
    assert repr(agent) == "<PPO: ppo in CartPole-v1, seed 4, untrained>"
    agent.learn(tmp_path / "run")
    assert repr(agent) == f"<PPO: ppo in CartPole-v1, seed 4, run {tmp_path / 'run'}>"
    saved = Agent.load(agent.save(tmp_path / "saved"))
    assert repr(saved) == f"<Agent: ppo in CartPole-v1, seed 4, policy {tmp_path / 'saved'}>"


# ---- runs of earlier versions


def test_a_run_saved_with_workers_that_it_did_not_have_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken and ignored once; what is new is refused."""
    run, write = tmp_path / "run", files.config_bytes
    with monkeypatch.context() as earlier:
        earlier.setattr(files, "config_bytes", lambda config: write(config | {"env": config["env"] | {"workers": 2}}))
        make("DQN", 64).learn(run)
    for place in (run, find_checkpoint(run, "last")[1].path):
        assert "workers: 2" in (place / "config.yaml").read_text()
    assert Agent.load(run).config["env"]["workers"] is None
    env = Agent.load(run)._runner.env
    assert len(RunDataset(path=str(run)).load(env)) == 64
    assert len(ExpertDataset(run=str(run), episodes=1).load(env)) > 0
    resume_run(run, ["trainer.total_steps=96"], trust=EVERYTHING)
    assert "workers: null" in (run / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"env\.workers=2 has no effect"):
        resume_run(run, ["env.workers=2"], trust=EVERYTHING)


def test_workers_are_kept_where_there_are_some() -> None:
    atari = {"backend": "vector", "vectorization": "sync", "workers": 2}
    assert migrated({"env": atari}) == {"env": atari | {"workers": None}}
    config = {"env": {"vectorization": "subprocess", "workers": 2}}
    assert migrated(config) == config


@pytest.mark.parametrize(
    ("name", "saved", "refused"),
    [
        ("DQN", {"noisy_sigma": 0.3}, "algo.noisy_sigma=0.3"),
        ("TD3", {"target_noise": 0.0, "target_noise_clip": 0.3}, "algo.target_noise_clip=0.3"),
        ("DrQv2", {"shift": 2}, None),
    ],
)
def test_a_run_saved_with_settings_of_an_algorithm_that_had_no_effect_can_be_used(
    name: str, saved: dict[str, Any], refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write = tmp_path / "run", files.config_bytes
    with monkeypatch.context() as earlier:
        earlier.setattr(files, "config_bytes", lambda config: write(config | {"algo": config["algo"] | saved}))
        make(name, 64).learn(run)
    Agent.load(run).evaluate(1)
    resume_run(run, ["trainer.total_steps=96"], trust=EVERYTHING)
    if refused is not None:
        with pytest.raises(ConfigError, match="has no effect"):
            resume_run(run, [refused], trust=EVERYTHING)


def test_what_has_an_effect_is_kept_and_so_are_settings_of_others() -> None:
    for algo in (
        {"_target_": "rlexp.algos.dqn.DQN", "noisy": True, "noisy_sigma": 0.3},
        {"_target_": "rlexp.algos.td3.TD3", "target_noise": 0.1, "target_noise_clip": 0.3},
        {"_target_": "rlexp.algos.td3.TD3", "target_noise": 0.0, "target_noise_clip": 0.3}
        | {"schedules": {"target_noise": {"end": 0.2}}},
        {"_target_": "mine.Own", "noisy": False, "noisy_sigma": 0.3},
    ):
        assert migrated({"algo": algo}) == {"algo": algo}
    ignored = {"_target_": "rlexp.algos.td3.TD3", "target_noise": 0.0, "target_noise_clip": 0.5}
    schedules = {"target_noise_clip": {"end": 0.1}, "tau": {"end": 0.1}}
    without = {"schedules": {"target_noise_clip": None, "tau": {"end": 0.1}}}
    assert migrated({"algo": ignored | {"schedules": schedules}}) == {"algo": ignored | without}


# ---- agents side by side


OTHER = ["seed=9", "algo.gamma=0.5", "algo.learning_rate=0.1", "algo.clip_range=0.9", "env.num_envs=2"]
OTHER += ["model.hidden=[8,8]"]


class TrainsAnother(Callback):
    """In the middle of one agent's run, makes, trains and uses another."""

    def on_step(self, trainer: Any) -> None:
        self.runs = getattr(self, "runs", 0) + 1
        folder = trainer.work.run_dir.path.with_name(f"other-{self.runs}")
        agent = make("PPO", 64, *OTHER).learn(folder)
        agent.predict(observations(agent, 4), deterministic=False)
        agent.evaluate(1)
        make("DQN", 32, "seed=5").evaluate(1, deterministic=False)


def test_two_agents_in_one_process_do_not_touch_each_other(tmp_path: Path) -> None:
    alone = make("PPO", 96).learn(tmp_path / "alone")
    target = f"{__name__}.TrainsAnother"
    beside = make("PPO", 96, f"trainer.callbacks=[{{_target_: {target}}}]").learn(tmp_path / "beside" / "run")
    assert len(list((tmp_path / "beside").glob("other-*"))) == 3  # after each rollout of the first
    assert_same(weights(beside), weights(alone))
    assert_same(saved_state(tmp_path / "beside" / "run"), saved_state(tmp_path / "alone"))
    make("PPO", 64, *OTHER).learn(tmp_path / "again")
    assert_same(
        saved_state(tmp_path / "beside" / "other-1"), saved_state(tmp_path / "again")
    )  # nor the first the second
