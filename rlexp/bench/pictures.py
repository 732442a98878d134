"""Pictures of what was measured, for docs/."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from rlexp.bench.report import number
from rlexp.bench.timers import REST
from rlexp.errors import ConfigError

INK, GREY = "#22272e", "#8b949e"
COLOURS = {
    "acting": "#3b76b0",
    "environment": "#4f9d69",
    "storing": "#8fbf9f",
    "sampling": "#b59fd1",
    "update": "#e0813a",
    "logging": "#d9b44a",
    REST: "#c3c9d0",
}
LINES = ("#3b76b0", "#e0813a", "#4f9d69", "#b34d6d", "#7a5fb5", "#8a7a3c")
WIDE = 0.055  # share of a bar from which on its figure fits inside


def quiet_pyplot() -> Any:
    """Matplotlib without a window, in the style of all pictures."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError('Pictures need matplotlib: pip install "rlexp[bench]"') from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": GREY,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    return pyplot


def save(figure: Any, path: Path) -> None:
    """Write a picture, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


# ---- profile


def profile(results: list[dict[str, Any]], path: Path) -> None:
    """For each workload a bar of its parts, above a bar of what neither loop nor update can be faster than."""
    results = [result for result in results if "error" not in result]
    if not results:
        return
    pyplot = quiet_pyplot()
    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(8.4, 1.45 * len(results) + 0.7), squeeze=False, layout="constrained"
    )
    used: dict[str, Any] = {}
    for axis, result in zip(axes[:, 0], results):
        whole = max(result["sum_ms"], sum(_limits(result).values()))
        _bar(axis, 1, result["parts_ms"], whole, used)
        _bar(axis, 0, _limits(result), whole, used)
        axis.set_yticks([1, 0], [f"one {result['of']}", "limit"])
        axis.set_ylim(-0.5, 1.5)
        axis.set_xlim(0, whole * 1.13)
        axis.set_title(result["title"], loc="left", fontsize=10, fontweight="bold")
        axis.tick_params(left=False)
        axis.spines["left"].set_visible(False)
        peak = result["flops_at_peak_ms"]
        start = result["limits_ms"].get("environment", 0.0)
        axis.plot([start + peak] * 2, [-0.36, 0.36], color=INK, lw=1.4)
        used["products at the machine's best rate"] = pyplot.Line2D([], [], color=INK, lw=1.4)
    axes[-1, 0].set_xlabel(
        "milliseconds on one thread (limit: the environments alone, and the update's matrix products alone)"
    )
    order = [name for name in [*COLOURS, *used] if name in used]
    figure.legend(
        [used[name] for name in dict.fromkeys(order)],
        list(dict.fromkeys(order)),
        loc="outside upper center",
        ncols=8,
        frameon=False,
        handlelength=1,
        columnspacing=1.1,
        fontsize=8.5,
    )
    save(figure, path)
    pyplot.close(figure)


def _limits(result: dict[str, Any]) -> dict[str, float]:
    limits = result["limits_ms"]
    return {"environment": limits.get("environment", 0.0), "update": limits["products"]}


def _bar(axis: Any, row: int, parts: dict[str, float], whole: float, used: dict[str, Any]) -> None:
    left = 0.0
    for part, width in parts.items():
        if width <= 0:
            continue
        bars = axis.barh(row, width, left=left, color=COLOURS[part], height=0.62, edgecolor="white", linewidth=0.6)
        used.setdefault(part, bars[0])
        if width > WIDE * whole:
            colour = "white" if part in ("acting", "environment", "update") else INK
            # The end of the bar is free of the line that marks the best rate.
            place, side = (left + width - 0.006 * whole, "right") if row == 0 else (left + width / 2, "center")
            axis.text(place, row, number(width), ha=side, va="center", color=colour, fontsize=8)
        left += width
    axis.text(left + 0.008 * whole, row, f"{number(left)} ms", va="center", ha="left", fontweight="bold")


# ---- scaling


def scaling(results: list[dict[str, Any]], path: Path) -> None:
    """A panel for each axis: rates against sizes, the spread of the rounds as a band."""
    results = [result for result in results if "error" not in result]
    if not results:
        return
    pyplot = quiet_pyplot()
    figure, axes = pyplot.subplots(
        1, len(results), figsize=(3.7 * len(results), 3.3), squeeze=False, layout="constrained"
    )
    for axis, result in zip(axes[0], results):
        points = result["points"]
        for colour, (title, curve) in zip(cycle(LINES), result["curves"].items()):
            low, high = ([fold(rounds) for rounds in curve["rounds"]] for fold in (min, max))
            axis.fill_between(points, low, high, color=colour, alpha=0.18, lw=0)
            axis.plot(points, curve["median"], "o-", color=colour, ms=4, label=title)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(points, [_size(point) for point in points])
        axis.minorticks_off()
        axis.set_ylim(*_decades(result))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.grid(axis="y", color="#e6e9ed")
        axis.set_axisbelow(True)
        axis.set_title(result["title"], loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel(result["label"])
        axis.set_ylabel(f"{result['unit']} per second")
        if len(result["curves"]) > 1:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False, fontsize=7.5)
    save(figure, path)
    pyplot.close(figure)


def _decades(result: dict[str, Any]) -> tuple[float, float]:
    """Limits of an axis that start and end at a power of ten, or half-way to one."""
    from math import floor, log10

    rates = [rate for curve in result["curves"].values() for rounds in curve["rounds"] for rate in rounds]
    low, high = log10(min(rates)), log10(max(rates))
    return 10 ** (floor(low * 2 - 0.2) / 2), 10 ** (-floor(-high * 2 - 0.4) / 2)


def _size(value: int) -> str:
    if value >= 1_000_000:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1_000 else str(value)
