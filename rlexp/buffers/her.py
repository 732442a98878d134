"""Hindsight experience replay: the ring, with goals replaced when sampled by what was achieved in the same episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.buffers.derived import NEXT_ACTION, NEXT_KNOWN
from rlexp.buffers.ring import TERMINATED, Columns, ReplayBuffer
from rlexp.config.component import component
from rlexp.config.fields import Natural
from rlexp.datasets.transitions import Transitions
from rlexp.envs.goals import GoalRewards
from rlexp.envs.spec import ACHIEVED, DESIRED, EnvSpec
from rlexp.errors import ConfigError
from rlexp.types import Batch

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv
    from rlexp.envs.vector import VecStep


class GoalStrategy(Enum):
    """Which of the goals achieved in an episode replace the desired one of a transition."""

    future = "future"  # one of this transition or a later one
    final = "final"  # that of the last transition
    episode = "episode"  # that of any transition


@component("buffer", "her")
@dataclass(eq=False, kw_only=True)
class HerBuffer(ReplayBuffer):
    """Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495).

    k of k + 1 transitions are given another goal: g′ = the goal achieved after step t′ of the same episode, with
    r = compute_reward(achieved, g′) of the environment. An episode that still runs counts up to now, one that is
    partly overwritten as far as it is stored. The environment's compute_terminated decides whether the episode would
    have ended at g′; without one, and where it ended for another reason than its goal, the end stays as it was.
    """

    strategy: GoalStrategy = GoalStrategy.future  # where other goals come from: future, final, episode
    n_sampled_goal: Natural = 4  # transitions with another goal, for each that keeps its own
    goals: GoalRewards | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.strategy = GoalStrategy(self.strategy)  # Python code may give its name

    # --- building ---------------------------------------------------------------------------------------------------

    def attach(self, env: GymEnv) -> None:
        """Make an environment to ask for rewards."""
        if env.action_repeat > 1:
            raise ConfigError(
                f"buffer=her cannot find the rewards of other goals with env.action_repeat={env.action_repeat}: they "
                "are sums over goals that are not stored. Use env.action_repeat=1 or buffer=replay."
            )
        made = env.make()
        try:
            self.goals = GoalRewards(made, env.spec().id)
        except BaseException:
            made.close()
            raise

    def detach(self) -> None:
        """Close that environment."""
        if self.goals is not None:
            self.goals.close()

    def build(
        self,
        spec: EnvSpec,
        num_envs: int,
        gamma: float,
        seed: int,
        *,
        extras: Columns | None = None,
        capacity: int | None = None,
    ) -> None:
        """Allocate the ring, and where each transition stands in its episode."""
        super().build(spec, num_envs, gamma, seed, extras=extras, capacity=capacity)
        self._achieved, self._desired = (self._obs_names.index(name) for name in (ACHIEVED, DESIRED))
        self._before_rows = np.zeros((self._ring, num_envs), np.int32)  # transitions of the episode before this one
        self._after_rows = np.zeros((self._ring, num_envs), np.int32)  # and after it, once the episode has ended
        self._before, self._after = self._before_rows.reshape(-1), self._after_rows.reshape(-1)
        self._age = np.zeros(num_envs, np.int64)  # transitions of the running episodes

    def bytes_per_transition(self, spec: EnvSpec, extras: Columns | None = None) -> int:
        """Memory that one transition takes, its place in the episode included."""
        return super().bytes_per_transition(spec, extras) + 8

    # --- where episodes begin and end -------------------------------------------------------------------------------

    def add(
        self,
        action: np.ndarray,
        step: VecStep,
        reward: np.ndarray | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """One step of all environments."""
        at = self._cursor
        self._before_rows[at] = self._age
        self._age += 1
        super().add(action, step, reward, extras)
        if step.episodes and self.goals is not None:
            self._check_ends(at, step)

    def _check_ends(self, row: int, step: VecStep) -> None:
        """Goals are reached where episodes end: few of an environment's first steps show how a wrapper rewards that."""
        assert self.goals is not None
        envs = np.flatnonzero(step.terminated | step.truncated)
        place = row * self._num_envs + envs
        achieved, desired = self._next_obs(place, self._flag.take(place), [self._achieved, self._desired])
        self.goals.check(achieved, desired, step.reward[envs])

    def _close(self, row: int, envs: np.ndarray, flags: np.ndarray, final_obs: list[np.ndarray]) -> None:
        super()._close(row, envs, flags, final_obs)
        for env in envs.tolist():
            length = min(int(self._age[env]), self._max_rows)
            self._after_rows[np.arange(row - length + 1, row + 1) % self._ring, env] = np.arange(length)[::-1]
        self._age[envs] = 0

    def extend(self, data: Transitions) -> None:
        """Load a dataset."""
        super().extend(data)
        self._find_episodes()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back a state; where episodes begin and end is seen from the flags."""
        super().load_state_dict(state)
        self._find_episodes()

    def load_rows(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back rows that were saved in a segment."""
        super().load_rows(start, arrays)
        self._find_episodes()

    def _find_episodes(self) -> None:
        """Count anew where every stored transition stands, as soon as all are there."""
        if self._missing:
            return
        rows = np.arange(self.oldest_row, self._rows)
        place, number = rows % self._ring, np.arange(len(rows))[:, None]
        ended = self._flag_rows[place] != 0  # [rows, N]
        begins = np.zeros_like(ended)
        begins[1:] = ended[:-1]
        first = np.maximum.accumulate(np.where(begins, number, 0), 0)
        last = np.minimum.accumulate(np.where(ended, number, len(rows))[::-1], 0)[::-1]
        self._before_rows[place] = number - first
        self._after_rows[place] = last - number
        self._age[:] = np.where(ended[-1], 0, len(rows) - first[-1]) if len(rows) else 0

    def _around(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many stored transitions of the same episode come before and after those at ``index`` [B]."""
        row, env = index // self._num_envs, index % self._num_envs
        newer = (self._cursor - 1 - row) % self._ring  # rows between this one and the newest, that one included
        before = self._before.take(index)
        running = before + newer + 1 == self._age.take(env)
        older = min(self._rows, self._max_rows) - 1 - newer
        return np.minimum(before, older), np.where(running, newer, self._after.take(index))

    # --- sampling ---------------------------------------------------------------------------------------------------

    def sample(self, n: int, batches: int = 1) -> Batch:
        """``batches`` times ``n`` transitions, chosen as without hindsight; the first of each get other goals."""
        if not len(self):
            raise ValueError("nothing to sample: the buffer is empty")
        draw = self._generator.random((batches, 2, n))
        index = self._by_chance(draw[:, 0].reshape(-1))
        batch = self.gather(index)
        share = round(n * self.n_sampled_goal / (self.n_sampled_goal + 1))
        if share:
            chosen = (np.arange(batches)[:, None] * n + np.arange(share)).reshape(-1)
            goal = self._other_goals(index[chosen], draw[:, 1, :share].reshape(-1))
            self._replace_goals(batch, chosen, index[chosen], goal)
        return batch

    def _other_goals(self, index: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """A goal that was achieved in the episode of each transition, [B, …]; ``chance`` [B] in [0, 1) chooses it."""
        before, after = self._around(index)
        if self.strategy is GoalStrategy.final:
            ahead = after
        elif self.strategy is GoalStrategy.future:
            ahead = (chance * (after + 1)).astype(np.int64)
        else:
            ahead = (chance * (before + after + 1)).astype(np.int64) - before
        place = (index + ahead * self._num_envs) % self._flat
        return self._next_obs(place, self._flag.take(place), [self._achieved])[0]

    def _replace_goals(self, batch: Batch, chosen: np.ndarray, index: np.ndarray, goal: np.ndarray) -> None:
        """Write ``goal`` [C, …] and what follows from it into the rows ``chosen`` [C] of a batch."""
        last, reward, discount = self._windows_to(index, goal)
        obs, next_obs = batch.obs, batch.next_obs
        assert isinstance(obs, dict)
        assert isinstance(next_obs, dict)
        if self.n_step > 1:  # another goal may end a window earlier
            flag = self._flag.take(last)
            for name, leaf in zip(self._obs_names, self._next_obs(last, flag)):
                next_obs[name].numpy()[chosen] = leaf
            if self._next_actions:
                action, known = self._following_action(last, flag)
                batch.extras[NEXT_ACTION].numpy()[chosen] = action
                batch.extras[NEXT_KNOWN].numpy()[chosen] = known
        for tree in (obs, next_obs):
            tree[DESIRED].numpy()[chosen] = goal
        batch.reward.numpy()[chosen] = reward
        batch.discount.numpy()[chosen] = discount

    def _windows_to(self, index: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Up to n steps towards another goal: the last place, the discounted reward, and the discount [B].

        A window stops where the goal ends the episode, at the end that the episode had, and at the newest row.
        """
        assert self.goals is not None, "attach() was not called"
        last, reward = index.copy(), np.zeros(len(index), np.float32)
        steps, terminated = np.zeros(len(index), np.int64), np.zeros(len(index), bool)
        left = (self._cursor - index // self._num_envs) % self._ring  # rows from this one to the newest, both included
        going = np.arange(len(index))
        for k in range(self.n_step):
            place = (index[going] + k * self._num_envs) % self._flat
            flag = self._flag.take(place)
            achieved = self._next_obs(place, flag, [self._achieved])[0]
            reward[going] += self._powers[k] * self._learned(self.goals.reward(achieved, goal[going]))
            ends = self.goals.terminated(achieved, goal[going]) | self._ended_anyway(place, flag, achieved)
            last[going], terminated[going] = place, ends
            steps[going] += 1
            going = going[~ends & (flag == 0) & (left[going] > k + 1)]
            if not going.size:
                break
        return last, reward, np.where(terminated, np.float32(0), self._powers[steps])

    def _ended_anyway(self, place: np.ndarray, flag: np.ndarray, achieved: np.ndarray) -> np.ndarray:
        """Where the episode terminated for another reason than its own goal, bool [B]."""
        ends = flag == TERMINATED
        if ends.any() and self.goals is not None and self.goals.terminates:
            at = np.flatnonzero(ends)
            own = self._next_obs(place[at], flag[at], [self._desired])[0]
            ends[at] = ~self.goals.terminated(achieved[at], own)
        return ends
