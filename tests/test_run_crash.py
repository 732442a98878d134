"""Killed at any moment, a run is found as it was before or after what it was doing, never in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import run_dir
from rlexp.checkpoint import verify_checkpoint
from rlexp.run_dir import RunDir
from tests.damage import crashes
from tests.test_checkpoint_store import segments, state

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


def metrics(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("second", [20, 10], ids=["next step", "same step again"])
def test_a_crash_at_any_file_operation_of_a_save_leaves_a_whole_checkpoint(
    second: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    operation, outcomes = 0, []
    while True:
        with RunDir.create(tmp_path / str(operation), CONFIG) as run:
            run.save(5, state(5), segments("0-5"), best=True)
            run.save(10, state(10), segments("0-5", "5-10"))
            new = {**state(second), "extra": {"x": np.arange(3)}}
            action = lambda: run.save(second, new, segments("0-5", "9-10"), best=True, keep=1)  # noqa: B023, E731
            crashed = crashes(action, operation, monkeypatch)
        opened = RunDir.open(run.path)
        for folder in (run.path / "checkpoints").glob("step_*"):
            verify_checkpoint(folder)  # nothing half-written has the name of a checkpoint
        found = opened.load()
        assert found is not None
        assert "extra" in found.tree or found.tree["trainer"]["env_steps"] == 10
        assert [load()["obs"].tolist() for load in found.segments.values()] == [list(range(6))] * 2
        assert opened.find("best") is not None
        outcomes.append("extra" in found.tree)
        with opened.lock():
            assert opened.go_on_from() is not None
            opened.save(30, state(30), keep=1, best=True)
        assert sorted(os.listdir(run.path / "checkpoints")) == ["best", "last", "step_000000000030"]
        if not crashed:
            break
        operation += 1
    assert operation > 30
    assert outcomes == sorted(outcomes)  # the old one until the new one, never back
    assert caplog.text == ""


def test_a_crash_while_resuming_leaves_a_run_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = 0
    while True:
        with RunDir.create(tmp_path / str(operation), CONFIG) as run:
            for index in range(5):
                run.append({"index": index})

            def resume(run: RunDir = run) -> None:
                run.record_resume(["rlexp"], {"seed": 8})
                run.truncate(3)
                run.append({"index": 3})
                run.set_status("running")

            crashed = crashes(resume, operation, monkeypatch)
        opened = RunDir.open(run.path)
        assert opened.config in (CONFIG, {"seed": 8})
        assert [row["index"] for row in metrics(opened)] in ([0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2, 3])
        assert opened.high_water == 5
        with opened.lock():
            opened.truncate(3)
            opened.record_resume(["rlexp"], {"seed": 9})
        assert RunDir.open(run.path).config == {"seed": 9}
        if not crashed:
            break
        operation += 1
    assert operation > 15


def test_a_crash_while_creating_never_leaves_a_run_that_misleads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = 0
    while crashes(lambda: RunDir.create(tmp_path / str(operation), CONFIG).close(), operation, monkeypatch):  # noqa: B023
        if RunDir.is_run(tmp_path / str(operation)):
            assert RunDir.open(tmp_path / str(operation)).config == CONFIG
        operation += 1
    assert operation > 8


SAVER = """
import sys
import numpy as np
from rlexp.run_dir import RunDir
run = RunDir.open(sys.argv[1]).lock()
found = run.go_on_from()
step = found.tree["trainer"]["env_steps"] if found else 0
run.truncate(step)
segments = {name: load for name, load in found.segments.items()} if found else {}
while True:
    step += 1
    run.append({"step": step})
    segments[f"buffer-{step - 1}-{step}.safetensors"] = lambda step=step: {"row": np.array([step])}
    tree = {"algo": {"w": np.full(20_000, step)}, "trainer": {"env_steps": step}}
    run.save(step, tree, segments, best=step % 3 == 0, keep=2)
    print(step, flush=True)
"""


def test_a_run_killed_again_and_again_goes_on_from_a_whole_checkpoint(run: RunDir) -> None:
    run.close()
    reached = 0
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(run.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3 + attempt):
            line = process.stdout.readline()
            assert line, process.stderr.read()
        time.sleep(0.0037 * attempt)  # somewhere in the middle of a save
        process.kill()
        reached = max(reached, *map(int, [line, *process.stdout.read().split("\n")[:-1]]))
        process.wait()
        opened = RunDir.open(run.path)
        found = opened.load()
        assert found is not None
        step = found.tree["trainer"]["env_steps"]
        assert step >= reached
        assert (found.tree["algo"]["w"] == step).all()
        assert [int(load()["row"][0]) for load in found.segments.values()] == list(range(1, step + 1))
        assert opened.rows >= step
        assert opened.state() == "killed"


def test_everything_is_on_disk_before_a_checkpoint_gets_its_name_and_the_links_move(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    renamed: list[str] = []
    rename, replace = os.rename, os.replace

    def checked_rename(source: Path, target: Path) -> None:
        if source.name.startswith(".tmp-step"):
            assert {entry.inode() for entry in os.scandir(source)} | {source.stat().st_ino} <= synced
            assert (run.path / "metrics.jsonl").stat().st_ino in synced  # the rows it counts
            renamed.append(target.name)
        rename(source, target)

    def checked_replace(source: Path, target: Path) -> None:
        if target.name in ("last", "best"):
            assert (run.path / "checkpoints").stat().st_ino in synced
            renamed.append(target.name)
        elif not source.is_symlink():
            assert source.stat().st_ino in synced
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "rename", checked_rename)
    monkeypatch.setattr(os, "replace", checked_replace)
    run.append({"a": 1})
    run.save(10, state(10), segments("0-10"), best=True)
    synced.discard((run.path / "metrics.jsonl").stat().st_ino)
    run.append({"a": 2})
    run.save(20, state(20), segments("0-10", "10-20"))
    run.set_status("completed")
    run.truncate(1)
    assert renamed == ["step_000000000010", "last", "best", "step_000000000020", "last"]
