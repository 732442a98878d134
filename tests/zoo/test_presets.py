"""Every preset that learns from its own steps is run for a few of them. Those that learn from data need it made first:
tests/test_learning.py trains them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.config.compose import choices, compose
from rlexp.errors import EnvError
from rlexp.runner import Runner

BATCH = 32


@pytest.mark.learning
@pytest.mark.parametrize("preset", choices("zoo"))
def test_every_preset_runs_a_few_steps(preset: str, tmp_path: Path) -> None:
    config = compose([f"zoo={preset}", "compile=false", "threads=1", "progress=none"])
    trainer = config["trainer"]
    if config["dataset"] is not None:
        pytest.skip("learns from data")
    trainer |= {"eval_episodes": 0, "video_interval": 0}
    envs = config["env"].get("num_envs", 1)
    if "rollout_steps" in trainer:
        trainer["total_steps"] = trainer["rollout_steps"] * envs
    else:
        trainer["learning_starts"] = 2 * BATCH * envs
        trainer["total_steps"] = trainer["learning_starts"] + 4 * envs * trainer["train_frequency"]
        trainer["batch_size"] = BATCH
        config["buffer"]["capacity"] = 2_000 * envs
    try:
        runner = Runner(config)
    except EnvError as error:
        pytest.skip(str(error))
    summary = runner.train(tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["updates"] > 0
