"""What every algorithm is: hyperparameters as fields, mathematics as methods.

An algorithm never sees environments, files or loggers. The trainers call ``act`` and ``update``; whatever ``build``
assigns that is a module, an optimizer or a tensor is its state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.compiling import CompiledPhase, phases_of
from rlexp.config.component import schedulable
from rlexp.config.fields import Fraction, Positive
from rlexp.envs.spec import EnvSpec
from rlexp.errors import CheckpointError, ConfigError
from rlexp.models import Model, Network
from rlexp.models.description import described
from rlexp.models.distributions import IMPOSSIBLE
from rlexp.models.regularization import BatchRenorm, Dropout, learning
from rlexp.optim import Optimizer
from rlexp.schedules import Schedule
from rlexp.seeding import derive_seed
from rlexp.types import Act, Batch, Obs, Rollout, Update

ON_POLICY, REPLAY, OFFLINE, MIXED = "on_policy", "replay", "offline", "mixed"
DISCRETE, CONTINUOUS, MULTI_DISCRETE, MULTI_BINARY = "discrete", "continuous", "multi_discrete", "multi_binary"


@dataclass(eq=False, kw_only=True)
class Algorithm(ABC):
    """Base of all algorithms: the contract with the trainers, and the state that goes into a checkpoint."""

    loops: ClassVar[frozenset[str]]  # trainers it can learn in
    actions: ClassVar[frozenset[str]]  # action spaces it can act in
    derived: ClassVar[frozenset[str]] = frozenset()  # columns of batch.extras it learns from: buffers/derived.py
    unit_actions: ClassVar[bool] = False  # acts in [-1, 1]; the framework rescales to the bounds of the space
    tied_to_data: ClassVar[bool] = False  # learns what the data do: sampling by priority would show it other data
    reserved: ClassVar[frozenset[str]] = frozenset(  # attributes that setup() sets: no setting may be called so
        {"spec", "device", "autocast", "updates", "generator", "scheduled", "_schedule_values", "compiled"}
    )
    carry_size = 0  # numbers that it remembers of each episode; set by build where it is recurrent

    gamma: Fraction = 0.99  # discount of future reward
    schedules: dict[str, Any] = field(default_factory=dict)  # numeric fields that change over the run

    def setup(
        self, spec: EnvSpec, model: Model, *, device: torch.device, seed: int, autocast: torch.dtype | None = None
    ) -> None:
        """Build networks and optimizers on ``device``; the weights depend on ``seed`` alone.

        With ``autocast`` the matrix products of updates are computed in that type, but for those of few inputs and of
        heads (``models/layers.py``); weights and losses stay float32.
        """
        self.spec, self.device, self.autocast = spec, device, autocast
        self.updates = 0
        self.generator = torch.Generator(device).manual_seed(derive_seed(seed, "algo"))
        self._prepare_schedules()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # orthogonal initialisation depends on it in the last bits
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
                torch.manual_seed(derive_seed(seed, "init"))
                self.build(spec, model)
        finally:
            torch.set_num_threads(threads)
        if isinstance(model, Network):
            model.check_used(type(self).__name__)
        self._refuse_hidden_state()
        self._prepare_learning()
        self.compiled = False

    def _prepare_learning(self) -> None:
        """Dropout drops and BatchRenorm trains while ``update`` runs, and nowhere else: not in acting, not in values.

        Only where there is any of them, so that nothing else pays for it. Which passes of an update train BatchRenorm
        is its own rule, see there.
        """
        if isinstance(vars(self).get("update"), _Learning):  # of networks before
            del self.update
        found = [module for net in self._networks().values() for module in net.modules()]
        modules = [module for module in found if isinstance(module, (Dropout, BatchRenorm))]
        if not modules:
            return
        if any(isinstance(module, Dropout) for module in modules) and (problem := self.dropout_problem()):
            raise ConfigError(f"model.dropout: {type(self).__name__} {problem}")
        self.update = _Learning(self, modules)  # type: ignore[method-assign]

    def dropout_problem(self) -> str | None:
        """Why it cannot learn with the dropout that its networks have, or None."""
        return None

    def compile_phases(self, *, onednn: bool = False) -> None:
        """From now on every phase runs as one compiled graph; tracing happens when it is first called.

        With ``onednn`` that library multiplies large matrices, see :mod:`rlexp.onednn`.
        """
        for name, function in phases_of(type(self)).items():
            setattr(self, name, CompiledPhase(self, function, onednn))
        self.compiled = True

    @property
    def greedy_carry_size(self) -> int:
        """How much of its memory greedy actions depend on: all, unless it serves exploring alone."""
        return self.carry_size

    @property
    def carry_kind(self) -> str:
        """What its memory is of: one of another kind is no beginning for it, even if it is as large."""
        return ""

    @abstractmethod
    def build(self, spec: EnvSpec, model: Model) -> None:
        """Create networks, targets and optimizers."""

    @abstractmethod
    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Actions for a batch of observations; ``carry`` is what this returned last time, None at first.

        Where the algorithm is recurrent it is a tensor [N, carry_size] whose zeros are the start of an episode.
        """

    @abstractmethod
    def update(self, batch: Any) -> Update:
        """Learn from a :class:`Batch` (on-policy: a whole :class:`Rollout`)."""

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """Q(s, a), [B], as the policy is improved by it; only where an algorithm learns one."""
        raise NotImplementedError(f"{type(self).__name__} learns no Q(s, a)")

    def reset_carry(self, carry: Tensor | None, ended: Tensor) -> Tensor | None:
        """The carry with the rows whose episode ended set to the start of an episode; ``ended`` is bool [N]."""
        return None if carry is None else carry.masked_fill(ended.to(carry.device).unsqueeze(-1), 0.0)

    def masked(self, values: Tensor, obs: Obs) -> Tensor:
        """Values or logits of the actions [..., A], those of the impossible ones far below all others."""
        mask = self.spec.obs.mask_in(obs)
        return values if mask is None else values.masked_fill(~mask.bool(), IMPOSSIBLE)

    def failing_reward(self) -> float | None:
        """The reward of a step without success, where the ``mc_return`` of failed episodes is to go on with it."""
        return None

    def noise(self, *shape: int) -> Tensor:
        """Standard normal noise from the algorithm's own generator, drawn outside of the compiled phases."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform noise in [0, 1) from the algorithm's own generator."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    # ---- schedules

    def _prepare_schedules(self) -> None:
        """A scheduled float becomes a 0-dim tensor that is changed in place: graphs and optimizers read it anew."""
        self.scheduled: dict[str, tuple[Schedule, float]] = {}
        self._schedule_values: dict[str, float] = {}  # as set last
        kinds = schedulable(type(self))
        for name, given in self.schedules.items():
            if given is None:
                continue
            schedule = given if isinstance(given, Schedule) else Schedule(**given)
            initial = getattr(self, name)
            self.scheduled[name] = (schedule, initial)
            start = schedule.value(initial, 0.0)
            setattr(self, name, torch.tensor(start, device=self.device) if kinds[name] is float else round(start))

    def refuse_idle(self, name: str, reason: str) -> None:
        """Refuse a setting that was changed or scheduled but has no effect, for ``reason``."""
        if getattr(self, name) != getattr(type(self), name):
            raise ConfigError(f"{name} has no effect with {reason}")
        if self.schedules.get(name):
            raise ConfigError(f"A schedule of {name} has no effect with {reason}")

    def check_new(self, spec: EnvSpec) -> None:  # noqa: B027 (most have none)
        """Refuse settings without effect in such an environment, of new runs: in saved ones they were taken."""

    def apply_schedules(self, progress: float) -> None:
        """Set every scheduled hyperparameter to its value at ``progress`` of the budget."""
        for name, (schedule, initial) in self.scheduled.items():
            value = schedule.value(initial, progress)
            if value == self._schedule_values.get(name):
                continue
            self._schedule_values[name] = value
            current = getattr(self, name)
            if isinstance(current, Tensor):
                current.fill_(value)
            elif round(value) != current:
                setattr(self, name, round(value))

    def retraces(self) -> bool:
        """Whether a schedule changes whole numbers, which graphs hold as constants."""
        return any(not isinstance(getattr(self, name), Tensor) for name in self.scheduled)

    def scheduled_values(self) -> dict[str, float]:
        """The current values, for the log."""
        return {name: float(getattr(self, name)) for name in self.scheduled}

    def __setattr__(self, name: str, value: Any) -> None:
        """A hyperparameter set after compiling would go unnoticed by graphs that hold its old value: trace anew."""
        known = self.__dict__.get(name)
        if self.__dict__.get("compiled") and value is not known and isinstance(known, (nn.Module, Optimizer, Tensor)):
            raise RuntimeError(
                f"{type(self).__name__}.{name} is part of compiled graphs, which would go on with the old one: change "
                "it in place (copy_, fill_, load_state_dict)."
            )
        super().__setattr__(name, value)
        if name in type(self).__dataclass_fields__ and self.__dict__.get("compiled"):
            for attribute in vars(self).values():
                if isinstance(attribute, CompiledPhase):
                    attribute.graphs.clear()

    # ---- state

    def parts(self) -> dict[str, nn.Module | Optimizer | Tensor]:
        """Everything that ``build`` created and a checkpoint must hold, by attribute name."""
        kinds = (nn.Module, Optimizer, Tensor)
        return {k: v for k, v in vars(self).items() if isinstance(v, kinds) and k not in self.scheduled}

    def _refuse_hidden_state(self) -> None:
        """State in a list or dict would be left out of checkpoints without a word; in place of a setting, too."""
        for name, value in vars(self).items():
            if name in type(self).__dataclass_fields__ and isinstance(value, (nn.Module, Optimizer)):
                raise ConfigError(f"algo.{name}: build() puts a {type(value).__name__} in its place. Rename the field.")
            items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            if any(isinstance(item, (nn.Module, Optimizer, Tensor)) for item in items):
                raise TypeError(
                    f"{type(self).__name__}.{name} hides state in a {type(value).__name__}: use nn.ModuleList."
                )

    def _networks(self) -> dict[str, nn.Module]:
        """The parts of the state that are networks, targets included."""
        return {name: part for name, part in self.parts().items() if isinstance(part, nn.Module)}

    def count_parameters(self) -> int:
        """Numbers in all networks."""
        return sum(parameter.numel() for net in self._networks().values() for parameter in net.parameters())

    def convolves(self) -> bool:
        """Whether a network sees images, so that convolutions take most of an update's time."""
        return any(isinstance(module, nn.Conv2d) for net in self._networks().values() for module in net.modules())

    def describe_networks(self) -> str:
        """``actor 256-256 relu, 2 critics 256-256 relu, 141,058 parameters``: what was built, in words."""
        return described(self._networks())

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, generator and counters."""
        state: dict[str, Any] = {"updates": self.updates, "generator": self.generator.get_state()}
        for name, part in self.parts().items():
            state[name] = part.detach() if isinstance(part, Tensor) else dict(part.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any], *, acting: bool = False) -> None:
        """Restore in place, so that graphs and optimizers keep pointing at the same tensors.

        ``acting``: without the generator, whose state is of one kind of device. Who only acts brings another.
        """
        self.updates = int(state["updates"])
        if self.updates < 0:
            raise ValueError(f"it counts {self.updates} updates")
        if not acting:
            try:
                self.generator.set_state(state["generator"].cpu())
            except RuntimeError as error:
                message = (
                    f"its random numbers are of another kind of device than {self.device.type}: resume on that kind"
                )
                raise CheckpointError(message) from error
        for name, part in self.parts().items():
            if isinstance(part, Tensor):
                if state[name].shape != part.shape:  # copy_ would spread a smaller one over all
                    raise ValueError(f"{name} has shape {tuple(state[name].shape)} instead of {tuple(part.shape)}")
                with torch.no_grad():
                    part.copy_(state[name])
            else:
                part.load_state_dict(state[name])


class _Learning:
    """``update`` of an algorithm, in which Dropout drops and BatchRenorm trains. An object: a deep copy has its own."""

    def __init__(self, algo: Algorithm, modules: Sequence[nn.Module]) -> None:
        self.algo, self.modules = algo, modules

    def __call__(self, batch: Any) -> Update:
        """Learn from a batch or a rollout."""
        with learning(self.modules):
            return type(self.algo).update(self.algo, batch)


@dataclass(eq=False, kw_only=True)
class OnPolicyAlgorithm(Algorithm):
    """Learns from whole rollouts of its current policy."""

    loops: ClassVar[frozenset[str]] = frozenset({ON_POLICY})

    @abstractmethod
    def value(self, obs: Obs) -> Tensor:
        """V(s) for a batch of observations, [B]; a recurrent algorithm also takes the carry before them."""

    @abstractmethod
    def update(self, batch: Rollout) -> Update:
        """Learn from one rollout [T, N]; owns its epochs and minibatches."""

    def dropout_problem(self) -> str | None:
        """The policy that acted is not the one that is updated, unless both go without the same units."""
        return (
            "compares the probabilities of the policy that acted with those of the policy that learns, but does not "
            "see to it that both go without the same units, as PPO does. model.critic_dropout concerns V alone."
        )

    def updates_per_rollout(self, steps: int, num_envs: int) -> int:
        """How many optimizer steps one rollout of so many steps in each environment leads to."""
        return 1


@dataclass(eq=False, kw_only=True)
class OffPolicyAlgorithm(Algorithm):
    """Learns from batches of transitions, whoever collected them."""

    max_grad_norm: Positive | None = None  # gradients of each optimizer are scaled down to this norm; null: never

    def setup(
        self, spec: EnvSpec, model: Model, *, device: torch.device, seed: int, autocast: torch.dtype | None = None
    ) -> None:
        """Build, and let every optimizer that has no limit of its own scale down its gradients."""
        super().setup(spec, model, device=device, seed=seed, autocast=autocast)
        for part in self.parts().values():
            if isinstance(part, Optimizer) and part.max_grad_norm is None:
                part.max_grad_norm = self.max_grad_norm

    @abstractmethod
    def update(self, batch: Batch) -> Update:
        """One gradient update."""
