"""A run directory has one writer, survives being killed at any moment, and always says how the run stands."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp import run_dir
from rlexp.errors import ConfigError, RunError, UntrustedError
from rlexp.run_dir import RunDir
from tests.damage import snapshot
from tests.test_checkpoint_store import state

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


# -- creating and opening


def test_a_new_run_records_what_it_is(run: RunDir) -> None:
    info = json.loads((run.path / "run.json").read_text())
    assert info["command"] == ["rlexp", "algo=sac"]
    assert info["seed"] == 7
    assert info["config_sha256"] == hashlib.sha256((run.path / "config.yaml").read_bytes()).hexdigest()
    assert info["wandb_id"] is None
    assert info["decisions"] == {}
    run.update_info(wandb_id="abc", decisions={"compile": True, "threads": 2})
    opened = RunDir.open(run.path)
    assert opened.config == CONFIG
    assert opened.info["wandb_id"] == "abc"
    assert opened.info["decisions"] == {"compile": True, "threads": 2}
    assert opened.info["run_id"] == info["run_id"]


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(run: RunDir) -> None:
    run.close()
    before = snapshot(run.path)
    with pytest.raises(RunError, match=r"already holds a run.*rlexp resume"):
        RunDir.create(run.path, {"seed": 1})
    after = snapshot(run.path)
    assert after.pop(".lock")
    before.pop(".lock")
    assert after == before


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "run.json", "status.json"])
def test_files_of_a_half_made_run_are_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(RunError, match=name):
        RunDir.create(tmp_path, CONFIG)
    assert (tmp_path / name).read_text() == "precious"


def test_a_directory_with_hydras_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("a: 1")
    (tmp_path / "cli.log").write_text("")
    RunDir.create(tmp_path, CONFIG).close()
    assert RunDir.open(tmp_path).config == CONFIG


def test_a_path_that_cannot_hold_a_run_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be read or written"):
        RunDir.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(ConfigError, match="seed"):
        RunDir.create(tmp_path / "run", {"seed": "${x}"})
    assert not (tmp_path / "run").exists()


def test_a_run_is_opened_by_any_path_into_its_checkpoints(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(10, state(10))
    for inside in ("", "checkpoints", "checkpoints/last", "checkpoints/step_000000000010", "checkpoints/gone"):
        assert RunDir.open(run.path / inside).path == run.path
    monkeypatch.chdir(run.path.parent)
    assert RunDir.open("run/checkpoints/last").path == run.path


def test_a_run_may_itself_lie_in_a_folder_called_checkpoints(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "checkpoints" / "run", CONFIG).close()
    assert RunDir.open(tmp_path / "checkpoints" / "run").config == CONFIG


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run directory"):
        RunDir.open(tmp_path / "missing")
    with pytest.raises(RunError, match=r"no run\.json"):
        RunDir.open(tmp_path)
    assert not RunDir.is_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"format_version": 2}', b'{"format_version": 1}', b" " * (65 << 20)],
    ids=lambda content: repr(content[:24]),
)
def test_an_unreadable_run_json_is_refused(run: RunDir, content: bytes) -> None:
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(RunError):
        RunDir.open(run.path)


def test_run_json_is_not_followed_through_a_link_nor_waited_for(run: RunDir) -> None:
    (run.path / "run.json").rename(run.path / "elsewhere")
    (run.path / "run.json").symlink_to("elsewhere")
    with pytest.raises(RunError, match="symbolic link"):
        RunDir.open(run.path)
    (run.path / "run.json").unlink()
    os.mkfifo(run.path / "run.json")
    with pytest.raises(RunError, match="not a regular file"):
        RunDir.open(run.path)


def test_an_edited_config_is_refused_and_overrides_recommended(run: RunDir) -> None:
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("0.99", "0.98"))
    with pytest.raises(RunError, match=r"rlexp resume .* key=value"):
        RunDir.open(run.path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("algo: {path: '${oc.env:HOME}'}", UntrustedError),
        ("'${x}': 1", UntrustedError),
        ("a: !!python/object/apply:os.mkdir [executed]", RunError),
        ("a: &a [1]\nb: *a", RunError),
        ("- 1", RunError),
    ],
)
def test_a_hostile_config_with_the_right_hash_is_refused(
    run: RunDir, text: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path)
    (run.path / "config.yaml").write_text(text)
    run.update_info(config_sha256=hashlib.sha256(text.encode()).hexdigest())
    with pytest.raises(error):
        RunDir.open(run.path)
    assert not (run.path / "executed").exists()


def test_a_resume_with_overrides_becomes_the_config_of_the_run(run: RunDir) -> None:
    changed = {**CONFIG, "algo": {**CONFIG["algo"], "gamma": 0.9}}  # type: ignore[dict-item]
    run.record_resume(["rlexp", "resume", "run", "algo.gamma=0.9"], changed)
    run.record_resume(["rlexp", "resume", "run"])
    opened = RunDir.open(run.path)
    assert opened.config == changed == run.config
    assert [entry["command"][-1] for entry in opened.info["resumes"]] == ["algo.gamma=0.9", "run"]
    run.save(1, state(1))
    assert run.load().config == changed  # type: ignore[union-attr]


# -- the lock and the status

HOLDER = """
import os, sys, time
from rlexp.run_dir import RunDir
run = RunDir.open(sys.argv[1]).lock()
run.set_status("running")
if sys.argv[2] == "fork" and os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())  # one call: two processes write
    time.sleep(60)
