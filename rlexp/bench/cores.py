"""How far apart two cores lie: the time a change made by one takes to be seen by the other, and back.

A virtual machine's cores may share a cache or not, and its host moves them about from one second to the next. Work of
two threads that share small tensors runs up to 1.6 times as fast on near cores as on far ones, on an otherwise idle
machine; so a measurement on two threads is worth more with this number beside it.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from statistics import median

BATCHES, TRIPS = 40, 50
MAX_SECONDS = 0.5  # somebody else computes on one of the cores: no answer
_ASKED, _ANSWERED, _STOP = 0, 128, 256  # bytes of shared memory in cache lines of their own


def round_trip_ns() -> float | None:
    """Nanoseconds between the first two cores and back, the loops' own time included; None where it cannot be told."""
    if not hasattr(os, "sched_setaffinity") or len(allowed := sorted(os.sched_getaffinity(0))) < 2:
        return None
    parent = os.getpid()
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            child = os.fork()
        except OSError:  # no room for another process
            return None
        if child == 0:
            _echo(memory, allowed[1], parent)
        try:
            os.sched_setaffinity(0, {allowed[0]})
            return _ask(memory)
        except OSError:  # cores may not be chosen here
            return None
        finally:
            memory[_STOP] = 1
            with suppress(OSError):  # those cores were taken from us meanwhile, and what is left is the system's choice
                os.sched_setaffinity(0, allowed)  # before the wait, which may fail or be interrupted
            with suppress(ChildProcessError):  # where SIGCHLD is ignored, nobody is left to wait for
                os.waitpid(child, 0)


def _ask(memory: mmap.mmap) -> float | None:
    number, times = 0, []
    deadline = time.monotonic() + MAX_SECONDS
    for _ in range(BATCHES + 1):
        begun = time.perf_counter_ns()
        for _ in range(TRIPS):
            number = number % 255 + 1
            memory[_ASKED] = number
            while not _answered(memory, number):
                if time.monotonic() > deadline:
                    return None
        times.append((time.perf_counter_ns() - begun) / TRIPS)
    return median(times[1:])  # the first waited for the child to start


def _answered(memory: mmap.mmap, number: int) -> bool:
    """Look for the answer for some hundred microseconds."""
    return any(memory[_ANSWERED] == number for _ in range(5_000))


def _echo(memory: mmap.mmap, core: int, parent: int) -> None:
    """Answer until told to stop, or until nobody is left to tell."""
    try:
        os.sched_setaffinity(0, {core})
        idle = 0
        while not memory[_STOP]:
            if memory[_ANSWERED] != (asked := memory[_ASKED]):
                memory[_ANSWERED], idle = asked, 0
            elif (idle := idle + 1) % 100_000 == 0 and os.getppid() != parent:
                break
    finally:
        os._exit(0)
