"""The checkpoints of a run: which is found, which is kept, and what happens when one is damaged."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import run_dir
from rlexp.checkpoint import save_checkpoint, verify_checkpoint
from rlexp.errors import CheckpointError
from rlexp.run_dir import RunDir

CONFIG = {"seed": 7, "algo": {"_target_": "rlexp.algos.SAC", "gamma": 0.99}, "env": {"id": "Pendulum-v1"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir, "provenance", lambda: {"versions": {}, "git": None})
    monkeypatch.setattr(run_dir, "_LOCK_TRIES", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what it brings cannot be seen without a power cut


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.create(tmp_path / "run", CONFIG, ["rlexp", "algo=sac"]) as run:
        yield run


def state(step: int) -> dict[str, Any]:
    return {"algo": {"weight": np.full(4, step, np.float32)}, "trainer": {"env_steps": step}}


def segments(*names: str) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
    return {f"buffer-{name}.safetensors": lambda: {"obs": np.arange(6)} for name in names}


def step_of(run: RunDir, which: str = "last") -> int | None:
    checkpoint = run.load(which)
    return None if checkpoint is None else checkpoint.tree["trainer"]["env_steps"]


def damage(run: RunDir, step: int) -> None:
    path = run.path / "checkpoints" / f"step_{step:012d}" / "algo.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_without_a_checkpoint_nothing_is_found(run: RunDir) -> None:
    assert run.find() is None
    assert run.load("best") is None
    assert run.go_on_from() is None


def test_last_and_best_follow_the_saves(run: RunDir) -> None:
    for step, best in ((10, False), (20, True), (30, False)):
        run.save(step, state(step), best=best)
    links = {name: os.readlink(run.path / "checkpoints" / name) for name in ("last", "best")}
    assert links == {"last": "step_000000000030", "best": "step_000000000020"}
    assert (step_of(run), step_of(run, "best"), step_of(run, "step_000000000020")) == (30, 20, 20)
    assert step_of(run, str(run.path / "checkpoints" / "last")) == 30


def test_pruning_keeps_the_newest_and_the_best(run: RunDir) -> None:
    for step in range(10, 80, 10):
        run.save(step, state(step), best=step == 20, keep=2)
    assert run.checkpoints.steps() == [20, 60, 70]
    run.save(80, state(80), best=True, keep=1)
    assert run.checkpoints.steps() == [80]
    assert run.find("best") == run.find("last")


def test_a_checkpoint_costs_what_is_new(run: RunDir) -> None:
    def refuse() -> dict[str, np.ndarray]:
        raise AssertionError("produced again")

    run.save(10, state(10), segments("0-10"))
    run.save(20, state(20), {"buffer-0-10.safetensors": refuse} | segments("10-20"), keep=1)
    run.close()
    with RunDir.open(run.path).lock() as resumed:
        resumed.go_on_from()
        known = {"buffer-0-10.safetensors": refuse, "buffer-10-20.safetensors": refuse}
        resumed.save(20, state(20), known)  # the same step again
        resumed.save(30, state(30), known | segments("20-30"))
        loaded = resumed.load()
        assert loaded is not None
        assert all(np.array_equal(load()["obs"], np.arange(6)) for load in loaded.segments.values())
        assert len(loaded.segments) == 3


def test_segments_of_a_past_that_was_left_are_not_used(run: RunDir) -> None:
    def rows(value: int) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
        return {"buffer-0-20.safetensors": lambda: {"obs": np.array([value])}}

    run.save(10, state(10))
    run.save(20, state(20), rows(1))
    run.close()
    with RunDir.open(run.path).lock() as resumed:
        resumed.go_on_from("step_000000000010")
        resumed.load("step_000000000020")  # only looked at
        resumed.save(20, state(20), rows(2))
        assert resumed.load().segments["buffer-0-20.safetensors"]()["obs"] == [2]  # type: ignore[union-attr]


def test_going_on_from_an_older_checkpoint_leaves_the_newer_ones_behind(run: RunDir) -> None:
    for step in (10, 20, 30):
        run.save(step, state(step), keep=5)
    run.close()
    with RunDir.open(run.path).lock() as resumed:
        resumed.go_on_from("step_000000000010")
        assert step_of(resumed) == 10  # also if it is killed before the next save
        resumed.save(15, state(15), keep=5)
        assert resumed.checkpoints.steps() == [10, 15]


def test_a_damaged_last_is_reported_and_the_newest_whole_one_used(
    run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20, 30):
        run.save(step, state(step), keep=5)
    damage(run, 30)
    with caplog.at_level(logging.WARNING):
        assert step_of(run) == 20
    assert "step_000000000030 is damaged: algo.safetensors" in caplog.text
    assert "Using step_000000000020 instead" in caplog.text
    damage(run, 20)
    assert run.find() == run.path / "checkpoints" / "step_000000000010"
    damage(run, 10)
    with pytest.raises(CheckpointError, match=r"(?s)step_000000000030.*step_000000000020.*step_000000000010"):
        run.find()


def test_a_damaged_best_is_not_silently_replaced(run: RunDir) -> None:
    run.save(10, state(10), best=True)
    run.save(20, state(20))
    damage(run, 10)
    with pytest.raises(CheckpointError, match="step_000000000010 is damaged"):
        run.find("best")
    assert step_of(run) == 20


def test_a_missing_or_foreign_last_is_survived(run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run.save(10, state(10))
    last = run.path / "checkpoints" / "last"
    stranger = save_checkpoint(tmp_path / "stranger", state(99), {})
    last.unlink()
    assert step_of(run) == 10
    for target in ("step_000000000099", "../../stranger", str(stranger)):
        last.unlink(missing_ok=True)
        last.symlink_to(target)
        assert step_of(run) == 10
    assert f"leads to '{stranger}'" in caplog.text
    (run.path / "checkpoints" / "step_000000000010").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="not a checkpoint of this run"):
        run.find()
    last.unlink()
    last.symlink_to("step_000000000010")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        run.find()


def test_a_copy_that_turned_links_into_folders_can_be_resumed(run: RunDir, tmp_path: Path) -> None:
    run.save(10, state(10))
    run.save(20, state(20), best=True)
    run.close()
    subprocess.run(["cp", "-rL", str(run.path), str(tmp_path / "copy")], check=True)
    with RunDir.open(tmp_path / "copy").lock() as copy:
        assert step_of(copy, "best") == 20
        copy.go_on_from()
        copy.save(30, state(30), best=True)
        assert (step_of(copy), step_of(copy, "best")) == (30, 30)
        assert (copy.path / "checkpoints" / "best").is_symlink()


def test_an_unknown_checkpoint_is_answered_with_those_there_are(run: RunDir, tmp_path: Path) -> None:
    run.save(10, state(10))
    with pytest.raises(CheckpointError, match="there are last, step_000000000010"):
        run.find("step_000000000099")
    save_checkpoint(tmp_path / "other", state(5), {})
    assert step_of(run, str(tmp_path / "other")) == 5
    with pytest.raises(CheckpointError, match="cannot go on from it"):
        run.go_on_from(tmp_path / "other")


def test_a_reader_follows_a_writer_that_prunes_what_is_being_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run.save(10, state(10))
    reader = RunDir.open(run.path)
    saved = []

    def verify_slowly(path: Path) -> Any:
        if not saved:
            saved.append(run.save(20, state(20), keep=1))
        return verify_checkpoint(path)

    monkeypatch.setattr("rlexp.checkpoint_store.verify_checkpoint", verify_slowly)
    assert reader.find() == saved[0]
    assert caplog.text == ""
