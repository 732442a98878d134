"""A goal environment with continuous actions: a point on a line, to be brought near a goal.

``GymEnv(id=LINE, kwargs={...})``: the point moves by its action; the reward is −1, and 0 within 0.5 of the goal, where
the episode ends if ``ends``; after ``length`` steps it is truncated. ``compute_terminated`` is written as
gymnasium-robotics writes that of its mazes: for one goal, and given several it answers once for all of them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LINE = "tests.goal_line:GoalLine-v0"


class GoalLine(gym.Env):
    """See the module."""

    def __init__(self, length: int = 8, ends: bool = True) -> None:
        goal = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.length, self.ends = length, ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.goal, self.t = self.np_random.uniform(-2, 2, 1), self.np_random.uniform(-2, 2, 1), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.x, self.t = self.x + action, self.t + 1
        near = bool(np.abs(self.x - self.goal) < 0.5)
        terminated = self.compute_terminated(self.x, self.goal, {})
        info = {"success": near}
        reward = self.compute_reward(self.x, self.goal, {})
        return self._observe(), reward, terminated, self.t >= self.length and not terminated, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.abs(achieved_goal - desired_goal) >= 0.5).any(-1).astype(np.float64)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return self.ends and bool(np.linalg.norm(achieved_goal - desired_goal) < 0.5)

    def _observe(self) -> dict[str, Any]:
        return {"observation": self.x.copy(), "achieved_goal": self.x.copy(), "desired_goal": self.goal.copy()}


gym.register("GoalLine-v0", entry_point="tests.goal_line:GoalLine")
