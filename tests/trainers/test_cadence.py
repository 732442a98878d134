"""When the loops step, learn, log, evaluate, save and stop; and that watching a run does not change it."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlexp import evaluation
from rlexp.callbacks import Callback
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.models.target import TargetNetwork
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.seeding import derive_seed
from rlexp.trainers import base
from rlexp.trainers.base import Trainer
from rlexp.trainers.replay import Replay
from rlexp.trainers.workspace import Interrupted
from rlexp.types import Act
from tests.algos.common import once_per_loop, some_of
from tests.trainers.recording import (
    Recording,
    Watch,
    World,
    algorithms,
    changed,
    counting_config,
    rows_of,
    same_weights,
    small_config,
    train,
    watch,
    without_time,
)

LOOPS = ["on_policy", "replay", "offline", "mixed"]
HERE = "tests.trainers.test_cadence"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return watch(monkeypatch)


def budget(loop: str, count: int) -> dict[str, Any]:
    """A budget of ``count`` in what the loop counts in; learning begins at once."""
    if loop == "offline":
        return {"trainer__total_updates": count, "trainer__batch_size": 4}
    if loop == "on_policy":
        return {"trainer__total_steps": count, "trainer__rollout_steps": 4}
    return {"trainer__total_steps": count, "trainer__batch_size": 4, "trainer__learning_starts": 0}


def crossings(clocks: list[int], interval: int) -> list[int]:
    """The clock readings at which a multiple of ``interval`` was reached since the reading before."""
    pairs = itertools.pairwise([0, *clocks])
    return [now for before, now in pairs if any(step % interval == 0 for step in range(before + 1, now + 1))]


# ---- updates against steps


def test_updates_due_are_those_of_a_loop_that_goes_step_by_step() -> None:
    rng = random.Random(0)
    for _ in range(300):
        num_envs, frequency, per_step = rng.randint(1, 7), rng.randint(1, 9), rng.randint(1, 3)
        starts = rng.choice([0, 1, rng.randint(0, 40)])
        trainer = Replay(
            train_frequency=frequency, gradient_updates_per_step=per_step, learning_starts=starts, total_steps=100
        )
        trainer.env_steps = 0
        for _ in range(30):
            before = trainer.env_steps
            trainer.env_steps += num_envs
            steps = range(before + 1, trainer.env_steps + 1)
            trainings = sum(1 for step in steps if step > starts and step % frequency == 0)
            assert trainer.updates_due(before) == trainings * per_step


@pytest.mark.parametrize(("num_envs", "frequency", "per_step", "starts"), [(1, 1, 1, 0), (1, 4, 3, 10), (3, 2, 1, 7)])
def test_replay_updates_in_a_fixed_ratio_to_its_steps(
    num_envs: int, frequency: int, per_step: int, starts: int, seen: Watch, tmp_path: Path
) -> None:
    config = counting_config(
        "replay",
        env__num_envs=num_envs,
        trainer__total_steps=40,
        trainer__train_frequency=frequency,
        trainer__gradient_updates_per_step=per_step,
        trainer__learning_starts=starts,
        trainer__batch_size=4,
    )
    runner = train(config, tmp_path / "run")
    expected = []
    steps = 0
    while steps < 40:
        expected.append("step")
        for _ in range(num_envs):
            steps += 1
            if steps > starts and steps % frequency == 0:
                expected += ["update"] * per_step
    assert seen.events == expected
    assert runner.trainer.updates == expected.count("update") == runner.algo.updates
    assert runner.trainer.env_steps == expected.count("step") * num_envs


def test_more_updates_than_are_gathered_at_once_are_all_done(seen: Watch, tmp_path: Path) -> None:
    config = counting_config("replay", **budget("replay", 2), trainer__gradient_updates_per_step=150)
    train(config, tmp_path / "run")
    assert seen.events == (["step"] + ["update"] * 150) * 2
    assert all(len(batch.reward) == 4 for batch in seen.batches)


def test_actions_are_random_until_learning_starts_and_the_policys_from_then_on(
    seen: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "act", lambda self, obs, carry, **_: Act(torch.full((len(obs),), 2)))
    config = counting_config(
        "replay", env__num_envs=3, trainer__total_steps=150, trainer__learning_starts=60, trainer__train_frequency=150
    )
    train(config, tmp_path / "run")
    actions = np.array(seen.actions)  # [50, 3]
    assert (actions[20:] == 2).all()
    counts = np.bincount(actions[:20].reshape(-1), minlength=3)
    assert (counts > 10).all()  # of 60; the chance of fewer is below 1 %, and the seed is fixed


# ---- mixed and offline


def test_pretraining_comes_before_the_first_step(seen: Watch, tmp_path: Path) -> None:
    config = counting_config("mixed", **budget("mixed", 10), trainer__offline_pretrain_updates=37)
    runner = train(config, tmp_path / "run")
    assert seen.events == ["update"] * 37 + ["step", "update"] * 10
    assert (runner.trainer.updates, runner.trainer.env_steps) == (47, 10)


@pytest.mark.parametrize(("ratio", "prior"), [(0.0, 0), (0.25, 3), (0.3, 4), (0.5, 6), (1.0, 12)])
def test_every_batch_has_its_share_of_prior_rows(ratio: float, prior: int, seen: Watch, tmp_path: Path) -> None:
    config = counting_config(
        "mixed",
        **budget("mixed", 30),
        trainer__offline_batch_ratio=ratio,
        trainer__gradient_updates_per_step=2,
    )
    changed(config, trainer__batch_size=12)
    runner = train(config, tmp_path / "run")
    data = World(derive_seed(0, "dataset", "env"), runner.trainer.prior.transitions().action[:, None], length=5)
    own = World(derive_seed(0, "train"), seen.actions, length=5)
    marks, own_marks = set(data.obs[..., 0].reshape(-1)), set(own.obs[..., 0].reshape(-1))
    assert not marks & own_marks  # so a row tells where it comes from
    for batch in seen.batches:
        assert len(batch.reward) == 12
        origin = [mark in marks for mark in batch.obs[:, 0].tolist()]
        assert sum(origin) == prior


def test_the_offline_loop_does_just_its_updates_and_no_step(seen: Watch, tmp_path: Path) -> None:
    runner = train(counting_config("offline", **budget("offline", 53)), tmp_path / "run")
    assert seen.events == ["update"] * 53
    assert (runner.trainer.updates, runner.trainer.env_steps) == (53, 0)


@pytest.mark.parametrize("loop", ["replay", "offline", "mixed"])
def test_an_algorithm_need_not_count_its_updates(loop: str, seen: Watch, tmp_path: Path) -> None:
    config = counting_config(loop, **budget(loop, 12))
    config["algo"]["_target_"] = "tests.trainers.recording.CarelessRecording"
    runner = train(config, tmp_path / "run")
    assert runner.trainer.updates == runner.algo.updates == len(seen.learned) == 12


# ---- rows, evaluations, checkpoints


def listening(config: dict[str, Any], **arguments: int) -> dict[str, Any]:
    config["trainer"]["callbacks"] = [{"_target_": "tests.trainers.recording.Listener", **arguments}]
    return config


def calls(runner: Runner, name: str) -> list[Any]:
    listener: Any = runner.callbacks[0]
    return [value for hook, value in listener.calls if hook == name]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("loop", LOOPS)
def test_rows_evaluations_and_checkpoints_come_at_the_promised_counts(loop: str, num_envs: int, tmp_path: Path) -> None:
    config = counting_config(
        loop,
        **budget(loop, 100),
        env__num_envs=num_envs,
        trainer__log_interval=7,
        trainer__eval_interval=11,
        trainer__checkpoint_interval=13,
    )
    runner = train(listening(changed(config, trainer__eval_episodes=1)), tmp_path / "run")
    clocks = calls(runner, "step")
    stride = {"on_policy": 4 * num_envs, "offline": 1}.get(loop, num_envs)
    if loop == "offline":  # several updates at a time, but never past an interval
        clocks = list(range(1, 101))
    assert clocks == list(range(stride, 100 + stride, stride))[: len(clocks)]
    assert clocks[-1] >= 100 > clocks[-2]
    key = "updates" if loop == "offline" else "env_steps"
    rows = rows_of(tmp_path / "run")
    ends = crossings(clocks, 11)
    evals = ends + [clocks[-1]] * (ends[-1] != clocks[-1])
    assert [row[key] for row in rows if "eval/return_mean" in row] == evals
    logged = crossings(clocks, 7)
    logged += [clocks[-1]] * (logged[-1] != clocks[-1])  # the end of the run has a row in any case
    assert [row[key] for row in rows if "eval/return_mean" not in row] == logged
    assert [clock for clock, _ in calls(runner, "eval")] == evals
    saved = [int(name.removeprefix("step_")) for name in calls(runner, "checkpoint")]
    assert saved == [*sorted({*crossings(clocks, 13), evals[0]}), clocks[-1]]  # the first evaluation is the best


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_that_is_shorter_than_its_interval_has_the_row_of_its_end(loop: str, tmp_path: Path) -> None:
    config = counting_config(loop, **budget(loop, 8), trainer__log_interval=1000)
    trainer = train(config, tmp_path / "run").trainer
    (row,) = rows_of(tmp_path / "run")
    assert (row["updates"], row["env_steps"]) == (trainer.updates, trainer.env_steps)
    assert row["rate/float"] == 1.0  # a metric of the last update
    resume_run(tmp_path / "run", ["trainer.patience=9"], trust=EVERYTHING)  # decides anew, and has nothing left to do
    assert len(rows_of(tmp_path / "run")) == 1


@pytest.mark.parametrize("loop", ["replay", "mixed"])
@pytest.mark.parametrize("setting", ["batch_size", "learning_starts"])
def test_a_memory_too_small_for_a_batch_or_for_the_first_steps_is_refused(setting: str, loop: str) -> None:
    config = counting_config(loop, buffer__capacity=30, **{f"trainer__{setting}": 30})
    Runner(config)
    with pytest.raises(
        ConfigError, match=rf"capacity=30 is smaller than trainer\.{setting}=31.* buffer\.capacity=31 or more"
    ):
        Runner(changed(config, **{f"trainer__{setting}": 31}))


def test_a_new_run_that_would_end_before_its_first_update_is_refused(tmp_path: Path) -> None:
    for num_envs, frequency, starts, first in ((1, 1, 8, 9), (3, 4, 2, 4), (3, 1, 10, 11), (2, 16, 3, 16)):
        for steps in range(1, 18):
            trainer = Replay(total_steps=steps, learning_starts=starts, train_frequency=frequency)
            if steps + -steps % num_envs >= first:  # whole steps of all environments
                trainer.check_budget(num_envs)
                continue
            with pytest.raises(ConfigError, match=rf"total_steps={steps} .* at step {first} \(.*starts={starts}, "):
                trainer.check_budget(num_envs)
    config = counting_config("replay", trainer__total_steps=8, trainer__learning_starts=8)
    with pytest.raises(ConfigError, match="before its first update"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    pretrained = counting_config("mixed", trainer__total_steps=8, trainer__learning_starts=8)
    train(changed(pretrained, trainer__offline_pretrain_updates=2), tmp_path / "mixed")  # it has learned before


@pytest.mark.parametrize("pretraining", [30, 35])
def test_pretraining_counts_its_intervals_in_updates_and_the_steps_after_it_in_steps(
    pretraining: int, tmp_path: Path
) -> None:
    config = counting_config(
        "mixed",
        **budget("mixed", 20),
        trainer__offline_pretrain_updates=pretraining,
        trainer__log_interval=10,
        trainer__checkpoint_interval=10,
    )
    runner = train(listening(config), tmp_path / "run")
    assert [(row["updates"], row["env_steps"]) for row in rows_of(tmp_path / "run")] == [
        *((10, 0), (20, 0), (30, 0)),
        *((pretraining + 10, 10), (pretraining + 20, 20)),
    ]
    numbers = [int(name.removeprefix("step_")) for name in calls(runner, "checkpoint")]
    assert numbers == [
        10,
        20,
        30,
        pretraining + 10,
        pretraining + 20,
        pretraining + 20,
    ]  # only growing; the last one once more at the end


@pytest.mark.parametrize("loop", LOOPS)
def test_without_intervals_there_is_one_evaluation_and_one_checkpoint_at_the_end(loop: str, tmp_path: Path) -> None:
    config = counting_config(loop, **budget(loop, 40), trainer__eval_interval=0)
    runner = train(listening(changed(config, trainer__eval_episodes=1)), tmp_path / "run")
    assert [clock for clock, _ in calls(runner, "eval")] == [40]
    assert calls(runner, "checkpoint") == ["step_000000000040"]


def scripted(returns: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations give these returns, one after another."""
    script = iter(returns)
    outcome = lambda *_, **__: evaluation.Evaluation([next(script)], [1], [])  # noqa: E731
    monkeypatch.setattr(evaluation.Evaluator, "__call__", outcome)


