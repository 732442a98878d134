"""Defects that datasets are known for: how each is recognised, refused, and repaired where the user says so.

Time limits marked as terminations teach that the world ends there; a next observation that belongs to the next episode
lets values flow out of one into the other. Neither can be told for certain from the data, so what looks like one is
refused until the user repairs it or says that it is right. Free of torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from rlexp.datasets.describing import counted
from rlexp.errors import DataError
from rlexp.tree import tree_leaves, tree_map

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions
    from rlexp.envs.spec import ActionSpec, EnvSpec

MANY = 2  # episodes that must end alike before it can be no accident
TOLERANCE = 1e-3  # of an action's range: what rounding may put outside of it
_CHUNK = 65536


class Repair(Enum):
    """What may be done to data before it is learned from."""

    drop_nan = "drop_nan"  # leave out transitions that hold NaN or infinity; their episode is truncated before
    clip_actions = "clip_actions"  # put actions outside of the bounds onto them
    time_limits = "time_limits"  # a termination at the time limit becomes a truncation
    drop_crossing = "drop_crossing"  # leave out truncated rows whose next observation is of the next episode


class Finding(Enum):
    """What looks like a defect but may be right."""

    time_limits = "time_limits"  # the task does end there
    crossing = "crossing"  # the environment does begin where it ended


def repaired(
    data: Transitions, spec: EnvSpec | None, repairs: Collection[Repair], source: str
) -> tuple[Transitions, list[str]]:
    """The data with the wanted repairs made, and a line on each that changed something."""
    done = []
    # Where episodes end is settled before rows are taken out of them: a hole would hide how long they were.
    if Repair.time_limits in repairs:
        steps = data.episode_steps(unknown=~finite(data))
        if (limit := time_limit(data, steps, spec)) is not None and (late := data.terminated & (steps == limit)).any():
            note = f"{source}: {counted(int(late.sum()), 'termination')} at step {limit:,} read as a time limit"
            if data.derived:
                data = replace(without(data, late), doubt=None)
                done.append(f"{note}, and left out, because what was observed after it is not recorded.")
            else:
                data = replace(data, terminated=data.terminated & ~late, truncated=data.truncated | late, doubt=None)
                done.append(f"{note}.")
    if Repair.drop_crossing in repairs and (crosses := data.crossing() & data.truncated).any():
        data = without(data, crosses)
        done.append(
            f"{source}: {counted(int(crosses.sum()), 'row')} left out whose next observation is the next episode's."
        )
    if Repair.drop_nan in repairs and not (keep := finite(data)).all():
        data = without(replace(data, gaps=_gaps(data, ~keep)), ~keep)
        done.append(f"{source}: {counted(int((~keep).sum()), 'transition')} with NaN or infinity left out.")
    bounded = spec is not None and spec.action.kind == "continuous" and data.action[:1].size == spec.action.dim
    if Repair.clip_actions in repairs and bounded:  # what does not fit at all is refused by the check
        assert spec is not None
        action = np.clip(data.action.reshape(len(data), -1), *spec.action.bounds).reshape(data.action.shape)
        if changed := int(out_of_bounds(data.action, spec.action).sum()):
            data = replace(data, action=action)
            done.append(f"{source}: {counted(changed, 'action')} clipped to the bounds.")
    return data, done


def loose_bounds(spec: ActionSpec) -> tuple[np.ndarray, np.ndarray]:
    """Low and high of an action [D], with what rounding may put outside of them: the one measure of "out of bounds"."""
    if spec.kind != "continuous":
        return np.zeros(len(spec.nvec)), np.array(spec.nvec) - 1
    low, high = spec.bounds
    slack = np.where(np.isfinite(high - low), TOLERANCE * (high - low), TOLERANCE)
    return low - slack, high + slack


def out_of_bounds(action: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """[B] bool: rows with an action outside of the bounds; NaN is not."""
    low, high = loose_bounds(spec)
    outside = np.zeros(len(action), bool)
    for start in range(0, len(action), _CHUNK):
        part = action[start : start + _CHUNK]
        flat = part.reshape(len(part), -1)
        with np.errstate(invalid="ignore", over="ignore"):
            flat = flat.astype(np.float32) if flat.dtype.kind == "f" else flat
            outside[start : start + _CHUNK] = ((flat < low) | (flat > high)).any(1)
    return outside


def refuse_traps(data: Transitions, spec: EnvSpec, accept: Collection[Finding], source: str) -> None:
    """Raise :class:`DataError` for what looks like a defect, unless the user has accepted it."""
    if Finding.time_limits not in accept and (limit := spec.max_episode_steps) is not None:
        count = suspicious_terminations(data, limit)
        if count >= MANY:
            raise DataError(
                f"{source}: {count:,} episodes terminate at step {limit:,}, the time limit of {spec.id}, and none is "
                "truncated there: time limits seem to be marked as terminations. Use dataset.repair=[time_limits] to "
                "read them as truncations, or dataset.accept=[time_limits] if the task does end there."
            )
    if Finding.crossing not in accept:
        crosses = data.crossing() & data.truncated
        ends = int(data.truncated[:-1].sum())
        if 2 * int(crosses.sum()) > ends:
            raise DataError(
                f"{source}: at {int(crosses.sum()):,} of {ends:,} truncated ends next_observations is the first "
                "observation of the next episode, so values would cross. Use dataset.repair=[drop_crossing] to leave "
                "these rows out, or dataset.accept=[crossing] if episodes do begin where the one before ended."
            )


def suspicious_terminations(data: Transitions, limit: int) -> int:
    """Episodes that terminate exactly at ``limit``, if none is truncated there; else 0."""
    steps = data.episode_steps()
    at_limit = steps == limit
    if (data.truncated & at_limit).any():
        return 0
    return int((data.terminated & at_limit).sum())


def time_limit(data: Transitions, steps: np.ndarray, spec: EnvSpec | None) -> int | None:
    """The environment's, or the length of the longest episodes in the data if that many terminate there."""
    if spec is not None and spec.max_episode_steps is not None:
        return spec.max_episode_steps
    longest = int(steps[data.terminated | data.truncated].max(initial=0))
    return longest if int((data.terminated & (steps == longest)).sum()) >= MANY else None


