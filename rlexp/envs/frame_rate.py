"""How fast a video of an environment has to be shown. Free of torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlexp.envs.wrappers import ActionRepeat

FRAME_RATE = 30.0  # drawn frames that are a second, where the environment does not say
ATARI_RATE = 60.0  # emulated frames that are a second; ale-py's metadata say 30, whatever its frameskip


def frame_rate(env: gym.Env) -> float:
    """How many steps of the agent are a second, as one frame is drawn at each of them.

    ``render_fps`` of an environment is meant for its own steps: a wrapper that makes several of them one divides it,
    unless it has metadata of its own.
    """
    told = _told(env)
    if not isinstance(env, gym.Wrapper):
        if hasattr(env, "ale") and hasattr(env, "_frameskip"):  # a pair: drawn at random, the second one excluded
            skip = env._frameskip
            return ATARI_RATE / (skip if isinstance(skip, int) else (sum(skip) - 1) / 2)
        return told or FRAME_RATE
    if told and told != _told(env.env):
        return told
    return frame_rate(env.env) / _steps_of(env)


def _told(env: gym.Env) -> float | None:
    rate: Any = (env.metadata or {}).get("render_fps")
    return float(rate) if rate else None


def _steps_of(wrapper: gym.Wrapper) -> int:
    """How many steps of the environment inside are one of the wrapper's."""
    if isinstance(wrapper, ActionRepeat):
        return wrapper.times
    if isinstance(wrapper, gym.wrappers.AtariPreprocessing):
        return wrapper.frame_skip
    if isinstance(wrapper, gym.wrappers.MaxAndSkipObservation):
        return int(wrapper._skip)
    return 1
