"""What the four loops share: budgets, logging, evaluation, checkpoints, early stopping, schedules, callbacks.

A loop says how it advances (``iterate``) and what it must remember (``loop_state``). Everything else happens here,
counted in environment steps (offline: updates), never by the clock. A trainer never sees a loss.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rlexp.algos.base import Algorithm
from rlexp.config.fields import Count, Natural, Positive
from rlexp.evaluation import Evaluation
from rlexp.evaluators.base import Estimate
from rlexp.seeding import derive_seed
from rlexp.trainers.divergence import refuse_lost_losses
from rlexp.trainers.workspace import EvaluationBroken, Interrupted, Workspace
from rlexp.types import Batch, Rollout, Update
from rlexp.video import open_video

STOPPING_FIELDS = ("total_steps", "total_updates", "total_epochs", "max_seconds", "stop_return", "patience")  # of a run
RECENT_EPISODES = 100  # training episodes whose mean return is reported


@dataclass(eq=False, kw_only=True)
class Trainer(ABC):
    """Base of the four loops."""

    loop: ClassVar[str]
    unit: ClassVar[str] = "steps"  # what budget and intervals are counted in
    reserved: ClassVar[frozenset[str]] = frozenset(  # attributes that bind() sets: no setting may be called so
        {"work", "policy", "algo", "collector", "env_steps", "updates", "seconds_before", "started", "episodes"}
        | {"successes"}
        | {
            "metrics",
            "last_log_step",
            "last_eval",
            "last_eval_clock",
            "best_eval",
            "evals_since_best",
            "new_best",
            "stop_reason",
            "iterated_from",
            "followed",
            "evaluation_owed",
        }
    )

    total_steps: Count = 100_000  # budget in environment steps
    max_seconds: Positive | None = None  # budget of wall time, over all resumes
    log_interval: Count = 1_000  # steps between rows of metrics
    eval_interval: Natural = 10_000  # steps between evaluations; 0: only at the end
    eval_episodes: Natural = 10  # episodes of an evaluation; 0: never evaluate
    video_interval: Natural = 0  # steps between videos of an episode, for the folder videos and the loggers; 0: none
    checkpoint_interval: Natural = 10_000  # steps between checkpoints; 0: only at a new best and at the end
    keep_checkpoints: Count = 2  # newest checkpoints kept, beside the best one
    stop_return: float | None = None  # stop as soon as an evaluation reaches this mean return (or estimated value)
    patience: Count | None = None  # stop after so many evaluations without a new best
    callbacks: list[Any] = field(default_factory=list)  # Hydra targets derived from rlexp.callbacks.Callback

    # ---- what a loop says

    @abstractmethod
    def prepare(self) -> None:
        """Create what the loop needs (environments, buffers); ``self.work`` is set."""

    @abstractmethod
    def iterate(self) -> None:
        """Advance by one unit of work, updating ``env_steps`` and ``updates``."""

    @abstractmethod
    def loop_state(self) -> dict[str, Any]:
        """What the loop must remember, beside policy and counters."""

    @abstractmethod
    def load_loop_state(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Restore what :meth:`loop_state` and :meth:`segments` gave."""

    def segments(self) -> dict[str, Any]:
        """Immutable parts of a large buffer: file name -> function that gives its arrays."""
        return {}

    def start_fresh(self) -> None:  # noqa: B027 (offline has nothing to start)
        """Called instead of :meth:`load_loop_state` when there is no checkpoint."""

    def follow_gamma(self) -> None:
        """Hand a scheduled discount factor to whoever else discounts."""
        if "gamma" in self.algo.scheduled:
            gamma = float(self.algo.gamma)
            self.set_gamma(gamma)
            if self.policy.reward_normalizer is not None:
                self.policy.reward_normalizer.gamma = gamma

    def set_gamma(self, gamma: float) -> None:  # noqa: B027 (on-policy algorithms discount by themselves)
        """Follow a scheduled discount factor, which a replay memory has folded into its batches."""

    def close(self) -> None:
        """Free the environments, if it came to making them."""
        if self.collector is not None:
            self.collector.close()

    @property
    def clock(self) -> int:
        """What intervals are measured on."""
        return self.env_steps

    @property
    def budget(self) -> int:
        """The clock's value at which the run is complete."""
        return self.total_steps

    @property
    def progress(self) -> float:
        """The share of the budget that is spent: what schedules follow."""
        return min(self.clock / self.budget, 1.0)

    @property
    def step(self) -> int:
        """How far the agent has come, over all phases and the runs before this one: it only grows."""
        before = 0 if self.work.origin is None else self.work.origin.step
        return before + self.checkpoint_number

    @property
    def step_key(self) -> str:
        """The column of a row that loggers draw over."""
        if self.work.origin is not None:
            return "step"
        return "updates" if self.unit == "updates" else "env_steps"

    def plan(self, rows: int) -> None:  # noqa: B027 (only the offline loop plans by its data)
        """Told how many transitions the dataset has, before :meth:`planned_updates` is asked."""

    def check_budget(self, num_envs: int) -> None:  # noqa: B027 (most loops learn from the beginning)
        """Refuse a new run that would end before its first update."""

    @abstractmethod
    def planned_updates(self, algo: Algorithm, num_envs: int) -> int:
        """Optimizer steps the whole budget leads to: decides whether compiling pays."""

    # ---- the run

    def bind(self, work: Workspace) -> None:
        """Take over what was built and create what the loop needs."""
        self.work = work
        self.policy, self.algo = work.policy, work.policy.algo
        self.collector: Any = None  # of the loops that step environments
        self.env_steps = 0
        self.updates = 0
        self.seconds_before = 0.0  # spent by earlier processes of this run
        self.started = time.monotonic()
        self.episodes: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self.successes: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the episodes whose environment tells
        self.metrics: dict[str, Any] = {}  # of the latest update; read when logged
        self.last_log_step = -1  # where the newest row of metrics was written
        self.last_eval: dict[str, float] | None = None
        self.last_eval_clock = -1
        self.best_eval: dict[str, float] | None = None
        self.evals_since_best = 0
        self.new_best = False  # the next checkpoint is the best so far
        self.stop_reason: str | None = None
        self.iterated_from: int | None = None  # where the clock stood before the latest iteration
        self.followed = 0.0  # the share of the budget that its schedules followed
        self.evaluation_owed = False  # that iteration's, which a signal may break off
        self.prepare()

    def train(self) -> None:
        """Run to the end of the budget, an early stop, or a signal."""
        work = self.work
        self.started = time.monotonic()
        try:
            for callback in work.callbacks:
                callback.on_start(self)
            self._go_on()
            for callback in work.callbacks:
                callback.on_end(self)
        except EvaluationBroken:
            self.save_checkpoint()
            raise Interrupted(work.signal_number or 0) from None
        self.save_checkpoint()  # last of all: whatever was decided is in it

    def _go_on(self) -> None:
        """Everything up to the last evaluation."""
        work = self.work
        if work.origin is not None and not self.checkpoint_number:
            self._begin_with_agent()
        if self.iterated_from is not None:  # resumed: what is owed sees the hyperparameters of that iteration
            self._follow_schedules(self.followed)
            if self.evaluation_owed:
                self.evaluation_owed = False
                self._after_logging(self.iterated_from)
        while not self.finished():
            if work.signal_number is not None:
                self.save_checkpoint()
                raise Interrupted(work.signal_number)
            self.iterated_from = before = self.clock
            self._follow_schedules(self.progress)
            self.iterate()
            work.recorder.tick(self.clock, self.budget)
            self._after(before)
        if self.last_log_step != self.step:
            self.log()
        if self.eval_episodes and self.last_eval_clock != self.clock:
            self.evaluate()

    def _follow_schedules(self, progress: float) -> None:
        """Set what is scheduled to its value at this share of the budget."""
        self.followed = progress
        if self.algo.scheduled:
            self.algo.apply_schedules(progress)
            self.follow_gamma()

    def _begin_with_agent(self) -> None:
        """Evaluate the agent that the run starts with, and keep it: from here on the earlier run is not needed."""
        if self.eval_episodes and self.last_eval_clock < 0:
            self.evaluate()
        self.save_checkpoint()

    def finished(self) -> bool:
        """Whether budget, wall time or an early stop ends the run here."""
        if self.stop_reason is None:
            if self.clock >= self.budget:
                self.stop_reason = "budget"
            elif self.max_seconds is not None and self.seconds() >= self.max_seconds:
                self.stop_reason = "max_seconds"
        return self.stop_reason is not None

    def stop(self, reason: str) -> None:
        """End the run after this iteration."""
        self.stop_reason = reason

    def seconds(self) -> float:
        """Wall time spent on this run, over all resumes."""
        return self.seconds_before + time.monotonic() - self.started

    def _after(self, before: int) -> None:
        if self._crossed(self.log_interval, before):
            self.log()
        self._after_logging(before)

    def _after_logging(self, before: int) -> None:
        if self.eval_episodes and self._crossed(self.eval_interval, before):
            self.evaluation_owed = True
            self.evaluate()
        if self._crossed(self.video_interval, before):
            self.film()
        for callback in self.work.callbacks:
            callback.on_step(self)
        if self._crossed(self.checkpoint_interval, before) or self.new_best:
            self.save_checkpoint()

    def _crossed(self, interval: int, before: int) -> bool:
        return interval > 0 and self.clock // interval > before // interval

    def until_next_event(self, limit: int) -> int:
        """How far the clock may advance at once without passing a budget or an interval's end."""
        intervals = [self.log_interval, self.eval_interval, self.video_interval, self.checkpoint_interval]
        distances = [interval - self.clock % interval for interval in intervals if interval > 0]
        return max(1, min(limit, self.budget - self.clock, *distances))

    # ---- events

    def learn(self, batch: Batch | Rollout) -> Update:
        """One update of the algorithm; its metrics stay on the device until they are logged."""
        before = self.algo.updates
        update = self.algo.update(batch)
        if self.algo.updates == before:
            self.algo.updates += 1  # it does not count by itself, and the offline loop would never end
        self.updates += self.algo.updates - before
        self.metrics |= update.metrics  # some have steps that are not taken in every update
        return update

    def warn_restarted(self, restarted: list[int]) -> None:
        """Say which environments could not be put back exactly."""
        if restarted:
            self.work.recorder.warn(
                f"Environment{'s' if len(restarted) > 1 else ''} {', '.join(map(str, restarted))} could not be "
                "restored exactly (hidden state that its seed does not govern): a new episode was begun there."
            )

    def record_episodes(self, episodes: list[Any]) -> None:
        """Remember training episodes that ended."""
        for episode in episodes:
            self.episodes.append((episode.ret, episode.length))
            if "is_success" in episode.info:
                self.successes.append(episode.info["is_success"])

    def counters(self) -> dict[str, Any]:
        """The first columns of every row."""
        counters = {"step": self.step, "env_steps": self.env_steps, "updates": self.updates}
        return counters | {"time_s": round(self.seconds(), 3)}

    def log(self) -> None:
        """Write one row of training metrics."""
        row = self.counters()
        if self.episodes:
            returns, lengths = zip(*self.episodes)
            row["rollout/return_mean"] = sum(returns) / len(returns)
            row["rollout/length_mean"] = sum(lengths) / len(lengths)
        if self.successes:
            row["rollout/success_rate"] = sum(self.successes) / len(self.successes)
        refuse_lost_losses(self.algo, self.metrics)
        row |= {name: float(value) for name, value in self.metrics.items()}
        row |= {f"schedule/{name}": value for name, value in self.algo.scheduled_values().items()}
        row |= self.loop_metrics()
        row[f"time/{self.unit}_per_second"] = round(self.clock / max(self.seconds(), 1e-9), 1)
        self.last_log_step = self.step
        self.work.recorder.write(row)

    def loop_metrics(self) -> dict[str, float]:
        """What the loop itself has to report."""
        return {}

    def evaluate(self) -> None:
        """Evaluate the policy, keep the best, decide on early stopping."""
        seed = derive_seed(self.work.seed, "evaluation", self.updates, self.env_steps)
        if self.work.signal_number is not None:
            raise EvaluationBroken
        refuse_lost_losses(self.algo, self.metrics)
        self.work.evaluating = True
        try:
            evaluation = self.work.evaluator(self.policy, self.eval_episodes, seed=seed)
        finally:
            self.work.evaluating = False
        self.evaluation_owed = False
        self.last_eval, self.last_eval_clock = evaluation.summary(), self.clock
        self.work.recorder.write(self.counters() | evaluation.row())
        if self.best_score is None or evaluation.score > self.best_score:
            self.best_eval = self.last_eval
            self.evals_since_best = 0
            self.new_best = True
        else:
            self.evals_since_best += 1
        self._decide_early_stop(evaluation)
        for callback in self.work.callbacks:
            callback.on_eval(self, evaluation)

    def film(self) -> None:
        """Write a video of one episode of the greedy policy; its environment and random numbers are its own."""
        assert self.work.camera is not None
        seed = derive_seed(self.work.seed, "video", self.updates, self.env_steps)
        path = self.work.run_dir.video_path(self.checkpoint_number)
        with open_video(path) as video:
            played = self.work.camera(self.policy, 1, seed=seed, video=video)
        row = {"video/return": played.returns[0], "video/length": played.lengths[0]}
        self.work.recorder.video(self.counters() | row, path)

    @property
    def best_score(self) -> float | None:
        """The best return, or estimate of it, so far."""
        return None if self.best_eval is None else self.best_eval[self.work.evaluator.key]

    @property
    def at_best(self) -> bool:
        """Whether the evaluation of this very state is the best so far."""
        return self.evals_since_best == 0 and self.last_eval_clock == self.clock

    def _decide_early_stop(self, evaluation: Evaluation | Estimate) -> None:
        if self.stop_return is not None and evaluation.score >= self.stop_return:
            self.stop("stop_return")
        elif self.patience is not None and self.evals_since_best >= self.patience:
            self.stop("patience")

    # ---- checkpoints

    def save_checkpoint(self) -> Path:
        """Write everything that a resume needs."""
        refuse_lost_losses(self.algo, self.metrics)
        best, self.new_best = self.new_best, False
        path = self.work.run_dir.save(
            self.checkpoint_number, self.state_dict(), segments=self.segments(), best=best, keep=self.keep_checkpoints
        )
        for callback in self.work.callbacks:
            callback.on_checkpoint(self, path)
        return path

    @property
    def checkpoint_number(self) -> int:
        """The number in a checkpoint's name, which only grows."""
        return self.clock

    def state_dict(self) -> dict[str, Any]:
        """The whole state of the run as a tree of arrays and plain values."""
        return {
            "policy": self.policy.state_dict(),
            "spec": self.policy.spec.to_dict(),
            "loop": self.loop_state(),
            "callbacks": [callback.state_dict() for callback in self.work.callbacks],
            "progress": {
                "env_steps": self.env_steps,
                "updates": self.updates,
                "step": self.step,
                "reward_map": dict(zip(("scale", "shift"), self.work.reward_map)),
                "seconds": self.seconds(),
                "rows": self.work.recorder.rows,
                "episodes": [[ret, length] for ret, length in self.episodes],
                "successes": list(self.successes),
                "metrics": {name: float(value) for name, value in self.metrics.items()},
                "last_log_step": self.last_log_step,
                "last_eval": self.last_eval,
                "last_eval_clock": self.last_eval_clock,
                "best_eval": self.best_eval,
                "evals_since_best": self.evals_since_best,
                "stop_reason": self.stop_reason,
                "iterated_from": self.iterated_from,
                "followed": self.followed,
                "evaluation_owed": self.evaluation_owed,
            },
        }

    def load_state_dict(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Restore a run to where :meth:`state_dict` was taken."""
        progress = _checked_progress(state["progress"])
        self.env_steps, self.updates = progress["env_steps"], progress["updates"]
        self.seconds_before = progress["seconds"]
        self.episodes.extend((ret, length) for ret, length in progress["episodes"])
        self.successes.extend(progress["successes"])
        self.metrics, self.last_log_step = progress["metrics"], progress["last_log_step"]
        self.last_eval, self.last_eval_clock = progress["last_eval"], progress["last_eval_clock"]
        self.best_eval, self.evals_since_best = progress["best_eval"], progress["evals_since_best"]
        if any(each is not None and self.work.evaluator.key not in each for each in (self.last_eval, self.best_eval)):
            raise ValueError(f"progress holds an evaluation without {self.work.evaluator.key}")
        self.stop_reason = progress["stop_reason"]
        self.iterated_from, self.followed = progress["iterated_from"], progress["followed"]
        self.evaluation_owed = progress["evaluation_owed"]
        self.policy.load_state_dict(state["policy"])
        self.load_loop_state(state["loop"], segments)
        for callback, saved in zip(self.work.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)


def _checked_progress(progress: dict[str, Any]) -> dict[str, Any]:
    """The counters and results of a checkpoint, which may be a stranger's; ValueError if they cannot be any."""
    # not in the first checkpoints of this format
    later = {"successes": [], "last_log_step": -1, "iterated_from": None, "followed": 0.0, "evaluation_owed": False}
    progress = {**later, **progress}
    evals = [progress[name] for name in ("last_eval", "best_eval") if progress[name] is not None]
    numbers = [
        progress["seconds"],
        progress["followed"],
        *progress["successes"],
        *progress["metrics"].values(),
        *(value for each in evals for value in each.values()),
    ]
    episodes = [number for episode in progress["episodes"] for number in episode]
    counters = [progress[name] for name in ("env_steps", "updates", "rows", "evals_since_best")]
    counters += [] if progress["iterated_from"] is None else [progress["iterated_from"]]
    counters += [progress["last_eval_clock"] + 1, progress["last_log_step"] + 1]  # -1: never
    if not all(type(number) in (int, float) for number in numbers + episodes) or not progress["seconds"] >= 0:
        raise ValueError("progress holds something that is not a number")
    if not all(type(counter) is int and 0 <= counter < 2**62 for counter in counters):
        raise ValueError("progress holds a counter that cannot be")
    if not isinstance(progress["evaluation_owed"], bool):
        raise ValueError("progress does not say whether an evaluation is owed")
    if not isinstance(progress["stop_reason"], str | None):
        raise ValueError("progress holds no reason to stop")
    return progress
