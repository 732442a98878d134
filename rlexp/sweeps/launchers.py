"""Where the jobs of a sweep run: here one after another, on several cores, on a Slurm or on a Ray cluster.

A launcher takes jobs as it has room for them and gives each back when it has ended, with what went wrong. The engines
(joblib, submitit, Ray) are extras, imported when they are used. How a job ended is read from its directory, so nothing
depends on what an engine remembers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import secrets
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from rlexp.config.component import component, registered_name
from rlexp.config.fields import Count, Natural, NonNegative, Positive
from rlexp.errors import ConfigError, RlexpError, RunError
from rlexp.machine import cpu_count
from rlexp.sweeps.job import Job, run_elsewhere, run_job

Ended = tuple[Job, str | None]  # and what went wrong
PATIENCE = 60.0  # seconds that interrupted jobs have to write their checkpoints


class Launcher(ABC):
    """Runs jobs somewhere."""

    shows_progress: ClassVar[bool] = False  # the runs themselves write to this terminal
    safe: ClassVar[bool] = True  # may be taken up from a sweep that somebody else has made

    def check(self) -> None:  # noqa: B027 (running here needs nothing)
        """Refuse before anything is written what could not run."""

    @abstractmethod
    def at_once(self) -> int | None:
        """How many jobs it runs at a time; None: as many as it is given."""

    @abstractmethod
    def run(self, jobs: Iterator[Job], folder: Path) -> Iterator[Ended]:
        """Run ``jobs``, taking the next one when there is room; ``folder`` is the sweep's."""


@component("launcher", "local")
@dataclass(eq=False, kw_only=True)
class LocalLauncher(Launcher):
    """One job after another in this process."""

    shows_progress: ClassVar[bool] = True

    def at_once(self) -> int:
        """One."""
        return 1

    def run(self, jobs: Iterator[Job], folder: Path) -> Iterator[Ended]:
        """Each job to its end."""
        for job in jobs:
            yield job, run_job(job)