def links(path: Path) -> tuple[list[int], int, int]:
    folder = path / "checkpoints"
    steps = sorted(int(name.name.removeprefix("step_")) for name in folder.glob("step_*"))
    last, best = (int(os.readlink(folder / link).removeprefix("step_")) for link in ("last", "best"))
    return steps, last, best


@pytest.mark.parametrize(("keep", "kept"), [(1, [20, 60]), (2, [20, 50, 60]), (100, [10, 20, 30, 40, 50, 60])])
def test_the_newest_checkpoints_and_the_best_one_are_kept(
    keep: int, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([1, 5, 3, 5, 2, 4], monkeypatch)  # an equal one is no better
    config = counting_config(
        "replay",
        **budget("replay", 60),
        trainer__eval_interval=10,
        trainer__checkpoint_interval=10,
        trainer__keep_checkpoints=keep,
    )
    runner = train(changed(config, trainer__eval_episodes=1), tmp_path / "run")
    assert links(tmp_path / "run") == (kept, 60, 20)
    assert runner.trainer.best_eval["return_mean"] == 5
    assert runner.trainer.last_eval["return_mean"] == 4


def test_a_new_best_is_saved_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted([1, 5, 3, 2], monkeypatch)
    config = counting_config("replay", **budget("replay", 35), trainer__eval_interval=10)
    runner = train(listening(changed(config, trainer__eval_episodes=1)), tmp_path / "run")
    assert calls(runner, "checkpoint") == ["step_000000000010", "step_000000000020", "step_000000000035"]
    assert links(tmp_path / "run")[1:] == (35, 20)


# ---- ends


@pytest.mark.parametrize("loop", LOOPS)
def test_an_evaluation_that_reaches_stop_return_ends_the_run(loop: str, tmp_path: Path) -> None:
    config = counting_config(loop, **budget(loop, 80), trainer__eval_interval=20, trainer__stop_return=15.0)
    summary = Runner(changed(config, trainer__eval_episodes=2)).train(tmp_path / "run")  # 1 + 2 + 3 + 4 + 5 = 15
    done = summary["updates" if loop == "offline" else "env_steps"]
    assert (done, summary["stop_reason"], summary["status"]) == (20, "stop_return", "completed")
    assert links(tmp_path / "run")[1:] == (20, 20)
    higher = changed(config, trainer__stop_return=15.5)
    assert Runner(higher).train(tmp_path / "higher")["stop_reason"] == "budget"


@pytest.mark.parametrize(("returns", "stops"), [([1] * 9, 40), ([1, 2, 2, 3, 1, 1, 1, 9], 70), (range(9), 80)])
def test_patience_ends_a_run_that_finds_no_new_best(
    returns: list[float], stops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(list(returns), monkeypatch)
    config = counting_config("replay", **budget("replay", 80), trainer__eval_interval=10, trainer__patience=3)
    summary = Runner(changed(config, trainer__eval_episodes=1)).train(tmp_path / "run")
    assert summary["env_steps"] == stops
    assert summary["stop_reason"] == ("patience" if stops < 80 else "budget")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [2, 3])
def test_a_signal_breaks_off_an_evaluation_which_is_made_again_on_resume(
    loop: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = {"trainer__eval_interval": 8, "trainer__log_interval": 4, "trainer__checkpoint_interval": 8}
    config = changed(counting_config(loop, **budget(loop, 24), **intervals), trainer__eval_episodes=1)
    train(config, tmp_path / "whole")
    works: list[Any] = []
    bind, play = Trainer.bind, evaluation._play

    def remember(self: Trainer, work: Any) -> None:
        works.append(work)
        bind(self, work)

    def interrupted(*args: Any) -> Any:
        number_of_evaluations.append(1)
        if len(number_of_evaluations) == number:
            works[-1].asked_to_stop(15)  # as the signal handler does, in the middle
        return play(*args)

    number_of_evaluations: list[int] = []
    monkeypatch.setattr(Trainer, "bind", remember)
    monkeypatch.setattr(evaluation, "_play", interrupted)
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "parts")
    evaluated = [row for row in rows_of(tmp_path / "parts") if "eval/return_mean" in row]
    assert len(evaluated) == number - 1
    resume_run(tmp_path / "parts", trust=EVERYTHING)
    assert without_time(rows_of(tmp_path / "parts")) == without_time(rows_of(tmp_path / "whole"))
    ends = [tmp_path / name / "checkpoints" / "last" / "policy.safetensors" for name in ("parts", "whole")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.parametrize("interval", [20, 0])
def test_an_owed_evaluation_sees_the_hyperparameters_that_were_scheduled(
    interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ["algo.schedules.epsilon.start=1.0", "algo.schedules.epsilon.end=0.0", "algo.schedules.epsilon.until=1.0"]
    trainer = [f"trainer.eval_interval={interval}", "trainer.total_steps=40", "trainer.learning_starts=30"]
    config = compose(["algo=dqn", "env=cartpole", *shape, *trainer, "evaluator.deterministic=false"])
    train(config, tmp_path / "whole")
    broken: list[Trainer] = []
    evaluate = Trainer.evaluate

    def interrupted(self: Trainer) -> None:
        if not broken and self.clock == 40:
            broken.append(self)
            self.work.asked_to_stop(15)
        evaluate(self)

    monkeypatch.setattr(Trainer, "evaluate", interrupted)
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "parts")
    resume_run(tmp_path / "parts", trust=EVERYTHING)
    assert without_time(rows_of(tmp_path / "parts")) == without_time(rows_of(tmp_path / "whole"))


def test_an_owed_evaluation_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(
        counting_config("replay", **budget("replay", 24), trainer__eval_interval=8), trainer__eval_episodes=1
    )
    evaluate = Trainer.evaluate

    def interrupted(self: Trainer) -> None:
        if self.clock == 8:
            self.work.asked_to_stop(15)
        evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", interrupted)
        with pytest.raises(Interrupted):
            Runner(config).train(tmp_path / "run")
    resume_run(tmp_path / "run", ["trainer.eval_interval=12"], trust=EVERYTHING)  # 8 is none of its places any more
    resume_run(tmp_path / "run", ["trainer.total_steps=36"], trust=EVERYTHING)
    assert [row["env_steps"] for row in rows_of(tmp_path / "run") if "eval/return_mean" in row] == [12, 24, 36]


def test_no_evaluation_is_begun_when_a_signal_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = Replay.iterate

    def interrupted(self: Replay) -> None:
        iterate(self)
        if self.env_steps == 8:
            self.work.asked_to_stop(15)

    monkeypatch.setattr(Replay, "iterate", interrupted)
    config = listening(counting_config("replay", **budget("replay", 8), trainer__eval_interval=8))
    runner = Runner(changed(config, trainer__eval_episodes=1))
    with pytest.raises(Interrupted):
        runner.train(tmp_path / "run")
    assert (calls(runner, "eval"), len(calls(runner, "checkpoint"))) == ([], 1)


class SlowSteps(Callback):
    """Every iteration takes a second of the tests' own clock; a signal comes after so many of this process."""

    now = 0.0

    def __init__(self, signal_after: int = 0) -> None:
        self.left = signal_after

    def on_step(self, trainer: Trainer) -> None:
        type(self).now += 1.0
        self.left -= 1
        if self.left == 0:
            trainer.work.signal_number = 15


def test_the_budget_of_seconds_holds_over_all_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        monotonic = staticmethod(lambda: SlowSteps.now)

    monkeypatch.setattr(base, "time", Clock)
    config = counting_config("replay", **budget("replay", 1000), trainer__max_seconds=10.0)
    config["trainer"]["callbacks"] = [{"_target_": f"{HERE}.SlowSteps"}]
    summary = Runner(config).train(tmp_path / "whole")
    assert (summary["env_steps"], summary["stop_reason"], summary["wall_time_s"]) == (10, "max_seconds", 10.0)
    config["trainer"]["callbacks"] = [{"_target_": f"{HERE}.SlowSteps", "signal_after": 4}]
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "parts")
    SlowSteps.now += 1000.0  # time between processes does not count
    with pytest.raises(Interrupted):
        resume_run(tmp_path / "parts", trust=EVERYTHING)
    SlowSteps.now += 1000.0
    summary = resume_run(tmp_path / "parts", trust=EVERYTHING)
    assert (summary["env_steps"], summary["stop_reason"], summary["wall_time_s"]) == (10, "max_seconds", 10.0)


def test_a_run_that_is_stopped_before_its_first_row_names_no_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = counting_config("replay", **budget("replay", 1000), trainer__log_interval=1000, progress="plain")
    config["trainer"]["callbacks"] = [{"_target_": f"{HERE}.SlowSteps", "signal_after": 4}]
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    out = capsys.readouterr().out
    assert "metrics.jsonl" not in out
    assert f"checkpoint   {tmp_path / 'run' / 'checkpoints' / 'last'}\n" in out


# ---- schedules


def linear(start: float, end: float, progress: float, begin: float = 0.0, until: float = 1.0) -> float:
    """A straight line between two points in progress, flat outside."""
    return float(np.interp(progress, [begin, until], [start, end]))


def scheduled_run(loop: str, path: Path, schedules: dict[str, Any], **settings: Any) -> Runner:
    config = counting_config(loop, **(budget(loop, 40) | settings))
    config["algo"] |= {"rate": 8.0, "period": 20, "schedules": schedules}
    return train(config, path)


def progress_of_updates(loop: str, pretraining: int) -> list[float]:
    """The share of a budget of 40 that was spent when each update's step began."""
    if loop == "on_policy":
        return [4 * i / 40 for i in range(10)]
    online = [i / 40 for i in range(40)]
    return [0.0] * pretraining + online if loop == "mixed" else online


@pytest.mark.parametrize("loop", LOOPS)
def test_scheduled_hyperparameters_reach_every_update(loop: str, seen: Watch, tmp_path: Path) -> None:
    pretraining = {"trainer__offline_pretrain_updates": 5} if loop == "mixed" else {}
    schedules = {
        "rate": {"shape": "linear", "end": 0.0},  # 8 -> 0
        "period": {"shape": "linear", "start": 30.0, "end": 10.0, "begin": 0.25, "until": 0.75},
    }
    scheduled_run(loop, tmp_path / "run", schedules, **pretraining, trainer__log_interval=10)
    progress = progress_of_updates(loop, 5)
    rates = [each.metrics["rate/float"] for each in seen.learned]
    assert rates == pytest.approx([linear(8, 0, p) for p in progress])
    periods = [each.metrics["rate/int"] for each in seen.learned]
    assert periods == [round(linear(30, 10, p, 0.25, 0.75)) for p in progress]
    assert periods[0] == 30
    assert periods[-1] == 10
    last = rows_of(tmp_path / "run")[-1]
    assert last["schedule/rate"] == pytest.approx(rates[-1])
    assert last["schedule/period"] == 10


@pytest.mark.parametrize("loop", ["replay", "offline", "mixed"])
def test_a_scheduled_discount_reaches_the_batches(loop: str, seen: Watch, tmp_path: Path) -> None:
    schedules = {"gamma": {"shape": "linear", "end": 1.0}}  # 0.5 -> 1
    settings = {"buffer__n_step": 2, "env__kwargs": {"length": 5, "end": "truncated"}}
    scheduled_run(loop, tmp_path / "run", schedules, **settings)
    for progress, (_, batch, _) in zip(progress_of_updates(loop, 0), seen.learned, strict=True):
        gamma = 0.5 + 0.5 * progress
        steps = (batch.next_obs - batch.obs)[:, 1]
        torch.testing.assert_close(batch.discount, gamma**steps)
        first = batch.obs[:, 1] + 1
        torch.testing.assert_close(batch.reward, first + (steps == 2) * gamma * (first + 1))


class Freeze(Callback):
    """Keeps the trained networks as they are at half of the budget."""

    def __init__(self) -> None:
        self.half: dict[str, torch.Tensor] | None = None

    def on_step(self, trainer: Trainer) -> None:
        if self.half is None and trainer.progress >= 0.5:
            self.half = networks(trainer.algo)


def networks(algo: Any) -> dict[str, torch.Tensor]:
    parts = {k: v for k, v in algo.parts().items() if isinstance(v, nn.Module) and not isinstance(v, TargetNetwork)}
    return {f"{k}.{name}": p.detach().clone() for k, part in parts.items() for name, p in part.named_parameters()}


@pytest.mark.parametrize("name", some_of(algorithms()))
def test_a_learning_rate_that_has_reached_zero_changes_nothing(name: str, tmp_path: Path) -> None:
    config = small_config(name, trainer__eval_episodes=0, trainer__checkpoint_interval=0)
    rates = [field for field in config["algo"] if field.endswith("learning_rate")]
    assert rates
    for rate in rates:
        config["algo"]["schedules"][rate] = {"shape": "linear", "end": 0.0, "until": 0.5}
    config["trainer"]["callbacks"] = [{"_target_": f"{HERE}.Freeze"}]
    runner = train(config, tmp_path / "run")
    fresh = Runner(config).policy().algo
    half, end, start = runner.callbacks[0].half, networks(runner.algo), networks(fresh)  # type: ignore[attr-defined]
    if name == "trpo":  # its policy moves as far as the trust region goes, whatever the rate
        end = {key: value for key, value in end.items() if key.startswith("critic")}
    assert all(torch.equal(half[key], end[key]) for key in end)
    assert not all(torch.equal(half[key], start[key]) for key in end)  # while it was positive, it did


# ---- callbacks


@pytest.mark.parametrize("loop", LOOPS)
def test_a_callback_hears_of_everything_in_order(loop: str, tmp_path: Path) -> None:
    config = counting_config(
        loop, **budget(loop, 16), trainer__eval_interval=8, trainer__checkpoint_interval=8, trainer__log_interval=4
    )
    runner = train(listening(changed(config, trainer__eval_episodes=1)), tmp_path / "run")
    steps = {"on_policy": [4, 8, 12, 16], "offline": [4, 8, 12, 16]}.get(loop, list(range(1, 17)))
    expected: list[Any] = [("start", (0, 0))]
    for step in steps:
        if step in (8, 16):
            expected.append(("eval", (step, 15.0)))
        expected.append(("step", step))
        if step in (8, 16):
            expected.append(("checkpoint", f"step_{step:012d}"))
    expected += [("end", 16), ("checkpoint", "step_000000000016")]
    assert runner.callbacks[0].calls == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_state_of_a_callback_survives_a_resume(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Runner] = []
    build = Runner.__init__

    def remember(self: Runner, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Runner, "__init__", remember)
    config = listening(counting_config(loop, **budget(loop, 24), trainer__log_interval=4), signal_at=3)
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "run")
    clock = calls(made[0], "step")[-1]
    resume_run(tmp_path / "run", trust=EVERYTHING)
    assert calls(made[-1], "start") == [(clock, 3)]
    assert calls(made[-1], "step")[0] > clock
    assert made[-1].callbacks[0].count == len(calls(made[0], "step") + calls(made[-1], "step"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_callback_can_end_the_run(loop: str, tmp_path: Path) -> None:
    config = listening(counting_config(loop, **budget(loop, 400)), stop_at=2)
    runner = Runner(config)
    summary = runner.train(tmp_path / "run")
    assert (summary["status"], summary["stop_reason"]) == ("completed", "enough")
    assert len(calls(runner, "step")) == 2
    assert calls(runner, "end") == calls(runner, "step")[-1:]
    assert links_last(tmp_path / "run") == runner.trainer.clock


def links_last(path: Path) -> int:
    return int(os.readlink(path / "checkpoints" / "last").removeprefix("step_"))


# ---- watching changes nothing


def scheduled_small(name: str, loop: str) -> dict[str, Any]:
    """With a schedule: what it gives an update must not depend on when rows are written, either."""
    config = small_config(name, loop)
    rate = next(field for field in config["algo"] if field.endswith("learning_rate"))
    config["algo"]["schedules"][rate] = {"shape": "linear", "end": 0.0}
    return config


@pytest.mark.parametrize(("name", "loop"), once_per_loop())
def test_evaluating_logging_and_saving_change_no_training_number(name: str, loop: str, tmp_path: Path) -> None:
    plain = scheduled_small(name, loop)
    variants = {
        "never evaluated": {"trainer__eval_episodes": 0},
        "evaluated more often": {"trainer__eval_interval": 7, "trainer__eval_episodes": 3},
        "logged and saved more often": {"trainer__log_interval": 3, "trainer__checkpoint_interval": 11},
    }
    reference = train(plain, tmp_path / "plain")
    rows = training_rows(tmp_path / "plain")
    assert rows
    for number, (what, settings) in enumerate(variants.items()):
        runner = train(changed(scheduled_small(name, loop), **settings), tmp_path / str(number))
        assert same_weights(runner.algo, reference.algo), what
        if "log" not in what:
            assert training_rows(tmp_path / str(number)) == rows, what


def training_rows(path: Path) -> list[dict[str, Any]]:
    return [row for row in without_time(rows_of(path)) if "eval/return_mean" not in row]


# ---- files


@pytest.mark.parametrize(("name", "loop"), once_per_loop())
def test_summary_and_metrics_have_the_form_that_others_rely_on(name: str, loop: str, tmp_path: Path) -> None:
    summary = Runner(small_config(name, loop, trainer__log_interval=10)).train(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert {
        *("status", "algo", "env", "seed", "env_steps", "updates", "wall_time_s"),
        *("steps_per_second", "updates_per_second", "eval", "best_eval"),
    } <= set(summary)
    assert (summary["status"], summary["algo"], summary["seed"]) == ("completed", name, 0)
    for key in ("eval", "best_eval"):
        assert {"return_mean", "return_std", "length_mean", "episodes"} <= set(summary[key])
        assert summary[key]["episodes"] == 2
    rows = rows_of(tmp_path / "run")
    assert all({"step", "env_steps", "updates", "time_s"} <= set(row) for row in rows)
    for row in rows:
        assert all("/" in key for key in row if key not in ("env_steps", "updates", "time_s", "step"))
        assert all(isinstance(value, (int, float)) and np.isfinite(value) for value in row.values())
    for before, after in itertools.pairwise(rows):
        assert all(before[key] <= after[key] for key in ("step", "env_steps", "updates", "time_s"))
    assert any(key.startswith("loss/") for row in rows for key in row)
    unit = "updates" if loop == "offline" else "steps"
    assert all(f"time/{unit}_per_second" in row for row in rows if "eval/return_mean" not in row)
    assert {"eval/return_mean", "eval/return_std", "eval/length_mean", "eval/episodes"} <= set(rows[-1])
    assert rows[-1]["eval/return_mean"] == summary["eval"]["return_mean"]
    best = max(row["eval/return_mean"] for row in rows if "eval/return_mean" in row)
    assert summary["best_eval"]["return_mean"] == best
    if loop != "offline":
        assert "rollout/return_mean" in rows[-2]