def columns_of(data: Transitions) -> list[tuple[str, np.ndarray]]:
    """Every column that holds numbers, by D4RL's names."""
    return [(key, column) for key, column in data.to_d4rl().items() if key not in ("terminals", "timeouts")]


def finite(data: Transitions) -> np.ndarray:
    """[B] bool: transitions without NaN and infinity."""
    good = np.ones(len(data), bool)
    for _, column in columns_of(data):
        good &= finite_rows(column)
    return good


def finite_rows(column: np.ndarray) -> np.ndarray:
    """[B] bool: rows without NaN and infinity."""
    good = np.ones(len(column), bool)
    if column.dtype.kind == "f":
        for start in range(0, len(column), _CHUNK):
            part = np.isfinite(column[start : start + _CHUNK])
            good[start : start + _CHUNK] = part.reshape(len(part), -1).all(1)
    return good


def without(data: Transitions, drop: np.ndarray) -> Transitions:
    """The data without some rows; the row before each of them ends its episode, as truncated."""
    before = np.append(drop[1:], False)
    truncated = data.truncated | (before & ~data.terminated)
    return replace(
        data,
        obs=tree_map(lambda leaf: leaf[~drop], data.obs),
        action=data.action[~drop],
        reward=data.reward[~drop],
        next_obs=tree_map(lambda leaf: leaf[~drop], data.next_obs),
        terminated=data.terminated[~drop],
        truncated=truncated[~drop],
        gaps=None if data.gaps is None else data.gaps[~drop],
    )


def _gaps(data: Transitions, drop: np.ndarray) -> np.ndarray:
    """[B] bool: rows whose episode goes on with, or came from, a row that is dropped."""
    goes_on = ~(data.terminated | data.truncated)[:-1]
    gaps = np.zeros(len(data), bool) if data.gaps is None else data.gaps.copy()
    gaps[:-1] |= drop[1:] & goes_on
    gaps[1:] |= drop[:-1] & goes_on
    return gaps


def leaves_differ(left: object, right: object, rows: int) -> np.ndarray:
    """[rows] bool: whether any leaf of two observations differs, row by row, without large temporaries."""
    differs = np.zeros(rows, bool)
    others = dict(tree_leaves(right))
    for name, leaf in tree_leaves(left):
        for start in range(0, rows, _CHUNK):
            stop = min(start + _CHUNK, rows)
            ours, theirs = leaf[start:stop], others[name][start:stop]
            part = ours != theirs
            if ours.dtype.kind == "f":
                part &= (ours == ours) | (theirs == theirs)  # NaN is the same as NaN here
            differs[start:stop] |= part.reshape(len(part), -1).any(1)
    return differs
