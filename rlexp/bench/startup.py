"""``rlexp bench startup``: from the command to an answer, and to the first environment step, without compiling."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlexp.bench import report
from rlexp.bench.contest import BenchError, thread_environment
from rlexp.bench.first_step import FIRST_STEP
from rlexp.bench.peers import require, translate

HOOK = "env.wrappers=[{_target_:rlexp.bench.first_step.ExitAtFirstStep}]"
SCRIPT = Path(__file__).with_name("sb3_script.py")
RUNS = {"ppo_cartpole": ("algo=ppo", "env=cartpole"), "sac_pendulum": ("algo=sac", "env=pendulum")}
HELP_SECONDS, FIRST_STEP_SECONDS = 1.0, 4.0  # what is wanted at most


@dataclass(frozen=True)
class Command:
    """What is timed, of whom, and with which exit code it ends."""

    name: str
    side: str
    line: list[str]
    code: int
    target: float | None = None  # seconds


def run(*, against: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Time every command, in turn, several times."""
    require(against)
    report.warn_if_busy()
    commands = list(_commands(against))
    seconds: list[list[float]] = [[] for _ in commands]
    for number in range(rounds + 1):
        report.say(f"round {number} of {rounds}" if number else "once without counting: files come into memory")
        for each, command in zip(seconds, commands):
            taken = timed(command.line, command.code)
            if number:
                each.append(taken)
    return [
        {
            "name": command.name,
            "side": command.side,
            "command": [_portable(word) for word in command.line],
            "median": median(each),
            "rounds": [round(value, 4) for value in each],
            "target": command.target,
        }
        for each, command in zip(seconds, commands)
    ]


def _commands(against: Sequence[str]) -> Iterator[Command]:
    yield Command("help", "rlexp", _rlexp("--help"), 0, HELP_SECONDS)
    yield Command("list", "rlexp", _rlexp("list"), 0, HELP_SECONDS)
    for name, overrides in RUNS.items():
        title = f"{name} first step"
        line = _rlexp(*overrides, "compile=false", "device=cpu", "threads=1", HOOK)
        yield Command(title, "rlexp", line, FIRST_STEP, FIRST_STEP_SECONDS)
        if "sb3" in against:
            task = {"settings": _sb3_settings(overrides), "threads": 1, "first_step": FIRST_STEP}
            yield Command(title, "SB3", [sys.executable, "-P", str(SCRIPT), json.dumps(task)], FIRST_STEP)


def timed(command: Sequence[str], code: int) -> float:
    """Seconds until a command ended with the expected exit code."""
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:  # where the run directory goes
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=thread_environment(1), capture_output=True, text=True, errors="replace"
        )
        taken = time.perf_counter() - start
    if done.returncode != code:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise BenchError(f"{' '.join(command)} ended with code {done.returncode} instead of {code}: {said}")
    return taken


def _portable(word: str) -> str:
    """A word of a command as it is kept: where this machine has its files is nobody else's business."""
    return {sys.executable: "python", str(SCRIPT): SCRIPT.name}.get(word, word)


def _rlexp(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rlexp", *arguments]


def _sb3_settings(overrides: Sequence[str]) -> dict[str, Any]:
    from rlexp.config.compose import compose

    return translate("sb3", compose(overrides))


def show(results: Sequence[dict[str, Any]]) -> None:
    """The table."""
    rows = [
        [
            result["name"],
            result["side"],
            f"{result['median']:.2f} s",
            "" if result["target"] is None else f"{result['target']:g} s",
            "" if result["target"] is None else "reached" if result["median"] <= result["target"] else "missed",
        ]
        for result in results
    ]
    report.table(["command", "of", "median", "at most", ""], rows, text_columns=2)