os.write(1, b"locked\\n")
time.sleep(60)
"""


def hold(run: RunDir, how: str = "plain") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(run.path), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process


def test_a_second_process_is_told_that_the_run_is_still_running(run: RunDir) -> None:
    run.close()
    process = hold(run)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        opened = RunDir.open(run.path)
        assert opened.state() == "running"
        with pytest.raises(RunError, match=rf"still running \(pid {process.pid}"):
            opened.lock()
    finally:
        process.kill()
        process.wait()
    assert opened.state() == "killed"
    with opened.lock():
        assert opened.state() == "running"


def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_run(run: RunDir) -> None:
    run.close()
    process = hold(run, "fork")
    assert process.stdout is not None
    lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    process.kill()
    process.wait()
    try:
        assert RunDir.open(run.path).state() == "killed"
        RunDir.open(run.path).lock().close()
    finally:
        os.kill(int((lines - {"locked"}).pop()), signal.SIGKILL)


def test_two_runs_cannot_be_made_in_one_directory(run: RunDir) -> None:
    with pytest.raises(RunError, match="still running"):
        RunDir.create(run.path, CONFIG)


def test_nothing_is_written_without_the_lock(run: RunDir) -> None:
    run.close()
    opened = RunDir.open(run.path)
    before = snapshot(run.path)
    writers: list[Callable[[], Any]] = [
        lambda: opened.append({}),
        lambda: opened.truncate(0),
        lambda: opened.set_status("completed"),
        lambda: opened.write_summary({}),
        lambda: opened.update_info(a=1),
        lambda: opened.record_resume([]),
        lambda: opened.save(1, state(1)),
        lambda: opened.go_on_from(),
    ]
    for write in writers:
        with pytest.raises(RuntimeError, match="lock"):
            write()
    assert snapshot(run.path) == before


@pytest.mark.parametrize("status", ["completed", "interrupted", "failed"])
def test_the_state_is_the_last_status(run: RunDir, status: Any) -> None:
    assert run.state() == "running"
    run.set_status(status, reason="why")
    run.close()
    opened = RunDir.open(run.path)
    assert opened.state() == status
    assert opened.status()["reason"] == "why"


def test_a_run_killed_before_its_first_status_counts_as_killed(run: RunDir) -> None:
    (run.path / "status.json").unlink()
    run.close()
    assert RunDir.open(run.path).state() == "killed"


def test_a_status_that_is_none_is_refused(run: RunDir) -> None:
    with pytest.raises(ValueError, match="'done' is not a status"):
        run.set_status("done")
    (run.path / "status.json").write_text('{"status": "hacked"}')
    with pytest.raises(RunError, match="hacked"):
        run.state()


def test_the_summary_is_written_whole(run: RunDir) -> None:
    assert run.summary() == {}
    run.write_summary({"status": "completed", "eval": {"return_mean": 1 / 3}})
    assert RunDir.open(run.path).summary() == {"status": "completed", "eval": {"return_mean": 1 / 3}}


def test_a_full_disk_is_reported_without_harm_to_the_old_status(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        run.set_status("completed")
    assert run.status()["status"] == "running"


# -- metrics


def metrics(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_rows_keep_every_bit_of_a_float(run: RunDir) -> None:
    row = {"env_steps": 10, "loss/critic": 0.1 + 0.2, "tiny": 5e-324, "inf": math.inf, "f4": np.float32(0.1)}
    run.append(row)
    run.append({"nan": math.nan, "zero": -0.0})
    first, second = metrics(run)
    assert first == {**row, "f4": float(np.float32(0.1))}
    assert math.isnan(second["nan"])
    assert math.copysign(1, second["zero"]) == -1
    assert run.rows == RunDir.open(run.path).rows == 2


def test_resume_keeps_the_rows_of_the_checkpoint_and_remembers_how_many_there_were(run: RunDir) -> None:
    for index in range(10):
        run.append({"index": index})
    run.close()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"index": 1')  # torn by the kill
    with RunDir.open(run.path).lock() as resumed:
        assert resumed.rows == 10
        resumed.truncate(6)
        assert (resumed.rows, resumed.high_water) == (6, 10)
        resumed.append({"index": 6})
        resumed.set_status("running")
        assert (resumed.rows, resumed.high_water) == (7, 10)
    with RunDir.open(run.path).lock() as again:
        again.truncate(6)  # killed once more, before the old mark was reached
        assert again.high_water == 10
        for index in range(6, 12):
            again.append({"index": index})
        assert again.high_water == 12
        assert [row["index"] for row in metrics(again)] == list(range(12))


def test_a_torn_row_is_not_glued_to_the_next(run: RunDir) -> None:
    (run.path / "metrics.jsonl").write_text('{"a": 1}\n{"a": 2')
    run.append({"a": 3})
    assert metrics(run) == [{"a": 1}, {"a": 3}]
    assert run.rows == 2


def test_rows_that_are_missing_are_not_made_up(run: RunDir) -> None:
    run.append({"a": 1})
    with pytest.raises(RunError, match="has 1 row, but the checkpoint was written after 5"):
        run.truncate(5)
    assert metrics(run) == [{"a": 1}]


def test_truncating_an_empty_run_is_fine(run: RunDir) -> None:
    run.truncate(0)
    run.append({"a": 1})
    run.truncate(0)
    assert (run.rows, run.high_water) == (0, 1)


def test_rows_are_never_written_through_a_link(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text\n")
    (run.path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    for write in (lambda: run.append({"a": 1}), lambda: run.truncate(0)):
        with pytest.raises(RunError, match="link"):
            write()
    assert (tmp_path / "precious").read_text() == "text\n"
