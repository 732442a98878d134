"""What a run decides once, from its plan alone and never from timings, so that it can be repeated.

Compile or not, how many threads, which device: `run.json` keeps them, and a resumed run goes on with them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from rlexp import onednn
from rlexp.algos.base import Algorithm
from rlexp.compiling import compiler_problem
from rlexp.errors import ConfigError, RunError, counted
from rlexp.loggers import Console
from rlexp.machine import busy_cores, cpu_count, keep_freed_memory, multiplies_bfloat16
from rlexp.run_dir import RunDir

MAX_THREADS = 1024  # of a loaded run: OpenMP ends the process if it cannot start them
LARGE_NETWORK = 50_000  # parameters; below that one thread is faster than several
BUSY_SHARE = 0.25  # of the machine's cores at other work: below that it may have been a moment
COMPILE_PAYS_AFTER = {"small": 12_000, "large": 4_000}  # planned updates, by network; it costs what so many save


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


def decide(config: dict[str, Any], algo: Algorithm, planned_updates: int, console: Console) -> dict[str, Any]:
    """What the config leaves open, for an algorithm that has its networks."""
    size = "large" if algo.count_parameters() >= LARGE_NETWORK else "small"
    wanted, threads = config["compile"], config["threads"]
    compiled = planned_updates >= COMPILE_PAYS_AFTER[size] if wanted == "auto" else bool(wanted)
    if wanted == "auto" and (algo.retraces() or (algo.device.type == "cpu" and algo.convolves())):
        compiled = False  # graphs would be made anew, or gain nothing: convolutions are calls of the same library
    if compiled and (problem := compiler_problem(algo.device)):
        console.warn(f"Updates are not compiled: {problem}.")
        compiled = False
    multiplies = compiled and onednn.helps(algo.device)
    if multiplies and (problem := onednn.problem()):
        console.warn(f"Large matrix products, where there are any, go by MKL, which is slower here: {problem}.")
        multiplies = False
    if algo.autocast is not None and algo.device.type == "cpu" and not multiplies_bfloat16():
        console.warn(
            "precision=bfloat16 is slower than float32 here: this processor has no products of it (AVX512-BF16, AMX)."
        )
    if threads == "auto":
        threads = cpu_count() if size == "large" else 1
        cores, busy = os.cpu_count() or 1, busy_cores()
        free = max(1, cores - busy)
        if free < threads and busy >= BUSY_SHARE * cores:
            console.note(
                f"Other work wants {counted(busy, 'core')} of {cores}: threads={free} may be many times as fast as the "
                f"{threads} that a network of this size is given. A run keeps its threads."
            )
    return {"compile": compiled, "onednn": multiplies, "threads": threads, "device": str(algo.device)}


def saved_decisions(run_dir: RunDir) -> dict[str, Any]:
    """What an earlier process of the run decided."""
    decisions = run_dir.info["decisions"]
    compiled, threads = decisions.get("compile"), decisions.get("threads")
    good = isinstance(compiled, bool) and isinstance(decisions.get("device"), str)
    good &= isinstance(decisions.setdefault("onednn", False), bool)  # runs of before have none
    if not good or type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise RunError(f"The decisions in {run_dir.path / 'run.json'} are damaged. Restore it from a copy.")
    return decisions


def apply_decisions(decisions: dict[str, Any], algo: Algorithm, console: Console) -> None:
    """Set the threads, and compile."""
    keep_freed_memory()
    torch.set_num_threads(decisions["threads"])
    if decisions["compile"] and (problem := compiler_problem(algo.device)):  # resumed on another machine
        console.warn(f"Updates are no longer compiled: {problem}. Numbers may differ in their last digits.")
    elif decisions["compile"]:
        console.note("The updates are compiled: the first ones take some seconds (compile=false avoids it).")
        onednn_multiplies = decisions["onednn"] and algo.device.type == "cpu" and _multiplies(console)
        algo.compile_phases(onednn=onednn_multiplies)


def _multiplies(console: Console) -> bool:
    """Whether oneDNN multiplies here as well, in a run that has begun so."""
    problem = onednn.problem()
    if problem:
        console.warn(
            f"Large matrix products, where there are any, no longer go by oneDNN: {problem}. Numbers may differ in "
            "their last digits."
        )
    return problem is None
