"""``rlexp bench startup``: from the command to an answer, and to the first environment step, without compiling."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
TARGETS = {"help": 1.0, "first_step": 4.0}  # seconds


def run(*, against: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Time every command, in turn, several times."""
    require(against)
    report.warn_if_busy()
    commands = [
        {"name": "help", "side": "rlexp", "command": _rlexp("--help"), "code": 0},
        {"name": "list", "side": "rlexp", "command": _rlexp("list"), "code": 0},
    ]
    for name, overrides in RUNS.items():
        command = _rlexp(*overrides, "compile=false", "device=cpu", "threads=1", HOOK)
        commands.append({"name": f"{name} first step", "side": "rlexp", "command": command, "code": FIRST_STEP})
        if "sb3" in against:
            task = {"settings": _sb3_settings(overrides), "threads": 1, "first_step": FIRST_STEP}
            command = [sys.executable, "-P", str(SCRIPT), json.dumps(task)]
            commands.append({"name": f"{name} first step", "side": "SB3", "command": command, "code": FIRST_STEP})
    seconds: list[list[float]] = [[] for _ in commands]
    for number in range(rounds + 1):
        report.say(f"round {number} of {rounds}" if number else "once without counting: files come into memory")
        for each, command in zip(seconds, commands):
            taken = timed(command["command"], command["code"])
            if number:
                each.append(taken)
    return [
        {"name": command["name"], "side": command["side"], "command": command["command"], "median": median(each)}
        | {"rounds": [round(value, 4) for value in each], "target": _target(command)}
        for each, command in zip(seconds, commands)
    ]


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


def _rlexp(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rlexp", *arguments]


def _sb3_settings(overrides: Sequence[str]) -> dict[str, Any]:
    from rlexp.config.compose import compose

    return translate("sb3", compose(overrides))


def _target(command: dict[str, Any]) -> float | None:
    if command["side"] != "rlexp":
        return None
    return TARGETS["help"] if command["name"] in ("help", "list") else TARGETS["first_step"]


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
