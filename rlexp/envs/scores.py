"""Normalised scores: 100 · (return − random) / (expert − random), so that tasks can be compared. Free of torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlexp.errors import ConfigError

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv

# Returns of a random and an expert policy that D4RL (Fu et al., 2020) measured in the environments of its time (v2).
# Papers use them for all later versions, too.
D4RL = {
    "HalfCheetah": (-280.18, 12135.0),
    "Hopper": (-20.27, 3234.3),
    "Walker2d": (1.63, 4592.3),
    "Ant": (-325.6, 3879.7),
    "AdroitHandPen": (96.26, 3076.8),
    "AdroitHandDoor": (-56.5, 2880.6),
}
_ID = re.compile(r"(?:[\w.]+:)?(\w+)-v\d+")


@dataclass(frozen=True)
class Reference:
    """What scores 0 and what scores 100, and who says so."""

    random: float
    expert: float
    source: str

    def score(self, value: float) -> float:
        """The score of a return."""
        return 100 * (value - self.random) / (self.expert - self.random)

    def to_dict(self) -> dict[str, float | str]:
        """As written to summary.json."""
        return {"random": self.random, "expert": self.expert, "source": self.source}


def reference_for(env: GymEnv) -> Reference | None:
    """The reference of an environment's returns; D4RL's are not those of one that somebody changed."""
    changed = env.factory is not None or env.wrappers or env.kwargs or env.max_episode_steps
    return reference_of("" if changed else env.spec().id, env.reference_returns)


def reference_of(env_id: str, own: list[float] | None = None) -> Reference | None:
    """The reference of an environment: the user's own, else D4RL's, else none."""
    if own is not None:
        if len(own) != 2 or not own[1] > own[0]:
            raise ConfigError(f"env.reference_returns must be [random, expert], the second larger, not {list(own)}.")
        return Reference(float(own[0]), float(own[1]), "env.reference_returns")
    found = _ID.fullmatch(env_id)
    known = D4RL.get(found[1]) if found else None
    return None if known is None else Reference(*known, "D4RL")
