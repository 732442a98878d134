"""One job of a sweep: plain data that can be sent to any process, and what is done with it there."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlexp.config.trust import EVERYTHING, Trust
from rlexp.errors import RlexpError
from rlexp.machine import CORES_VARIABLE
from rlexp.run_dir import RunDir

INTERRUPTED = "interrupted"  # what a job in another process says after a signal


@dataclass(frozen=True)
class Job:
    """A run that a sweep has planned."""

    number: int  # from 0, in the order of the plan
    label: str  # the overrides that tell it from the others
    path: Path  # its run directory
    config: dict[str, Any]  # resolved and checked
    overrides: tuple[str, ...]  # what was typed to have it
    group: str  # the sweep's name
    trust: Trust = EVERYTHING  # a sweep that was loaded may only run what the user trusts
    cores: int | None = None  # its share of the machine; None: all of it

    def quiet(self) -> Job:
        """The same without a progress display: several at once would write over each other."""
        shown = self.config["progress"]
        return replace(self, config=self.config | {"progress": "none" if shown == "auto" else shown})


def state_of(path: Path) -> str | None:
    """How the run in a job's directory stands; None: it has not begun."""
    return RunDir.open(path).state() if RunDir.is_run(path) else None


def run_job(job: Job) -> str | None:
    """Train, or go on with what is there; what went wrong in words, or None.

    A run that is completed, or that another process is busy with, is left alone: no job is run twice.
    """
    from rlexp.config.compose import register
    from rlexp.resuming import resume_run
    from rlexp.runner import Runner

    try:
        register()  # this may be another process
        state = state_of(job.path)
        if state is None:
            Runner(job.config, trust=job.trust).train(job.path, ["rlexp", *job.overrides], group=job.group)
        elif state not in ("completed", "running"):
            shown = [f"progress={job.config['progress']}"]
            resume_run(job.path, shown, trust=job.trust, command=["rlexp", "resume", str(job.path)])
    except RlexpError as error:
        return str(error)
    except Exception:  # of the user's own code: the other jobs may do without it
        return traceback.format_exc()
    return None


def run_elsewhere(job: Job, workdir: str) -> str | None:
    """The same in a process of its own, which is to be like the one that made the plan."""
    from rlexp.trainers.workspace import Interrupted

    os.chdir(workdir)  # paths in the config may be relative
    named = job.trust.packages is None or job.trust.packages - {"rlexp"}  # as the command line does: see cli.prepare
    if named and workdir not in sys.path:
        sys.path.append(workdir)
    if job.cores is not None:
        os.environ[CORES_VARIABLE] = str(job.cores)
    try:
        return run_job(job)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
