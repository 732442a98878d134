"""Algorithms that ask for derived columns find them in every loop with batches, before and after a resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from tests.trainers.recording import Recording, counting_config, train, watch

LENGTH = 4  # of every episode; the dataset of 60 rows holds 15 whole ones
GAMMA = 0.5


@dataclass(eq=False, kw_only=True)
class Deriving(Recording):
    """Asks for both columns."""

    derived: ClassVar[frozenset[str]] = frozenset({"mc_return", "next_action"})


def config(loop: str, **settings: Any) -> dict[str, Any]:
    episodes = {"length": LENGTH, "end": "mixed"}
    if loop != "offline":
        settings |= {"trainer__learning_starts": 8, "env__num_envs": 2}
    made = counting_config(loop, env__kwargs=episodes, trainer__batch_size=6, **settings)
    made["algo"]["_target_"] = f"{__name__}.Deriving"
    return made


def to_go(t: int, until: int) -> float:
    """Step k has reward k: the discounted return of steps t + 1 to ``until``."""
    return sum(GAMMA ** (k - t - 1) * k for k in range(t + 1, until + 1))


@pytest.mark.parametrize("loop", ["offline", "replay", "mixed"])
def test_the_columns_are_what_the_definitions_say_and_survive_a_resume(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = "total_updates" if loop == "offline" else "total_steps"
    seen = watch(monkeypatch)
    train(config(loop, **{f"trainer__{budget}": 50}), tmp_path / "whole")
    batches = seen.batches
    assert len(batches) >= 20
    for batch in batches:
        for row, (t, reward) in enumerate(zip(batch.obs[:, 1].int().tolist(), batch.reward.tolist())):
            assert reward == t + 1
            from_data = loop == "offline" or (loop == "mixed" and row < 3)
            so_far = [to_go(t, until) for until in range(LENGTH if from_data else t + 1, LENGTH + 1)]
            assert batch.extras["mc_return"][row].item() in so_far
            if t + 1 == LENGTH:
                assert batch.extras["next_action"][row] == batch.action[row]

    seen.learned.clear()
    train(config(loop, **{f"trainer__{budget}": 25}), tmp_path / "parts")
    resume_run(tmp_path / "parts", [f"trainer.{budget}=50"], trust=EVERYTHING)
    assert len(seen.batches) == len(batches)
    for ours, theirs in zip(batches, seen.batches):
        assert all(torch.equal(ours.extras[name], theirs.extras[name]) for name in ("mc_return", "next_action"))


def test_returns_under_a_changing_discount_are_refused() -> None:
    made = config("replay")
    made["algo"]["schedules"] = {"gamma": {"end": 0.9}}
    with pytest.raises(ConfigError, match=r"one γ: drop algo\.schedules\.gamma"):
        Runner(made)
