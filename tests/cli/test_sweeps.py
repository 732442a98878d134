"""Sweeps: every job is checked before the first one starts, a failing one stops no other, and a table closes them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlexp.config.compose import choices, compose, register
from rlexp.errors import RunError
from rlexp.machine import CORES_VARIABLE, cpu_count
from rlexp.runner import catching_signals
from rlexp.sweeps import launchers, submitit_engine
from rlexp.sweeps.planning import Plan
from rlexp.trainers import Workspace
from rlexp.trainers.workspace import Interrupted
from tests.cli.conftest import PPO, QUICK, Command

BUDGET = ["trainer.total_steps=64", "trainer.batch_size=8", "trainer.learning_starts=60", "trainer.eval_episodes=1"]
DQN = ["algo=dqn", "buffer.capacity=100", *BUDGET, *QUICK]
ON_POLICY = [*PPO, "trainer.total_steps=64", "progress=plain"]


def table(out: str) -> dict[str, list[str]]:
    """The rows of the closing table, by job; the last block before the summary."""
    rows = out[out.rindex("\njob  what ") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    assert [row[0] for row in cells] == [str(number) for number in range(1, len(cells) + 1)]
    return {row[1]: row[2:] for row in cells}


def test_every_combination_is_run_and_listed_with_its_result(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("--multirun", *ON_POLICY, "seed=range(1,3)", "algo.gamma=choice(0.9,0.99)", "name=both")
    assert (answer.code, answer.err) == (0, "")
    sweep = tmp_path / "outputs" / "both"
    assert sorted(each.name for each in sweep.iterdir()) == [".lock", "0", "1", "2", "3", "sweep.json"]
    shown = table(answer.out)
    assert list(shown) == [f"seed={seed} algo.gamma={gamma}" for seed in (1, 2) for gamma in ("0.9", "0.99")]
    for number, row in enumerate(shown.values()):
        result = json.loads((sweep / str(number) / "summary.json").read_text())["eval"]
        assert row[0] == "completed"
        assert float(row[1].split()[0]) == pytest.approx(result["return_mean"], rel=1e-3)
        assert json.loads((sweep / str(number) / "run.json").read_text())["group"] == "both"
    assert "4 of 4 jobs completed  outputs/both\n" in answer.out
    assert "job 2 of 4: seed=1 algo.gamma=0.99\n" in answer.out


REFUSED = {
    "algo=dqn,sac": "algo=sac: algo=sac acts in continuous action spaces, but CartPole-v1 has a discrete one.",
    "algo.gamma=0.9,2,3": "algo.gamma=2: algo.gamma must be at most 1, not 2.0. 1 other job is refused, too.",
    "algo.gamma=0.9,x": "algo.gamma=x: algo.gamma must be a number, not x.",
    "trainer.train_frequency=1,70": "trainer.train_frequency=70: trainer.total_steps=64 would end the run before its ",
    "+algo.gama=1,2": "+algo.gama=1: algo.gama: DQN has no such setting. Did you mean gamma? 1 other job",
    "algo.gama=1,2": "algo.gama=1: algo.gama: DQN has no such setting. Did you mean gamma?",
    "env=cartpole,cartpol": "env=cartpol: env=cartpol: there is no such env. Did you mean cartpole",
    "name=a,b": "name=a,b: a sweep has one name, that of its folder below outputs/.",
    "name=a/b seed=1,2": "name is the run's folder below outputs/ and must not hold a slash, not 'a/b'.",
    "name=a hydra.sweep.dir=b": "name=a and hydra.sweep.dir=… both name the folder of the sweep. Leave out one.",
    "algo.gamma=interval(0.9,1)": "algo.gamma=interval(0.9,1): a grid takes values, choice(…) or range(…).",
    "seed=1,2,1": "seed=1: another job of the sweep is the same. Give each value once.",
    "search=dqn": "search=dqn is a space to search: add sweep=optuna.",
    "sweep=optuna sweep.trails=3": "sweep.trails: OptunaSearch has no such setting. Did you mean trials?",
    "seed=1,2 hydra.sweep.subdir=../x": "seed=1: hydra.sweep.subdir leads to",
    "hydra/launcher=nowhere seed=1,2": "hydra/config.yaml: hydra/launcher=nowhere: there is no such hydra/launcher.",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_job_that_cannot_run_refuses_the_sweep_before_any_starts(typed: str, rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("--multirun", *DQN, *typed.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {REFUSED[typed]}")
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_fails_stops_no_other_and_shows_in_the_exit_code(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from rlexp.callbacks import Callback\n\n\n"
        "class FailAt(Callback):\n"
        "    def __init__(self, seed: int = 0):\n        self.seed = seed\n\n"
        "    def on_step(self, trainer):\n"
        "        if trainer.work.seed == self.seed:\n"
        "            from rlexp.errors import EnvError\n            raise EnvError('it fell over')\n"
    )
    callback = "trainer.callbacks=[{_target_: failing.FailAt, seed: 1}]"
    answer = rlexp("-m", *ON_POLICY, "seed=1,2", callback, "hydra.sweep.dir=elsewhere")
    assert (answer.code, answer.err) == (1, "error: seed=1: it fell over\n")
    shown = table(answer.out)
    assert (shown["seed=1"][0], shown["seed=2"][0]) == ("failed", "completed")
    assert "1 of 2 jobs completed  elsewhere\n" in answer.out
    assert "  failed       seed=1: it fell over\n" in answer.out.partition("1 of 2 jobs")[2]  # once more at the end
    assert "rlexp resume elsewhere 'trust=[failing]'\n" in answer.out  # a command that works
    again = rlexp("-m", *ON_POLICY, "seed=1,2", "hydra.sweep.dir=elsewhere")
    assert again.err.startswith("error: elsewhere already holds a sweep. Continue it with `rlexp resume elsewhere`, or")


PRESETS = {"grid": 1, "seeds": 5, "learning_rate": 12, "gamma": 15, "network": 9, "actor_critic_learning_rates": 9}


@pytest.mark.parametrize("preset", [name for name in choices("sweep") if name != "optuna"])
def test_every_preset_plans_jobs_that_compose(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    monkeypatch.setattr(Plan, "_compose_job", lambda self, number, overrides: (self.folder / str(number), {}))
    base = ["algo=sac", "env=pendulum"] if preset.startswith("actor_critic") else ["algo=ppo", "env=cartpole"]
    jobs = Plan([f"sweep={preset}", *base]).jobs
    assert len({job.overrides for job in jobs}) == len(jobs) == PRESETS[preset]
    last = compose(jobs[-1].overrides)
    if preset != "grid":
        assert last != compose(jobs[0].overrides) | {"name": last["name"]}


def test_what_is_typed_wins_over_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    monkeypatch.setattr(Plan, "_compose_job", lambda self, number, overrides: (self.folder / str(number), {}))
    plan = Plan(["sweep=learning_rate", "algo=ppo", "algo.learning_rate=1e-3", "seed=7,8"])
    assert [job.overrides for job in plan.jobs] == [
        ("algo.learning_rate=0.001", "seed=7", "algo=ppo"),
        ("algo.learning_rate=0.001", "seed=8", "algo=ppo"),
    ]
    assert [job.label for job in plan.jobs] == ["seed=7", "seed=8"]


def test_a_sweep_is_no_part_of_a_single_run(rlexp: Command) -> None:
    for given in ("sweep=seeds", "launcher=joblib"):
        answer = rlexp(*ON_POLICY, given)
        group = given.partition("=")[0]
        assert (answer.code, answer.err) == (1, f"error: {group}=… is for several runs: add --multirun.\n")


@pytest.mark.parametrize(
    ("package", "typed", "extra"),
    [
        ("joblib", "launcher=joblib", "joblib"),
        ("submitit", "launcher=slurm", "slurm"),
        ("ray", "launcher=ray", "ray"),
        ("optuna", "sweep=optuna", "optuna"),
    ],
)
def test_an_engine_that_is_not_installed_is_named_before_anything_is_written(
    package: str, typed: str, extra: str, rlexp: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answer = rlexp("--multirun", *ON_POLICY, typed)
    assert answer.err == f'error: {typed} needs the package {package}: pip install "rlexp[{extra}]"\n'
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_shares_the_machine_makes_do_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = cpu_count()
    monkeypatch.setenv(CORES_VARIABLE, "1")
    assert cpu_count() == 1
    monkeypatch.setenv(CORES_VARIABLE, str(everything + 5))
    assert cpu_count() == everything


def test_a_sweep_can_be_silent(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("--multirun", *ON_POLICY, "progress=none", "seed=1,2")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


class LocalJob:
    """What submitit's local executor gives: asked to cancel, it would kill the job a second later."""

    def __init__(self, heeds: int) -> None:
        self.heeds, self.asked = heeds, []  # the how manieth SIGTERM: earlier ones are lost before it trains
        self._process = self

    def terminate(self) -> None:
        self.asked.append("terminate")

    def cancel(self, check: bool) -> None:
        self.asked.append("cancel")

    def done(self, force_check: bool = False) -> bool:
        return len(self.asked) >= self.heeds


