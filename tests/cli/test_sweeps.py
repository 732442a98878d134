"""Sweeps: every job is checked before the first one starts, a failing one stops no other, and a table closes them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from rlexp.cli import _train_in
from rlexp.sweeping import Job, Task
from tests.cli.conftest import PPO, QUICK, Command

BUDGET = ["trainer.total_steps=64", "trainer.batch_size=8", "trainer.learning_starts=60", "trainer.eval_episodes=1"]
DQN = ["algo=dqn", "buffer.capacity=100", *BUDGET, *QUICK]
ON_POLICY = [*PPO, "trainer.total_steps=64", "progress=plain"]


def table(out: str) -> dict[str, list[str]]:
    """The rows of the closing table, by job; the last block before the summary."""
    rows = out[out.rindex("\njob  ") :].split("\n\n")[0].splitlines()[2:]
    return {row.split("  ")[0]: row.split()[1:] for row in rows}


def test_every_combination_is_run_and_listed_with_its_result(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("--multirun", *ON_POLICY, "seed=range(1,3)", "algo.gamma=choice(0.9,0.99)", "name=both")
    assert (answer.code, answer.err) == (0, "")
    sweep = tmp_path / "outputs" / "both"
    assert sorted(each.name for each in sweep.iterdir()) == ["0", "1", "2", "3", "multirun.yaml"]
    shown = table(answer.out)
    assert list(shown) == [f"seed={seed} algo.gamma={gamma}" for seed in (1, 2) for gamma in ("0.9", "0.99")]
    for number, row in enumerate(shown.values()):
        result = json.loads((sweep / str(number) / "summary.json").read_text())["eval"]
        assert row[1] == "completed"
        assert float(row[2]) == pytest.approx(result["return_mean"], rel=1e-3)
        assert json.loads((sweep / str(number) / "run.json").read_text())["group"] == "both"
    assert "4 of 4 jobs completed  outputs/both\n" in answer.out
    assert "job 2 of 4: seed=1 algo.gamma=0.99\n" in answer.out


REFUSED = {
    "algo=dqn,sac": "algo=sac: algo=sac acts in continuous action spaces, but CartPole-v1 has a discrete one.",
    "algo.gamma=0.9,2,3": "algo.gamma=2: algo.gamma must be at most 1, not 2.0. 1 other job is refused, too.",
    "algo.gamma=0.9,x": "algo.gamma=x: algo.gamma must be a number, not x.",
    "+algo.gama=1,2": "+algo.gama=1: algo.gama: DQN has no such setting. Did you mean gamma? 1 other job",
    "algo.gama=1,2": "algo.gama=1: algo.gama: DQN has no such setting. Did you mean gamma?",
    "env=cartpole,cartpol": "env=cartpol: env=cartpol: there is no such env. Did you mean cartpole",
    "name=a,b": "name=a,b: a sweep has one name, that of its folder below outputs/.",
    "name=a/b seed=1,2": "name is the run's folder below outputs/ and must not hold a slash, not 'a/b'.",
    "name=a hydra.sweep.dir=b": "name=a and hydra.sweep.dir=… both name the folder of the sweep. Leave out one.",
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
    again = rlexp("-m", *ON_POLICY, "seed=1,2", "hydra.sweep.dir=elsewhere")
    assert again.err.startswith("error: seed=1: elsewhere/0 already holds a run.")


def test_what_a_launcher_runs_can_be_sent_to_another_process(tmp_path: Path) -> None:
    task = Task(_train_in, [Job("seed=1", tmp_path)], planned=True)
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301 (our own bytes)


def test_a_sweep_can_be_silent(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("--multirun", *ON_POLICY, "progress=none", "seed=1,2")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
