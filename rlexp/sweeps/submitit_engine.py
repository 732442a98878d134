"""Jobs through submitit: on Slurm, or in processes of this machine to try a sweep before it is queued."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from rlexp.errors import RunError
from rlexp.sweeps.job import Job, run_elsewhere
from rlexp.sweeps.launchers import PATIENCE, Engine


class SlurmTask:
    """What submitit calls on a node. Out of time or preempted, the job is queued again and goes on."""

    def __call__(self, job: Job, workdir: str) -> str | None:
        """Run it."""
        return run_elsewhere(job, workdir)

    def checkpoint(self, job: Job, workdir: str) -> Any:
        """Asked by submitit for what to queue instead."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job, workdir)


@contextlib.contextmanager
def out_of_reach() -> Iterator[None]:
    """Local jobs of submitit that start meanwhile have sessions of their own, as joblib's workers have.

    Ctrl-C in the terminal would reach them too, and the process that submitit puts before each job would answer with a
    traceback and kill the job, which could not save its state. submitit has no setting for it.
    """
    local: Any = importlib.import_module("submitit.local.local")
    previous = local.subprocess
    apart = functools.partial(subprocess.Popen, start_new_session=True)
    local.subprocess = SimpleNamespace(**vars(previous) | {"Popen": apart})  # what this one module sees
    try:
        yield
    finally:
        local.subprocess = previous


class SubmititEngine(Engine):
    """An executor of submitit; ``local``: the one that starts processes on this machine."""

    def __init__(self, executor: Any, *, local: bool) -> None:
        self._executor = executor
        self._start = out_of_reach if local else contextlib.nullcontext

    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """Several at once are one array."""
        try:
            with self._start(), self._executor.batch():
                return [self._executor.submit(SlurmTask(), job, os.getcwd()) for job in jobs]
        except (RuntimeError, OSError) as error:  # sbatch refuses
            raise RunError(f"The jobs could not be queued: {' '.join(str(error).split())}") from error

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        """Asked twice a second; submitit asks Slurm less often."""
        if not (done := [handle for handle in handles if handle.done()]):
            time.sleep(0.5)
        return done

    def result(self, handle: Any) -> str | None:
        """As the job left it."""
        return handle.result()  # type: ignore[no-any-return]

    def stop(self, handles: Sequence[Any], signal_number: int) -> None:
        """Cancelled jobs have the cluster's grace time to save their state; submitit's local ones had a second.

        So local ones get SIGTERM, again and again: until a run heeds it, which it does while it trains, submitit's own
        handler swallows it. That handler is also back in place as soon as a run has heard it, so saving goes on.
        """
        processes = {handle: getattr(handle, "_process", None) for handle in handles}  # Slurm's have none
        for handle, process in processes.items():
            if process is None:
                handle.cancel(check=False)
        until, running = time.monotonic() + PATIENCE, list(handles)
        while running := [handle for handle in running if not handle.done(force_check=True)]:
            for handle in running:
                if (process := processes[handle]) is not None:
                    process.terminate()  # the process before the job hands SIGTERM on; after SIGINT it would kill
            if time.monotonic() >= until:
                break
            time.sleep(1.0)
        for handle in running:
            if not handle.done(force_check=True):
                handle.cancel(check=False)

    def close(self) -> None:
        """Nothing is kept."""
