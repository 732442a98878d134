"""Numbers, durations and paths as a person wants to read them. Standard library only."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """Three or four significant digits: ``0.0123``, ``1.23``, ``123.4``, ``12,346``, ``1.23e+08``."""
    size = abs(value)
    if not math.isfinite(value) or size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def spread(value: float) -> str:
    """A standard deviation, which is known to two digits at best: ``12``, ``1.2``, ``0.12``."""
    if not math.isfinite(value) or value >= 1e7:
        return f"{value:.2g}"
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def mean_std(mean: float, std: float | None) -> str:
    """``210.0 ± 12``, or the mean alone."""
    return number(mean) if std is None else f"{number(mean)} ± {spread(std)}"


def outcome(result: Mapping[str, Any], prefix: str = "") -> tuple[str, float, float | None] | None:
    """(name, value, deviation) of what an evaluation found: a return, or the value that an estimate names.

    ``prefix`` is that of the keys in a row of metrics, ``eval/``.
    """
    if (mean := result.get(f"{prefix}return_mean")) is not None:
        return "return", mean, result.get(f"{prefix}return_std")
    for key, value in result.items():
        if key.startswith(prefix) and f"{key}_std" in result:
            return key.removeprefix(prefix).replace("_", " "), value, result[f"{key}_std"]
    return None


def evaluation_text(result: Mapping[str, Any], prefix: str = "") -> str:
    """``210.0 ± 12``, or ``fqe value 31.2 ± 0.4``; empty where there is nothing."""
    found = outcome(result, prefix)
    if found is None:
        return ""
    name, value, std = found
    return mean_std(value, std) if name == "return" else f"{name} {mean_std(value, std)}"


def trust_text(result: Mapping[str, Any], prefix: str = "") -> str:
    """What an estimate says about itself: ``Bellman error 1.2, drift -0.3``; empty where it says nothing."""
    told = {"fqe_error": "Bellman error", "fqe_drift": "drift"}
    return ", ".join(
        f"{name} {number(value)}" for key, name in told.items() if (value := result.get(prefix + key)) is not None
    )


def share(value: float) -> str:
    """``20%``; ``<1%`` of what has begun and ``99%`` of what has not ended are not rounded to nothing and all."""
    if 0 < value < 0.01:
        return "<1%"
    return f"{round(100 * value) if value >= 1 else min(round(100 * value), 99)}%"


def duration(seconds: float) -> str:
    """``0:32``, ``1:02:03``, ``2d 03:04:05``."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def short_path(path: str | os.PathLike[str], *, quoted: bool = False) -> str:
    """Relative to the working directory if the path lies in it; ``quoted`` for use in a shell command."""
    absolute, here = Path(path).absolute(), Path.cwd()
    text = str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)
    return shlex.quote(text) if quoted else text


def printable(text: str) -> str:
    """Text for the terminal that may quote a stranger's file: control characters are shown, not obeyed."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def sparkline(values: Sequence[float]) -> str:
    """A curve in block characters: ``▁▃▅█``."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / span * top) if span else top // 2] for value in finite)
