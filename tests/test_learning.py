"""Every preset reaches the return or the rate of success it promises. Minutes each: run by `make test-learning`."""

from pathlib import Path

import pytest

from rlexp.config.compose import compose
from rlexp.runner import Runner
from rlexp.zoo.listing import known_results
from rlexp.zoo.targets import OVERSHOOT, TARGETS

PROMISING = [preset for preset, last in known_results().items() if last["met"]]


@pytest.mark.learning
@pytest.mark.parametrize("preset", PROMISING)
def test_a_preset_reaches_what_it_promises_within_its_budget(preset: str, tmp_path: Path) -> None:
    """A preset that missed its target when it was measured, or was not measured yet, promises nothing."""
    target = TARGETS[preset]
    summary = Runner(compose([f"zoo={preset}", "seed=0", "threads=1", "progress=none"])).train(tmp_path / "run")
    assert (summary["eval"][target.figure] >= target.least) == (not target.fails)
    assert summary["updates" if target.unit == "updates" else "env_steps"] <= target.budget * OVERSHOOT


def test_ppo_learns_cartpole_in_seconds(tmp_path: Path) -> None:
    """A learning test that is quick enough for every change: well above what an untrained policy can do."""
    changes = ["trainer.total_steps=50_000", "trainer.eval_interval=0", "threads=1", "progress=none", "seed=0"]
    summary = Runner(compose(["zoo=ppo_cartpole", *changes])).train(tmp_path / "run")
    assert summary["eval"]["return_mean"] >= 475
