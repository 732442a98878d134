"""Exclusive times of methods of real objects, with the cost of measuring them taken off again."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

REST = "rest"


class Timers:
    """Wrapped methods add their time to a label; what a nested one takes counts for the nested label alone."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.inside = 0.0  # seconds of measuring that fall into the measured call
        self.outside = 0.0  # seconds of measuring that fall into its caller
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.nested_calls: Counter[str] = Counter()  # calls made from within a label
        self._nested = 0.0  # seconds spent so far in calls nested in the current one
        self._current = REST

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Replace ``owner.name`` by a timed version of itself."""
        original = getattr(owner, name)
        clock = self.clock

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            caller, before = self._current, self._nested
            self._current, self._nested = label, 0.0
            try:
                return original(*args, **kwargs)
            finally:
                self.calls[label] += 1
                self.nested_calls[caller] += 1
                spent = clock() - start
                self.seconds[label] += spent - self._nested
                self._current, self._nested = caller, before + spent

        setattr(owner, name, timed)

    def calibrate(self, calls: int = 20_000) -> None:
        """Measure what measuring costs, on a method that does nothing."""

        class Nothing:
            def method(self) -> None:
                pass

        bare, wrapped = Nothing(), Nothing()
        self.wrap(wrapped, "method", "calibration")
        plain = min(self._seconds_of(bare.method, calls) for _ in range(5)) / calls
        timed = own = float("inf")
        for _ in range(5):
            self.reset()
            timed = min(timed, self._seconds_of(wrapped.method, calls) / calls)
            own = min(own, self.seconds["calibration"] / calls)
        self.inside = max(own - plain, 0.0)
        self.outside = max(timed - own, 0.0)
        self.reset()

    def _seconds_of(self, method: Callable[[], None], calls: int) -> float:
        start = self.clock()
        for _ in range(calls):
            method()
        return self.clock() - start

    def corrected(self, total: float) -> dict[str, float]:
        """Seconds of each label and of the rest of ``total``, without those spent on measuring."""
        measured = {
            label: max(seconds - self.calls[label] * self.inside - self.nested_calls[label] * self.outside, 0.0)
            for label, seconds in self.seconds.items()
        }
        rest = total - sum(self.seconds.values()) - self.nested_calls[REST] * self.outside
        return measured | {REST: max(rest, 0.0)}
