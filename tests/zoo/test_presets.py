"""Every preset is run for a few steps or updates; data that take minutes to make are replaced by a few random steps.
tests/test_learning.py trains presets whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.config.compose import choices, compose
from rlexp.errors import EnvError
from rlexp.runner import Runner

BATCH = 32
UPDATES = 4


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps the random steps of each environment, so that they are made once."""
    return tmp_path_factory.mktemp("cache")


def with_little_data(dataset: dict[str, Any]) -> dict[str, Any]:
    """Random steps in place of the data, prepared in the same way."""
    prepared = {name: dataset[name] for name in ("reward", "reward_scale", "reward_shift", "obs")}
    return prepared | {"_target_": "rlexp.datasets.random.RandomDataset", "size": 20 * BATCH, "seed": 0}


def make_short(config: dict[str, Any]) -> None:
    """A few updates, after as many steps as they need."""
    trainer, envs = config["trainer"], config["env"].get("num_envs", 1)
    trainer |= {"eval_episodes": 0, "video_interval": 0}
    if config["dataset"] is not None:
        config["dataset"] = with_little_data(config["dataset"])
    if "rollout_steps" in trainer:
        trainer["total_steps"] = trainer["rollout_steps"] * envs
        return
    trainer["batch_size"] = BATCH
    if "total_updates" in trainer:
        trainer |= {"total_updates": UPDATES, "total_epochs": None}
        return
    trainer["learning_starts"] = 2 * BATCH * envs
    trainer["total_steps"] = trainer["learning_starts"] + UPDATES * envs * trainer["train_frequency"]
    config["buffer"]["capacity"] = 2_000 * envs


@pytest.mark.learning
@pytest.mark.parametrize("preset", choices("zoo"))
def test_data_of_a_preset_are_of_its_environment(preset: str) -> None:
    config = compose([f"zoo={preset}"])
    if maker := (config["dataset"] or {}).get("zoo"):
        assert compose([f"zoo={maker}"])["env"]["id"] == config["env"]["id"]


@pytest.mark.learning
@pytest.mark.parametrize("preset", choices("zoo"))
def test_every_preset_runs_a_few_steps(
    preset: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(cache))
    config = compose([f"zoo={preset}", "compile=false", "threads=1", "progress=none"])
    make_short(config)
    try:
        runner = Runner(config)
    except EnvError as error:
        pytest.skip(str(error))
    summary = runner.train(tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["updates"] > 0
