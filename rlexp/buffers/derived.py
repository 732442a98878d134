"""Columns computed from what a buffer stores, for algorithms that ask for them (``Algorithm.derived``).

``next_action`` [B, …] is the action that was taken at the batch's next observation, in agent units; at the end of an
episode, and at the newest row of a running one, it is the row's own action. It is looked up when sampled.

``mc_return`` [B] is the discounted return of the rest of the episode under the run's γ. Nothing is bootstrapped: where
an episode was truncated, or is still running, it is the return of the rewards seen so far, a lower bound if rewards are
not negative. It is kept up to date as rewards come, and being a function of what is stored it needs no saving.
In a sparse task with a reward r at every step without success (``failure_reward``), that bound is too high where an
episode was cut: from the rows on after which an episode ended without more than r, the return is r/(1 − γ).

``lambda_return`` [B] is the TD(λ) return by the algorithm's ``value`` and ``td_lambda``, of a dataset as a whole: the
offline loop computes it anew after every ``return_interval`` updates, and saves it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlexp.errors import ConfigError

MC_RETURN, NEXT_ACTION, LAMBDA_RETURN = "mc_return", "next_action", "lambda_return"
NEXT_KNOWN = "next_action_known"  # comes with NEXT_ACTION
DERIVED = frozenset({MC_RETURN, NEXT_ACTION, LAMBDA_RETURN})
_NEGLIGIBLE = 1e-12  # a reward that counts for less than this is not carried further back


def check_derived(names: Iterable[str]) -> frozenset[str]:
    """The columns an algorithm asks for; refused if there is no such one."""
    if unknown := sorted(set(names) - DERIVED):
        raise ConfigError(f"No column {unknown[0]!r} can be derived from transitions, only {sorted(DERIVED)}.")
    return frozenset(names)


def discounted_returns(
    reward: np.ndarray, ended: np.ndarray, gamma: float, failure_reward: float | None = None
) -> np.ndarray:
    """[B] float32: from each row to the end of its episode (``ended``) or of the data, summed in float64."""
    returns = np.empty(len(reward), np.float32)
    keep = np.where(ended, 0.0, gamma)
    following = 0.0
    # One step back at a time, on plain floats: a million of them take a quarter of a second.
    for start in range((len(reward) - 1) // 65536 * 65536, -1, -65536):
        part = slice(start, start + 65536)
        backwards = []
        for each, kept in zip(reward[part][::-1].tolist(), keep[part][::-1].tolist()):
            following = each + kept * following
            backwards.append(following)
        returns[part] = backwards[::-1]
    if failure_reward is not None:
        end, success = _next(ended), _next(reward > failure_reward)
        returns[(end < len(reward)) & (success > end)] = failure_reward / (1 - gamma)
    return returns


def lambda_returns(
    reward: np.ndarray,
    discount: np.ndarray,
    ended: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    decay: float,
) -> np.ndarray:
    """[B] float32: V(s_t) + Σ_k decayᵏ δ_{t+k} to the episode's end, δ = r + discount · V(s′) − V(s), decay = γλ."""
    delta = reward + discount * next_value - value
    return value + discounted_returns(delta, ended, decay)


def _next(flags: np.ndarray) -> np.ndarray:
    """For each row the first one from there on that has the flag, or the number of rows."""
    rows = np.where(flags, np.arange(len(flags)), len(flags))
    return np.minimum.accumulate(rows[::-1])[::-1]


class ReturnsToGo:
    """The column ``mc_return`` of a ring [T, N] that is filled step by step."""

    def __init__(self, ring: int, num_envs: int, gamma: float, failure_reward: float | None = None) -> None:
        self.rows = np.zeros((ring, num_envs), np.float32)
        self.flat = self.rows.reshape(-1)
        self.age = np.zeros(num_envs, np.int64)  # steps of the running episodes
        self._idle = np.zeros(num_envs, np.int64)  # the last of them that brought no success
        self._failure_reward = failure_reward
        self._most = ring - 1
        self._gamma = gamma
        self._powers = np.ones(1, np.float32)

    def add(self, at: int, reward: np.ndarray, ended: np.ndarray) -> None:
        """The rewards [N] of ring row ``at`` count for all earlier rows of their episodes, too."""
        self.rows[at] = 0.0
        for env, age in enumerate(self.age):
            powers = self._discounts(int(age) + 1)
            place = np.arange(at, at - len(powers), -1)  # negative places are those at the end of the ring
            self.rows[place, env] += powers * reward[env]
        self.age += 1
        if self._failure_reward is not None:
            self._idle = np.where(reward > self._failure_reward, 0, self._idle + 1)
        for closed in np.flatnonzero(ended).tolist():
            self.close(at, closed)

    def close(self, at: int, env: int) -> None:
        """The episode of an environment ended with ring row ``at``."""
        if self._failure_reward is not None:
            failed = min(int(self._idle[env]), self._most)
            self.rows[np.arange(at, at - failed, -1), env] = self._failure_reward / (1 - self._gamma)
        self.age[env] = self._idle[env] = 0

    def restart(self) -> None:
        """Forget the running episodes, to add all rows again."""
        self.age[:] = self._idle[:] = 0

    def _discounts(self, count: int) -> np.ndarray:
        """1, γ, γ², …: ``count`` of them, or as many as rows are kept or matter."""
        count = min(count, self._most)
        while len(self._powers) < count and self._powers[-1] > _NEGLIGIBLE:
            self._powers = np.array([self._gamma**k for k in range(2 * len(self._powers))], np.float32)
        return self._powers[:count]
