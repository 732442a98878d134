"""Every preset reaches the return or the rate of success it promises. Minutes each: run by `make test-learning`."""

import importlib.util
from pathlib import Path

import pytest

from rlexp.config.compose import compose
from rlexp.runner import Runner

_spec = importlib.util.spec_from_file_location("make", Path(__file__).parents[1] / "docs" / "benchmarks" / "make.py")
assert _spec is not None
assert _spec.loader is not None
_make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_make)


@pytest.mark.learning
@pytest.mark.parametrize("preset", _make.TARGETS)
def test_a_preset_reaches_what_it_promises_within_its_budget(preset: str, tmp_path: Path) -> None:
    least, budget, unit = _make.TARGETS[preset]
    summary = Runner(compose([f"zoo={preset}", "seed=0", "threads=1", "progress=none"])).train(tmp_path / "run")
    assert (summary["eval"][_make.measure(preset)] >= least) == (preset not in _make.FAIL)
    assert summary["updates" if unit == "updates" else "env_steps"] <= budget * 1.02  # a rollout may overshoot


def test_ppo_learns_cartpole_in_seconds(tmp_path: Path) -> None:
    """A learning test that is quick enough for every change: well above what an untrained policy can do."""
    changes = ["trainer.total_steps=50_000", "trainer.eval_interval=0", "threads=1", "progress=none", "seed=0"]
    summary = Runner(compose(["zoo=ppo_cartpole", *changes])).train(tmp_path / "run")
    assert summary["eval"]["return_mean"] >= 475
