"""Reading the replay ring: the transitions at given places, put together from what is stored.

Places are numbers on the one axis [T·N] of the ring (row in the ring · N + environment). Nothing here changes what is
stored, and which places are read is for `ring.py` and its kinds to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlexp.buffers.derived import LAMBDA_RETURN, MC_RETURN, NEXT_ACTION, NEXT_KNOWN, ReturnsToGo
from rlexp.buffers.frames import stack_back
from rlexp.buffers.ring_state import RingState
from rlexp.datasets.transitions import Transitions
from rlexp.types import Batch

TERMINATED, TRUNCATED = 1, 2  # flags of a transition; 0: the episode went on


class RingGather(RingState):
    """The part of :class:`~rlexp.buffers.ring.ReplayBuffer` that reads it."""

    if TYPE_CHECKING:  # a setting of the buffer, which must not be one of its base's names as well
        n_step: int
    _flat: int  # places: rows of the ring · environments
    _single: bool  # an observation is one array, no dict
    _depth: list[int]  # frames of each leaf of the observation; 1: it is no stack
    _obs: list[np.ndarray]  # what is stored, with rows and environments as one axis
    _action: np.ndarray
    _reward: np.ndarray
    _flag: np.ndarray
    _end: np.ndarray
    _extras: dict[str, np.ndarray]
    _powers: np.ndarray  # of γ, [steps]
    _discounts: np.ndarray  # [flag, steps]
    _one_step: np.ndarray  # [flag]
    _reward_map: tuple[np.float32, np.float32] | None
    _returns: ReturnsToGo | None
    _next_actions: bool
    lambda_returns: np.ndarray | None

    def gather(self, index: np.ndarray, weight: np.ndarray | None = None) -> Batch:
        """The batch of the transitions at flat places ``index`` (row in the ring · N + environment)."""
        if self.n_step == 1:
            last, reward, flag = index, self._learned(self._reward.take(index)), self._flag.take(index)
            discount = self._one_step.take(flag)
        else:
            last, reward, flag, steps = self._windows(index)
            discount = self._discounts[flag, steps]
        from_numpy = torch.from_numpy
        return Batch(
            obs=self._tree([from_numpy(leaf) for leaf in self._obs_at(index)]),
            action=from_numpy(self._action.take(index, 0)),
            reward=from_numpy(reward),
            next_obs=self._tree([from_numpy(leaf) for leaf in self._next_obs(last, flag)]),
            discount=from_numpy(discount),
            weight=None if weight is None else from_numpy(weight),
            index=from_numpy(index),
            extras={name: from_numpy(column) for name, column in self._extra_columns(index, last, flag).items()},
        )

    def _extra_columns(self, index: np.ndarray, last: np.ndarray, flag: np.ndarray) -> dict[str, np.ndarray]:
        """What was stored with the transitions at ``index``, and what is derived of windows that end at ``last``."""
        columns = {name: column.take(index, 0) for name, column in self._extras.items()}
        if self._returns is not None:
            columns[MC_RETURN] = self._returns.flat.take(index)
        if self.lambda_returns is not None:
            columns[LAMBDA_RETURN] = self.lambda_returns.take(index)
        if self._next_actions:
            columns[NEXT_ACTION], columns[NEXT_KNOWN] = self._following_action(last, flag)
        return columns

    def _following_action(self, last: np.ndarray, flag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What was done after the transitions at ``last`` (their own action if that is unknown), and if it is known."""
        known = (flag == 0) & (last // self._num_envs != (self._cursor - 1) % self._ring)
        return self._action.take(np.where(known, (last + self._num_envs) % self._flat, last), 0), known

    def _windows(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Up to n steps from each place: the last place, the discounted reward, the last flag, the steps taken [B].

        A window stops at the end of its episode and at the newest row.
        """
        last, reward, flag = index, self._learned(self._reward.take(index)), self._flag.take(index)
        steps = np.ones(len(index), np.int64)
        left = (self._cursor - index // self._num_envs) % self._ring  # rows from this one to the newest, both included
        for k in range(1, self.n_step):
            going = (flag == 0) & (left > k)
            place = (index + k * self._num_envs) % self._flat
            np.add(reward, self._powers[k] * self._learned(self._reward.take(place)), out=reward, where=going)
            flag = np.where(going, self._flag.take(place), flag)
            last = np.where(going, place, last)
            steps += going
        return last, reward, flag, steps

    def _obs_at(self, place: np.ndarray, which: Sequence[int] | None = None) -> list[np.ndarray]:
        """The observations [B, …] at flat places of the ring, leaf by leaf; ``which``: only of these leaves."""
        which = range(len(self._obs)) if which is None else which
        return [self._obs[i].take(place, 0) if self._depth[i] == 1 else self._stacks_at(i, place) for i in which]

    def _stacks_at(self, i: int, place: np.ndarray) -> np.ndarray:
        """Stacks [B, k, …] of leaf ``i`` whose newest frames lie at these places."""
        frames, begun = stack_back(self._obs[i], self._flag, place, self._depth[i], self._num_envs, self._row_of(place))
        head = len(self._obs) + self._heads.index(i)
        for back, rows in begun:  # the episode began with the frame `back` before the newest: older ones are kept apart
            first = place[rows] - back * self._num_envs
            number = self._end.take((first - self._num_envs) % self._flat)
            older = self._final.take(head, number)
            at_start = self._row_of(place[rows]) == back
            older[at_start] = self._first_heads[self._heads.index(i)][place[rows[at_start]] % self._num_envs]
            frames[rows, : self._depth[i] - 1 - back] = older[:, back:]
        return frames

    def _row_of(self, place: np.ndarray) -> np.ndarray:
        """The absolute rows of flat places that hold observations."""
        return self._rows - (self._cursor - place // self._num_envs) % self._ring

    def _next_obs(self, last: np.ndarray, flag: np.ndarray, which: Sequence[int] | None = None) -> list[np.ndarray]:
        """The true observations after the transitions at ``last``, leaf by leaf; ``which``: only of these leaves."""
        which = range(len(self._obs)) if which is None else which
        leaves = self._obs_at((last + self._num_envs) % self._flat, which)
        ended = flag.nonzero()[0]
        if ended.size:
            numbers = self._end.take(last[ended])
            for i, leaf in zip(which, leaves):
                if self._depth[i] == 1:
                    leaf[ended] = self._final.take(i, numbers)
                else:
                    leaf[ended, :-1] = self._stacks_at(i, last[ended])[:, 1:]
                    leaf[ended, -1] = self._final.take(i, numbers)
        return leaves

    def _learned(self, reward: np.ndarray) -> np.ndarray:
        """Rewards as they are learned from."""
        return reward if self._reward_map is None else reward * self._reward_map[0] + self._reward_map[1]

    def reward_range(self) -> tuple[float, float]:
        """The smallest and largest reward stored, as they are sampled."""
        rewards = self._learned(self._reward.reshape(-1)[: min(self._rows, self._ring) * self._num_envs])
        return float(rewards.min()), float(rewards.max())

    def transitions(self) -> Transitions:
        """Everything stored, one environment after the other, in time order; actions as stored (agent units).

        The running episode of each environment is truncated at the newest row, with a gap: the rest of it is missing.
        """
        self._require_all_rows()
        rows = np.arange(self.oldest_sampled, self._rows) % self._ring
        index = rows * self._num_envs + np.arange(self._num_envs)[:, None]  # [N, rows]
        newest = np.zeros_like(index, bool)
        newest[:, -1:] = True
        index, newest = index.reshape(-1), newest.reshape(-1)
        flag = self._flag.take(index)
        terminated = flag == TERMINATED
        running = newest & ~terminated & (flag != TRUNCATED)
        return Transitions(
            obs=self._tree(self._obs_at(index)),
            action=self._action.take(index, 0),
            reward=self._reward.take(index),
            next_obs=self._tree(self._next_obs(index, flag)),
            terminated=terminated,
            truncated=(flag == TRUNCATED) | running,
            gaps=running,
        )

    def _tree(self, leaves: list[Any]) -> Any:
        return leaves[0] if self._single else dict(zip(self._obs_names, leaves))
