"""The replay buffer: one time-major ring [T, N] in NumPy, every observation stored once.

Row t holds the observations acted on at step t, the actions, rewards and flags. The observation that follows is row
t + 1, written as soon as step t is known; where an episode ended, row t + 1 begins the next one and the true final
observation lies in a side store. n-step windows are put together when sampled: that is in `ring_gather.py`,
saving in `ring_state.py`. Of stacked frames only the newest is stored; `frames.py` puts the stacks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlexp.buffers.derived import (
    LAMBDA_RETURN,
    MC_RETURN,
    NEXT_ACTION,
    ReturnsToGo,
    check_derived,
    discounted_returns,
    lambda_returns,
)
from rlexp.buffers.final_obs import FinalObs
from rlexp.buffers.frames import split, whole_stacks
from rlexp.buffers.ring_gather import TERMINATED, TRUNCATED, RingGather
from rlexp.config.component import component
from rlexp.config.fields import Size
from rlexp.datasets.transitions import Transitions
from rlexp.errors import ConfigError
from rlexp.machine import available_memory, gigabytes
from rlexp.seeding import numpy_generator
from rlexp.tree import ArrayTree, tree_leaves
from rlexp.types import Batch

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv
    from rlexp.envs.spec import EnvSpec
    from rlexp.envs.vector import VecStep

Columns = Mapping[str, tuple[tuple[int, ...], str]]  # name -> (shape of one row, dtype)

MAX_N_STEP = 10_000  # a batch costs as many passes over it
_CHUNK = 4096  # rows of a dataset valued at a time
_BOOKKEEPING = 4 + 1 + 8  # bytes of reward, flag and number of the end


@component("buffer", "replay")
@dataclass(eq=False, kw_only=True)
class ReplayBuffer(RingGather):
    """Uniform sampling over the newest ``capacity`` transitions, with n-step returns."""

    adaptive: ClassVar[bool] = False  # whether what is sampled depends on earlier updates

    capacity: Size = 1_000_000  # transitions kept, over all environments
    n_step: Size = 1  # rewards summed into one; the batch's discount is γⁿ

    # --- building ---------------------------------------------------------------------------------------------------

    def attach(self, env: GymEnv) -> None:
        """Take from the environment what sampling needs of it; called before anything is built or written."""

    def detach(self) -> None:
        """Let go of what :meth:`attach` has made; called when the run ends, however it does."""

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
        """Allocate. Pages are committed by the system when first written, so an empty ring costs nothing.

        ``capacity`` overrides the setting, for a dataset of known length. Its rows need not follow each other, so that
        its stacks of frames are stored as they are.
        """
        extras = extras or {}
        self.check_memory(spec, num_envs, extras, capacity)
        self._max_rows = (capacity or self.capacity) // num_envs
        self._depth = [1 if capacity else leaf.stack for leaf in spec.obs.leaves.values()]
        # One row more: the observation after the newest transition. And those that the oldest stacks reach back to.
        self._ring = ring = self._max_rows + max(self._depth)
        self._num_envs = num_envs
        self._flat = ring * num_envs
        self._generator = numpy_generator(seed, "buffer")

        leaves = spec.obs.leaves
        self._single = spec.obs.single
        self._obs_names = list(leaves)
        shapes = [leaf.shape if depth == 1 else leaf.shape[1:] for leaf, depth in zip(leaves.values(), self._depth)]
        dtypes = [leaf.dtype for leaf in leaves.values()]
        self._obs_rows = [np.zeros((ring, num_envs, *shape), dtype) for shape, dtype in zip(shapes, dtypes)]
        self._action_rows = np.zeros((ring, num_envs, *spec.action.shape), spec.action.dtype)
        self._reward_rows = np.zeros((ring, num_envs), np.float32)
        self._flag_rows = np.zeros((ring, num_envs), np.uint8)
        self._end_rows = np.zeros((ring, num_envs), np.int64)  # number in the side store, where a flag is set
        self._extra_rows = {name: np.zeros((ring, num_envs, *shape), dtype) for name, (shape, dtype) in extras.items()}

        # The same memory as one axis [T·N, …]: what sampling indexes.
        self._obs = [_flat(rows) for rows in self._obs_rows]
        self._action, self._reward = _flat(self._action_rows), _flat(self._reward_rows)
        self._flag, self._end = _flat(self._flag_rows), _flat(self._end_rows)
        self._extras = {name: _flat(rows) for name, rows in self._extra_rows.items()}

        # Of each end the true final observation, and of stacks the older frames of the episode that begins next.
        self._heads = [i for i, depth in enumerate(self._depth) if depth > 1]
        older = [((self._depth[i] - 1, *shapes[i]), dtypes[i]) for i in self._heads]
        self._final = FinalObs([*zip(shapes, dtypes), *older])
        self._first_heads = [np.zeros((num_envs, *shape), dtype) for shape, dtype in older]  # of the very first row
        self._rows = 0  # rows ever added: the absolute number of the next one
        self._cursor = 0  # where that one goes: `_rows` modulo the ring
        self._missing = 0  # rows announced by load_state_dict and not yet loaded
        self._sources: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # of a dataset with weighted sources
        self._source_ends: np.ndarray | None = None  # rows at which the sources of a dataset end, if it has several
        self.map_rewards(1.0, 0.0)
        self.derive(())
        self.set_gamma(gamma)

    def map_rewards(self, scale: float, shift: float) -> None:
        """Batches have reward · scale + shift from now on; stored is what really happened. Before any row is added."""
        self._reward_map = None if (scale, shift) == (1.0, 0.0) else (np.float32(scale), np.float32(shift))

    def derive(self, names: Iterable[str], gamma: float = 1.0, failure_reward: float | None = None) -> None:
        """Give batches these columns beside the extras (`derived.py`); to be called after :meth:`build`."""
        names = check_derived(names)
        self._next_actions = NEXT_ACTION in names
        returns = ReturnsToGo(self._ring, self._num_envs, gamma, failure_reward) if MC_RETURN in names else None
        self._returns, self._failure_reward = returns, failure_reward
        self.lambda_returns = np.zeros(self._flat, np.float32) if LAMBDA_RETURN in names else None  # set by their owner
        self._gamma = gamma

    def set_gamma(self, gamma: float) -> None:
        """Change the discount factor; it applies to every window sampled from now on."""
        powers = np.array([gamma**k for k in range(self.n_step + 1)])
        self._powers = powers.astype(np.float32)
        self._discounts = np.stack([powers, 0 * powers, powers]).astype(np.float32)  # [flag, steps]
        self._one_step = self._discounts[:, 1].copy()  # [flag]

    def bytes_per_transition(self, spec: EnvSpec, extras: Columns | None = None) -> int:
        """Memory that one transition takes: of stacked frames the newest."""
        leaves = spec.obs.leaves.values()
        columns = [(leaf.shape if leaf.stack == 1 else leaf.shape[1:], leaf.dtype) for leaf in leaves]
        columns += [(spec.action.shape, spec.action.dtype), *(extras or {}).values()]
        return _BOOKKEEPING + sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns)

    def memory(
        self, spec: EnvSpec, num_envs: int, extras: Columns | None = None, *, capacity: int | None = None
    ) -> int:
        """Memory in bytes when full, without the final observations of episodes."""
        rows = (capacity or self.capacity) // num_envs + 1
        return rows * num_envs * self.bytes_per_transition(whole_stacks(spec) if capacity else spec, extras)

    def check_memory(
        self, spec: EnvSpec, num_envs: int, extras: Columns | None = None, capacity: int | None = None
    ) -> None:
        """Refuse what does not fit into memory, before anything is allocated."""
        if self.n_step > MAX_N_STEP:
            raise ConfigError(f"buffer.n_step must be at most {MAX_N_STEP}, not {self.n_step}.")
        wanted = capacity or self.capacity
        if wanted < num_envs:
            raise ConfigError(
                f"buffer.capacity={wanted} holds less than one transition for each of {num_envs} environments. "
                f"Set buffer.capacity={num_envs} or more."
            )
        needed, free = self.memory(spec, num_envs, extras, capacity=capacity), available_memory()
        if free is None or needed <= free:
            return
        each = self.bytes_per_transition(whole_stacks(spec) if capacity else spec, extras)
        fits = max(free // each - num_envs, 0)
        fits -= fits % 10 ** max(len(str(fits)) - 2, 0)  # two digits are enough
        what = f"buffer.capacity={wanted}" if capacity is None else f"A buffer for {wanted} transitions"
        raise ConfigError(
            f"{what} needs {gigabytes(needed)} ({each} bytes per transition of {spec.id}), but only "
            f"{gigabytes(free)} of memory can be used. "
            + (f"A capacity of {fits} would fit." if fits else "Not even a small buffer would fit.")
        )

    # --- collecting -------------------------------------------------------------------------------------------------

    def start(self, obs: ArrayTree) -> None:
        """The observations [N, …] that will be acted on next: the first ones, or those after a restore.

        Where they are not the ones the buffer expects, the episode could not be continued and is cut.
        """
        self._require_all_rows()
        given = [leaf.astype(rows.dtype) for leaf, rows in zip(self._leaves(obs), self._obs_rows)]
        if not self._rows:
            newest, heads = split(given, self._depth)
            for rows, leaf in zip(self._obs_rows, newest):
                rows[0] = leaf
            self._first_heads = heads
            return
        expected = self._obs_at(self._cursor * self._num_envs + np.arange(self._num_envs))
        differs = np.zeros(self._num_envs, bool)
        for leaf, known in zip(given, expected):
            differs |= (_row_bytes(known) != _row_bytes(leaf)).any(1)
        for env in np.flatnonzero(differs):
            self._cut(int(env), [leaf[env] for leaf in given])

    def add(
        self,
        action: np.ndarray,
        step: VecStep,
        reward: np.ndarray | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """One step of all environments: ``action`` [N, …] in agent units; ``reward`` [N] if not the step's own."""
        at = self._cursor
        following = at + 1
        if following == self._ring:
            following = 0
        self._action_rows[at] = action
        self._reward_rows[at] = step.reward if reward is None else reward
        obs = step.obs
        if self._heads:
            for rows, leaf, depth in zip(self._obs_rows, self._leaves(obs), self._depth):
                rows[following] = leaf if depth == 1 else leaf[:, -1]
        elif isinstance(obs, dict):
            for name, rows in zip(self._obs_names, self._obs_rows):
                rows[following] = obs[name]
        else:
            self._obs_rows[0][following] = obs
        if self._extra_rows:
            assert extras is not None
            for name, rows in self._extra_rows.items():
                rows[at] = extras[name]
        if step.next_obs is not obs:  # the same object when nothing ended
            envs = np.flatnonzero(step.terminated | step.truncated)
            if envs.size:
                flags = np.where(step.terminated[envs], TERMINATED, TRUNCATED)
                last, _ = split([leaf[envs] for leaf in self._leaves(step.next_obs)], self._depth)
                leaves = self._leaves(obs) if self._heads else []
                self._close(self._rows, envs, flags, last + [leaves[i][envs, :-1] for i in self._heads])
        if self._returns is not None:
            self._returns.add(at, self._learned(self._reward_rows[at]), step.terminated | step.truncated)
        self._rows += 1
        self._cursor = following
        final = self._final
        if final.next > final.first:
            self._release()

    def _cut(self, env: int, first: list[np.ndarray]) -> None:
        """Abandon the running episode of one environment, which continues from the observation ``first``.

        Its last transition becomes truncated; its next observation is the one stored so far.
        """
        before = self._cursor - 1  # -1 is the last place of the ring, as it should be
        newest, heads = split([leaf[None] for leaf in first], self._depth)
        if self._rows and not self._flag_rows[before, env]:
            last = [rows[self._cursor, env][None] for rows in self._obs_rows]
            self._close(self._rows - 1, np.array([env]), np.array([TRUNCATED]), last + heads)
            if self._returns is not None:
                self._returns.close(before, env)
        elif self._rows and heads:  # an episode that has only begun begins with other frames
            self._final.replace(self._end_rows[before, env], len(self._obs_rows), heads)
        for rows, leaf in zip(self._obs_rows, newest):
            rows[self._cursor, env] = leaf[0]

    def _close(self, row: int, envs: np.ndarray, flags: np.ndarray, final_obs: list[np.ndarray]) -> None:
        """Episodes of ``envs`` end with the transitions of absolute row ``row``; ``final_obs`` as in the side store."""
        at = row % self._ring
        self._end_rows[at, envs] = self._final.append(row, final_obs, len(envs))
        self._flag_rows[at, envs] = flags

    def _release(self) -> None:
        """Forget the ends of rows that can no longer be of use; their place in the ring is written next."""
        final, oldest = self._final, self._rows - self._ring + 1
        while final.first < final.next and (row := final.first_row) < oldest:
            self._flag_rows[row % self._ring] = 0
            final.first += 1

    def extend(self, data: Transitions) -> None:
        """Load a dataset (actions in agent units) into an empty buffer of one environment.

        Observations that :func:`~rlexp.datasets.files.read_hdf5` has read, with room for one row more, are taken
        over as they are. A row whose next observation is not the next row's observation is stored like the
        end of an episode: truncated, unless it terminated.
        """
        count = len(data)
        if data.sources:
            rows = np.array([size for size, _ in data.sources])
            self._source_ends = np.cumsum(rows)
        if data.sources and data.sources[0][1] is not None:
            weights = np.array([weight for _, weight in data.sources], np.float64)
            bounds = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])
            self._sources = (np.cumsum(rows) - rows, rows, bounds)
        if self._num_envs != 1 or self._rows or self._extra_rows or self._heads:
            raise ValueError(
                "extend() needs an empty buffer of one environment, of known capacity, without extra columns"
            )
        if count > self._max_rows:
            raise ConfigError(f"buffer.capacity={self._max_rows} cannot hold a dataset of {count} transitions.")
        flags = np.where(data.terminated, TERMINATED, np.where(data.truncated | data.breaks(), TRUNCATED, 0))
        ends = np.flatnonzero(flags)
        size, free = len(ends) * sum(leaf[0].nbytes for leaf in self._obs), available_memory()
        if free is not None and size > free:
            raise ConfigError(f"The dataset has {len(ends)} ends of episodes; keeping them needs {gigabytes(size)}.")
        for i, (obs, next_obs) in enumerate(zip(self._leaves(data.obs), self._leaves(data.next_obs))):
            if (whole := _with_room(obs, self._obs[i])) is not None:
                self._obs[i], self._obs_rows[i] = whole, whole.reshape(self._obs_rows[i].shape)
            else:
                self._obs[i][:count] = obs
            self._obs[i][count] = next_obs[-1]
        self._action[:count] = data.action
        self._reward[:count] = data.reward
        self._flag[:count] = flags
        final_obs = [leaf[ends] for leaf in self._leaves(data.next_obs)]
        self._end[ends] = self._final.append(ends, final_obs, len(ends))
        if self._returns is not None:
            self._returns.flat[:count] = discounted_returns(
                self._learned(self._reward[:count]), flags != 0, self._gamma, self._failure_reward
            )
        self._rows = count
        self._cursor = count % self._ring

    # --- sampling ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return min(self._rows, self._max_rows) * self._num_envs

    def set_progress(self, progress: float) -> None:
        """The share of the run's budget that is spent, told before sampling."""

    def update_priorities(self, index: np.ndarray, error: np.ndarray) -> None:
        """TD errors [n] of the transitions sampled at ``index``; an adaptive buffer prefers the large ones."""

    def sample(self, n: int, batches: int = 1) -> Batch:
        """``batches`` times ``n`` transitions, uniformly and independently from all that are stored."""
        count = len(self)
        if not count:
            raise ValueError("nothing to sample: the buffer is empty")
        if self._sources is not None:
            return self.gather(self._by_chance(self._generator.random(n * batches)))
        return self.gather(self._places(self._generator.integers(0, count, n * batches)))

    def _places(self, index: np.ndarray) -> np.ndarray:
        """Where the transitions lie that are numbered from 0 in the order of their rows; changes ``index``."""
        if self._rows > self._max_rows:
            index += self.oldest_sampled % self._ring * self._num_envs
            index %= self._flat
        return index

    def _by_chance(self, chance: np.ndarray) -> np.ndarray:
        """Places chosen by one number in [0, 1) each [B]: in a source by its weight, where there are some."""
        if self._sources is None:
            return self._places((chance * len(self)).astype(np.int64))
        first, rows, bounds = self._sources
        source = np.searchsorted(bounds[1:-1], chance, "right")
        within = (chance - bounds[source]) / (bounds[source + 1] - bounds[source])
        return first[source] + np.minimum((within * rows[source]).astype(np.int64), rows[source] - 1)

    def source_counts(self, index: np.ndarray) -> np.ndarray:
        """How many of the transitions at these places come from each source of the dataset; empty if it is one."""
        if self._source_ends is None:
            return np.zeros(0, np.int64)
        source = np.searchsorted(self._source_ends, index, "right")
        return np.bincount(source, minlength=len(self._source_ends))

    def value_dataset(self, values: Callable[[Batch], tuple[np.ndarray, np.ndarray]], td_lambda: float) -> None:
        """Compute ``lambda_return`` of the dataset that :meth:`extend` loaded; ``values`` gives V(s) and V(s′)."""
        assert self.lambda_returns is not None
        rows = [np.arange(start, min(start + _CHUNK, self._rows)) for start in range(0, self._rows, _CHUNK)]
        parts = []
        for index in rows:
            batch = self.gather(index)
            parts.append((batch.reward.numpy(), batch.discount.numpy(), self._flag[index] != 0, *values(batch)))
        reward, discount, ended, value, next_value = (np.concatenate(part) for part in zip(*parts))
        decay = self._gamma * td_lambda
        self.lambda_returns[: self._rows] = lambda_returns(reward, discount, ended, value, next_value, decay)

    def _derive_again(self) -> None:
        """After rows were put back: the same sums in the same order as when they were collected, so the same bits."""
        if self._returns is not None:
            self._returns.restart()
            for row in range(self.oldest_sampled, self._rows):
                at = row % self._ring
                self._returns.add(at, self._learned(self._reward_rows[at]), self._flag_rows[at] != 0)

    def _leaves(self, tree: ArrayTree) -> list[np.ndarray]:
        """The leaves in the order of the spec."""
        given = dict(tree_leaves(tree))
        return [np.asarray(given[name]) for name in self._obs_names]


def _with_room(leaf: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """The array that ``leaf`` is all but the last row of, if it can take the place of ``like``."""
    whole = leaf.base
    if not isinstance(whole, np.ndarray) or (whole.shape, whole.dtype) != (like.shape, like.dtype):
        return None
    same_start = leaf.flags.c_contiguous and leaf.ctypes.data == whole.ctypes.data
    return whole if same_start and len(leaf) + 1 == len(whole) else None


def _flat(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])


def _row_bytes(rows: np.ndarray) -> np.ndarray:
    """[N, …] as bytes [N, size]: equality of bits, also for NaN."""
    return np.frombuffer(rows.tobytes(), np.uint8).reshape(len(rows), rows.nbytes // len(rows))
