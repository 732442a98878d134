"""Wrappers that Gymnasium does not have. Free of torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.envs.spec import ACHIEVED, DESIRED, MASK
from rlexp.errors import EnvError

_NOT_STACKED = (MASK, ACHIEVED, DESIRED)  # what these say holds now


class SelectObservation(gym.ObservationWrapper):
    """Shows only some numbers of a vector: ``indices`` of a Box observation with one axis, in their order."""

    def __init__(self, env: gym.Env, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise EnvError(f"SelectObservation needs a vector, a Box with one axis, not {space}.")
        size = space.shape[0]
        known = all(type(index) is int and 0 <= index < size for index in indices)
        if not indices or not known or len(set(indices)) < len(indices):
            raise EnvError(
                f"SelectObservation.indices must be different numbers from 0 to {size - 1}, not {list(indices)}."
            )
        self.indices = np.asarray(indices)
        low, high = space.low[self.indices], space.high[self.indices]
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype.type)  # type: ignore[union-attr]

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The chosen numbers."""
        return observation[self.indices]


class MazeEnds(gym.Wrapper):
    """Answers ``compute_terminated`` of gymnasium-robotics' mazes for many goals [B, 2] at once.

    Their own one is the norm of all differences together, so that hindsight would have to ask it row by row.
    """

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        """Whether the goals are within 0.45, the radius at which `MazeEnv` ends an episode that is to end."""
        if self.get_wrapper_attr("continuing_task"):
            return np.zeros(np.shape(achieved_goal)[:-1], bool)
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= 0.45


class ActionRepeat(gym.Wrapper):
    """Plays every action ``times`` times, or until the episode ends: the sum of the rewards, the last of the rest."""

    def __init__(self, env: gym.Env, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Any:
        """What the last of the repetitions gave, with the sum of the rewards."""
        total = 0.0
        for _ in range(self.times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class FrameStack(gym.Wrapper):
    """Shows the newest ``size`` observations together: arrays [...] become [size, ...], the oldest first.

    An episode begins with its first observation ``size`` times, or with zeros before it (``zeros``). Of a Dict every
    Box is stacked, but for goals and action masks; other parts are shown as they are now.
    """

    def __init__(self, env: gym.Env, size: int, zeros: bool = False) -> None:
        super().__init__(env)
        self.size, self._zeros = size, zeros
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        self.stacked = [
            name for name, part in parts.items() if isinstance(part, spaces.Box) and name not in _NOT_STACKED
        ]
        if not self.stacked:
            raise EnvError(f"env.frame_stack={size} needs a Box to stack, which the observation space {space} has not.")
        for name in self.stacked:
            part = parts[name]
            low, high = (np.repeat(bound[None], size, 0) for bound in (part.low, part.high))  # type: ignore[attr-defined]
            parts[name] = spaces.Box(low, high, dtype=part.dtype.type)  # type: ignore[union-attr]
        self.observation_space = spaces.Dict(parts) if self._is_dict else parts[""]
        self._frames: dict[str, deque[np.ndarray]] = {name: deque(maxlen=size) for name in self.stacked}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation, filled up."""
        obs, info = self.env.reset(seed=seed, options=options)
        for name, frames in self._frames.items():
            first = self._part(obs, name)
            before = np.zeros_like(first) if self._zeros else first
            frames.extend([*(before for _ in range(self.size - 1)), first])
        return self._shown(obs), info

    def step(self, action: Any) -> Any:
        """The newest observations."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        for name, frames in self._frames.items():
            frames.append(self._part(obs, name))
        return self._shown(obs), reward, terminated, truncated, info

    def _part(self, obs: Any, name: str) -> np.ndarray:
        return np.array(obs[name] if self._is_dict else obs)  # a copy: an environment may write into what it gave

    def _shown(self, obs: Any) -> Any:
        stacks = {name: np.stack(tuple(frames)) for name, frames in self._frames.items()}
        return {**obs, **stacks} if self._is_dict else stacks[""]
