"""A dataset in memory: transitions in time order, checked against the environment they are said to come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rlexp.datasets.checks import (
    as_vector,
    check_entries,
    check_finite,
    check_keys,
    check_shapes,
    fit_action,
    fit_obs,
    flags,
    leaves_like,
    missing_key,
    read_array,
    read_observations,
)
from rlexp.datasets.repairs import leaves_differ
from rlexp.errors import DataError
from rlexp.tree import ArrayTree, tree_leaves, tree_map

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec


@dataclass(frozen=True, eq=False)
class Transitions:
    """B transitions; row i + 1 follows row i unless an episode ended or the chain is broken there."""

    obs: ArrayTree  # [B, …]
    action: np.ndarray  # [B, …] env units
    reward: np.ndarray  # [B] float32
    next_obs: ArrayTree  # [B, …] the true next observation, also where an episode ended
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool, never together with terminated
    doubt: str | None = None  # what may be wrong with the data, told before training
    reward_scale: float = 1.0  # rewards are learned from as reward · scale + shift
    reward_shift: float = 0.0
    sources: tuple[
        tuple[int, float | None], ...
    ] = ()  # rows of each source, in order; how likely it is (None: by rows)
    derived: bool = False  # next_obs are those of the next rows; a terminated row has its own observation in its place
    gaps: np.ndarray | None = None  # [B] bool: rows that others of the same episode are missing before or after
    source: str = ""  # where they come from, for people
    dropped: int = 0  # rows that were left out, because what was observed after them is not recorded

    def __len__(self) -> int:
        return len(self.reward)

    @classmethod
    def from_d4rl(cls, arrays: Mapping[str, np.ndarray], source: str = "the dataset") -> Transitions:
        """From arrays named as in D4RL; the leaves of dict observations are ``observations/<name>``.

        Without ``next_observations`` the next row's observation is taken. Then a row at a timeout has none and is
        dropped, as is the last row unless it terminated; the row before it becomes the truncated end of its episode.
        A terminal row is kept with its own observation as the next one, which nothing bootstraps from.
        Without ``timeouts`` as well only terminals are known to end episodes, which ``doubt`` then says.
        """
        check_keys(arrays, source)
        obs = read_observations(arrays, "observations", source)
        if obs is None:
            raise DataError(missing_key(arrays, "observations", source))  # an empty group
        action, reward, terminal = (read_array(arrays, key, source) for key in ("actions", "rewards", "terminals"))
        timeout = read_array(arrays, "timeouts", source) if "timeouts" in arrays else np.zeros(len(reward), bool)
        next_obs = read_observations(arrays, "next_observations", source)

        columns = {"actions": action, "rewards": reward, "terminals": terminal, "timeouts": timeout}
        columns |= {f"observations/{name}".rstrip("/"): leaf for name, leaf in tree_leaves(obs)}
        if next_obs is not None:
            columns |= {f"next_observations/{name}".rstrip("/"): leaf for name, leaf in tree_leaves(next_obs)}
        check_shapes(columns, source)
        reward = as_vector(reward, "rewards", source, "biuf")
        terminated = flags(terminal, "terminals", source)
        truncated = flags(timeout, "timeouts", source) & ~terminated
        if next_obs is not None:
            return cls(obs, action, reward, next_obs, terminated, truncated)
        data = _with_following_obs(obs, action, reward, terminated, truncated)
        data = replace(data, derived=True, dropped=len(reward) - len(data))
        if len(data) and not (terminated | truncated)[-1]:  # nobody knows how the last episode went on
            data = replace(data, gaps=np.arange(len(data)) == len(data) - 1)
        return data if "timeouts" in arrays else replace(data, doubt=_unknown_ends(terminated, source))

    def to_d4rl(self) -> dict[str, np.ndarray]:
        """The arrays under D4RL's names, as :meth:`from_d4rl` reads them."""
        arrays = {"actions": self.action, "rewards": self.reward}
        arrays |= {"terminals": self.terminated, "timeouts": self.truncated}
        for key, tree in (("observations", self.obs), ("next_observations", self.next_obs)):
            arrays |= {f"{key}/{name}" if name else key: leaf for name, leaf in tree_leaves(tree)}
        return arrays

    def check(self, spec: EnvSpec, source: str = "the dataset") -> Transitions:
        """The same data in the environment's shapes and dtypes; :class:`DataError` if it does not fit."""
        count = len(self)
        if not count:
            raise DataError(f"{source} holds no transitions. Give a dataset with at least one complete transition.")
        check_entries(self.obs, spec, source)
        obs, next_obs = (
            tree_map(lambda leaf, like, key=key: fit_obs(leaf, like, key, count, source, spec), tree, leaves)
            for key, tree, leaves in (
                ("observations", self.obs, leaves_like(self.obs, spec)),
                ("next_observations", self.next_obs, leaves_like(self.next_obs, spec)),
            )
        )
        reward = as_vector(self.reward, "rewards", source, "biuf")
        with np.errstate(over="ignore"):  # reported below
            reward = reward.astype(np.float32, copy=False)
        check_finite(reward, "rewards", source)
        ended = [
            flags(flag, key, source) for flag, key in ((self.terminated, "terminals"), (self.truncated, "timeouts"))
        ]
        if any(len(column) != count for column in ended):
            raise DataError(f"{source}: terminals or timeouts do not have {count} rows. Save one row per transition.")
        return replace(
            self,
            obs=obs,
            action=fit_action(self.action, spec.action, count, source, spec.id),
            reward=reward,
            next_obs=next_obs,
            terminated=ended[0],
            truncated=ended[1] & ~ended[0],
        )

    def breaks(self) -> np.ndarray:
        """[B] bool: rows that no episode ends at, though the next row does not follow from them."""
        return ~self._joined() & ~(self.terminated | self.truncated)

    def crossing(self) -> np.ndarray:
        """[B] bool: rows that an episode ends at, though their next observation is that of the next row."""
        joined = self._joined()
        joined[-1:] = False
        return joined & (self.terminated | self.truncated)

    def _joined(self) -> np.ndarray:
        """[B] bool: whether the next row's observation is this row's next observation; true in the last row."""
        joined = np.ones(len(self), bool)
        following = tree_map(lambda leaf: leaf[1:], self.obs)
        joined[:-1] = ~leaves_differ(self.next_obs, following, len(self) - 1) if len(self) else False
        return joined

    def ends(self) -> np.ndarray:
        """[B] bool: the last row of each episode, also where the data stop or the chain is broken."""
        ends = self.terminated | self.truncated | self.breaks()
        ends[-1:] = True
        return ends

    def episode_steps(self, unknown: np.ndarray | None = None) -> np.ndarray:
        """[B] the number of each row within its episode, from 1; nothing is broken at or before ``unknown`` rows."""
        ends = self.ends()
        if unknown is not None:
            ends &= self.terminated | self.truncated | ~(unknown | np.append(unknown[1:], False))
            ends[-1:] = True
        starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
        first = np.zeros(len(self), np.int64)
        first[starts] = starts
        return np.arange(len(self)) - np.maximum.accumulate(first) + 1

    def starts(self) -> np.ndarray:
        """[E] the rows that episodes begin with; not those after a break or gap, where what came before is not known.

        Where that leaves none, those that pieces of episodes begin with.
        """
        starts = np.concatenate([[0], np.flatnonzero((self.terminated | self.truncated)[:-1]) + 1])
        known = starts[~self._beside_gaps(starts, starts)]
        return known if len(known) else starts

    def _beside_gaps(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """[E] bool: whether rows are missing before or after the pieces from ``first`` to ``last``."""
        return np.zeros(len(first), bool) if self.gaps is None else self.gaps[first] | self.gaps[last]

    def episode_returns(self) -> np.ndarray:
        """[E] the sum of rewards of each whole episode; of pieces, where there is no whole one."""
        returns, whole = self.episodes()
        return returns[whole] if whole.any() else returns

    def episodes(self) -> tuple[np.ndarray, np.ndarray]:
        """[E] the sum of rewards of each episode, and whether it is a whole one: with an end, and no rows missing."""
        last = np.flatnonzero(self.ends())
        starts = np.concatenate([[0], last[:-1] + 1])
        returns = np.add.reduceat(self.reward.astype(np.float64), starts)
        return returns, (self.terminated | self.truncated)[last] & ~self._beside_gaps(starts, last)

    def best_episodes(self, share: float) -> Transitions:
        """The ``share`` of the episodes (at least one) whose undiscounted return is highest, in their old order.

        A last episode without an end is left out, as are those with gaps: what they would have come to is not known.
        """
        ends = np.flatnonzero(self.terminated | self.truncated | self.breaks())
        whole = np.flatnonzero(~self._beside_gaps(np.concatenate([[0], ends[:-1] + 1])[: len(ends)], ends))
        if not len(whole):
            raise DataError(
                "The dataset has no complete episode to choose by its return. Leave trainer.best_episodes=1."
            )
        number = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))  # of each row's episode
        returns = np.bincount(number, self.reward[: len(number)].astype(np.float64))
        best = whole[np.argsort(-returns[whole], kind="stable")[: max(1, round(share * len(whole)))]]
        keep = np.flatnonzero(np.isin(number, best))
        columns = {name: getattr(self, name)[keep] for name in ("action", "reward", "terminated", "truncated")}
        obs, next_obs = (tree_map(lambda leaf: leaf[keep], tree) for tree in (self.obs, self.next_obs))
        last = np.cumsum([rows for rows, _ in self.sources])
        kept = np.diff(np.searchsorted(keep, last), prepend=0).tolist()  # rows of each source
        sources = tuple((rows, weight) for rows, (_, weight) in zip(kept, self.sources) if rows)
        return replace(self, obs=obs, next_obs=next_obs, sources=sources, gaps=None, dropped=0, **columns)

    @property
    def sha256(self) -> str:
        """What identifies the data: a hash over names, dtypes, shapes and contents."""
        digest = hashlib.sha256()
        for name, array in sorted(self.to_d4rl().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


def joined(parts: Sequence[Transitions]) -> Transitions:
    """Several datasets one after another; the last row of each ends its episode, as truncated unless it terminated.

    An episode that is cut there does not become a whole one by that.
    """
    if len(parts) == 1:
        return parts[0]
    forms = [sorted(dict(tree_leaves(part.obs))) for part in parts]
    if any(form != forms[0] for form in forms):
        raise DataError(f"The data have different observations, {forms[0]} and others: they cannot be put together.")
    truncated = [part.truncated.copy() for part in parts]
    for column, part in zip(truncated, parts):
        column[-1:] = ~part.terminated[-1:]

    def cat(*leaves: np.ndarray) -> np.ndarray:
        if any(leaf.shape[1:] != leaves[0].shape[1:] for leaf in leaves):
            shapes = {leaf.shape[1:]: f" ({part.source})" if part.source else "" for leaf, part in zip(leaves, parts)}
            found = " and ".join(sorted(f"{shape}{where}" for shape, where in shapes.items()))
            raise DataError(f"The data have rows of different shapes, {found}: they cannot be put together.")
        return np.concatenate(leaves)

    return Transitions(
        obs=tree_map(cat, *(part.obs for part in parts)),
        action=cat(*(part.action for part in parts)),
        reward=cat(*(part.reward for part in parts)),
        next_obs=tree_map(cat, *(part.next_obs for part in parts)),
        terminated=cat(*(part.terminated for part in parts)),
        truncated=cat(*truncated),
        doubt=next((part.doubt for part in parts if part.doubt is not None), None),
        gaps=cat(*(_with_cut_end(part) for part in parts)),
        source=" and ".join(f"{part.source or 'data'} ({len(part):,})" for part in parts),
        dropped=sum(part.dropped for part in parts),
    )


def _with_cut_end(data: Transitions) -> np.ndarray:
    """[B] bool: its gaps, and its last row unless an episode ends there."""
    gaps = np.zeros(len(data), bool) if data.gaps is None else data.gaps.copy()
    gaps[-1:] |= ~(data.terminated | data.truncated)[-1:]
    return gaps


def _with_following_obs(
    obs: ArrayTree, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> Transitions:
    keep = ~truncated
    keep[-1:] = terminated[-1:]
    before = np.flatnonzero(~keep) - 1
    before = before[before >= 0]
    ends = before[keep[before] & ~terminated[before]]
    truncated = np.zeros_like(truncated)
    truncated[ends] = True

    def following(leaf: np.ndarray) -> np.ndarray:
        shifted = np.concatenate([leaf[1:], leaf[-1:]])
        shifted[terminated] = leaf[terminated]
        return shifted[keep]

    return Transitions(
        obs=tree_map(lambda leaf: leaf[keep], obs),
        action=action[keep],
        reward=reward[keep],
        next_obs=tree_map(following, obs),
        terminated=terminated[keep],
        truncated=truncated[keep],
    )


def _unknown_ends(terminated: np.ndarray, source: str) -> str:
    return (
        f"{source} has neither timeouts nor next_observations, so of its {len(terminated):,} rows only the "
        f"{int(terminated.sum()):,} terminals are known to end an episode. Where a time limit ended one, a transition "
        "leads into the next. Add timeouts (true in the last row of such an episode) or next_observations."
    )
