"""Images as observations of any environment: drawn by it, scaled, and turned grey. Free of torch.

Drawing is a function of the state, so an episode that is played again gives the same images.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.envs.locate import missing_package
from rlexp.envs.spec import channels_first
from rlexp.errors import ConfigError, EnvError

MAX_SIDE = 2_048  # pixels of a side that images are scaled to: more is a mistake, or an attack on the memory


def check_side(setting: str, side: int) -> None:
    """Refuse images of a size that nobody means."""
    if side > MAX_SIDE:
        raise ConfigError(f"{setting} must be at most {MAX_SIDE}, not {side}.")


def rendered(env: gym.Env, env_id: str) -> gym.Env:
    """The environment with what it draws as its observation: uint8 [H, W, 3]."""
    try:
        return Rendered(env)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise EnvError(f"Drawing {missing_package(env_id, error)}") from error
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"env.pixels=true: {env_id} cannot be drawn ({type(error).__name__}: {error}).") from error


class Rendered(gym.Wrapper):
    """Shows ``render()`` instead of the observation."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        env.reset(seed=0)
        frame = self._frame()
        self.observation_space = spaces.Box(0, 255, frame.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first image."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._frame(), info

    def step(self, action: Any) -> Any:
        """The image after the step."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._frame(), reward, terminated, truncated, info

    def _frame(self) -> np.ndarray:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3:
            found = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise EnvError(f"env.pixels=true needs render() to give a uint8 image [H, W, 3], not {found}.")
        return frame


class Images(gym.ObservationWrapper):
    """Scales images to a square of side ``resize`` and turns them grey: the observation, or every image of a Dict.

    Channels stay where they are, first or last. A grey image has one, or is [H, W] if ``flat``, to be stacked.
    """

    def __init__(self, env: gym.Env, resize: int | None, grayscale: bool, flat: bool = False) -> None:
        super().__init__(env)
        try:
            self._cv2 = importlib.import_module("cv2")
        except ImportError as error:
            raise EnvError(missing_package("env.resize and env.grayscale", error)) from error
        self._resize, self._grayscale, self._flat = resize, grayscale, flat
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        self._names = [name for name, part in parts.items() if _is_image(part)]
        if not self._names:
            raise EnvError(
                f"env.resize and env.grayscale need an image, a uint8 Box of 3 axes with 1 or 3 channels, first or "
                f"last, which {space} has not. env.pixels=true draws one."
            )
        for name in self._names:
            shape = self._convert(np.zeros(parts[name].shape or (), np.uint8)).shape
            parts[name] = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = spaces.Dict(parts) if self._is_dict else parts[""]

    def observation(self, observation: Any) -> Any:
        """The images converted, everything else as it is."""
        if not self._is_dict:
            return self._convert(observation)
        return observation | {name: self._convert(observation[name]) for name in self._names}

    def _convert(self, image: np.ndarray) -> np.ndarray:
        if not channels_first(image.shape):
            return self._convert_last(image)
        image = self._convert_last(np.ascontiguousarray(np.moveaxis(image, 0, -1)))
        return image if image.ndim == 2 else np.ascontiguousarray(np.moveaxis(image, -1, 0))

    def _convert_last(self, image: np.ndarray) -> np.ndarray:
        cv2, side = self._cv2, self._resize
        if self._grayscale and image.shape[-1] == 3:
            image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        if side is not None and image.shape[:2] != (side, side):
            smaller = side < min(image.shape[:2])
            image = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)
        if self._grayscale and self._flat:
            return image.reshape(image.shape[:2])
        return image if image.ndim == 3 else image[..., None]


def _is_image(space: spaces.Space) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return space.shape[0 if channels_first(space.shape) else -1] in (1, 3)
