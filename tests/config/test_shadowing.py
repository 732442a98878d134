"""A setting must not take the place of something that its base class needs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlexp.algos import DQN, DiscreteSAC, OffPolicyAlgorithm
from rlexp.buffers import ReplayBuffer
from rlexp.callbacks import Callback
from rlexp.config.check import check_node
from rlexp.config.component import REGISTRY, component, schema_of
from rlexp.config.trust import EVERYTHING
from rlexp.envs import GymEnv
from rlexp.errors import ConfigError
from rlexp.loggers import Logger
from rlexp.models import Network
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.trainers.replay import Replay

TAKEN = [(DQN, name) for name in ("parts", "act", "spec", "updates", "loops", "reserved", "compiled", "network")]
TAKEN += [(Replay, name) for name in ("stop", "work", "env_steps", "loop", "budget")]
TAKEN += [(GymEnv, "factory"), (GymEnv, "make"), (Callback, "on_step"), (Logger, "log"), (ReplayBuffer, "sample")]
TAKEN += [(Network, "build")]


@pytest.mark.parametrize(("base", "name"), TAKEN, ids=lambda each: getattr(each, "__name__", each))
def test_a_setting_named_like_something_of_its_base_is_refused(base: type, name: str) -> None:
    own = make_dataclass("Own", [(name, int, field(default=3))], bases=(base,), eq=False, kw_only=True)
    with pytest.raises(ConfigError, match=rf"^Own\.{name}: \w+ uses this name itself.*Give the field another name"):
        schema_of(own)


@dataclass(eq=False, kw_only=True)
class Fine(DiscreteSAC):
    gamma: float = 0.5  # another default for a setting
    target_entropy_scale: float = 0.1  # a setting of SAC that Discrete SAC hides
    extra: int = 1


def test_settings_of_the_base_may_be_declared_again() -> None:
    settings = {each.name: each.default for each in fields(schema_of(Fine))}
    assert (settings["gamma"], settings["target_entropy_scale"], settings["extra"]) == (0.5, 0.1, 1)


@dataclass(eq=False, kw_only=True)
class Taken(DQN):
    parts: int = 3


def test_it_is_told_like_any_other_mistake_in_a_config() -> None:
    with pytest.raises(ConfigError, match=r"^Taken\.parts: Algorithm uses this name itself"):
        check_node("algo", {"_target_": f"{__name__}.Taken"}, EVERYTHING)
    with pytest.raises(ConfigError, match=r"^Taken\.parts"):
        component("algo")(Taken)
    assert "taken" not in REGISTRY["algo"]


@dataclass(eq=False, kw_only=True)
class Replaced(DQN):
    q: int = 3  # what build() assigns is known only once it has run


def test_a_setting_that_build_replaces_by_a_network_is_refused() -> None:
    from rlexp.config.compose import compose

    config = compose(["algo=dqn", "env=cartpole"])
    config["algo"] = {"_target_": f"{__name__}.Replaced"}
    with pytest.raises(ConfigError, match=r"algo\.q: build\(\) puts a Net in its place\. Rename the field"):
        Runner(config).policy()


@dataclass(eq=False, kw_only=True)
class Empty(OffPolicyAlgorithm):
    def build(self, spec: Any, model: Any) -> None: ...

    def act(self, obs: Any, carry: Any, *, explore: bool, generator: torch.Generator) -> Any: ...

    def update(self, batch: Any) -> Any: ...


@dataclass(eq=False, kw_only=True)
class Idle(Trainer):
    def prepare(self) -> None: ...

    def iterate(self) -> None: ...

    def loop_state(self) -> Any: ...

    def load_loop_state(self, state: Any, segments: Any) -> None: ...

    def planned_updates(self, algo: Any, num_envs: int) -> int:
        return 0


def test_what_is_reserved_is_what_the_base_classes_set() -> None:
    algo, trainer = Empty(), Idle()
    algo.setup(None, None, device=torch.device("cpu"), seed=0)  # type: ignore[arg-type]
    trainer.bind(SimpleNamespace(policy=SimpleNamespace(algo=algo)))  # type: ignore[arg-type]
    for made in (algo, trainer):
        assert set(vars(made)) - {each.name for each in fields(made)} == type(made).reserved
