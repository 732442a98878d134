"""The Runner: from a checked config to a trained policy and a run directory.

It builds the components, refuses what cannot work before anything is written, decides on compiling and threads,
dispatches to the loop that the config names, and closes the run truthfully however it ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from rlexp.algos.base import Algorithm
from rlexp.buffers import ReplayBuffer, RolloutBuffer
from rlexp.callbacks import Callback
from rlexp.compat import check_compatible, check_env_settings, check_evaluator
from rlexp.compiling import compiler_problem
from rlexp.config.check import build, check_config
from rlexp.config.component import registered_name
from rlexp.config.trust import EVERYTHING, Trust, own_packages
from rlexp.contracts import check_kinds
from rlexp.datasets import Dataset, Transitions
from rlexp.datasets.settings import ObsScaling
from rlexp.envs import DatasetEnv, GymEnv
from rlexp.envs.scores import reference_of
from rlexp.errors import CheckpointError, ConfigError, DataError, RunError
from rlexp.evaluators import EvaluationMethod, InEnvironment
from rlexp.loggers import Console, LoggerSet, RunInfo
from rlexp.machine import check_fits, cpu_count
from rlexp.models import Model, Network
from rlexp.models.checked import CheckedModel
from rlexp.policy import Policy
from rlexp.recorder import Recorder
from rlexp.run_dir import RunDir
from rlexp.starting import Origin, Start, open_start
from rlexp.trainers.base import STOPPING_FIELDS, Interrupted, Trainer, Workspace

# What restoring a state of other networks, spaces or environments (or a stranger's state of anything) can raise.
MISFITS = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError, AssertionError,
           MemoryError)  # fmt: skip
MAX_THREADS = 1024  # of a loaded run: OpenMP ends the process if it cannot start them
LARGE_NETWORK = 50_000  # parameters; below that one thread is faster than several
COMPILE_PAYS_AFTER = {"small": 12_000, "large": 4_000}  # planned updates, by network; it costs what so many save


class Runner:
    """One run: build, check, train or resume."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        trust: Trust = EVERYTHING,
        env_factory: Callable[[], gym.Env] | None = None,
    ) -> None:
        self.config = config = check_config(config, trust)
        self.trust = trust
        self.seed: int = config["seed"]
        self.device = resolve_device(config["device"])
        self.env: GymEnv = build("env", config["env"], trust)
        self.algo: Algorithm = build("algo", config["algo"], trust)
        self.model: Model = build("model", config["model"], trust)
        self.buffer: ReplayBuffer | RolloutBuffer = build("buffer", config["buffer"], trust)
        self.trainer: Trainer = build("trainer", config["trainer"], trust)
        self.dataset: Dataset | None = None if config["dataset"] is None else build("dataset", config["dataset"], trust)
        self.evaluator: EvaluationMethod = (
            InEnvironment() if config["evaluator"] is None else build("evaluator", config["evaluator"], trust)
        )
        self.callbacks: list[Callback] = [
            build(f"trainer.callbacks[{i}]", node, trust)
            for i, node in enumerate(config["trainer"].get("callbacks") or [])
        ]
        self.loggers = {name: build(f"logger.{name}", node, trust) for name, node in config["logger"].items()}
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
        self.algo_name = registered_name("algo", type(self.algo))
        self.spec = self.env.spec()
        check_env_settings(self.env, self.trainer, self.dataset)
        check_compatible(self.algo_name, self.algo, self.trainer, self.buffer, self.dataset, self.spec)
        check_evaluator(self.evaluator, self.algo, self.dataset)

    def _without_environment(self, env: DatasetEnv) -> None:
        """The data say the spaces, which the run keeps; there is nothing to play in, so data evaluate or nobody."""
        if self.trainer.loop != "offline":
            raise ConfigError(f"The {self.trainer.loop} loop steps an environment, but env=from_dataset has none.")
        env.fill(self.dataset)
        self.config["env"]["spaces"] = env.spaces
        if not self.evaluator.needs_data:
            self.trainer.eval_episodes = self.config["trainer"]["eval_episodes"] = 0

    # ---- the three ways to use it

    def policy(self, state: dict[str, Any] | None = None, source: Path | str = "") -> Policy:
        """A policy to act with, eager; ``state`` is the ``policy`` of the checkpoint at ``source``."""
        if not hasattr(self.algo, "spec"):
            self._setup_algo()
        policy = self._policy(to_learn=False)
        if state is not None:
            try:
                policy.load_state_dict(state, acting=True)
            except (CheckpointError, *MISFITS) as error:
                raise CheckpointError(
                    f"The checkpoint {source} does not fit the config ({_short(error)}). "
                    "Leave out the overrides that change networks or spaces."
                ) from error
        return policy

    def train(self, path: Path | str, command: Sequence[str] = (), group: str | None = None) -> dict[str, Any]:
        """Train from the beginning in a new run directory; returns the summary."""
        with self._console() as console:
            self._data = self._load_dataset(console)
            self.check_memory()
            if isinstance(self.buffer, ReplayBuffer):
                self.buffer.attach(self.env)
            decisions = self._decide(console)
            self._say_memory(console)
            start = self._open_start(console)
            origin = None if start is None else start.origin.to_dict()
            with RunDir.create(path, self.config, command, decisions=decisions, group=group, origin=origin) as run_dir:
                return self._run(run_dir, console, start=start)

    def resume(
        self, run_dir: RunDir, command: Sequence[str] = (), *, changes: Sequence[str] = (), which: str = "last"
    ) -> dict[str, Any]:
        """Continue a run from its newest whole checkpoint, or another; ``changes``: what its config had otherwise."""
        with self._console() as console, run_dir.lock():
            self._data = self._load_dataset(console)
            self.check_memory()
            if isinstance(self.buffer, ReplayBuffer):
                self.buffer.attach(self.env)
            decisions = self._saved_decisions(run_dir)
            if self.config["device"] == "auto":
                self.device = resolve_device(decisions["device"])
            self._setup_algo()
            self._apply_decisions(decisions, console)
            return self._run(run_dir, console, resumed=True, changes=changes, which=which, command=command)

    # ---- inside

    def _console(self) -> Console:
        return Console(self.config["progress"])

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
        return data.check(self.spec, f"dataset ({name})")

    def check_memory(self) -> None:
        """Refuse sizes that this machine cannot hold."""
        if isinstance(self.buffer, ReplayBuffer) and self.trainer.loop != "offline":
            self.buffer.check_memory(self.spec, self.env.num_envs)
        each = ReplayBuffer().bytes_per_transition(self.spec)
        if steps := getattr(self.trainer, "rollout_steps", 0):  # each row is a tensor of its own, too
            check_fits(steps * (self.env.num_envs * each + 1000), f"trainer.rollout_steps={steps}")
        if rows := getattr(self.trainer, "batch_size", 0):
            check_fits(2 * rows * each, f"trainer.batch_size={rows}")

    def _say_memory(self, console: Console) -> None:
        if isinstance(self.buffer, ReplayBuffer) and self.trainer.loop != "offline":
            each, count = self.buffer.bytes_per_transition(self.spec), self.buffer.capacity
            console.note(
                f"Replay memory: {count:,} transitions of {each} bytes, {each * count / 1e6:,.1f} MB when full."
            )

    def _setup_algo(self) -> None:
        autocast = torch.bfloat16 if self.config["precision"] == "bfloat16" else None
        self.algo.setup(self.spec, self.model, device=self.device, seed=self.seed, autocast=autocast)

    def _open_start(self, console: Console) -> Start | None:
        """The agent to start with, tried on this run's networks before anything is written."""
        if self.config["init_from"] is None:
            return None
        start = open_start(self.config, self.spec)
        self._take_over(start, self._policy(to_learn=True))
        self.config["init_from"] = start.origin.path
        console.note(f"The agent is that of {start.origin.path}, {start.origin.step:,} steps on.")
        return start

    def _take_over(self, start: Start, policy: Policy) -> None:
        try:
            policy.start_from(start.policy)
        except (CheckpointError, *MISFITS) as error:
            raise start.refusal(self.config, _short(error)) from error

    def _decide(self, console: Console) -> dict[str, Any]:
        """Compile or not, and how many threads: from the plan alone, never from timings, so that it can be repeated."""
        self._setup_algo()
        size = "large" if self.algo.count_parameters() >= LARGE_NETWORK else "small"
        wanted, threads = self.config["compile"], self.config["threads"]
        if self._data is not None:
            self.trainer.plan(len(self._data))
        planned = self.trainer.planned_updates(self.algo, self.env.num_envs)
        compiled = planned >= COMPILE_PAYS_AFTER[size] if wanted == "auto" else bool(wanted)
        if wanted == "auto" and self.algo.retraces():
            compiled = False
        if compiled and (problem := compiler_problem(self.device)):
            console.warn(f"Updates are not compiled: {problem}.")
            compiled = False
        if threads == "auto":
            threads = cpu_count() if size == "large" else 1
        decisions = {"compile": compiled, "threads": threads, "device": str(self.device)}
        self._apply_decisions(decisions, console)
        return decisions

    def _saved_decisions(self, run_dir: RunDir) -> dict[str, Any]:
        decisions = run_dir.info["decisions"]
        compiled, threads = decisions.get("compile"), decisions.get("threads")
        good = isinstance(compiled, bool) and isinstance(decisions.get("device"), str)
        if not good or type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise RunError(f"The decisions in {run_dir.path / 'run.json'} are damaged. Restore it from a copy.")
        return decisions

    def _apply_decisions(self, decisions: dict[str, Any], console: Console) -> None:
        torch.set_num_threads(decisions["threads"])
        if decisions["compile"] and (problem := compiler_problem(self.device)):  # resumed on another machine
            console.warn(f"Updates are no longer compiled: {problem}. Numbers may differ in their last digits.")
        elif decisions["compile"]:
            console.note("The updates are compiled: the first ones take some seconds (compile=false avoids it).")
            self.algo.compile_phases()

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
        work = Workspace(
            env=self.env,
            policy=policy,
            buffer=self.buffer,
            evaluator=evaluator,
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
            self._restore(run_dir, trainer, info, resumed, which, start)
            if resumed:
                run_dir.record_resume(command, self.config if changes else None)
                begun = True
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
                run_dir.write_summary(summary)
            if begun:
                run_dir.set_status(status, reason=reason or trainer_reason(trainer))
            places = loggers.where()
            loggers.close(status, summary or None)
            evaluator.close()
            if hasattr(trainer, "work"):
                trainer.close()
            if status != "failed":
                console.finish(summary, _paths(run_dir) | places, own_packages(self.config))
        return summary

    def _restore(
        self, run_dir: RunDir, trainer: Trainer, info: RunInfo, resumed: bool, which: str, start: Start | None
    ) -> None:
        checkpoint = run_dir.go_on_from(which) if resumed else None
        if checkpoint is None:
            if resumed and run_dir.state() in ("completed", "interrupted"):
                raise RunError(
                    f"{run_dir.path} was {run_dir.state()}, but its checkpoints are gone, so there is nothing to go on "
                    "from. Put the folder checkpoints back."
                )
            if resumed:
                info.skip_rows = run_dir.high_water
                run_dir.truncate(0)
            if trainer.work.origin is not None:
                self._take_over(start or self._same_start(trainer.work.origin), trainer.policy)
            trainer.start_fresh()
            return
        try:
            trainer.load_state_dict(checkpoint.tree, checkpoint.segments)
        except (CheckpointError, *MISFITS) as error:
            kind = CheckpointError if isinstance(error, CheckpointError) else RunError
            raise kind(
                f"The checkpoint {checkpoint.path} does not fit the config of the run ({_short(error)}). "
                "Resume without the overrides that change networks, spaces or the loop."
            ) from error
        before = checkpoint.config.get("trainer")
        if not isinstance(before, dict):
            raise CheckpointError(f"The config of the checkpoint {checkpoint.path} has no trainer. Use another one.")
        self._refuse_spent_budget(trainer, before)
        if trainer.at_best:
            run_dir.mark_best(checkpoint.path)  # a kill may have come before the link moved
        if any(self.config["trainer"].get(name) != before.get(name) for name in STOPPING_FIELDS):
            trainer.stop_reason = None  # a larger budget or another threshold decides anew
        info.skip_rows = run_dir.high_water
        run_dir.truncate(checkpoint.tree["progress"]["rows"])

    def _same_start(self, origin: Origin) -> Start:
        """The agent of a run that was killed before it had saved it."""
        start = open_start(self.config, self.spec)
        if start.origin.sha256 != origin.sha256:
            raise RunError(f"The checkpoint {origin.path}, which the run began with, has changed. Start a new run.")
        return start

    def _refuse_spent_budget(self, trainer: Trainer, before: dict[str, Any]) -> None:
        """A new budget that is not beyond what is done would end the run without a word."""
        name = "total_updates" if trainer.unit == "updates" else "total_steps"
        if self.config["trainer"].get("total_epochs") is not None:
            name = "total_epochs"
        budget = self.config["trainer"].get(name)
        if budget != before.get(name) and trainer.clock >= trainer.budget:
            raise RunError(
                f"{trainer.clock:,} {trainer.unit} are done, so the budget of trainer.{name}={budget} is already "
                "spent. Give a larger one."
            )

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
        reference = reference_of(self.spec.id, self.env.reference_returns)
        last, best = trainer.last_eval or {}, trainer.best_eval or {}
        if reference is not None and "return_mean" in last and "return_mean" in best:
            # The last score is what the run gives; the best one was chosen by looking, which offline nobody can.
            summary["normalized_score"] = reference.score(last["return_mean"])
            summary["best_normalized_score"] = reference.score(best["return_mean"])
            summary["score_reference"] = reference.to_dict()
        return summary


def resolve_device(name: str) -> torch.device:
    """``auto`` is the first GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        torch.Generator(device)  # what has no random numbers, such as meta, cannot train
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"device={name} cannot be used here: {reason}. Use device=auto or device=cpu.") from error
    return device


def _short(error: Exception) -> str:
    """The telling line of an error; torch puts a heading and every other tensor around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__).rstrip(".")


def trainer_reason(trainer: Trainer) -> str | None:
    """Why a run ended, if it got so far as to know."""
    return getattr(trainer, "stop_reason", None)


def _paths(run_dir: RunDir) -> dict[str, Path]:
    last = run_dir.path / "checkpoints" / "last"
    return {"run": run_dir.path, "checkpoint": last, "metrics": run_dir.path / "metrics.jsonl"}


@contextmanager
def catching_signals(work: Workspace) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: Any) -> None:
        work.signal_number = number
        for each, handler in previous.items():
            signal.signal(each, handler)

    for number in previous:
        signal.signal(number, ask_to_stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
