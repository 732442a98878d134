"""Several copies of an environment stepped together. Free of torch.

The framework owns the reset: where an episode ends, ``step`` gives both its true final observation (``next_obs``, to
bootstrap from) and the first of the next episode (``obs``, to act on), as dense arrays. No autoreset mode is involved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.envs.seeded import Episode, SeededEnv
from rlexp.envs.spaces import ObsCodec
from rlexp.envs.spec import EnvSpec
from rlexp.errors import CheckpointError, EnvError, counted
from rlexp.tree import ArrayTree, tree_map


@dataclass(slots=True)
class VecStep:
    """What one step of N environments gave. The arrays are fresh: callers may keep them."""

    obs: ArrayTree  # [N, ...] to act on next: the first observation of the new episode where one ended
    next_obs: ArrayTree  # [N, ...] the true next observation; the same object as obs when no episode ended
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool: no future after this step
    truncated: np.ndarray  # [N] bool: cut off; never together with terminated
    episodes: list[Episode]  # those that ended now


class VecEnv(ABC):
    """N environments with one spec; environment i, episode k is seeded by (seed, i, k) whatever the backend."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int) -> None:
        self.spec, self.num_envs, self.seed = spec, num_envs, seed
        self._action_shape = (num_envs, *spec.action.shape)
        self._action_kinds = "f" if spec.action.kind == "continuous" else "iu"

    @abstractmethod
    def reset(self, seed: int | None = None) -> ArrayTree:
        """Begin episode 0 in every environment, of ``seed`` or of the seed given before; the first observations."""

    @abstractmethod
    def step(self, action: np.ndarray) -> VecStep:
        """Take canonical actions [N, ...] in environment units; Box actions are clipped to their bounds."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """The running episodes as a state tree."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> tuple[ArrayTree, list[int]]:
        """Put back a snapshot: the observations to act on, and the environments that could not be restored exactly.

        Those have begun their next episode.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold. May be called twice."""

    def _check_action(self, action: np.ndarray) -> None:
        if action.shape != self._action_shape or action.dtype.kind not in self._action_kinds:
            wanted = f"{self.spec.action.dtype} array of shape {self._action_shape}"
            raise ValueError(f"step() takes a {wanted}, not {action.dtype} of shape {action.shape}")

    def _env_states(self, state: dict[str, Any]) -> list[Any]:
        states = state.get("envs") if isinstance(state, dict) else None
        if not isinstance(states, list):
            raise CheckpointError("The saved environment state is not a snapshot of environments.")
        if len(states) != self.num_envs:
            raise CheckpointError(
                f"The saved state is of {counted(len(states), 'environment')}, this run has {self.num_envs}; "
                f"set env.num_envs={len(states)}."
            )
        return states


@dataclass(slots=True)
class StepArrays:
    """Where a step's results are written: fresh arrays, or memory shared with another process."""

    obs: Any  # [N, ...] observations to act on next
    final: Any  # [N, ...] last observations of the episodes that ended now; other rows are old
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class SyncVecEnv(VecEnv):
    """Environments stepped one after another in this process.

    ``make`` is called once for each; ``first_index`` is the index of the first, when these are some of a larger set.
    """

    def __init__(
        self, make: Callable[[], gym.Env], spec: EnvSpec, num_envs: int, seed: int, first_index: int = 0
    ) -> None:
        super().__init__(spec, num_envs, seed)
        made = [make() for _ in range(num_envs)]
        if len({id(env) for env in made}) < num_envs:
            raise EnvError(f"{spec.id}: the factory returned the same environment twice; it must make a new one.")
        self._codec = ObsCodec(made[0].observation_space)
        self.envs = [SeededEnv(env, spec, seed, first_index + i, self._codec) for i, env in enumerate(made)]
        self._decode = self.envs[0].action_codec.decode
        self._final = self._codec.empty(num_envs)
        self.at_end: Callable[[], None] | None = None  # called where an episode has ended, before the next one begins

    def reset(self, seed: int | None = None) -> ArrayTree:  # noqa: D102
        self.seed = self.seed if seed is None else seed
        obs = self._codec.empty(self.num_envs)
        self.reset_into(self.seed, obs)
        return obs

    def reset_into(self, seed: int, out: Any) -> None:
        """:meth:`reset`, written into ``out``."""
        for row, env in enumerate(self.envs):
            self._codec.write(env.reset(seed), out, row)

    def step(self, action: np.ndarray) -> VecStep:  # noqa: D102
        n = self.num_envs
        obs = self._codec.empty(n)
        reward, terminated, truncated = np.empty(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        episodes = self.step_into(action, StepArrays(obs, self._final, reward, terminated, truncated))
        next_obs = final_rows(obs, self._final, terminated | truncated) if episodes else obs
        return VecStep(obs, next_obs, reward, terminated, truncated, episodes)

    def step_into(self, action: np.ndarray, out: StepArrays) -> list[Episode]:
        """:meth:`step`, written into ``out``, whose flags must be all False; the episodes that ended."""
        self._check_action(action)
        episodes: list[Episode] = []
        rewards = []
        obs, direct, write = out.obs, self._codec.direct, self._codec.write
        for row, (env, taken, native) in enumerate(zip(self.envs, *self._decode(action))):
            now, reward, terminated, truncated = env.step(taken, native)
            rewards.append(reward)
            if terminated or truncated:
                (out.terminated if terminated else out.truncated)[row] = True
                write(now, out.final, row)
                episodes.append(env.summary())
                if self.at_end is not None:
                    self.at_end()
                now = env.next_episode()
            if direct:
                obs[row] = now
            else:
                write(now, obs, row)
        out.reward[:] = rewards
        return episodes

    def snapshot(self) -> dict[str, Any]:  # noqa: D102
        return {"envs": [env.snapshot() for env in self.envs]}

    def restore(self, state: dict[str, Any]) -> tuple[ArrayTree, list[int]]:  # noqa: D102
        obs = self._codec.empty(self.num_envs)
        inexact = self.restore_into(self._env_states(state), obs)
        return obs, inexact

    def restore_into(self, states: list[Any], out: Any) -> list[int]:
        """:meth:`restore`, written into ``out``; the indices that were not restored exactly."""
        inexact = [env.index for env, state in zip(self.envs, states, strict=True) if not env.restore(state)]
        for row, env in enumerate(self.envs):
            self._codec.write(env.obs, out, row)
        self.seed = self.envs[0].seed
        return inexact

    def render(self) -> Any:
        """A frame of the first environment, which must have been made with a render mode."""
        return self.envs[0].env.render()

    def close(self) -> None:  # noqa: D102
        for env in self.envs:
            env.close()
        self.envs = []


def final_rows(obs: ArrayTree, final: ArrayTree, ended: np.ndarray) -> ArrayTree:
    """``obs`` with the rows of the ended episodes taken from ``final``."""

    def replace(now: np.ndarray, last: np.ndarray) -> np.ndarray:
        out = now.copy()
        out[ended] = last[ended]
        return out

    return tree_map(replace, obs, final)
