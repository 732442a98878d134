"""Whether TD3 learns here from what happened: python docs/benchmarks/reference/same_data.py

A wrapper notes every step of Hopper; the rows of all batches of `zoo=td3_hopper` are looked up there. Printed is how
many differ in anything, and whether each step is drawn as often as it should be. Needs mujoco.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rlexp.config.compose import compose, register
from rlexp.runner import Runner
from rlexp.types import Batch

STEPS, START = 8_000, 5_000  # of the run; before learning


class Noted(gymnasium.Wrapper):
    """Keeps what went in and came out."""

    steps: list[tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]] = []  # noqa: RUF012 (of all its instances)

    def reset(self, **given: Any) -> Any:
        """Begin an episode."""
        self.obs, info = self.env.reset(**given)
        return self.obs, info

    def step(self, action: Any) -> Any:
        """One step, noted."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps.append((self.obs.copy(), np.array(action), float(reward), obs.copy(), terminated))
        self.obs = obs
        return obs, reward, terminated, truncated, info


def make() -> gymnasium.Env:
    """The environment, noted."""
    return Noted(gymnasium.make("Hopper-v5"))


def main() -> None:
    """Train, and compare."""
    register()
    rare = [f"trainer.{what}_interval=1_000_000" for what in ("eval", "checkpoint")]
    settings = ["zoo=td3_hopper", "compile=false", "threads=1", "progress=none", f"trainer.total_steps={STEPS}", *rare]
    runner = Runner(compose(settings), env_factory=make)
    algo: Any = runner.algo
    update, batches = algo.update, []

    def noted(batch: Batch) -> Any:
        batches.append([part.clone().numpy() for part in batch[:5]])
        return update(batch)

    algo.update = noted
    with tempfile.TemporaryDirectory() as folder:
        runner.train(Path(folder) / "run")
    steps = Noted.steps[:STEPS]  # the evaluation comes after them
    place = {np.float32(step[0]).tobytes(): i for i, step in enumerate(steps)}
    drawn, expected, different = np.zeros(STEPS), np.zeros(STEPS), 0
    for number, batch in enumerate(batches):
        stored = START + 1 + number
        expected[:stored] += len(batch[0]) / stored
        for obs, action, reward, next_obs, discount in zip(*batch, strict=True):
            i = place[obs.tobytes()]
            drawn[i] += 1
            _, took, gained, after, terminated = steps[i]
            pairs = ((took, action), (gained, reward), (after, next_obs), (algo.gamma * (not terminated), discount))
            different += not all(np.array_equal(np.float32(true), found) for true, found in pairs)
    spread = ((drawn - expected)[expected > 0] ** 2 / expected[expected > 0]).mean()
    print(f"{drawn.sum():,.0f} rows, {different} of them differ; chi-square {spread:.3f} a step (uniform: about 1)")


if __name__ == "__main__":
    main()
