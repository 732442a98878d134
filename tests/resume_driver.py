"""A process that imports rlexp once and runs its commands in forked children, each killed where it is told to.

Reads one JSON object per line: ``argv`` of the command, ``cwd``, ``output`` (file for what it prints) and ``kill``,
null or a :class:`Trigger`. Answers with the child's exit code, negative for the signal that ended it. Run as
``python -m tests.resume_driver``; importing torch takes seconds, forking nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Trigger:
    """Once ``rows`` rows have been written, the ``count``-th ``event`` ends the process.

    work      a step of the environments or an update        row    a row of metrics was written
    file      an operation while a checkpoint is saved       torn   half of one was
    named     a checkpoint has its name, but no link yet     last   that link has moved
    saved     a checkpoint is complete                       cut    metrics.jsonl was, while resuming
    restored  a state was, while resuming                    end    all is trained, but summary and status not written
    """

    event: str
    count: int = 1
    rows: int = 0
    signal: int = signal.SIGKILL

    def happens(self, event: str) -> None:
        """Tell of an event."""
        if event == "row":
            self.rows -= 1
        if event == self.event and self.rows <= 0:
            self.count -= 1
            if self.count == 0:
                os.kill(os.getpid(), self.signal)


def install(trigger: Trigger) -> None:
    """Let the trigger hear of everything."""
    import safetensors.numpy

    from rlexp import checkpoint, files
    from rlexp.metrics_file import MetricsFile
    from rlexp.run_dir import RunDir
    from rlexp.trainers.base import Trainer
    from rlexp.trainers.collecting import Collector

    saving = False

    def after(owner: Any, name: str, event: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            trigger.happens(event)
            return result

        setattr(owner, name, call)

    after(Collector, "step", "work")
    after(Trainer, "learn", "work")
    after(Trainer, "load_state_dict", "restored")
    after(RunDir, "append", "row")
    after(RunDir, "truncate", "cut")
    after(checkpoint, "_install", "named")

    def file_operation(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if saving:
                trigger.happens("file")
            return function(*args, **kwargs)

        setattr(owner, name, call)

    for name in ("mkdir", "open", "fsync", "rename", "replace", "link", "symlink", "unlink", "rmdir", "chmod"):
        file_operation(os, name)
    file_operation(safetensors.numpy, "save_file")

    save, summarize, point, append = RunDir.save, RunDir.write_summary, files.point_link, MetricsFile.append

    def watched_save(self: RunDir, *args: Any, **kwargs: Any) -> Any:
        nonlocal saving
        saving = True
        result = save(self, *args, **kwargs)
        saving = False
        trigger.happens("saved")
        return result

    def watched_summary(self: RunDir, summary: Any) -> None:
        trigger.happens("end")
        summarize(self, summary)

    def watched_link(link: Any, target: str) -> None:
        point(link, target)
        if link.name == "last":
            trigger.happens("last")

    def watched_append(self: MetricsFile, row: Any) -> None:
        if trigger.event == "torn" and trigger.rows <= 0:
            with open(self.path, "ab") as file:
                file.write(json.dumps(dict(row)).encode()[:20])
            trigger.happens("torn")
        append(self, row)

    RunDir.save, RunDir.write_summary = watched_save, watched_summary  # type: ignore[method-assign, assignment]
    files.point_link, MetricsFile.append = watched_link, watched_append  # type: ignore[method-assign, assignment]


def run(job: dict[str, Any], main: Callable[[list[str]], None]) -> None:
    """The child: never returns."""
    code: Any = 70
    try:
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job["cwd"])
        os.environ |= job.get("environ", {})
        if job["kill"]:
            install(Trigger(**job["kill"]))
        main(job["argv"])
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def warm_up() -> None:
    """Let this process import what its children would import anew, each for itself."""
    from rlexp.config.compose import compose
    from rlexp.runner import Runner

    for algo, env in (("ppo", "cartpole"), ("dqn", "lunar_lander"), ("sac", "half_cheetah")):
        Runner(compose([f"algo={algo}", f"env={env}", "device=cpu", "model.hidden=[8]"])).policy()


def serve() -> None:
    """Answer until standard input ends."""
    import torch

    torch.set_num_threads(1)
    import tests.conftest  # noqa: F401  (composing in half the time)
    from rlexp.cli import main
    from rlexp.config.compose import register

    register()
    warm_up()
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # what it brings cannot be seen without a power cut
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run(job, main)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
