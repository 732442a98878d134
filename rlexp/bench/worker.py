"""The child's side of a measurement: a real training loop that goes on only while it is being measured.

A contestant is a function ``run(spec, pacer)``. It starts its framework's loop and has the loop call ``pacer(count)``
between iterations. The pacer reports when learning is under way, then blocks there, inside the loop, until the parent
asks for the next measurement. So imports, thread pools and compile caches of the contestants never mix, and whoever
is not being measured sleeps in a read. This module imports neither torch nor the rest of rlexp.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

FOREVER = 1_000_000_000  # steps or updates: the measurement ends the loop, not the budget
WARM_SECONDS = 1.0  # of learning before the first measurement: caches fill, clocks rise


class Finished(BaseException):
    """The parent has no more orders. Not an Exception, so that no loop recovers from it."""


class Channel:
    """Messages as JSON lines over a pair of pipes."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._in = os.fdopen(incoming, "r", encoding="utf-8")
        self._out = os.fdopen(outgoing, "w", encoding="utf-8")

    def send(self, message: dict[str, Any]) -> None:
        """Give a message to the other side; whether it is still there shows when it is asked something."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """Wait for a message; None when the other side is gone."""
        line = self._in.readline()
        return json.loads(line) if line.endswith("\n") else None

    def close(self) -> None:
        """Close both ends."""
        self._in.close()
        with contextlib.suppress(BrokenPipeError):
            self._out.close()


class Pacer:
    """Called by a training loop between its iterations; lets it run, measures it, or holds it.

    ``on_begin`` is called right before a measurement, ``on_end`` right after; what it returns joins the answer.
    """

    def __init__(
        self,
        channel: Any,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        warm_seconds: float = WARM_SECONDS,
    ) -> None:
        self.channel, self.clock, self.cpu_clock, self.warm_seconds = channel, clock, cpu_clock, warm_seconds
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], dict[str, Any]] = dict
        self.info: dict[str, Any] = {}  # said once, when ready
        self._until = -math.inf  # nothing happens before
        self._warm = False
        self._start: tuple[float, float, float] | None = None  # of the measurement: time, processor time, count

    def __call__(self, count: float, learning: bool = True) -> None:
        """``count`` steps or updates are done; ``learning`` is False as long as no update has been made."""
        now = self.clock()
        if now < self._until or not learning:
            return
        if not self._warm:
            self._warm, self._until = True, now + self.warm_seconds
            return
        if self._start is None:
            self.channel.send({"ready": True, **self.info})
        else:
            begun, cpu, first = self._start
            answer = {"count": count - first, "seconds": now - begun, "cpu_seconds": self.cpu_clock() - cpu}
            self.channel.send(answer | self.on_end())
        self._wait(count)

    def _wait(self, count: float) -> None:
        order = self.channel.receive()
        if order is None or "seconds" not in order:
            raise Finished
        self.on_begin()
        now = self.clock()
        self._start, self._until = (now, self.cpu_clock(), count), now + order["seconds"]


def locate(target: str) -> Callable[[dict[str, Any], Pacer], None]:
    """The function behind ``module:name``."""
    module, _, name = target.partition(":")
    found: Callable[[dict[str, Any], Pacer], None] = getattr(importlib.import_module(module), name)
    return found


def main(incoming: int, outgoing: int) -> int:
    """Run the contestant that the parent names."""
    channel = Channel(incoming, outgoing)
    spec = channel.receive()
    if spec is None:
        return 0
    try:
        locate(spec["target"])(spec, Pacer(channel))
        channel.send({"error": "the loop ended by itself"})
    except Finished:
        return 0
    except BaseException as error:
        traceback.print_exc()
        channel.send({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