def test_local_jobs_of_submitit_have_time_to_save_before_they_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitit_engine, "PATIENCE", 0.0)
    jobs = [LocalJob(heeds=1), LocalJob(heeds=9)]
    submitit_engine.SubmititEngine(None, local=True).stop(jobs, signal.SIGINT)
    assert [job.asked for job in jobs] == [["terminate"], ["terminate", "cancel"]]


def test_local_jobs_of_submitit_that_do_not_train_yet_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitit_engine.time, "sleep", lambda seconds: None)
    jobs = [LocalJob(heeds=1), LocalJob(heeds=3)]
    submitit_engine.SubmititEngine(None, local=True).stop(jobs, signal.SIGINT)
    assert [job.asked for job in jobs] == [["terminate"], ["terminate"] * 3]


def test_a_run_that_saves_is_not_hurt_by_a_second_signal() -> None:
    """Its first one puts back the handler that was there before, which is submitit's and does nothing."""
    heard: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        work = Workspace(*[None] * 7)  # type: ignore[arg-type]
        with catching_signals(work):
            signal.raise_signal(signal.SIGTERM)
            assert (work.signal_number, heard) == (signal.SIGTERM, [])
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_ctrl_c_in_the_terminal_does_not_reach_local_jobs_of_submitit(tmp_path: Path) -> None:
    """The process before each job would print a traceback and kill it."""
    pytest.importorskip("submitit")
    engine = launchers.SlurmLauncher(cluster="local").open(tmp_path)  # type: ignore[arg-type]
    (handle,) = engine.submit([None])  # type: ignore[list-item]
    process = handle._process
    try:
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)  # and what it may have started
    finally:
        process.kill()
        process.wait()


