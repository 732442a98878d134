"""What every dataset of rlexp can be told beside where it comes from: how rewards and observations are scaled, which
defects of the data are repaired, and which findings are accepted as they are. Free of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rlexp.datasets.checks import check_shapes
from rlexp.datasets.repairs import Finding, Repair, refuse_traps, repaired
from rlexp.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions
    from rlexp.envs.spec import EnvSpec

E = TypeVar("E", bound=Enum)
RETURN_RANGE = 1000.0  # episodes of D4RL's locomotion tasks are so many steps long


class Reward(Enum):
    """What rewards are learned from instead of those recorded, r."""

    none = "none"  # r
    scale = "scale"  # r · reward_scale
    shift = "shift"  # r + reward_shift
    scale_shift = "scale_shift"  # r · reward_scale + reward_shift
    return_range = "return_range"  # r · reward_scale (1000) / (largest − smallest return of an episode)
    standardize = "standardize"  # (r − mean) / standard deviation


class ObsScaling(Enum):
    """How observations are normalised."""

    none = "none"  # not at all, or by env.normalize_obs
    standardize = "standardize"  # (s − mean) / (standard deviation + 1e-3) of the data, fixed for the whole run


_SCALED = (Reward.scale, Reward.scale_shift)
_SHIFTED = (Reward.shift, Reward.scale_shift)


@dataclass(eq=False, kw_only=True)
class DatasetSettings:
    """Base of rlexp's datasets: what is learned from. Evaluation reports the rewards of the environment itself."""

    reward: Reward = Reward.none  # none, scale, shift, scale_shift, return_range or standardize
    reward_scale: float | None = None  # factor of scale and scale_shift; return_range: its numerator, 1000 if null
    reward_shift: float | None = None  # what shift and scale_shift add
    obs: ObsScaling = ObsScaling.none  # none, or standardize: by mean and deviation of the data
    report: Callable[[str], None] = field(init=False, default=print)  # told what was repaired, and what takes long

    def __post_init__(self) -> None:
        self.reward, self.obs = _member(Reward, self.reward, "reward"), _member(ObsScaling, self.obs, "obs")
        name = self.reward.value
        if self.reward in _SCALED and self.reward_scale is None:
            raise ConfigError(f"dataset.reward={name} needs a factor: dataset.reward_scale=…")
        if self.reward in _SHIFTED and self.reward_shift is None:
            raise ConfigError(f"dataset.reward={name} needs what to add: dataset.reward_shift=…")
        if self.reward_scale is not None and self.reward not in (*_SCALED, Reward.return_range):
            raise ConfigError(f"dataset.reward={name} uses no dataset.reward_scale. Use scale or scale_shift.")
        if self.reward_shift is not None and self.reward not in _SHIFTED:
            raise ConfigError(f"dataset.reward={name} uses no dataset.reward_shift. Use shift or scale_shift.")
        if self.reward_scale is not None and not (np.isfinite(self.reward_scale) and self.reward_scale > 0):
            raise ConfigError(f"dataset.reward_scale must be greater than 0, not {self.reward_scale}.")
        if self.reward_shift is not None and not np.isfinite(self.reward_shift):
            raise ConfigError(f"dataset.reward_shift must be a number, not {self.reward_shift}.")

    def prepared(self, data: Transitions, spec: EnvSpec, source: str) -> Transitions:
        """The data checked against the environment, with what its rewards are to be mapped by."""
        data = data.check(spec, source)
        scale, shift = self.reward_map(data, source)
        return replace(data, reward_scale=scale, reward_shift=shift, source=data.source or source)

    def reward_map(self, data: Transitions, source: str = "the dataset") -> tuple[float, float]:
        """Factor and summand of the rewards that are learned from."""
        if self.reward is Reward.return_range:
            returns = data.episode_returns()
            least, most = float(returns.min()), float(returns.max())
            if not most > least:
                raise DataError(
                    f"{source}: every episode returns {most:g}, so dataset.reward=return_range has no range."
                )
            return (self.reward_scale or RETURN_RANGE) / (most - least), 0.0
        if self.reward is Reward.standardize:
            mean, std = float(data.reward.mean(dtype=np.float64)), float(data.reward.std(dtype=np.float64))
            if not std > 0:
                raise DataError(f"{source}: every reward is {mean:g}, so dataset.reward=standardize cannot scale it.")
            return 1 / std, -mean / std
        return self.reward_scale or 1.0, self.reward_shift or 0.0


@dataclass(eq=False, kw_only=True)
class FileSettings(DatasetSettings):
    """Base of datasets that others may have written: known defects are refused, or repaired where the user says so."""

    repair: list[Repair] = field(default_factory=list)  # drop_nan, clip_actions, time_limits, drop_crossing
    accept: list[Finding] = field(default_factory=list)  # suspicious but right: time_limits, crossing

    def __post_init__(self) -> None:
        super().__post_init__()
        self.repair = [_member(Repair, each, "repair") for each in self.repair]
        self.accept = [_member(Finding, each, "accept") for each in self.accept]

    def prepared(self, data: Transitions, spec: EnvSpec, source: str) -> Transitions:
        """As for other data, after the repairs; what still looks like a defect is refused."""
        check_shapes(data.to_d4rl(), source)
        data, done = repaired(data, spec, self.repair, source)
        for line in done:
            self.report(line)
        data = super().prepared(data, spec, source)
        refuse_traps(data, spec, self.accept, source)
        return data


def _member(kind: type[E], value: E | str, name: str) -> E:
    """Python code may give the name of a choice."""
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(each.value for each in kind)
        raise ConfigError(f"dataset.{name}: there is no {value!r}, only {names}.") from None
