"""``rlexp resume SWEEP``: what is completed is skipped, the rest goes on, and a stranger's sweep is only data."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.run_dir import RunDir
from tests.cli.conftest import INTERVALS, PPO, Command, start
from tests.cli.test_sweeps import ON_POLICY, table

# Notes each run's beginnings and ends in a file; fails in one of them, and is killed once in the middle of another.
WATCHED = """
import os, signal, pathlib
from rlexp.callbacks import Callback
from rlexp.errors import EnvError

class Watched(Callback):
    def on_start(self, trainer):
        with open("begun.txt", "a") as file:
            file.write(f"{trainer.work.seed} {trainer.clock}\\n")

    def on_step(self, trainer):
        if trainer.work.seed == 3:
            raise EnvError("it fell over")
        if trainer.work.seed == 6 and trainer.clock == 192 and not os.path.exists("killed.txt"):
            pathlib.Path("killed.txt").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_end(self, trainer):
        with open("ended.txt", "a") as file:
            file.write(f"{trainer.work.seed}\\n")
"""


def test_twelve_jobs_one_failing_killed_half_way_are_resumed_and_none_is_run_twice(
    rlexp: Command, tmp_path: Path
) -> None:
    (tmp_path / "watching.py").write_text(WATCHED)
    callback = "trainer.callbacks=[{_target_: watching.Watched}]"
    budget = ["trainer.total_steps=256", *INTERVALS]
    arguments = ["--multirun", *PPO, *budget, "progress=plain", callback, "seed=range(0,12)", "name=twelve"]
    process = start(*arguments, cwd=tmp_path)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    sweep = tmp_path / "outputs" / "twelve"
    done = {number: json.loads((sweep / str(number) / "run.json").read_text())["run_id"] for number in (0, 1, 2, 4, 5)}
    assert not (sweep / "7").exists()

    answer = rlexp("resume", "twelve", "trust=[watching]")
    assert answer.code == 1
    shown = table(answer.out)
    expected = {f"seed={seed}": "failed" if seed == 3 else "completed" for seed in range(12)}
    assert {label: row[0] for label, row in shown.items()} == expected
    assert "11 of 12 jobs completed  outputs/twelve\n" in answer.out
    assert answer.err == "error: seed=3: it fell over\n"
    ended = [int(line) for line in (tmp_path / "ended.txt").read_text().splitlines()]
    assert ended == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]  # each once, in order
    begun = (tmp_path / "begun.txt").read_text().splitlines()
    assert [line for line in begun if line.startswith("6 ")] == ["6 0", "6 128"]  # from its checkpoint
    assert len(begun) == 12 + 2  # the killed one and the failed one again
    for number, run_id in done.items():
        info = json.loads((sweep / str(number) / "run.json").read_text())
        assert (info["run_id"], info["resumes"]) == (run_id, [])


@pytest.fixture(scope="module")
def two_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two jobs, the second of which has not begun."""
    folder = tmp_path_factory.mktemp("sweep")
    from rlexp.config.compose import register
    from rlexp.sweeps.command import run_sweep

    register()
    arguments = [*ON_POLICY, "seed=1,2", "progress=none", f"hydra.sweep.dir={folder / 'two'}"]
    assert run_sweep(arguments, ["rlexp", "--multirun", *arguments]) == 0
    shutil.rmtree(folder / "two" / "1")
    return folder / "two"


@pytest.fixture
def two(two_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_once, tmp_path / "two", symlinks=True))


def test_a_sweep_that_was_moved_goes_on_in_its_new_place(rlexp: Command, two: Path) -> None:
    before = (two / "0" / "summary.json").read_bytes()
    answer = rlexp("resume", "two")
    assert (answer.code, answer.err) == (0, "")
    assert (two / "0" / "summary.json").read_bytes() == before
    assert RunDir.open(two / "1").state() == "completed"
    assert RunDir.open(two / "1").info["group"] == "two"


def change(two: Path, key: str, value: Any, job: int | None = None) -> None:
    info = json.loads((two / "sweep.json").read_text())
    (info if job is None else info["jobs"][job])[key] = value
    (two / "sweep.json").write_text(json.dumps(info))


