"""A user's own classes through ``_target_``, without registering anything, under the same checks as rlexp's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from rlexp.config.check import build
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, compose
from rlexp.errors import ConfigError, DataError, EnvError, UntrustedError
from rlexp.loading import load
from rlexp.models import NetDefaults
from rlexp.models.checked import CheckedModel
from rlexp.runner import Runner

MODULE = '''
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any, ClassVar
import gymnasium as gym
from rlexp.algos import DQN, OffPolicyAlgorithm
from rlexp.callbacks import Callback
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive
from rlexp.envs import GymEnv
from rlexp.loggers.base import Logger
from rlexp.models import Network
from torch import nn


@dataclass(eq=False, kw_only=True)
class MyDQN(DQN):
    """No decorator: nothing registers it."""

    bonus: Fraction = 0.5  # in [0, 1]
    sizes: tuple[int, ...] = (1, 2)


@component("algo")
@dataclass(eq=False, kw_only=True)
class DecoratedDQN(DQN):
    bonus: Fraction = 0.25


@dataclass(eq=False, kw_only=True)
class MyModel:
    width: Count = 8

    def build(self, spec, out, **keywords):
        return Network(hidden=(self.width,)).build(spec, out, **keywords)


class Half(gym.Wrapper):
    def __init__(self, env, factor: float = 0.5):
        super().__init__(env)
        self.factor = factor

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, self.factor * reward, *rest


@dataclass
class StopAt(Callback):
    steps: Count = 64
    seen: int = field(init=False, default=0)

    def on_step(self, trainer):
        self.seen += 1
        if trainer.env_steps >= self.steps:
            trainer.stop("enough")


class Keeper(Logger):
    """Not a dataclass: described by its signature."""

    def __init__(self, file: str, every: Count = 1, note: str | None = None):
        self.file, self.every = file, every

    def log(self, index, row):
        with open(self.file, "a") as out:
            out.write(f"{index}\\n")


class AnyKeyword(Callback):
    def __init__(self, **keywords):
        self.keywords = keywords


@dataclass(eq=False, kw_only=True)
class MyEnv(GymEnv):
    id: str = "CartPole-v1"
    difficulty: Positive = 1.0


class Network_(nn.Module):
    pass


class NarrowModel:
    def build(self, spec, out, *, defaults):
        return nn.Linear(4, out)


class ListModel:
    def build(self, spec, out, **keywords):
        return [1, 2]


class WrongWidth:
    def build(self, spec, out, **keywords):
        return nn.Linear(4, out + 1)


class WrongInput:
    def build(self, spec, out, **keywords):
        return nn.Linear(5, out)


class WrongFeatures:
    def build(self, spec, out, **keywords):
        return nn.Linear(4, 8)


class NoArgument:
    def load(self):
        return None


class NoTransitions:
    def load(self, env):
        return {"observations": []}


class ShortLogger(Logger):
    def log(self, row):
        pass


class ShortCallback(Callback):
    def on_eval(self, evaluation):
        pass


class MistypedCallback(Callback):
    def on_evaluate(self, trainer, evaluation):
        pass


@dataclass(eq=False, kw_only=True)
class ShortAct(DQN):
    def act(self, obs):
        return obs


@dataclass(eq=False, kw_only=True)
class Homeless(OffPolicyAlgorithm):
    def build(self, spec, model):
        pass

    def act(self, obs, carry, *, explore, generator):
        pass

    def update(self, batch):
        pass


class RealEnv(gym.Env):
    pass


class Broken:
    def __init__(self, size: int = 3):
        raise RuntimeError("cannot be made on a Monday")
'''

SMALL = ["compile=false", "threads=1", "progress=none", "device=cpu", "trainer.total_steps=128", "trainer.batch_size=8"]
SMALL += ["trainer.learning_starts=32", "trainer.log_interval=32", "trainer.eval_episodes=1", "buffer.capacity=200"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's package on sys.path, and a folder of configs that name its classes."""
    (tmp_path / "my_package.py").write_text(MODULE)
    files = {
        "algo/mine": """\
# @package _global_
# My own algorithm
defaults: [override /trainer: replay, override /buffer: replay, override /model: mine, _self_]
algo: {_target_: my_package.MyDQN, bonus: 0.75}
""",
        "model/mine": "# My own network\n_target_: my_package.MyModel\n",
        "env/mine": "# My own environment\n_target_: my_package.MyEnv\n",
        "logger/mine": "# @package logger.mine\n_target_: my_package.Keeper\nfile: ???\n",
    }
    for name, text in files.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path / "conf"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_package", None)
    REGISTRY["algo"].pop("decorated_dqn", None)
    ConfigStore.instance().repo["schema"]["algo"].pop("decorated_dqn.yaml", None)


