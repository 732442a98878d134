"""The Runner: from a checked config to a trained policy and a run directory.

It builds the components, refuses what cannot work before anything is written, has compiling and threads decided,
dispatches to the loop that the config names, and closes the run truthfully however it ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from rlexp.algos.base import Algorithm
from rlexp.buffers import ReplayBuffer, RolloutBuffer
from rlexp.buffers.frames import whole_stacks
from rlexp.callbacks import Callback
from rlexp.compat import check_compatible, check_env_settings, check_evaluator
from rlexp.config.check import check_nodes, construct
from rlexp.config.component import registered_name
from rlexp.config.trust import EVERYTHING, Trust, own_packages
from rlexp.contracts import check_kinds, check_noise
from rlexp.curves import curve_summary
from rlexp.datasets import Dataset, RandomDataset, Transitions
from rlexp.datasets.describing import describe, figures
from rlexp.datasets.settings import ObsScaling
from rlexp.decisions import apply_decisions, decide, resolve_device, saved_decisions
from rlexp.envs import DatasetEnv, GymEnv
from rlexp.envs.goals import achieved_is_hidden
from rlexp.envs.scores import reference_for, reference_of
from rlexp.errors import ConfigError, DataError
from rlexp.evaluation import Evaluator, check_filming
from rlexp.evaluators import EvaluationMethod, InEnvironment
from rlexp.loggers import Console, LoggerSet, RunInfo
from rlexp.loggers.format import short_path
from rlexp.machine import check_fits
from rlexp.models import Model, Network
from rlexp.models.checked import CheckedModel
from rlexp.policy import Policy
from rlexp.recorder import Recorder
from rlexp.restoring import begin, go_on, load_to_act, take_over
from rlexp.run_dir import RunDir
from rlexp.starting import Origin, Start, check_rewards, open_start
from rlexp.trainers.base import Trainer
from rlexp.trainers.workspace import Interrupted, Workspace


class Runner:
    """One run: build, check, train or resume."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        trust: Trust = EVERYTHING,
        env_factory: Callable[[], gym.Env] | None = None,
    ) -> None:
        self.config, nodes = check_nodes(config, trust)
        config = self.config
        self.trust = trust
        self.seed: int = config["seed"]
        self.device = resolve_device(config["device"])
        self.env: GymEnv = construct("env", nodes["env"])
        self.algo: Algorithm = construct("algo", nodes["algo"])
        self.model: Model = construct("model", nodes["model"])
        self.buffer: ReplayBuffer | RolloutBuffer = construct("buffer", nodes["buffer"])
        self.trainer: Trainer = construct("trainer", nodes["trainer"])
        self.dataset: Dataset | None = construct("dataset", nodes["dataset"]) if "dataset" in nodes else None
        self.evaluator: EvaluationMethod = (
            construct("evaluator", nodes["evaluator"]) if "evaluator" in nodes else InEnvironment()
        )
        self.callbacks: list[Callback] = [
            construct(where, node) for where, node in nodes.items() if where.startswith("trainer.callbacks")
        ]
        self.loggers = {name: construct(f"logger.{name}", nodes[f"logger.{name}"]) for name in config["logger"]}
        check_kinds(
            self.env,
            self.algo,
            self.model,
            self.buffer,
            self.trainer,
            self.dataset,
            self.evaluator,
            self.loggers,
            self.callbacks,
        )
        if not isinstance(self.model, Network):
            self.model = CheckedModel(self.model)
        self.env.factory = env_factory
        if isinstance(self.env, DatasetEnv):
            self._without_environment(self.env)
        reference_of("", self.env.reference_returns)  # refuses what cannot be one
        self._data: Transitions | None = None  # between loading and the trainer
        self._figures: dict[str, Any] | None = None  # of it, for the summary
        self.algo_name = registered_name("algo", type(self.algo))
        self.spec = self.env.spec()
        check_env_settings(self.env, self.trainer, self.dataset)
        check_compatible(self.algo_name, self.algo, self.trainer, self.buffer, self.dataset, self.spec)
        check_evaluator(self.evaluator, self.algo, self.dataset)
        check_noise(self.algo, self.spec)

    def _without_environment(self, env: DatasetEnv) -> None:
        """The data say the spaces, which the run keeps; there is nothing to play in, so data evaluate or nobody."""
        if self.trainer.loop != "offline":
            raise ConfigError(f"The {self.trainer.loop} loop steps an environment, but env=from_dataset has none.")
        env.fill(self.dataset)
        self.config["env"]["spaces"] = env.spaces
        if not self.evaluator.needs_data:
            self.trainer.eval_episodes = self.config["trainer"]["eval_episodes"] = 0
        if self.trainer.video_interval:
            raise ConfigError("env=from_dataset has no environment to film: drop trainer.video_interval.")

    @property
    def evaluates_greedily(self) -> bool:
        """Whether training plays greedy episodes to evaluate, as it does unless it was told otherwise."""
        return bool(getattr(self.evaluator, "deterministic", True))

    # ---- the three ways to use it

    def policy(self, state: dict[str, Any] | None = None, source: Path | str = "") -> Policy:
        """A policy to act with, eager; ``state`` is the ``policy`` of the checkpoint at ``source``."""
        if not hasattr(self.algo, "spec"):
            self._setup_algo()
        policy = self._policy(to_learn=False)
        if state is not None:
            load_to_act(policy, state, source)
        return policy

    def train(self, path: Path | str, command: Sequence[str] = (), group: str | None = None) -> dict[str, Any]:
        """Train from the beginning in a new run directory; returns the summary."""
        with self._console() as console:
            self.trainer.check_budget(self.env.num_envs)
            self.algo.check_new(self.spec)
            self._check_filming()
            start = None if self.config["init_from"] is None else open_start(self.config, self.spec)
            self._data = self._load_dataset(console)
            if start is not None and self._data is not None:
                check_rewards(start.origin, self._data)
            self.check_memory()
            with self._attached():
                decisions = self._decide(console)
                self._say_memory(console)
                self._warn_of_hidden_goal(console)
                if start is not None:
                    self._try_on(start, console)
                origin = None if start is None else start.origin.to_dict()
                with RunDir.create(
                    path, self.config, command, decisions=decisions, group=group, origin=origin
                ) as run_dir:
                    console.note(f"Networks: {self.algo.describe_networks()}.")
                    return self._run(run_dir, console, start=start)

    def resume(
        self, run_dir: RunDir, command: Sequence[str] = (), *, changes: Sequence[str] = (), which: str = "last"
    ) -> dict[str, Any]:
        """Continue a run from its newest whole checkpoint, or another; ``changes``: what its config had otherwise."""
        with self._console() as console, run_dir.lock():
            self._check_filming()
            self._data = self._load_dataset(console)
            self.check_memory()
            with self._attached():
                decisions = saved_decisions(run_dir)
                if self.config["device"] == "auto":
                    self.device = resolve_device(decisions["device"])
                self._setup_algo()
                apply_decisions(decisions, self.algo, console)
                return self._run(run_dir, console, resumed=True, changes=changes, which=which, command=command)

    # ---- inside

    def _console(self) -> Console:
        return Console(self.config["progress"])

    @contextmanager
    def _attached(self) -> Iterator[None]:
        """While the run lasts, the buffer has what it needs of the environment."""
        if not isinstance(self.buffer, ReplayBuffer):
            yield
            return
        self.buffer.attach(self.env)
        try:
            yield
        finally:
            self.buffer.detach()

    def _policy(self, *, to_learn: bool) -> Policy:
        """To act, rewards need no normaliser, whose running returns belong to the training environments."""
        normalize_reward = self.env.normalize_reward and to_learn
        return Policy(
            self.spec,
            self.algo,
            normalize_obs=self.env.normalize_obs,
            by_dataset=getattr(self.dataset, "obs", None) is ObsScaling.standardize,
            normalize_reward=normalize_reward,
            num_envs=self.env.num_envs,
            adopts=self.config["init_from"] is not None,
        )

    def _load_dataset(self, console: Console) -> Transitions | None:
        if self.dataset is None:
            return None
        if hasattr(self.dataset, "report"):
            self.dataset.report = console.note
        data = self.dataset.load(self.env)
        name = type(self.dataset).__qualname__
        if not isinstance(data, Transitions):
            found = type(data).__qualname__
            raise DataError(f"dataset: {name}.load() must return rlexp.datasets.Transitions, not {found}.")
        if data.doubt is not None:
            console.warn(data.doubt)
        data = data.check(self.spec, f"dataset ({name})")
        data = replace(data, source=data.source or name)
        choice = f"dataset={registered_name('dataset', type(self.dataset))}"
        others = "; rlexp list dataset shows other kinds" if isinstance(self.dataset, RandomDataset) else ""
        console.note(f"Data: {data.source} ({choice}{others}): {describe(data)}.")
        self._figures = figures(data)
        return data

    def _check_filming(self) -> None:
        """Find out before anything is written whether there can be videos, if they are wanted."""
        if self.trainer.video_interval:
            check_filming(self.env)

    def check_memory(self) -> None:
        """Refuse sizes that this machine cannot hold."""
        if isinstance(self.buffer, ReplayBuffer) and self.trainer.loop != "offline":
            self.buffer.check_memory(self.spec, self.env.num_envs)
        each = ReplayBuffer().bytes_per_transition(whole_stacks(self.spec))
        if steps := getattr(self.trainer, "rollout_steps", 0):  # each row is a tensor of its own, too
            check_fits(steps * (self.env.num_envs * each + 1000), f"trainer.rollout_steps={steps}")
        if rows := getattr(self.trainer, "batch_size", 0):
            check_fits(2 * rows * each, f"trainer.batch_size={rows}")

    def _say_memory(self, console: Console) -> None:
        """How large the replay memory gets: pages that are never written to take no memory."""
        if isinstance(self.buffer, ReplayBuffer) and self.trainer.loop != "offline":
            each, capacity = self.buffer.bytes_per_transition(self.spec), self.buffer.capacity
            count = min(capacity, self.trainer.total_steps)
            when = "when full" if count == capacity else f"at the end of this run (room for {capacity:,})"
            console.note(f"Replay memory: {count:,} transitions of {each} bytes, {each * count / 1e6:,.1f} MB {when}.")

    def _warn_of_hidden_goal(self, console: Console) -> None:
        """Say so where the networks would not know what was achieved."""
        obs = self.spec.obs
        if not obs.achieved_unseen or obs.masked or isinstance(self.env, DatasetEnv):
            return  # where some actions are impossible it cannot simply be tried
        env = self.env.make()
        try:
            if achieved_is_hidden(env, self.spec.id):
                console.warn(
                    f"The achieved goal of {self.spec.id} is no part of its observation, so the networks do not see "
                    "it. Show it to them with env.show_achieved_goal=true."
                )
        finally:
            env.close()

    def _setup_algo(self) -> None:
        autocast = torch.bfloat16 if self.config["precision"] == "bfloat16" else None
        self.algo.setup(self.spec, self.model, device=self.device, seed=self.seed, autocast=autocast)

    def _try_on(self, start: Start, console: Console) -> None:
        """Whether the agent to start with fits this run's networks, before anything is written."""
        take_over(start, self._policy(to_learn=True), self.config)
        self.config["init_from"] = start.origin.path
        origin = start.origin
        console.note(f"Starting with the agent of {short_path(origin.path)}: curves go on at {origin.step:,}.")

    def _decide(self, console: Console) -> dict[str, Any]:
        self._setup_algo()
        if self._data is not None:
            self.trainer.plan(len(self._data))
        planned = self.trainer.planned_updates(self.algo, self.env.num_envs)
        decisions = decide(self.config, self.algo, planned, console)
        apply_decisions(decisions, self.algo, console)
        return decisions

    def _run(
        self,
        run_dir: RunDir,
        console: Console,
        *,
        resumed: bool = False,
        changes: Sequence[str] = (),
        which: str = "last",
        command: Sequence[str] = (),
        start: Start | None = None,
    ) -> dict[str, Any]:
        trainer, policy = self.trainer, self._policy(to_learn=True)
        loggers = LoggerSet(self.loggers, console.warn)
        evaluator, origin = self.evaluator, Origin.from_info(run_dir)
        evaluator.begin(self.env, self.model, console.warn)
        camera = Evaluator(self.env, "rgb_array", console.warn) if trainer.video_interval else None
        work = Workspace(
            env=self.env,
            policy=policy,
            buffer=self.buffer,
            evaluator=evaluator,
            camera=camera,
            recorder=Recorder(run_dir, loggers, console, trainer.unit),
            run_dir=run_dir,
            seed=self.seed,
            dataset=self._data,
            dataset_hash=None if self._data is None else self._data.sha256,
            reward_map=(1.0, 0.0) if origin is None else origin.reward_map,
            origin=origin,
            callbacks=self.callbacks,
        )
        self._data = None  # the trainer takes it into its memory; nobody else shall keep it
        status = "failed"
        reason: str | None = None
        summary: dict[str, Any] = {}
        begun = not resumed  # a resume that cannot be restored leaves the run as it was found
        try:
            trainer.bind(work)
            info = self._info(run_dir, resumed)
            if resumed:
                go_on(trainer, run_dir, self.config, info, which)
                run_dir.record_resume(command, self.config if changes else None)
                begun = True
            else:
                begin(trainer, self.config, start)
            if changes:
                console.note(f"Changed from here on: {', '.join(changes)}.")
            run_dir.set_status("running")
            loggers.open(info)
            console.start(
                info,
                device=str(self.device),
                loop=trainer.loop,
                total=trainer.budget,
                unit=trainer.unit,
                done=trainer.clock,
                best=trainer.best_score,
            )
            with catching_signals(work):
                trainer.train()
            status = "completed"
        except Interrupted as stop:
            status, reason = "interrupted", signal.Signals(stop.signal_number).name
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            if begun and hasattr(trainer, "env_steps"):
                summary = self._summary(trainer, status, reason if status == "interrupted" else None)
                summary["curve"] = self._curve(run_dir)
                run_dir.write_summary(summary)
            if begun:
                run_dir.set_status(status, reason=reason or trainer_reason(trainer))
            places = loggers.where()
            loggers.close(status, summary or None)
            evaluator.close()
            if camera is not None:
                camera.close()
            if hasattr(trainer, "work"):
                trainer.close()
            if status != "failed":
                own, in_python = own_packages(self.config), self.env.factory is not None
                console.finish(summary, _paths(run_dir) | places, own, in_python)
        return summary

    def _info(self, run_dir: RunDir, resumed: bool) -> RunInfo:
        return RunInfo(
            path=run_dir.path,
            name=self.config["name"],
            config=self.config,
            algo=self.algo_name,
            env=self.spec.id,
            seed=self.seed,
            run_id=run_dir.info["run_id"],
            group=run_dir.info.get("group"),
            resumed=resumed,
            step_key=self.trainer.step_key,
        )

    def _summary(self, trainer: Trainer, status: str, signalled: str | None) -> dict[str, Any]:
        seconds = trainer.seconds()
        summary = {
            "status": status,
            "algo": self.algo_name,
            "env": self.spec.id,
            "seed": self.seed,
            "env_steps": trainer.env_steps,
            "updates": trainer.updates,
            "wall_time_s": round(seconds, 3),
            "steps_per_second": round(trainer.env_steps / seconds, 2),
            "updates_per_second": round(trainer.updates / seconds, 2),
            "stop_reason": signalled or trainer.stop_reason,
            "eval": trainer.last_eval,
            "best_eval": trainer.best_eval,
        }
        if self._figures is not None:
            summary["dataset"] = self._figures
        reference = reference_for(self.env)
        last, best = trainer.last_eval or {}, trainer.best_eval or {}
        if reference is not None and "return_mean" in last and "return_mean" in best:
            # The last score is what the run gives; the best one was chosen by looking, which offline nobody can.
            summary["normalized_score"] = reference.score(last["return_mean"])
            summary["best_normalized_score"] = reference.score(best["return_mean"])
            summary["score_reference"] = reference.to_dict()
        return summary

    def _curve(self, run_dir: RunDir) -> dict[str, Any]:
        """The threshold is the one the run stops at or, without one, the environment's own."""
        threshold = self.trainer.stop_return
        axis = "updates" if self.trainer.unit == "updates" else "env_steps"
        return curve_summary(run_dir.metrics(), axis, self.spec.reward_threshold if threshold is None else threshold)


def trainer_reason(trainer: Trainer) -> str | None:
    """Why a run ended, if it got so far as to know."""
    return getattr(trainer, "stop_reason", None)


def _paths(run_dir: RunDir) -> dict[str, Path]:
    """What there is to look at: a run that was stopped before its first row has no metrics."""
    last = run_dir.path / "checkpoints" / "last"
    paths = {"run": run_dir.path, "checkpoint": last, "metrics": run_dir.path / "metrics.jsonl"}
    return {name: path for name, path in paths.items() if path.exists()}


@contextmanager
def catching_signals(work: Workspace) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: Any) -> None:
        for each, handler in previous.items():
            signal.signal(each, handler)
        work.asked_to_stop(number)

    for number in previous:
        signal.signal(number, ask_to_stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