def change_config(two: Path, group: str, key: str, value: Any) -> None:
    config = json.loads((two / "sweep.json").read_text())["jobs"][1]["config"]
    config[group][key] = value
    change(two, "config", config, 1)


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder above": (lambda two: change(two, "folder", "../1", 1), "outside of the sweep"),
    "an absolute folder": (lambda two: change(two, "folder", "/tmp/1", 1), "outside of the sweep"),
    "a folder that is a link": (lambda two: os.symlink("/tmp", two / "1"), "is a symbolic link"),
    "own code": (lambda two: change_config(two, "algo", "_target_", "os.system"), "is not trusted"),
    "an interpolation": (lambda two: change_config(two, "env", "id", "${oc.env:HOME}"), "interpolation"),
    "a launcher that reaches other machines": (
        lambda two: change(two, "launcher", {"_target_": "rlexp.sweeps.launchers.RayLauncher", "address": "evil:1"}),
        "is not taken from a file",
    ),
    "something else as launcher": (
        lambda two: change(two, "launcher", {"_target_": "rlexp.sweeps.kinds.Grid"}),
        "is not a component that can stand there",
    ),
    "no jobs": (lambda two: change(two, "jobs", None), "does not hold what rlexp writes"),
    "a later format": (lambda two: change(two, "format_version", 9), "has format 9"),
    "half a file": (lambda two: (two / "sweep.json").write_text('{"jobs":'), "is not valid JSON"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_sweep_from_a_stranger_runs_nothing_of_theirs(how: str, rlexp: Command, two: Path) -> None:
    spoil, complaint = SPOILED[how]
    spoil(two)
    answer = rlexp("resume", "two")
    assert answer.code == 1
    assert complaint in answer.err
    assert not (two / "1" / "run.json").exists()


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("algo.gamma=0.5", "algo.gamma=0.5: the jobs of a sweep stay what they are."),
        ("sweep.params.seed=3", "sweep.params.seed=3: the jobs of a sweep stay what they are."),
        ("+launcher=joblib", "Multiple values for launcher."),
        ("launcher=jobli", "launcher=jobli: there is no such launcher. Did you mean joblib?"),
        ("launcher=joblib launcher.jbs=2", "launcher.jbs: JoblibLauncher has no such setting. Did you mean jobs?"),
    ],
)
def test_what_a_sweep_cannot_change_is_said(typed: str, complaint: str, rlexp: Command, two: Path) -> None:
    answer = rlexp("resume", "two", *typed.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {complaint}")


def test_a_sweep_is_run_by_one_process_at_a_time(rlexp: Command, two: Path) -> None:
    with RunDir(two, {}, {}).lock():
        answer = rlexp("resume", "two")
    assert answer.code == 1
    assert "is still running" in answer.err


def test_several_at_once_give_the_same_results_as_one_after_another(rlexp: Command, tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    for launcher in ("local", "joblib"):
        answer = rlexp("--multirun", *ON_POLICY, "seed=1,2", f"name={launcher}", f"launcher={launcher}")
        assert (answer.code, answer.err) == (0, "")
    assert rows(tmp_path / "outputs" / "joblib") == rows(tmp_path / "outputs" / "local")
    assert "seed=2  completed  return" in answer.out


@pytest.mark.learning
@pytest.mark.parametrize(
    ("package", "launcher"), [("submitit", ["launcher=slurm", "launcher.cluster=local"]), ("ray", ["launcher=ray"])]
)
def test_other_engines_give_the_same_results(package: str, launcher: list[str], rlexp: Command, tmp_path: Path) -> None:
    pytest.importorskip(package)
    for name, how in (("here", []), ("there", launcher)):
        assert rlexp("--multirun", *ON_POLICY, "seed=1,2", f"name={name}", *how).code == 0
    assert rows(tmp_path / "outputs" / "there") == rows(tmp_path / "outputs" / "here")


def rows(sweep: Path) -> list[list[dict[str, Any]]]:
    """The metrics of both runs but for times."""
    return [
        [
            {key: value for key, value in json.loads(line).items() if not key.startswith("time")}
            for line in (sweep / number / "metrics.jsonl").read_text().splitlines()
        ]
        for number in ("0", "1")
    ]
