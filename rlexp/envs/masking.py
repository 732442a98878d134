"""Actions that are impossible for now: an environment's mask becomes a part of its observation. Free of torch.

Whatever keeps, replays, saves or hands on observations then does so with masks, the true final ones included, and an
agent that is asked to act somewhere else is told what is possible in the same way. Networks do not see the mask.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.envs.spec import MASK
from rlexp.errors import EnvError, counted

# Where an environment keeps its mask: `action_masks()`, `info["action_mask"]`, or the observation itself.
METHOD, INFO, OBSERVATION = "method", "info", "observation"


def mask_source(env: gym.Env) -> str | None:
    """Where the environment says which actions are possible; None if it does not.

    Resets the environment, because only then it is seen what ``info`` holds.
    """
    if not isinstance(env.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        return None
    if isinstance(env.observation_space, spaces.Dict) and MASK in env.observation_space.spaces:
        return OBSERVATION if env.observation_space[MASK].shape == (sum(action_sizes(env.action_space)),) else None
    if env.has_wrapper_attr("action_masks") and callable(env.get_wrapper_attr("action_masks")):
        return METHOD
    try:
        _, info = env.reset(seed=0)
    except Exception:
        return None  # it is told where it is met in earnest
    return INFO if MASK in info else None


def action_sizes(space: spaces.Discrete | spaces.MultiDiscrete) -> list[int]:
    """How many values each variable of an action has."""
    return [int(space.n)] if isinstance(space, spaces.Discrete) else list(map(int, space.nvec.ravel()))


class MaskInObservation(gym.Wrapper):
    """Adds the entry ``action_mask`` to the observation, which becomes a Dict if it is none (the rest is ``obs``).

    The mask of a multi-discrete space is that of its variables side by side; a tuple of masks will do.
    """

    def __init__(self, env: gym.Env, source: str) -> None:
        super().__init__(env)
        space = env.action_space
        self._sizes = action_sizes(space)  # type: ignore[arg-type]
        self._ask = env.get_wrapper_attr("action_masks") if source == METHOD else None
        self._observed = source == OBSERVATION
        inner = env.observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"obs": inner}
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(sum(self._sizes))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation with its mask."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info, ended=False), info

    def step(self, action: Any) -> Any:
        """The next observation with its mask."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, ended=bool(terminated)), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any], *, ended: bool) -> dict[str, Any]:
        mask = obs[MASK] if self._observed else info.get(MASK) if self._ask is None else self._ask()
        if mask is None:
            if not ended:
                raise EnvError(f"{self._name}: info holds no {MASK!r}, though it did at first; give it at every step.")
            mask = np.ones(sum(self._sizes), np.int8)  # nothing is done after the end
        if isinstance(mask, tuple):
            mask = np.concatenate([np.ravel(part) for part in mask])
        mask = np.asarray(mask).ravel() != 0
        if mask.size != sum(self._sizes):
            wanted = counted(sum(self._sizes), "action")
            raise EnvError(f"{self._name}: its action mask has {mask.size} entries for {wanted}.")
        possible = np.logical_or.reduceat(mask, np.cumsum([0, *self._sizes[:-1]]))
        if not possible.all():
            if not ended:
                raise EnvError(f"{self._name}: its action mask leaves no action possible in an episode that goes on.")
            mask = np.ones_like(mask)
        rest = dict(obs) if self._is_dict else {"obs": obs}
        return {**rest, MASK: mask.astype(np.int8)}

    @property
    def _name(self) -> str:
        return self.env.spec.id if self.env.spec else type(self.env.unwrapped).__name__
