"""What there is to know about a dataset before learning from it, and what is wrong with it; one pass, in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.datasets.checks import misfits
from rlexp.datasets.describing import counted
from rlexp.datasets.repairs import MANY, TOLERANCE, finite_rows, leaves_differ, out_of_bounds
from rlexp.datasets.streams import Piece, Stream
from rlexp.errors import ConfigError, DataError
from rlexp.tree import ArrayTree, tree_leaves, tree_map

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec

TERMINATED, TRUNCATED, BROKEN, CUT = "terminated", "truncated", "broken off", "cut"
BINS = 12  # of the histogram
_SUSPECT_SHARE = 0.05  # of the episodes must end at the largest length before it looks like a limit
_OUTLIERS = 0.01  # actions: so few rows outside of [-1, 1] are mistakes, more are another range


@dataclass
class Column:
    """One array of a dataset."""

    shape: tuple[int, ...]
    dtype: str
    low: np.ndarray
    high: np.ndarray
    bad: int = 0  # rows with NaN or infinity
    first_bad: int = -1


@dataclass
class Report:
    """A dataset at a glance."""

    kind: str
    rows: int
    columns: dict[str, Column]
    returns: np.ndarray  # [E] of each episode, in the order of the data
    lengths: np.ndarray  # [E]
    ends: list[str]  # [E] how each one ended
    reward: dict[str, float]  # mean, std, min, max
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was left out

    def count(self, end: str) -> int:
        """Episodes that ended so."""
        return self.ends.count(end)

    @property
    def whole(self) -> np.ndarray:
        """[E] bool: the episodes that returns and lengths are told of; all, where none is whole."""
        whole = np.array([end in (TERMINATED, TRUNCATED) for end in self.ends])
        return whole if whole.any() else ~whole


class Inspector:
    """Takes in a dataset piece by piece; remembers one row and a number or two of each episode."""

    def __init__(self, stream: Stream, spec: EnvSpec | None = None) -> None:
        self.stream, self.spec = stream, spec
        self.action = spec.action if spec is not None else stream.action
        self.rows = 0
        self.columns: dict[str, Column] = {}
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.ends: list[str] = []
        self._return, self._length, self._gap = 0.0, 0, False
        self._bad_next = False  # the next observation of the row before has NaN or infinity
        self._previous: tuple[ArrayTree, str | None] | None = None  # next observation and end of the row before
        self.outside = self.beyond_one = 0  # rows with actions outside of the bounds, outside of [-1, 1]
        self.crossing = {TERMINATED: 0, TRUNCATED: 0}
        self.followed = {TERMINATED: 0, TRUNCATED: 0}  # ends that another row follows
        self.limits = {TERMINATED: 0, TRUNCATED: 0}  # ends at the environment's time limit
        self.misfits: list[str] = []  # what the rows have otherwise than the environment
        self._sum = self._squares = 0.0
        self._finite = 0

    def take(self, piece: Piece) -> None:
        """The next rows."""
        if self.spec is not None and not self.rows:
            self.misfits = misfits(piece.obs, piece.action, self.spec)
        bad, unknown = self._take_columns(piece)
        self._take_actions(piece.action)
        good = piece.reward[np.isfinite(piece.reward)].astype(np.float64)
        self._finite += len(good)
        self._sum += float(good.sum())
        self._squares += float(good @ good)
        self._take_episodes(piece, self._joins(piece), bad, unknown)
        self.rows += len(piece)

    def _take_columns(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """[rows] bool each: NaN or infinity in any column; in what tells if a row follows from the one before."""
        arrays: dict[str, np.ndarray] = {"actions": piece.action, "rewards": piece.reward}
        for key, tree in (("observations", piece.obs), ("next_observations", piece.next_obs)):
            if tree is not None:
                arrays |= {f"{key}/{name}".rstrip("/"): leaf for name, leaf in tree_leaves(tree)}
        any_bad, bad_obs, bad_next = np.zeros((3, len(piece)), bool)
        for key, array in arrays.items():
            if not len(array):
                continue
            bad = ~finite_rows(array)
            good = array[~bad] if bad.any() else array
            if key not in self.columns:
                start = np.full(array.shape[1:], np.inf), np.full(array.shape[1:], -np.inf)
                self.columns[key] = Column(array.shape[1:], array.dtype.name, *start)
            column = self.columns[key]
            if array.shape[1:] != column.shape:
                where = f" in {piece.source}" if piece.source else ""
                raise DataError(
                    f"{key} changes its shape from {column.shape} to {array.shape[1:]}{where}: the data are of "
                    "different environments. Look at each by itself."
                )
            if len(good):
                column.low, column.high = np.minimum(column.low, good.min(0)), np.maximum(column.high, good.max(0))
            if bad.any():
                column.first_bad = self.rows + int(bad.argmax()) if not column.bad else column.first_bad
                column.bad += int(bad.sum())
                any_bad |= bad
                if key.startswith("observations"):
                    bad_obs |= bad
                elif key.startswith("next_observations"):
                    bad_next |= bad
        unknown = bad_obs | np.append(self._bad_next, bad_next)[:-1]
        self._bad_next = bool(np.append(self._bad_next, bad_next)[-1])
        return any_bad, unknown

    def _take_actions(self, action: np.ndarray) -> None:
        flat = action.reshape(len(action), -1)
        if flat.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                self.beyond_one += int((np.abs(flat) > 1 + TOLERANCE).any(1).sum())
        if self.action is not None and flat.shape[1] == max(len(self.action.nvec), self.action.dim):
            self.outside += int(out_of_bounds(action, self.action).sum())

    def _joins(self, piece: Piece) -> np.ndarray | None:
        """[rows] bool: whether a row begins with the next observation of the row before; None if the file has none."""
        if piece.next_obs is None:
            return None
        count = len(piece)
        joins = np.ones(count, bool)
        following = tree_map(lambda leaf: leaf[1:], piece.obs)
        joins[1:] = ~leaves_differ(piece.next_obs, following, count - 1)
        if self._previous is not None and count:
            joins[0] = not leaves_differ(self._previous[0], tree_map(lambda leaf: leaf[:1], piece.obs), 1)[0]
        return joins

    def _take_episodes(self, piece: Piece, joins: np.ndarray | None, bad: np.ndarray, unknown: np.ndarray) -> None:
        """An episode with NaN is not whole; it breaks off only where both observations are known to differ."""
        reward = np.where(np.isfinite(piece.reward), piece.reward, 0.0).tolist()
        kinds = np.where(piece.terminated, 1, np.where(piece.truncated, 2, 0)).tolist()
        gaps = [False] * len(piece) if piece.gaps is None else piece.gaps.tolist()
        before = None if self._previous is None else self._previous[1]
        for i, kind in enumerate(kinds):
            joined = True if joins is None else bool(joins[i])
            if before is not None:
                self.followed[before] += 1
                self.crossing[before] += joined and joins is not None
            elif not joined and self._length and not unknown[i]:
                self._close(BROKEN)
            self._return += reward[i]
            self._length += 1
            self._gap |= gaps[i] or bool(bad[i])
            before = (None, TERMINATED, TRUNCATED)[kind]
            if before is not None:
                self._close(CUT if self._gap else before)
        if len(piece):
            last = piece.obs if piece.next_obs is None else piece.next_obs
            self._previous = tree_map(lambda leaf: leaf[-1:].copy(), last), before

    def _close(self, end: str) -> None:
        if self.spec is not None and self._length == self.spec.max_episode_steps and end in self.limits:
            self.limits[end] += 1
        self.returns.append(self._return)
        self.lengths.append(self._length)
        self.ends.append(end)
        self._return, self._length, self._gap = 0.0, 0, False

    def report(self) -> Report:
        """All that was found."""
        if not self.rows:
            raise DataError("It holds no transitions.")
        if self._length:
            self._close(CUT)
        mean = self._sum / max(self._finite, 1)
        std = float(np.sqrt(max(self._squares / max(self._finite, 1) - mean**2, 0.0)))
        column = self.columns["rewards"]
        reward = {"mean": mean, "std": std, "min": float(column.low), "max": float(column.high)}
        lengths = np.array(self.lengths)
        found = Report(self.stream.kind, self.rows, self.columns, np.array(self.returns), lengths, self.ends, reward)
        found.problems = [
            *self.misfits,
            *self._bad_numbers(),
            *self._bad_actions(),
            *self._limits(found),
            *self._bad_ends(found),
        ]
        found.notes = [*self.stream.notes, *_left_out(found)]
        return found

    def _bad_numbers(self) -> list[str]:
        return [
            f"{key} is NaN or infinite in {counted(column.bad, 'row')}, first in row {column.first_bad:,}. "
            "Leave such rows out with dataset.repair=[drop_nan]."
            for key, column in self.columns.items()
            if column.bad
        ]

    def _bad_actions(self) -> list[str]:
        clip = "Clip them with dataset.repair=[clip_actions], or rescale them."
        if self.outside:
            assert self.action is not None
            mend = clip if self.action.kind == "continuous" else "Shift or filter them."
            return [f"actions lie outside of the bounds in {counted(self.outside, 'row')}. {mend}"]
        if self.action is None and 0 < self.beyond_one <= _OUTLIERS * self.rows:
            return [
                f"actions lie outside of [-1, 1] in {counted(self.beyond_one, 'row')}, all others inside: these may be "
                f"out of bounds (env=NAME tells). {clip}"
            ]
        return []

    def _limits(self, found: Report) -> list[str]:
        mend = "If so, use dataset.repair=[time_limits]; if the task does end there, dataset.accept=[time_limits]."
        if self.spec is not None and (limit := self.spec.max_episode_steps) is not None:
            if self.limits[TERMINATED] >= MANY and not self.limits[TRUNCATED]:
                return [
                    f"{self.limits[TERMINATED]:,} episodes terminate at step {limit:,}, the time limit of "
                    f"{self.spec.id}, and none is truncated there: time limits seem marked as terminations. {mend}"
                ]
            return []
        longest = int(found.lengths.max())
        ends = [end for end, length in zip(found.ends, found.lengths) if length == longest]
        count = ends.count(TERMINATED)
        if count >= max(MANY, _SUSPECT_SHARE * len(found.ends)) and TRUNCATED not in ends and longest > 1:
            return [
                f"{count:,} episodes terminate at step {longest:,}, and none is longer or truncated there: time limits "
                f"may be marked as terminations. {mend}"
            ]
        return []

    def _bad_ends(self, found: Report) -> list[str]:
        problems = []
        crossing, ends = self.crossing[TRUNCATED], self.followed[TRUNCATED]
        if 2 * crossing > ends:
            problems.append(
                f"next_observations crosses into the next episode at {crossing:,} of {ends:,} truncated ends. Leave "
                "such rows out with dataset.repair=[drop_crossing]."
            )
        crossing, ends = self.crossing[TERMINATED], self.followed[TERMINATED]
        if 2 * crossing > ends:
            problems.append(
                f"next_observations crosses into the next episode at {crossing:,} of {ends:,} terminations, where "
                "nothing is learned from it: harmless, but not what was observed."
            )
        if broken := found.count(BROKEN):
            problems.append(
                f"{counted(broken, 'episode')} break{'s' if broken == 1 else ''} off without an end: the next row does "
                "not follow from the one before. It is read as truncated there."
            )
        if not (self.stream.has_timeouts or self.stream.has_next_obs):
            problems.append(
                "There are neither timeouts nor next_observations: only terminals are known to end an episode, and "
                "where a time limit ended one, a transition leads into the next. Add one of the two."
            )
        return problems


def _left_out(found: Report) -> list[str]:
    """What lengths and returns are not told of."""
    if not any(end in (TERMINATED, TRUNCATED) for end in found.ends):
        return ["No episode is whole: lengths and returns are those of cut ones."]
    if not (count := int((~found.whole).sum())):
        return []
    return [f"{counted(count, 'cut episode')} left out of lengths and returns, which are those of whole episodes."]


def inspect(stream: Stream, spec: EnvSpec | None = None) -> Report:
    """Read a dataset once and say what is in it."""
    inspector = Inspector(stream, spec)
    for piece in stream.pieces:
        inspector.take(piece)
    return inspector.report()


def histogram(values: np.ndarray, width: int = 40) -> list[tuple[str, str, int]]:
    """Rows of a histogram in text: the range, a bar, the count."""
    least, most = float(values.min()), float(values.max())
    if least == most:
        return [(f"{least:.6g}", "█" * width, len(values))]
    counts, edges = np.histogram(values, bins=min(BINS, max(len(values), 2)))
    return [
        (f"{low:.6g} … {high:.6g}", "█" * int(np.ceil(width * count / counts.max())), int(count))
        for count, low, high in zip(counts, edges, edges[1:])
    ]


def draw(report: Report, path: Path, title: str) -> None:
    """Returns and lengths of the episodes as a picture."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("plot= needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    whole = report.whole
    left.hist(report.returns[whole], bins=40, color="#3b76b0")
    left.set(xlabel="return of an episode", ylabel="episodes")
    middle.plot(np.cumsum(report.lengths)[whole], report.returns[whole], ".", color="#3b76b0", markersize=3)
    middle.set(xlabel="transitions", ylabel="return")
    kinds: dict[str, Any] = {end: report.lengths[np.array(report.ends) == end] for end in dict.fromkeys(report.ends)}
    right.hist(list(kinds.values()), bins=40, stacked=True, label=list(kinds))
    right.set(xlabel="length of an episode", ylabel="episodes")
    right.legend(frameon=False)
    figure.suptitle(title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"plot={path} cannot be written: {error}.") from error
    finally:
        pyplot.close(figure)
