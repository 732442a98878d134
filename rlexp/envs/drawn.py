"""Classic tasks seen as small grey images that are drawn here from the state: thousands a second. Free of torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


class Canvas:
    """A square of grey pixels over [−1, 1]², the second coordinate upwards."""

    def __init__(self, size: int) -> None:
        self.size, self.pixel = size, 2.0 / size
        centre = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(self.pixel) - 1
        self._x, self._y = np.meshgrid(centre, -centre)

    def bar(self, start: tuple[float, float], end: tuple[float, float], width: float) -> np.ndarray:
        """The share of each pixel, 0 to 1, that a bar with round ends covers, softened over one pixel."""
        along = np.float32(end[0] - start[0]), np.float32(end[1] - start[1])
        x, y = self._x - np.float32(start[0]), self._y - np.float32(start[1])
        part = ((x * along[0] + y * along[1]) / np.float32(along[0] ** 2 + along[1] ** 2 + 1e-12)).clip(0, 1)
        distance = np.sqrt((x - part * along[0]) ** 2 + (y - part * along[1]) ** 2)
        return ((np.float32(width / 2) - distance) / np.float32(self.pixel) + np.float32(0.5)).clip(0, 1)

    @staticmethod
    def image(cover: np.ndarray) -> np.ndarray:
        """White on black, uint8 [size, size, 1]."""
        return (cover * np.float32(255) + np.float32(0.5)).astype(np.uint8)[..., None]


class PendulumPixels(PendulumEnv):
    """Pendulum whose observation is a picture of its rod; one picture does not show how fast it moves."""

    def __init__(self, size: int = 48, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._canvas = Canvas(size)
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first picture."""
        _, info = super().reset(seed=seed, options=options)
        return self.picture(), info

    def step(self, u: Any) -> Any:
        """The picture after the step."""
        _, reward, terminated, truncated, info = super().step(u)
        return self.picture(), reward, terminated, truncated, info

    def picture(self) -> np.ndarray:
        """The rod, upright at angle 0, counted counter-clockwise."""
        angle = float(self.state[0])  # type: ignore[index]
        tip = (-0.8 * np.sin(angle), 0.8 * np.cos(angle))
        return Canvas.image(self._canvas.bar((0.0, 0.0), tip, 0.2))


class CartPolePixels(CartPoleEnv):
    """CartPole whose observation is a picture of cart and pole; one picture does not show how fast they move.

    ``continuous``: the action is the force itself, from −1 (10 N to the left) to 1.
    """

    def __init__(self, size: int = 48, continuous: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._canvas = Canvas(size)
        self._force = self.force_mag if continuous else None
        if continuous:
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)  # type: ignore[assignment]
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first picture."""
        _, info = super().reset(seed=seed, options=options)
        return self.picture(), info

    def step(self, action: Any) -> Any:
        """The picture after the step."""
        if self._force is not None:
            self.force_mag = self._force * float(action[0])
            action = np.ones(1, np.float32)  # CartPole pushes by force_mag, to the right
        _, reward, terminated, truncated, info = super().step(action)
        return self.picture(), reward, terminated, truncated, info

    def picture(self) -> np.ndarray:
        """The cart on its track of ±2.4 and the pole, whose lean is drawn as it is."""
        position, _, angle, _ = (float(number) for number in self.state)  # type: ignore[union-attr]
        x = position / 2.4 * 0.85
        cart = self._canvas.bar((x - 0.12, -0.6), (x + 0.12, -0.6), 0.2)
        pole = self._canvas.bar((x, -0.5), (x + 1.2 * np.sin(angle), -0.5 + 1.2 * np.cos(angle)), 0.12)
        return Canvas.image(np.maximum(0.6 * cart, pole).astype(np.float32))


gym.register("PendulumPixels-v0", entry_point="rlexp.envs.drawn:PendulumPixels", max_episode_steps=200)
gym.register(
    "CartPolePixels-v0",
    entry_point="rlexp.envs.drawn:CartPolePixels",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gym.register(
    "CartPolePixelsContinuous-v0",
    entry_point="rlexp.envs.drawn:CartPolePixels",
    kwargs={"continuous": True},
    max_episode_steps=500,
    reward_threshold=475.0,
)
