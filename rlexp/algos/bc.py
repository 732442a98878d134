"""Behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from torch import Tensor

from rlexp.algos.cloning import Cloning
from rlexp.algos.losses import weighted_mean
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Positive, Static
from rlexp.envs.spec import ActionSpec, EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model, PolicyHead
from rlexp.models.distributions import DeterministicHead
from rlexp.optim import Adam
from rlexp.types import Batch, Update


class BCObjective(Enum):
    """What is cloned: the distribution of the actions (nll), or their mean by a deterministic policy (mse)."""

    nll = "nll"
    mse = "mse"


def bc_loss(log_prob: Tensor, weight: Tensor | None = None) -> Tensor:
    """−E[log π(a|s)] over the dataset's actions."""
    return -weighted_mean(log_prob, weight)


def bc_mse_loss(policy_action: Tensor, action: Tensor, weight: Tensor | None = None) -> Tensor:
    """E[(π(s) − a)²], the mean over the dimensions of the action too."""
    return weighted_mean((policy_action - action).square().mean(-1), weight)


@component("algo", "bc")
@dataclass(eq=False, kw_only=True)
class BC(Cloning):
    """Behaviour cloning (Pomerleau, 1991): supervised learning of the data's actions.

    Minimise  −E_D[log π(a|s)]   (nll),   or for continuous actions   E_D[(π(s) − a)²]   (mse).
    For data of an expert; and what every offline algorithm should be compared with. Where only some episodes are good,
    ``trainer.best_episodes=0.1`` clones the best tenth.
    """

    gamma: float = field(init=False, default=0.99)  # nothing is predicted
    learning_rate: Positive = 3e-4  # step size of Adam
    objective: Annotated[BCObjective, Static()] = BCObjective.nll  # likelihood of the actions, or distance from them

    def __post_init__(self) -> None:
        if self.objective is BCObjective.mse:
            for name in ("min_log_std", "state_dependent_std"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ConfigError(
                        f"{name} has no effect with objective=mse, which has no deviation. Use objective=nll."
                    )

    def build(self, spec: EnvSpec, model: Model) -> None:
        """The policy."""
        self.build_policy(spec, model)
        self.optimizer = Adam(self.policy_parameters(), self.learning_rate)

    def policy_head(self, action: ActionSpec) -> PolicyHead:
        """A distribution, or with mse an action."""
        if self.objective is BCObjective.nll:
            return super().policy_head(action)
        if self.discrete:
            raise ConfigError("algo.objective=mse is a distance between continuous actions. Use algo.objective=nll.")
        return DeterministicHead(action.dim)

    def update(self, batch: Batch) -> Update:
        """One step towards the actions of the batch."""
        self.updates += 1
        return Update(self.clone_phase(batch))

    @phase
    def clone_phase(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the policy."""
        policy = self.policy(batch.obs)
        if self.objective is BCObjective.mse:
            loss = bc_mse_loss(policy.mode(), batch.action, batch.weight)
        else:
            loss = bc_loss(policy.log_prob(batch.action), batch.weight)
        self.optimizer.step(loss)
        return {"loss/actor": loss.detach()}