class Executor:
    """Notes what submitit's local part would start processes with, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def batch(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def submit(self, *args: object) -> object:
        if self.error is not None:
            raise self.error
        return importlib.import_module("submitit.local.local").subprocess


def test_submitit_is_as_it_was_after_jobs_are_started_or_failed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    local = pytest.importorskip("submitit.local.local")
    found = SimpleNamespace(**vars(subprocess))  # perhaps somebody else's
    monkeypatch.setattr(local, "subprocess", found)
    (seen,) = submitit_engine.SubmititEngine(Executor(), local=True).submit([None])  # type: ignore[list-item]
    assert local.subprocess is found
    assert vars(seen) == vars(found) | {"Popen": seen.Popen}
    assert seen.Popen is not found.Popen
    for error, raised in ((OSError("no"), RunError), (KeyError("no"), KeyError)):
        with pytest.raises(raised):
            submitit_engine.SubmititEngine(Executor(error), local=True).submit([None])  # type: ignore[list-item]
        assert local.subprocess is found
    (seen,) = submitit_engine.SubmititEngine(Executor(), local=False).submit([None])  # type: ignore[list-item]
    assert seen is found  # Slurm's jobs are no processes of this machine


def test_a_signal_is_noted_and_ends_the_waiting_at_the_next_look() -> None:
    with launchers._signals_noted() as look:
        look()
        os.kill(os.getpid(), signal.SIGINT)  # raises nothing: it may come while Ray waits, which breaks on exceptions
        with pytest.raises(Interrupted):
            look()
