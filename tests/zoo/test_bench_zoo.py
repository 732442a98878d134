"""``rlexp bench zoo``: presets over seeds, gone on with, and what is written of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.conftest import own_place as own_place
from tests.cli.conftest import rlexp as rlexp  # the fixtures

PRESET = """# @package _global_
# PPO on CartPole-v1, for seconds
defaults:
  - override /algo: ppo
  - override /env: cartpole
  - _self_
model: {hidden: [16]}
trainer: {total_steps: 128, rollout_steps: 64, eval_interval: 64, eval_episodes: 2}
"""


def test_seeds_are_added_completed_runs_are_kept_and_results_are_written(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "zoo").mkdir(parents=True)
    (tmp_path / "own" / "zoo" / "tiny.yaml").write_text(PRESET)
    command = ["bench", "zoo", "--presets", "tiny", "--config-dir", "own", "-o", "results"]
    settings = ["compile=false", "progress=plain"]
    first = rlexp(*command, "--seeds", "1", *settings)
    assert first.code == 0, first.err
    run = tmp_path / "results" / "tiny-0" / "run.json"
    before = run.read_bytes()

    second = rlexp(*command, "--seeds", "2", *settings)
    assert second.code == 0, second.err
    assert "1 run to do, 1 completed before" in second.out + second.err
    assert run.read_bytes() == before
    manifest = json.loads((tmp_path / "results" / "manifests" / "tiny.json").read_text())
    assert (manifest["preset"], manifest["algo"], manifest["env"]) == ("tiny", "ppo", "CartPole-v1")
    assert manifest["random"]["return_mean"] == pytest.approx(22, abs=12)
    assert [each["seed"] for each in manifest["runs"]] == [0, 1]
    for each in manifest["runs"]:
        assert len(each["config_sha256"]) == 64
        assert each["versions"]["torch"]
        assert each["threads"] == 1
        assert each["wall_time_s"] > 0
        assert [point[0] for point in each["curve"]] == [64, 128]
    assert len({each["config_sha256"] for each in manifest["runs"]}) == 1  # the seed is of the occasion
    returns = [each["eval"]["return_mean"] for each in manifest["runs"]]
    page = (tmp_path / "results" / "README.md").read_text()
    assert "tiny" in page
    assert f"{sum(returns) / 2:.1f}" in page

    other = rlexp(*command, "--seeds", "2", *settings, "algo.gamma=0.5")
    assert other.code == 1
    assert "was begun with other settings (algo.gamma). Choose another folder: -o DIR." in other.err