class Engine(ABC):
    """What runs jobs in other processes."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """Start jobs; a handle for each."""

    @abstractmethod
    def wait(self, handles: Sequence[Any]) -> list[Any]:
        """Those of ``handles`` that have ended; none after a second, so that signals are noticed."""

    @abstractmethod
    def result(self, handle: Any) -> str | None:
        """What ``run_elsewhere`` returned; any exception if it did not come to that."""

    @abstractmethod
    def stop(self, handles: Sequence[Any], signal_number: int) -> None:
        """Ask running jobs to save a checkpoint and end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the processes."""


class PooledLauncher(Launcher):
    """Jobs in processes of their own, some at a time."""

    package: ClassVar[str]  # the engine
    installed_by: ClassVar[str]  # the extra of rlexp

    def check(self) -> None:
        """Its engine must be installed."""
        require(self.package, self.installed_by, f"launcher={registered_name('launcher', type(self))}")

    @abstractmethod
    def open(self, folder: Path) -> Engine:
        """Start the engine."""

    @abstractmethod
    def cores_each(self) -> int:
        """How many cores a job shall use."""

    def run(self, jobs: Iterator[Job], folder: Path) -> Iterator[Ended]:
        """Keep as many jobs running as there is room for."""
        room, cores = self.at_once() or 2**31, self.cores_each()
        running: dict[Any, Job] = {}
        engine = self.open(folder)
        try:
            with _signals_noted() as look:
                while True:
                    look()
                    batch: list[Job] = []
                    while len(running) + len(batch) < room and (job := next(jobs, None)) is not None:
                        batch.append(replace(job.quiet(), cores=cores))
                    running |= zip(engine.submit(batch), batch) if batch else {}
                    if not running:
                        return
                    for handle in engine.wait(list(running)):
                        yield running.pop(handle), _outcome(engine, handle)
        except BaseException as error:
            engine.stop(list(running), getattr(error, "signal_number", signal.SIGINT))
            raise
        finally:
            engine.close()


def _outcome(engine: Engine, handle: Any) -> str | None:
    try:
        return engine.result(handle)
    except Exception as error:  # of the engine, or of a process that was killed
        reason = str(error).strip().splitlines()
        return f"its process was lost ({type(error).__name__}{': ' + reason[0] if reason else ''})."


@contextlib.contextmanager
def _signals_noted() -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM end the waiting, so that running jobs are asked to save their state.

    They are noted, and what is given raises if there was one: an exception raised by a handler is lost inside of Ray.
    """
    from rlexp.trainers.workspace import Interrupted

    asked: list[int] = []

    def look() -> None:
        if asked:
            raise Interrupted(asked[0])

    if threading.current_thread() is not threading.main_thread():
        yield look
        return

    def stop(number: int, frame: Any) -> None:
        asked.append(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield look
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# ---- joblib: the cores of this machine


@component("launcher", "joblib")
@dataclass(eq=False, kw_only=True)
class JoblibLauncher(PooledLauncher):
    """Several jobs at once on the cores of this machine."""

    package, installed_by = "joblib", "joblib"

    jobs: Count | None = None  # at once; null: one for each core. Each gets an equal share of the cores

    def at_once(self) -> int:
        """Of each core one, unless told otherwise."""
        return self.jobs or cpu_count()

    def cores_each(self) -> int:
        """An equal share."""
        return max(1, cpu_count() // self.at_once())

    def open(self, folder: Path) -> Engine:
        """One worker process for each job at once."""
        return _JoblibEngine(self.at_once())


class _JoblibEngine(Engine):
    """joblib's worker processes, each alone in its pool: one that dies takes no other with it."""

    def __init__(self, workers: int) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self._make = functools.partial(ProcessPoolExecutor, max_workers=1, initializer=_alone)
        self._free = [self._make() for _ in range(workers)]
        self._busy: dict[Any, Any] = {}  # future -> its pool

    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """Each to a worker that has nothing to do."""
        futures = []
        for job in jobs:
            pool = self._free.pop()
            futures.append(pool.submit(run_elsewhere, job, os.getcwd()))
            self._busy[futures[-1]] = pool
        return futures

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        """As soon as one has ended."""
        from concurrent.futures import FIRST_COMPLETED, wait

        return list(wait(handles, timeout=1.0, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Any) -> str | None:
        """Its worker is free again, or replaced if it died."""
        pool = self._busy.pop(handle)
        if handle.exception() is not None:
            pool.shutdown(wait=False, kill_workers=True)
            pool = self._make()
        self._free.append(pool)
        return handle.result()  # type: ignore[no-any-return]

    def stop(self, handles: Sequence[Any], signal_number: int) -> None:
        """Workers heed a signal while they train, and ignore it otherwise."""
        from concurrent.futures import wait

        for handle in handles:
            if not handle.done():
                for process in self._busy[handle]._processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal_number)
        wait(handles, timeout=PATIENCE)

    def close(self) -> None:
        """End the workers."""
        for pool in (*self._free, *self._busy.values()):
            pool.shutdown(wait=True, kill_workers=True)


def _alone() -> None:
    """A worker is told by its parent when to stop: Ctrl-C in the terminal would reach both."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


# ---- submitit: Slurm


class Cluster(Enum):
    """What submitit hands jobs to."""

    slurm = "slurm"  # sbatch
    local = "local"  # processes on this machine, to try a sweep before it is queued


@component("launcher", "slurm")
@dataclass(eq=False, kw_only=True)
class SlurmLauncher(PooledLauncher):
    """A Slurm cluster, through submitit; its nodes must see the folder of the sweep."""

    package, installed_by = "submitit", "slurm"
    safe: ClassVar[bool] = False  # what it is told ends up in a batch script

    cluster: Cluster = Cluster.slurm  # slurm, or local: processes on this machine, to try it
    jobs: Count | None = None  # at once; null: all are queued, as one array
    cores: Count = 1  # of each job
    gpus: Natural = 0  # of each job
    memory_gb: Positive | None = None  # of each job; null: the cluster's default
    minutes: Count = 1_440  # a job that runs out of time is queued again and goes on from its checkpoint
    partition: str | None = None  # null: the cluster's default
    account: str | None = None  # who pays; null: the user's default
    extra: dict[str, Any] = field(default_factory=dict)  # other options of sbatch, e.g. {qos: low, constraint: a100}

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.cluster)
        texts = {"partition": self.partition, "account": self.account, **self.extra}
        for name, value in texts.items():
            if not re.fullmatch(r"[\w.,:@/+=%\[\]-]*", f"{name}{value}", re.ASCII):
                raise ConfigError(f"launcher: {name}={value!r} cannot stand in a batch script.")

    def at_once(self) -> int | None:
        """The queue takes them all, unless told otherwise."""
        return self.jobs

    def cores_each(self) -> int:
        """As many as are asked for."""
        return self.cores

    def open(self, folder: Path) -> Engine:
        """submitit's files lie in a new folder of the sweep: it unpickles what it finds there."""
        import submitit

        from rlexp.sweeps.submitit_engine import SubmititEngine

        place = folder / "slurm" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        place.mkdir(parents=True)
        try:
            executor = submitit.AutoExecutor(place, cluster=self.cluster.value)
        except RuntimeError as error:
            raise RunError(f"launcher=slurm: {error}. launcher.cluster=local tries it without Slurm.") from error
        executor.update_parameters(**self._parameters())
        return SubmititEngine(executor, local=self.cluster is Cluster.local)

    def _parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "name": "rlexp",
            "timeout_min": self.minutes,
            "cpus_per_task": self.cores,
            "gpus_per_node": self.gpus or None,
            "mem_gb": self.memory_gb,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_array_parallelism": self.jobs,
            "slurm_additional_parameters": dict(self.extra) or None,
        }
        return {name: value for name, value in parameters.items() if value is not None}


# ---- Ray


@component("launcher", "ray")
@dataclass(eq=False, kw_only=True)
class RayLauncher(PooledLauncher):
    """A Ray cluster, or one that is started on this machine; its nodes must see the folder of the sweep."""

    package, installed_by = "ray", "ray"
    safe: ClassVar[bool] = False  # whoever is at the address is sent code, and sends some back

    address: str | None = None  # of a running cluster, or auto; null: one on this machine, for this sweep
    jobs: Count | None = None  # at once; null: as many as the cluster has cores for
    cores: Count = 1  # of each job
    gpus: NonNegative = 0.0  # of each job; 0.5: two share one

    def at_once(self) -> int | None:
        """Ray keeps back what the cluster has no room for."""
        return self.jobs or (max(1, cpu_count() // self.cores) if self.address is None else None)

    def cores_each(self) -> int:
        """As many as are reserved."""
        return self.cores

    def open(self, folder: Path) -> Engine:
        """Connect, or start."""
        import ray

        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # jobs without a GPU keep what they see
        own: dict[str, Any] = {}
        if self.address is None:  # at the priority of this process; Ray would put its workers behind everything else
            own = {"num_cpus": max(cpu_count(), self.cores), "include_dashboard": False}
            own["_system_config"] = {"worker_niceness": 0}
        try:
            ray.init(address=self.address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
        except Exception as error:  # Ray raises a plain one where its node does not come up in time
            raise RunError(f"launcher=ray: {' '.join(str(error).split())}") from error
        remote = ray.remote(num_cpus=self.cores, num_gpus=self.gpus, max_retries=0)(run_elsewhere)
        return _RayEngine(ray, remote)


class _RayEngine(Engine):
    def __init__(self, ray: Any, remote: Any) -> None:
        self._ray, self._remote = ray, remote

    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """As tasks."""
        return [self._remote.remote(job, os.getcwd()) for job in jobs]

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        """As soon as one has ended."""
        return self._ray.wait(list(handles), num_returns=1, timeout=1.0)[0]  # type: ignore[no-any-return]

    def result(self, handle: Any) -> str | None:
        """Of a lost worker, an error."""
        return self._ray.get(handle)  # type: ignore[no-any-return]

    def stop(self, handles: Sequence[Any], signal_number: int) -> None:
        """Ray interrupts a task as Ctrl-C would."""
        for handle in handles:
            self._ray.cancel(handle)
        if handles:
            self._ray.wait(list(handles), num_returns=len(handles), timeout=PATIENCE)

    def close(self) -> None:
        """A cluster that was started for this ends with it."""
        self._ray.shutdown()


def require(package: str, extra: str, what: str) -> None:
    """Refuse ``what`` if its package is not installed, with the command that installs it."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise RlexpError(f'{what} needs the package {package}: pip install "rlexp[{extra}]"') from error
