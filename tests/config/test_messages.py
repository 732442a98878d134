"""What a person reads who mistyped something: the cause, the nearest right name, and nothing of Hydra or OmegaConf."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.check import check_config
from rlexp.config.component import REGISTRY
from rlexp.config.compose import compose, register
from rlexp.config.foreign import NOTES, OURS
from rlexp.config.overrides import apply_overrides
from rlexp.errors import ConfigError

INTERNALS = re.compile(
    r"Config'|DictConfig|ListConfig|struct|type hint|object_type|full_key|Traceback|hydra\.cc|NoneType"
)

MISTAKES = {
    # a mistyped key
    "algo=crr algo.betta=3": "algo.betta: CRR has no such setting. Did you mean beta?",
    "algo=crr +algo.betta=3": "algo.betta: CRR has no such setting. Did you mean beta?",
    "algo=crr algo={betta:3}": "algo.betta: CRR has no such setting. Did you mean beta?",
    "trainer.total_step=3": "trainer.total_step: Replay has no such setting. Did you mean total_steps?",
    "logger=[tensorboard] logger.tensorboard.hparam=false": (
        "logger.tensorboard.hparam: TensorBoardLogger has no such setting. Did you mean hparams?"
    ),
    "algo.foo.bar=3": "algo.foo: DiscreteSAC has no such setting. There are: gamma, ",
    "algo.gamma.x=3": "algo.gamma must be a number",
    "buffer=rollout algo=ppo buffer.capacity=3": "buffer.capacity: RolloutBuffer has no such setting.",
    "algo=crr algo.schedules.betta={end:1}": "algo.schedules.betta: no such setting. Did you mean beta?",
    "algo=crr algo.schedules.betta.end=1": "algo.schedules.betta: no such setting. Did you mean beta?",
    "algo=crr algo.schedules.beta.endd=1": "algo.schedules.beta.endd: no such setting. Did you mean end?",
    "algo=sac algo.schedules.n_critics.end=1": (
        "algo.schedules.n_critics: n_critics cannot be scheduled. Those that can: gamma, actor_learning_rate, "
    ),
    # a mistyped root key or group
    "sead=3": "sead: no such setting or group. Did you mean seed?",
    "+sead=3": "sead: no such setting. Did you mean seed?",
    "evn=cartpole": "evn: no such setting or group. Did you mean env?",
    # a setting of a part, or another library's word for it
    "total_steps=1000": "total_steps: no such setting or group. Did you mean trainer.total_steps?",
    "+total_steps=1000": "total_steps: no such setting. Did you mean trainer.total_steps?",
    "totalsteps=1000": "totalsteps: no such setting or group. Did you mean trainer.total_steps?",
    "total_timesteps=1000": "total_timesteps: no such setting or group. Did you mean trainer.total_steps?",
    "total_timesteps=1000 n_envs=4": "total_timesteps: no such setting or group. Did you mean trainer.total_steps?",
    "n_envs=4": "n_envs: no such setting or group. Did you mean env.num_envs?",
    "gamma=0.9": "gamma: no such setting or group. Did you mean algo.gamma?",
    "algo=ppo learning_rate=1e-3": "learning_rate: no such setting or group. Did you mean algo.learning_rate?",
    "algo=ppo lr=1e-3": "lr: no such setting or group. Did you mean algo.learning_rate?",
    "algo=td3 env=pendulum lr=1": (
        "lr: no such setting or group. Did you mean algo.actor_learning_rate or algo.critic_learning_rate?"
    ),
    "algo=ppo n_steps=64": "n_steps: no such setting or group. Did you mean trainer.rollout_steps?",
    "algo=dqn n_steps=3": "n_steps: no such setting or group. Did you mean buffer.n_step?",
    "net_arch=[64,64]": "net_arch: no such setting or group. Did you mean model.hidden?",
    "logger=[tensorboard] hparams=false": "hparams: no such setting or group. Did you mean logger.tensorboard.hparams?",
    "xyzzy=3": "xyzzy: no such setting or group. There are: name, seed, ",
    "algo=ppo algo.lr=1e-3": "algo.lr: PPO has no such setting. Did you mean learning_rate?",
    "trainer.total_timesteps=9": "trainer.total_timesteps: Replay has no such setting. Did you mean total_steps?",
    # a mistyped choice
    "algo=crrr": "algo=crrr: there is no such algo. Did you mean crr?",
    "env=cartpol": "env=cartpol: there is no such env. Did you mean cartpole",
    "logger=[tensorboard,wand]": "logger=wand: there is no such logger. Did you mean wandb?",
    "zoo=ppo_cartpol": "zoo=ppo_cartpol: there is no such zoo. Did you mean ppo_cartpole",
    "env=mario": "env=mario: there is no such env. Did you mean atari?",
    "algo=xyzzy": "algo=xyzzy: there is no such algo. There are: a2c, ",
    # a value that cannot be
    "algo.gamma=abc": "algo.gamma must be a number, not abc.",
    "algo=sac algo.alpha=auto": "algo.alpha must be a number, or null (learned), not auto.",
    "trainer.stop_return=x": "trainer.stop_return must be a number, or null, not x.",
    "env.workers=x": "env.workers must be a whole number, or null (one per CPU, at most num_envs), not x.",
    "algo.gamma=2": "algo.gamma must be at most 1, not 2.0.",
    "algo=ppo algo.epochs=1.5": "algo.epochs must be a whole number, not 1.5.",
    "algo=ppo algo.normalize_advantage=perhaps": "algo.normalize_advantage must be true or false, not perhaps.",
    "algo=crr algo.weight_type=foo": "algo.weight_type must be one of binary, exp, not foo.",
    "model.hidden=16": "model.hidden must be a list such as [16].",
    "trainer.total_steps=1e-3": "trainer.total_steps must be a whole number, not 0.001.",
    "model.hidden=[16,x]": "model.hidden[1] must be a whole number, not x.",
    "env.kwargs=3": "env.kwargs must be settings such as {key: value}.",
    "seed=-1": "seed must be at least 0, not -1.",
    "name=null": "name must not be null.",
    "name=a/b": "name is the run's folder below outputs/ and must not hold a slash, not 'a/b'.",
    "compile=3.5": "compile must be auto, true or false, not 3.5.",
    "compile=1": "compile must be auto, true or false, not 1.",
    "threads=0": "threads must be auto or a whole number from 1, not 0.",
    "progress=foo": "progress must be auto, rich, plain or none, not 'foo'.",
    # something missing, superfluous or in the wrong form
    "env=gym": "env.id must be given: env.id=…",
    "env.kwargs.foo=1": "env.kwargs.foo is a new keyword argument; add it with a plus: +env.kwargs.foo=1",
    "env.kwargs={foo:1}": "env.kwargs.foo is a new keyword argument; add it with a plus: +env.kwargs.foo=…",
    "+algo.gamma=0.9": "+algo.gamma exists already; leave out the plus: algo.gamma=…",
    "dataset.foo=3": "dataset.foo: no dataset is chosen. Choose one first: dataset=… (see: rlexp list dataset)",
    "dataset.path=x": (
        "dataset.path: no dataset is chosen. Choose one first: dataset=hdf5 or dataset=npz or dataset=run"
    ),
    "algo=crr dataset.path=x": (
        "dataset.path: RandomDataset has no such setting. dataset=hdf5 and dataset=npz and dataset=run have it."
    ),
    "algo=sac algo.learning_starts=9": (
        "algo.learning_starts: SAC has no such setting. Did you mean trainer.learning_starts?"
    ),
    "algo=sac algo.buffer_size=9": "algo.buffer_size: SAC has no such setting. Did you mean buffer.capacity?",
    "algo=sac buffer.alpha=0.6": "buffer.alpha: ReplayBuffer has no such setting. buffer=prioritized has it.",
    "algo=sac buffer.size=9": "buffer.size: ReplayBuffer has no such setting. There are: capacity, n_step.",
    "algo=ppo algo.n_steps=9": "algo.n_steps: PPO has no such setting. Did you mean trainer.rollout_steps?",
    "algo=td3 algo.policy_delay=2": "algo.policy_delay: TD3 has no such setting. Did you mean actor_interval?",
    "algo=sac algo.learning_rate=1": (
        "algo.learning_rate: SAC has no such setting. "
        "Did you mean actor_learning_rate or critic_learning_rate or alpha_learning_rate?"
    ),
    "algo=sac ent_coef=auto": "ent_coef: no such setting or group. Did you mean algo.alpha?",
    "algo=sac algo.ent_coef=auto": "algo.ent_coef: SAC has no such setting. Did you mean alpha?",
    "algo=ppo algo.ent_coef=0": "algo.ent_coef: PPO has no such setting. Did you mean entropy_coef?",
    "algo=rainbow algo.ent_coef=0": (  # whose memory has an alpha of its own
        "algo.ent_coef: Rainbow has no such setting. algo=a2c and algo=ppo and algo=recurrent_ppo have entropy_coef."
    ),
    "algo=sac algo.vf_coef=1": (
        "algo.vf_coef: SAC has no such setting. algo=a2c and algo=ppo and algo=recurrent_ppo have value_coef."
    ),
    "algo=ppo algo.vf_coef=1": "algo.vf_coef: PPO has no such setting. Did you mean value_coef?",
    "algo=ppo algo.clip_range_vf=1": "algo.clip_range_vf: PPO has no such setting. Did you mean value_clip?",
    "algo=ppo algo.batch_size=8": "algo.batch_size: PPO has no such setting. Did you mean minibatch_size?",
    "algo=sac algo.batch_size=8": "algo.batch_size: SAC has no such setting. Did you mean trainer.batch_size?",
    "algo=td3 algo.action_noise=ou": "algo.action_noise: TD3 has no such setting. Did you mean exploration?",
    "algo=td3 algo.target_policy_noise=1": (
        "algo.target_policy_noise: TD3 has no such setting. Did you mean target_noise?"
    ),
    "algo=td3 algo.policy_frequency=2": "algo.policy_frequency: TD3 has no such setting. Did you mean actor_interval?",
    "algo=td3 algo.train_freq=2": "algo.train_freq: TD3 has no such setting. Did you mean trainer.train_frequency?",
    "algo=sac algo.gradient_steps=2": (
        "algo.gradient_steps: SAC has no such setting. Did you mean trainer.gradient_updates_per_step?"
    ),
    "algo=dqn algo.target_update_interval=9": (
        "algo.target_update_interval: DQN has no such setting. Did you mean target_interval?"
    ),
    "algo=dqn algo.exploration_fraction=0.1": (
        "algo.exploration_fraction: DQN has no such setting. It is written algo.schedules.epsilon.until=0.2."
    ),
    "algo=cql total_timesteps=9": "total_timesteps: no such setting or group. Did you mean trainer.total_updates?",
    "algo=td3_bc algo.ent_coef=0.1": (  # whose alpha weighs Q against cloning
        "algo.ent_coef: TD3BC has no such setting. algo=a2c and algo=ppo and algo=recurrent_ppo have entropy_coef."
    ),
    "algo=awac algo.weight_temp=3": "algo.weight_temp: AWAC has no such setting. ",  # whose beta is its inverse
    "algo=sac algo.anneal_lr=true": "algo.anneal_lr: SAC has no such setting. There are: ",
    "algo=iql algo.weight_temp=3": "algo.weight_temp: IQL has no such setting. Did you mean beta?",
    "algo=sac algo.policy_kwargs=x": (
        "algo.policy_kwargs: SAC has no such setting. Networks have settings of their own: model.hidden=[256,256], "
    ),
    "policy_kwargs={net_arch:[8]}": "policy_kwargs: no such setting or group. Networks have settings of their own: ",
    "use_sde=true": "use_sde: no such setting or group. There is no state-dependent exploration (gSDE).",
    "algo=trpo algo.tau=1": (
        "algo.tau: TRPO has no such setting. 27 others have it (docs/reference.md lists the settings of each)."
    ),
    "algo=null": "algo must be a component, not None: choose one with algo=…",
    "~algo.gamma": "algo.gamma can be changed but not removed.",
    "=3": "A group takes the name of one of its choices, e.g. env=cartpole (see: rlexp list).",
    "algo.gamma": "'algo.gamma' is not of the form key=value.",
    "model.hidden=[1": "'model.hidden=[1' cannot be read as key=value",
    "algo=ppo,dqn": "algo=ppo,dqn asks for several runs: add --multirun. One list is written algo=[ppo,dqn].",
    "trainer.callbacks=[3]": "trainer.callbacks[0] must be a component, not 3: write {_target_: package.Class, …}",
    "algo._target_=foo.Bar": "algo._target_=foo.Bar cannot be imported: there is no package 'foo'.",
    "algo._target_=rlexp.algos.Foo": "algo._target_=rlexp.algos.Foo: rlexp.algos has no 'Foo'.",
    # a preset that was made for something else
    "zoo=discrete_sac_cartpole buffer=rollout": (
        "buffer.capacity: RolloutBuffer has no such setting, but zoo=discrete_sac_cartpole sets it for another buffer."
    ),
    "zoo=sac_pendulum algo=ppo": (
        "algo.actor_learning_rate: PPO has no such setting, but zoo=sac_pendulum sets it for another algo."
    ),
    "zoo=dqn_cartpole algo=ppo": (
        "buffer.capacity: RolloutBuffer has no such setting, but zoo=dqn_cartpole sets it for another buffer. "
        "The preset does not go with algo=ppo: leave out one of the two."
    ),
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_explained(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(typed.split())
    message = str(caught.value)
    assert message.startswith(MISTAKES[typed])
    assert not INTERNALS.search(message)
    assert "\n" not in message


def test_every_word_of_another_library_is_answered_with_a_setting_that_is_there() -> None:
    register()
    fields = {
        (group, field.name)
        for group, choices in REGISTRY.items()
        for cls in choices.values()
        for field in dataclasses.fields(cls)
    }
    known = {name for _, name in fields} | {f"{group}.{name}" for group, name in fields}
    for names in OURS.values():
        assert {names} <= known if isinstance(names, str) else set(names) <= known
    for needed, note in NOTES.values():
        assert needed is None or ("algo", needed) in fields
        for group, name in re.findall(r"\b(algo|model)\.(\w+)", note):
            assert (group, name) in fields


def test_null_takes_back_what_an_algorithm_or_preset_chose() -> None:
    assert compose(["algo=crr"])["dataset"] is not None
    assert compose(["algo=crr", "dataset=null"])["dataset"] is None
    assert compose(["algo=ppo", "dataset=null"])["dataset"] is None
    assert compose(["zoo=null"])["algo"] == compose()["algo"]
    assert compose(["algo=dqn", "algo.schedules.epsilon=null"])["algo"]["schedules"]["epsilon"] is None


def test_a_whole_number_may_be_written_as_a_power_of_ten() -> None:
    config = compose(["trainer.total_steps=1e4", "seed=1.2e1", "model.hidden=[1e2,32]", "algo.gamma=1e0", "name=1e4"])
    assert (config["trainer"]["total_steps"], config["seed"], config["model"]["hidden"]) == (10_000, 12, [100, 32])
    assert type(config["trainer"]["total_steps"]) is int
    assert (config["algo"]["gamma"], config["name"]) == (1.0, "10000.0")  # text is left as Hydra reads it
    config["trainer"]["total_steps"] = 2e4  # as an override of a saved run has it
    assert check_config(config)["trainer"]["total_steps"] == 20_000
    config["trainer"]["total_steps"] = 2.5
    with pytest.raises(ConfigError, match=r"trainer\.total_steps must be a whole number, not 2\.5"):
        check_config(config)


def test_keyword_arguments_of_the_environment_are_added_with_a_plus() -> None:
    config = compose(["env=lunar_lander", "+env.kwargs.gravity=-5.0", "+env.kwargs={enable_wind: true}"])
    assert config["env"]["kwargs"] == {"gravity": -5.0, "enable_wind": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo: {betta: 3}", "algo/mine.yaml: algo.betta: CRR has no such setting. Did you mean beta?"),
        ("algo: {beta: much}", "algo/mine.yaml: algo.beta must be a number, not much."),
        ("algo: {beta: -3}", "algo.beta must be greater than 0, not -3.0."),
        ("algo: {weight_type: foo}", "algo/mine.yaml: algo.weight_type must be one of binary, exp, not foo."),
        ("algo: {schedules: {betta: {end: 1}}}", "algo/mine.yaml: algo.schedules.betta: "),
        ("sead: 3", "algo/mine.yaml: sead: "),
        (
            "_target_: my_package.Mine",
            "algo/mine.yaml: _target_ stands at the top level, since the file is of `# @package _global_`. "
            "Put it and its settings below `algo:`",
        ),
        ("trainer: {total_updates: 1e4}", "algo/mine.yaml: trainer.total_updates must be a whole number: write 10000"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "algo").mkdir()
    header = "# @package _global_\ndefaults: [/schema/algo/crr, override /trainer: offline, _self_]\n"
    (tmp_path / "algo" / "mine.yaml").write_text(header + text)
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        compose(["algo=mine"])
    assert str(caught.value).startswith(message)
    assert not INTERNALS.search(str(caught.value))


def test_a_file_that_refers_to_a_choice_that_is_not_there_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.yaml").write_text("# @package _global_\ndefaults: [override /env: cartpol, _self_]\n")
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"env=cartpol: there is no such env\. Did you mean cartpole"):
        compose(["zoo=mine"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"a": "defaults: [b, _self_]", "b": "defaults: [a]"},
            "zoo/b.yaml: configs stand on each other: zoo/a on zoo/b on zoo/a.",
        ),
        (
            {"a": "defaults: [{/zoo: b}]", "b": "seed: 1"},
            "zoo/a.yaml: configs stand on each other: zoo/a on zoo/a. "
            "In its defaults, `/zoo: NAME` is the zoo that was chosen: write NAME alone.",
        ),
        ({"a": f"name: {'[' * 3000}{']' * 3000}"}, "zoo/a.yaml is nested too deeply."),
    ],
)
def test_files_that_have_no_end_are_named(texts: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for name, text in texts.items():
        (tmp_path / "zoo" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        compose(["zoo=a"], [str(tmp_path)])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name", ["breakout", "Breakout", "ALE/Breakout-v5", "BreakoutNoFrameskip-v4", "BreakoutDeterministic-v4"]
)
def test_a_game_that_is_taken_for_an_environment_is_answered_with_how_to_play_it(name: str) -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError) as caught:
        compose(["algo=ppo", f"env={name}"])
    assert str(caught.value) == f"env={name}: there is no such env. It is an Atari game: env=atari env.game=breakout"


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "FrozenLake-v1", "phys2d/CartPole-v1", "my_package:My", "Xylophone-v9"]
)
def test_a_gymnasium_id_that_is_taken_for_a_choice_is_answered_with_how_to_write_it(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["algo=ppo", f"env={name}"])
    hint = f"A Gymnasium id is written env=gym env.id={name}"
    assert str(caught.value) == f"env={name}: there is no such env. {hint}"
    written = hint.partition(" written ")[2].split()
    assert compose(["algo=ppo", *written])["env"]["id"] == name


def test_a_game_is_an_unknown_environment_where_atari_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"env=breakout: there is no such env\. There are: acrobot, "):
        compose(["algo=ppo", "env=breakout"])


def test_a_file_that_is_no_yaml_names_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.yaml").write_text("# @package _global_\nseed: 1\nalgo: [\n")
    with pytest.raises(ConfigError, match=r"zoo/mine\.yaml.*, line 4: this is no YAML \(expected the node content"):
        compose(["zoo=mine"])


def test_a_config_folder_that_is_not_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"config folder .*nowhere .* does not exist"):
        compose()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ".."}, "name is the run's folder below outputs/ and must not hold a slash, not '..'."),
        ({"name": ""}, "name is the run's folder below outputs/ and must not hold a slash, not ''."),
        ({"compile": "perhaps"}, "compile must be auto, true or false, not 'perhaps'."),
        ({"compile": None}, "compile must be auto, true or false, not None."),
        ({"threads": 1.5}, "threads must be auto or a whole number from 1, not 1.5."),
        ({"threads": True}, "threads must be auto or a whole number from 1, not True."),
        ({"threads": "many"}, "threads must be auto or a whole number from 1, not 'many'."),
        ({"seed": "x"}, "seed must be a whole number, not x."),
        (
            {"algo": {"_target_": "rlexp.algos.SAC", "alpha": "auto"}},
            "algo.alpha must be a number, or null (learned), ",
        ),
        ({"sead": 1}, "sead: no such setting. Did you mean seed?"),
        ({"env": None}, "env must be a component, not None: choose one with env=…"),
        ({"env": {"id": "CartPole-v1"}}, "env must be a component, not {'id': 'CartPole-v1'}: choose one with env=…"),
        ({"logger": 3}, "logger must be settings by name, not 3"),
    ],
)
def test_the_top_level_of_a_loaded_config_is_checked_like_that_of_a_new_one(
    settings: dict[str, Any], message: str, default: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(default | settings)
    assert str(caught.value).startswith(message)


def test_a_setting_without_its_group_is_named_for_a_saved_run_as_well(default: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no such setting\. Did you mean trainer\.total_steps\?$"):
        apply_overrides(default, ["total_timesteps=3"])


@pytest.fixture(scope="module")
def default() -> dict[str, Any]:
    return compose()