def test_own_classes_of_every_kind_work_together_in_a_run(own: Path) -> None:
    wrapper, callback = "{_target_: my_package.Half, factor: 0.25}", "{_target_: my_package.StopAt, steps: 96}"
    config = compose(
        [
            *SMALL,
            "algo=mine",
            "logger=mine",
            f"logger.mine.file='{own / 'log.txt'}'",
            f"env.wrappers=[{wrapper}]",
            f"trainer.callbacks=[{callback}]",
        ]
    )
    assert config["algo"] | {"bonus": 0.75, "sizes": [1, 2], "gamma": 0.99} == config["algo"]  # its defaults, typed
    summary = Runner(config).train(own / "run")
    assert (summary["algo"], summary["stop_reason"], summary["env_steps"]) == ("my_dqn", "enough", 96)
    assert summary["eval"]["return_mean"] == pytest.approx(0.25 * summary["eval"]["length_mean"])  # CartPole: 1 a step
    rows = (own / "run" / "metrics.jsonl").read_text().splitlines()
    assert (own / "log.txt").read_text().split() == [str(i) for i in range(len(rows))]
    assert "loss/q" in json.loads(rows[-2])


REFUSED = {
    # key of the user's class, mistyped
    "algo=mine +algo.bonuss=1": "algo.bonuss: MyDQN has no such setting. Did you mean bonus?",
    "algo=mine algo.bonuss=1": "algo.bonuss: MyDQN has no such setting. Did you mean bonus?",
    "algo=mine model.widht=1": "model.widht: MyModel has no such setting. Did you mean width?",
    "env=mine +env.dificulty=1": "env.dificulty: MyEnv has no such setting. Did you mean difficulty?",
    "logger=mine logger.mine.file=x +logger.mine.evry=2": (
        "logger.mine.evry: Keeper has no such setting. Did you mean every?"
    ),
    "trainer.callbacks=[{_target_:my_package.StopAt,step:3}]": (
        "trainer.callbacks[0].step: StopAt has no such setting. Did you mean steps?"
    ),
    # type
    "algo=mine algo.bonus=x": "algo.bonus must be a number, not x.",
    "algo=mine +algo.sizes=[x]": "algo.sizes[0] must be a whole number, not x.",
    "logger=mine logger.mine.file=x +logger.mine.every=x": "logger.mine.every must be a whole number, not x.",
    "trainer.callbacks=[{_target_:my_package.StopAt,steps:x}]": "trainer.callbacks[0].steps must be a whole number",
    # range
    "algo=mine algo.bonus=1.5": "algo.bonus must be at most 1, not 1.5.",
    "algo=mine +model.width=0": "model.width must be at least 1, not 0.",
    "env=mine +env.difficulty=0": "env.difficulty must be greater than 0, not 0.0.",
    "logger=mine logger.mine.file=x +logger.mine.every=0": "logger.mine.every must be at least 1, not 0.",
    "trainer.callbacks=[{_target_:my_package.StopAt,steps:0}]": "trainer.callbacks[0].steps must be at least 1, not 0.",
    # schedules of its fields, too
    "algo=mine +algo.schedules.bonuss.end=0": "algo.schedules.bonuss: no such setting. Did you mean bonus?",
    # what must be given
    "logger=mine": "logger.mine.file must be given: logger.mine.file=…",
    # a field of the class that its file does not mention
    "algo=mine algo.gamma=0.9": "algo.gamma is not set in its config file; add it with a plus: +algo.gamma=0.9",
    "algo=mine algo.schedules.epsilon.end=0.05": (
        "algo.schedules is not set in its config file; add it with a plus: +algo.schedules.epsilon.end=0.05"
    ),
    "algo=mine algo.sizes=[1,2]": "algo.sizes is not set in its config file; add it with a plus: +algo.sizes=…",
    # what is not there
    "algo=mine algo._target_=my_package.Nothing": "algo._target_=my_package.Nothing: my_package has no 'Nothing'.",
    "algo=min": "algo=min: there is no such algo. Did you mean mine",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_mistake_in_settings_of_an_own_class_is_explained_like_any_other(typed: str, own: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(typed.split())
    assert str(caught.value).startswith(REFUSED[typed])


def test_a_field_that_the_file_does_not_mention_is_added_with_a_plus(own: Path) -> None:
    config = compose(["algo=mine", "+algo.gamma=0.9", "+algo.schedules.bonus.end=0.1"])
    assert config["algo"]["gamma"] == 0.9
    assert config["algo"]["schedules"]["bonus"]["end"] == 0.1


MODEL_BUILD = (
    "build(self, spec: EnvSpec, out: int | None, *, defaults: NetDefaults, action_dim: int = 0, "
    "ensemble: int | None = None, out_gain: float | None = None) -> nn.Module. See docs/extending.md."
)
WRONG_KINDS = {  # where, class, message
    ("algo", "MyModel"): "algo: MyModel must derive from rlexp.algos.base.Algorithm. See docs/extending.md.",
    ("algo", "ShortAct"): (
        "algo: ShortAct.act(self, obs) takes other arguments than it is given: act(self, obs: Obs, carry: Any, *, "
        "explore: bool, generator: torch.Generator) -> Act. See docs/extending.md."
    ),
    ("algo", "Homeless"): (
        'algo: Homeless must say its loops, e.g. loops = frozenset({"replay"}). See docs/extending.md.'
    ),
    ("env", "MyModel"): "env: MyModel must derive from rlexp.envs.gym_env.GymEnv. See docs/extending.md.",
    ("env", "RealEnv"): (
        "env: RealEnv is an environment itself. Register it with gymnasium.register(…) and choose it by its id: "
        "env=gym env.id=my_package:Id-v0. See docs/extending.md."
    ),
    ("model", "StopAt"): f"model: StopAt lacks a method: {MODEL_BUILD}",
    ("model", "Network_"): f"model: Network_ is one network, but a model makes them: {MODEL_BUILD}",
    ("model", "NarrowModel"): (
        "model: NarrowModel.build(self, spec, out, *, defaults) takes other arguments than it is given: " + MODEL_BUILD
    ),
    ("trainer", "MyModel"): "trainer: MyModel must derive from rlexp.trainers.base.Trainer. See docs/extending.md.",
    ("dataset", "MyModel"): (
        "dataset: MyModel lacks a method: load(self, env: GymEnv) -> Transitions. See docs/extending.md."
    ),
    ("dataset", "NoArgument"): (
        "dataset: NoArgument.load(self) takes other arguments than it is given: "
        "load(self, env: GymEnv) -> Transitions. See docs/extending.md."
    ),
    ("buffer", "MyModel"): "buffer: MyModel must derive from rlexp.buffers.ring.ReplayBuffer. See docs/extending.md.",
    ("logger.wrong", "MyModel"): (
        "logger.wrong: MyModel must derive from rlexp.loggers.base.Logger. See docs/extending.md."
    ),
    ("logger.wrong", "ShortLogger"): (
        "logger.wrong: ShortLogger.log(self, row) takes other arguments than it is given: "
        "log(self, index: int, row: Row) -> None. See docs/extending.md."
    ),
}


@pytest.mark.parametrize(("where", "name"), WRONG_KINDS)
def test_an_own_class_of_the_wrong_kind_is_refused_before_anything_runs(where: str, name: str, own: Path) -> None:
    group = where.split(".")[0]
    (own / "conf" / group).mkdir(exist_ok=True)
    (own / "conf" / group / "wrong.yaml").write_text(f"# @package {where}\n_target_: my_package.{name}\n")
    with pytest.raises(ConfigError) as caught:
        Runner(compose([f"{group}=wrong"]))
    assert str(caught.value) == WRONG_KINDS[where, name]


WRONG_CALLBACKS = {
    "MyModel": "MyModel must derive from rlexp.callbacks.Callback. See docs/extending.md.",
    "ShortCallback": (
        "ShortCallback.on_eval(self, evaluation) takes other arguments than it is given: "
        "on_eval(self, trainer: Trainer, evaluation: Evaluation | Estimate) -> None. See docs/extending.md."
    ),
    "MistypedCallback": "MistypedCallback has on_evaluate, which is not a hook. Did you mean on_eval?",
}


@pytest.mark.parametrize("name", WRONG_CALLBACKS)
def test_a_callback_of_the_wrong_kind_is_refused_before_anything_runs(name: str, own: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Runner(compose([f"trainer.callbacks=[{{_target_: my_package.{name}}}]"]))
    assert str(caught.value) == f"trainer.callbacks[0]: {WRONG_CALLBACKS[name]}"


WRONG_NETWORKS = {  # DQN on CartPole asks for two outputs
    "ListModel": "ListModel.build() returned for out=2 is of type list, not a torch.nn.Module.",
    "WrongWidth": "WrongWidth.build() returned for out=2 gives [2, 3] for 2 observations instead of a tensor [2, 2].",
    "WrongInput": "WrongInput.build() returned for out=2 fails on 2 observations: RuntimeError: mat1 and mat2",
}


@pytest.mark.parametrize("name", WRONG_NETWORKS)
def test_a_network_of_another_form_than_was_asked_for_is_refused_before_anything_is_written(
    name: str, own: Path
) -> None:
    (own / "conf" / "model" / "wrong.yaml").write_text(f"_target_: my_package.{name}\n")
    runner = Runner(compose([*SMALL, "algo=dqn", "model=wrong"]))
    with pytest.raises(ConfigError) as caught:
        runner.train(own / "run")
    assert str(caught.value).startswith(f"model: what {WRONG_NETWORKS[name]}")
    assert not (own / "run").exists()


def test_features_of_an_own_network_need_their_number_said(own: Path) -> None:
    model = CheckedModel(build("model", {"_target_": "my_package.WrongFeatures"}))
    spec = build("env", compose()["env"]).spec()
    with pytest.raises(ConfigError, match="must say the number of its features as an attribute out"):
        model.build(spec, None, defaults=NetDefaults())


def test_a_dataset_that_returns_something_else_is_refused_before_anything_is_written(own: Path) -> None:
    (own / "conf" / "dataset").mkdir()
    (own / "conf" / "dataset" / "wrong.yaml").write_text("_target_: my_package.NoTransitions\n")
    runner = Runner(compose(["algo=crr", "env=pendulum", "dataset=wrong", "progress=none"]))
    with pytest.raises(DataError, match=r"NoTransitions\.load\(\) must return rlexp\.datasets\.Transitions, not dict"):
        runner.train(own / "run")
    assert not (own / "run").exists()


def test_a_wrapper_that_is_none_is_refused_before_anything_runs(own: Path) -> None:
    with pytest.raises(EnvError, match=r"my_package\.MyModel is not a subclass of gymnasium\.Wrapper"):
        Runner(compose(["env.wrappers=[{_target_: my_package.MyModel}]"]))


def test_a_target_that_takes_any_keyword_gets_what_it_is_given(own: Path) -> None:
    config = compose(["trainer.callbacks=[{_target_: my_package.AnyKeyword, a: 1, b: [2, 3]}]"])
    callback = build("trainer.callbacks[0]", config["trainer"]["callbacks"][0])
    assert callback.keywords == {"a": 1, "b": [2, 3]}


def test_a_target_that_cannot_be_constructed_says_why(own: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model: my_package\.Broken cannot be constructed: cannot be made on a Monday"
    ):
        build("model", {"_target_": "my_package.Broken"})


def test_a_plugin_is_imported_before_composing_so_that_its_schema_can_be_named(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "conf" / "algo" / "plugged.yaml").write_text(
        "# @package _global_\ndefaults: [/schema/algo/decorated_dqn, override /trainer: replay, _self_]\n"
    )
    with pytest.raises(ConfigError, match="schema/algo=decorated_dqn"):
        compose(["algo=plugged"])
    monkeypatch.setenv("RLEXP_PLUGINS", " my_package ")
    config = compose(["algo=plugged", "algo.bonus=0.1", "algo.gamma=0.9"])  # every field is there to be overridden
    assert (config["algo"]["bonus"], config["algo"]["gamma"]) == (0.1, 0.9)
    with pytest.raises(ConfigError, match=r"algo\.bonuss: DecoratedDQN has no such setting\. Did you mean bonus\?"):
        compose(["algo=plugged", "algo.bonuss=0.1"])


def test_a_plugin_that_cannot_be_imported_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_PLUGINS", "no_such_package")
    with pytest.raises(ConfigError, match="RLEXP_PLUGINS names 'no_such_package', which cannot be imported"):
        compose()


def test_own_choices_are_listed_with_their_line(own: Path) -> None:
    assert choices("algo")["mine"] == "My own algorithm"
    assert choices("model")["mine"] == "My own network"
    assert "ppo" in choices("algo")


def test_a_run_with_own_classes_is_opened_only_if_their_package_is_trusted(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlexp.config.trust import trusting

    config: dict[str, Any] = compose([*SMALL, "algo=mine", "trainer.total_steps=33", "trainer.eval_episodes=0"])
    Runner(config).train(own / "run")
    with pytest.raises(UntrustedError, match=r"trust=\[my_package\]"):
        load(own / "run", trust=trusting())
    assert load(own / "run", trust=trusting(["my_package"])).runner.algo_name == "my_dqn"
    monkeypatch.setenv("RLEXP_PLUGINS", "my_package")
    assert load(own / "run", trust=trusting()).runner.algo_name == "my_dqn"
