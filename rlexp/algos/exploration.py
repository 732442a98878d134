"""How policies act and explore: a stochastic one by sampling, a deterministic one by noise on its actions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.action_noise import ActionNoise, NoNoise, OrnsteinUhlenbeckNoise
from rlexp.algos.base import Algorithm, OffPolicyAlgorithm
from rlexp.compiling import acting
from rlexp.config.check import build_part
from rlexp.config.component import target_of
from rlexp.config.fields import Fraction, NonNegative, Part, Static
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model, PolicyHead
from rlexp.tree import tree_first
from rlexp.types import Act, Obs


class StochasticPolicy(Algorithm):
    """Explores by sampling from its policy, and takes the mode where it should be at its best."""

    head: PolicyHead  # of the policy; made by build

    @abstractmethod
    def policy(self, obs: Obs) -> Any:
        """π(·|s)."""

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample, or take the mode."""
        if not explore:
            return Act(self.policy(obs).mode())
        noise = self.head.draw_noise(len(tree_first(obs)), generator=generator, device=self.device)
        return Act(self.explore(obs, noise))

    @acting
    def explore(self, obs: Obs, noise: Tensor) -> Tensor:
        """Actions sampled from the policy."""
        return self.policy(obs).sample(noise)


@dataclass(eq=False, kw_only=True)
class DeterministicPolicy(OffPolicyAlgorithm):
    """Acts by a function of the state, in [−1, 1], and explores by noise added to it.

    The scale follows any schedule: ``algo.schedules.exploration_noise.end=0.1``. What the noise remembers is the carry
    of an episode: zeros at its start in each environment, and part of the checkpoint.
    """

    noise_in_losses: ClassVar[bool] = False  # its scale has a use beside exploring
    reserved: ClassVar[frozenset[str]] = frozenset({"action_noise"})

    exploration: Annotated[Any, Part("exploration"), Static()] = "gaussian"  # noise on actions, or one of your own
    exploration_noise: NonNegative = 0.1  # its standard deviation at each step, σ, of actions in [−1, 1]
    ou_theta: Fraction = 0.15  # share of the Ornstein-Uhlenbeck process that is forgotten at each step, if it is chosen

    def __post_init__(self) -> None:
        self.action_noise = self._noise()
        kind = self.exploration if isinstance(self.exploration, str) else type(self.action_noise).__qualname__
        if kind != "ou":
            self.refuse_idle("ou_theta", f"exploration={kind}. Use exploration=ou.")
        if isinstance(self.action_noise, NoNoise) and not self.noise_in_losses:
            self.refuse_idle("exploration_noise", f"exploration={kind}. Use gaussian, ou or pink.")

    def _noise(self) -> ActionNoise:
        """The noise that ``exploration`` names or describes, or is (in Python)."""
        if isinstance(self.exploration, ActionNoise):
            return self.exploration
        if self.exploration == "ou":
            return OrnsteinUhlenbeckNoise(theta=self.ou_theta)
        return build_part("algo.exploration", "exploration", self.exploration)  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: Any) -> None:
        """Another θ, a scheduled one for instance, is at once that of the process."""
        if name == "exploration" and "action_noise" in vars(self):
            raise ConfigError("algo.exploration is chosen when the algorithm is made, and cannot be set later.")
        super().__setattr__(name, value)
        if name == "ou_theta" and "action_noise" in vars(self):
            self.action_noise = self._noise()

    def setup(
        self, spec: EnvSpec, model: Model, *, device: torch.device, seed: int, autocast: torch.dtype | None = None
    ) -> None:
        """Build, and keep room for what the noise remembers."""
        super().setup(spec, model, device=device, seed=seed, autocast=autocast)
        self.carry_size = spec.action.dim * self.action_noise.memory

    @property
    def greedy_carry_size(self) -> int:
        """The memory is that of the noise."""
        return 0

    @property
    def carry_kind(self) -> str:
        """The noise that remembers."""
        return target_of(type(self.action_noise))

    @abstractmethod
    def policy(self, obs: Obs) -> Tensor:
        """π(s), [N, A] in [−1, 1]."""

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """π(s), and noise to explore."""
        if not explore or isinstance(self.action_noise, NoNoise):
            return Act(self.policy(obs), carry)
        rows, dim = len(tree_first(obs)), self.spec.action.dim
        draw = torch.randn((rows, dim * self.action_noise.draws), generator=generator, device=self.device)
        if carry is None and self.action_noise.memory:
            carry = torch.zeros((rows, dim * self.action_noise.memory), device=self.device)
        return Act(*self.explore(obs, draw, carry))

    @acting
    def explore(self, obs: Obs, draw: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Actions with noise made of ``draw`` [N, A · draws], and the carry after it, if the noise has memory."""
        noise, rows, dim = self.action_noise, len(draw), self.spec.action.dim
        memory = draw.new_zeros(rows, dim, 0) if carry is None else carry.view(rows, dim, noise.memory)
        added, memory = noise(draw.view(rows, dim, noise.draws), memory, self.exploration_noise)
        return (self.policy(obs) + added).clamp(-1, 1), None if carry is None else memory.flatten(1)
