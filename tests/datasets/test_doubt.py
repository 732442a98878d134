"""A run that learns from data of unknown episode ends says so before it trains, and only then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlexp.config.compose import compose
from rlexp.datasets import NpzDataset
from rlexp.envs import GymEnv
from rlexp.runner import Runner


@pytest.mark.parametrize("given", [[], ["timeouts"]])
def test_training_on_data_without_known_ends_warns(
    given: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.random.default_rng(0)
    arrays = {"observations": rows.uniform(-1, 1, (20, 3)), "actions": rows.uniform(-2, 2, (20, 1))}
    arrays |= {"rewards": np.zeros(20), "terminals": np.zeros(20, bool)} | {key: np.arange(20) == 9 for key in given}
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    overrides = ["algo=crr", "env=pendulum", "dataset=npz", f"dataset.path={tmp_path}/data.npz", "progress=none"]
    overrides += ["threads=1", "compile=false", "model.hidden=[8]", "trainer.total_updates=2", "trainer.batch_size=4"]
    Runner(compose([*overrides, "trainer.eval_episodes=0"])).train(tmp_path / "run")
    said = [record.message for record in caplog.records if "neither timeouts nor next_observations" in record.message]
    assert len(said) == (0 if given else 1)


def test_once_time_limits_are_repaired_the_ends_are_known(tmp_path: Path) -> None:
    count, limit = 20, 5
    arrays = {"observations": np.random.default_rng(0).normal(size=(count, 3)), "actions": np.zeros((count, 1))}
    arrays |= {"rewards": np.zeros(count), "terminals": np.arange(count) % limit == limit - 1}
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    env = GymEnv(id="Pendulum-v1", max_episode_steps=limit)
    told = list[str]()
    dataset = NpzDataset(path=str(tmp_path / "data.npz"), repair=["time_limits"])
    dataset.report = told.append
    assert dataset.load(env).doubt is None
    assert "4 terminations at step 5 read as a time limit" in told[0]
    assert NpzDataset(path=str(tmp_path / "data.npz"), accept=["time_limits"]).load(env).doubt is not None
