"""An environment that shows NaN is named at once, instead of being learned from to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlexp.errors import EnvError
from rlexp.runner import Runner
from tests.trainers.recording import small_config


class Breaking(gym.Env):
    """Shows NaN, or gives it as reward, from the sixth step on; numbers beyond float32's squares before."""

    observation_space = spaces.Dict({"big": spaces.Box(-np.inf, np.inf, (2,)), "count": spaces.Discrete(9)})
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.episodes = getattr(self, "episodes", 0) + 1
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        broken = self.what == "reward" and self.steps > 5
        return self._obs(), np.nan if broken else 1.0, self.steps == 3 and self.what == "reset", False, {}

    def _obs(self) -> dict[str, Any]:
        broken = self.what == "observation" and self.steps > 5
        broken |= self.what == "reset" and self.steps == 0 and self.episodes == 3
        return {"big": np.array([1e30, np.nan if broken else -np.inf], np.float32), "count": 3}


@pytest.mark.parametrize(
    ("what", "named"), [("observation", "observation 'big'"), ("reset", "observation 'big'"), ("reward", "reward")]
)
def test_nan_of_an_environment_ends_the_run_and_is_named(what: str, named: str, tmp_path: Path) -> None:
    config = small_config(
        "sac",
        env__id=f"{__name__}:Breaking-v0",
        env__kwargs={"what": what},
        trainer__eval_episodes=0,
        trainer__total_steps=20,
        trainer__learning_starts=10,
    )
    with pytest.raises(EnvError, match=rf"The {named} of environment 0 is NaN \({__name__}:Breaking-v0\)"):
        Runner(config).train(tmp_path / "run")


gym.register("Breaking-v0", entry_point=Breaking)
