"""The parent's side of a measurement: contestants as long-lived processes that are measured in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rlexp.bench.cores import round_trip_ns
from rlexp.bench.worker import Channel
from rlexp.errors import RlexpError

SETTLE_SECONDS = 0.2  # between two contestants: threads of the last one stop spinning


class BenchError(RlexpError):
    """A contestant that cannot be measured."""


@dataclass(frozen=True)
class Entry:
    """What runs in one contestant: a function ``module:name`` of the child, and what it is told."""

    name: str
    target: str
    spec: Mapping[str, Any]
    threads: int = 1


@dataclass
class Rounds:
    """The measurements of one contestant, one for each round."""

    rates: list[float] = field(default_factory=list)  # units per second
    answers: list[dict[str, Any]] = field(default_factory=list)  # all that the child said

    @property
    def cpu_rates(self) -> list[float]:
        """Units per second of processor time: what is left of a rate when others use the machine too."""
        return [answer["count"] / answer["cpu_seconds"] for answer in self.answers]

    @property
    def median(self) -> float:
        """Units per second."""
        return median(self.rates)


class Contestant:
    """One child process; ``measure`` lets its loop run for a while."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        child_in, our_out = os.pipe()
        our_in, child_out = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlexp.bench.worker", str(child_in), str(child_out)],
            pass_fds=(child_in, child_out),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=thread_environment(entry.threads),
        )
        os.close(child_in)
        os.close(child_out)
        self._channel = Channel(our_in, our_out)
        try:
            self._send({"target": entry.target, "threads": entry.threads, **entry.spec})
        except BaseException:
            self.close()
            raise

    def ready(self) -> dict[str, Any]:
        """Wait until it learns at full speed: compiled, past its random steps, warm."""
        return self._answer()

    def measure(self, seconds: float) -> dict[str, Any]:
        """Let it run for ``seconds`` and to the end of the iteration: ``count``, the true ``seconds``, and more."""
        self._send({"seconds": seconds})
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._channel.close()  # it reads the end of its orders and leaves by itself
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except BrokenPipeError:
            raise self._failure("it ended") from None

    def _answer(self) -> dict[str, Any]:
        answer = self._channel.receive()
        if answer is None or "error" in answer:
            raise self._failure("it ended" if answer is None else answer["error"])
        return answer

    def _failure(self, reason: str) -> BenchError:
        self._log.seek(0)
        tail = "".join(f"\n    {line.rstrip()}" for line in self._log.readlines()[-15:])
        return BenchError(f"{self.entry.name} could not be measured: {reason}. The last it said:{tail}")


@contextmanager
def contestants(entries: Iterable[Entry], say: Callable[[str], None]) -> Iterator[list[Contestant]]:
    """Start them one after another, each alone on the machine until it is ready; end them all afterwards."""
    with ExitStack() as stack:
        started = []
        for entry in entries:
            say(f"starting {entry.name}, {plural(entry.threads, 'thread')}")
            contestant = Contestant(entry)
            stack.callback(contestant.close)
            contestant.ready()
            started.append(contestant)
        yield started


def alternate(
    runners: Sequence[Contestant], rounds: int, seconds: float, say: Callable[[str], None] = lambda text: None
) -> list[Rounds]:
    """Measure all of them in every round, in turn; every other round backwards, so that a drift favours nobody."""
    results = [Rounds() for _ in runners]
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        order = range(len(runners)) if number % 2 == 0 else reversed(range(len(runners)))
        for index in order:
            time.sleep(SETTLE_SECONDS)
            before = round_trip_ns()
            answer = runners[index].measure(seconds)
            time.sleep(SETTLE_SECONDS)
            answer["round_trips_ns"] = [before, round_trip_ns()]
            results[index].answers.append(answer)
            results[index].rates.append(answer["count"] / answer["seconds"])
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times faster we were, round by round."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def thread_environment(threads: int, **more: str) -> dict[str, str]:
    """The environment of a child that may use so many threads and no GPU."""
    count = str(threads)
    limits = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    return {**os.environ, **limits, "CUDA_VISIBLE_DEVICES": "", **more}


def plural(count: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
