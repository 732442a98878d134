"""Twin delayed deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlexp.algos.ddpg import DDPG
from rlexp.config.component import component
from rlexp.config.fields import Count, NonNegative, Size
from rlexp.types import Batch


def td3_smoothed_action(action: Tensor, draw: Tensor, scale: float | Tensor, clip: Any) -> Tensor:
    """a′ = π̄(s′) + clip(σ ε, −c, c), within the bounds: the target's value holds for actions near to each other."""
    return (action + (scale * draw).clamp(-clip, clip)).clamp(-1, 1)


@component("algo", "td3")
@dataclass(eq=False, kw_only=True)
class TD3(DDPG):
    """Twin delayed DDPG (Fujimoto et al., 2018, arXiv:1802.09477): three changes against overestimation.

    Critic:  Q_i(s, a) → r + γ min_i Q̄_i(s′, a′),  a′ = π̄(s′) + clip(ε, −c, c),  ε ~ N(0, σ²).
    Actor:   maximise  Q_1(s, π(s)),  once for every ``actor_interval`` updates of the critics.
    The first choice among deterministic policies.
    """

    n_critics: Size = 2  # ensemble whose minimum is the target; the actor follows the first
    actor_interval: Count = 2  # updates of the critics for one of the actor and of all targets
    target_noise: NonNegative = 0.2  # standard deviation of the noise on the target's actions, σ
    target_noise_clip: NonNegative = 0.5  # bound of that noise, c

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_noise == 0 and not self.schedules.get("target_noise"):
            self.refuse_idle("target_noise_clip", "target_noise=0. Use a target_noise greater than 0.")

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """The noise on the target's actions."""
        return {"next_action": self.noise(*batch.action.shape)}

    def next_action(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """a′, smoothed, [B, A]."""
        action = super().next_action(batch, noise)
        return td3_smoothed_action(action, noise["next_action"], self.target_noise, self.target_noise_clip)
