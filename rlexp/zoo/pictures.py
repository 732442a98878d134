"""Pictures of manifests: learning curves, performance profiles, time to the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.bench.pictures import GREY, INK, quiet_pyplot, save
from rlexp.zoo.page import CURVES, LEARNING, PROFILE, TIMES, grouped, thousands
from rlexp.zoo.results import Result, median_to_target
from rlexp.zoo.statistics import interval, profile

COLOURS = {"steps": "#3b76b0", "updates": "#e0813a"}
MISSED = "#c0392b"
COLUMNS = 5  # panels of curves side by side
PANEL = (2.3, 1.62)  # inches, with its labels
MARGIN = (0.42, 0.3)  # left and below, for the labels
HEADING = 0.36  # above the first row of an environment


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """All pictures for which there is something to show."""
    paths = []
    for name, one in ((CURVES, curves), (PROFILE, profiles), (TIMES, times)):
        figure = one(results)
        if figure is not None:
            paths.append(folder / name)
            save(figure, paths[-1])
            quiet_pyplot().close(figure)
    return paths


# ---- learning curves


def curves(results: Sequence[Result]) -> Any:
    """A panel for each preset: the mean over seeds with its interval, each seed thin, the target dashed."""
    if not results:
        return None
    pyplot = quiet_pyplot()
    groups = grouped(results)
    cells, rows, columns = shelves([len(group) for group in groups.values()])
    width, height = columns * PANEL[0] + 0.1, sum(rows)
    figure = pyplot.figure(figsize=(width, height))
    for ((env, unit), group), places in zip(groups.items(), cells):
        shared: Any = None
        for result, (row, column) in zip(group, places):
            left, top = column * PANEL[0], height - sum(rows[:row])
            bottom = top - rows[row] + MARGIN[1]
            box = (left + MARGIN[0], bottom, PANEL[0] - MARGIN[0] - 0.1, PANEL[1] - MARGIN[1] - 0.25)
            size = (width, height) * 2
            axis = figure.add_axes([each / whole for each, whole in zip(box, size)], sharey=shared)
            if shared is None:
                heading = (left + 0.06) / width, (top - 0.08) / height
                figure.text(*heading, f"{env}, {LEARNING[unit]}", fontsize=10.5, fontweight="bold", va="top")
            shared = axis
            _curve(axis, result)
    return figure


def shelves(sizes: Sequence[int], columns: int = COLUMNS) -> tuple[list[list[tuple[int, int]]], list[float], int]:
    """Where groups of panels go: (row, column) of each, the heights of the rows in inches, the number of columns.

    A group begins a row of its own, with room for its heading, unless it fits into the row before.
    """
    columns = min(columns, max(sum(sizes), 1))
    cells: list[list[tuple[int, int]]] = []
    heights: list[float] = []
    free = 0  # panels left in the last row, if another group may go there
    for size in sizes:
        if size > free:
            first, offset = len(heights), 0
            heights += [PANEL[1] + HEADING] + [PANEL[1]] * (math.ceil(size / columns) - 1)
        else:
            first, offset = len(heights) - 1, columns - free
        cells.append([(first + (offset + place) // columns, (offset + place) % columns) for place in range(size)])
        free = columns - offset - size if len(heights) == first + 1 else 0
    return cells, heights, columns


def _curve(axis: Any, result: Result) -> None:
    colour = COLOURS[result.unit]
    x, middle, low, high = band([run["curve"] for run in result.runs])
    for run in result.runs:
        at, values, _ = zip(*run["curve"])
        axis.plot(np.array(at) / 1e3, values, color=colour, lw=0.6, alpha=0.45)
    axis.fill_between(x / 1e3, low, high, color=colour, alpha=0.18, lw=0)
    axis.plot(x / 1e3, middle, color=colour, lw=1.6)
    if result.target is not None:
        axis.axhline(result.target.least, color=INK, ls=(0, (4, 3)), lw=0.8)
    if result.success:
        axis.set_ylim(-0.05, 1.05)
    title = f"{result.preset}, n = {result.n}"
    size = 7.6 * min(1, 32 / len(title))  # long names must fit above their panel
    axis.set_title(title, fontsize=size, loc="left", color=MISSED if result.met is False else INK, pad=3)
    axis.set_xlim(left=0)
    axis.locator_params(axis="x", nbins=4)
    axis.locator_params(axis="y", nbins=4)
    axis.xaxis.set_major_formatter(lambda value, _: thousands(round(value * 1e3)))
    axis.tick_params(labelsize=7.4, length=2, pad=2)
    axis.grid(color="#e6e9ed", lw=0.6)
    axis.set_axisbelow(True)


def band(each: Sequence[Sequence[Sequence[float]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Curves of several seeds as one: where, the mean, and its 95 % interval (the mean itself, of one seed).

    Seeds may have been evaluated at different times: between evaluations a curve is a straight line.
    """
    arrays = [np.array(curve, float) for curve in each]
    start, end = max(curve[0, 0] for curve in arrays), min(curve[-1, 0] for curve in arrays)
    x = np.unique(np.concatenate([curve[:, 0] for curve in arrays]))
    x = x[(x >= start) & (x <= end)]
    values = np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in arrays])  # [n, T]
    middle = values.mean(0)
    limits = [interval(list(column)) or (centre, centre) for column, centre in zip(values.T, middle)]
    low, high = np.array(limits).reshape(-1, 2).T
    return x, middle, low, high


# ---- performance profiles


def profiles(results: Sequence[Result]) -> Any:
    """The share of runs that score at least so much, for each way of learning."""
    groups = {unit: [each.scores for each in results if each.unit == unit and each.scores] for unit in LEARNING}
    scores = [score for group in groups.values() for preset in group for score in preset]
    if not scores:
        return None
    pyplot = quiet_pyplot()
    figure, axis = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    thresholds = np.linspace(min(0.0, min(scores)), max(1.1, max(scores) * 1.02), 600)
    for unit, group in groups.items():
        if group:
            share, low, high = profile(group, thresholds)
            runs = sum(map(len, group))
            label = f"{LEARNING[unit]}: {runs} run{'s' * (runs > 1)} of {len(group)} preset{'s' * (len(group) > 1)}"
            axis.fill_between(thresholds, low, high, color=COLOURS[unit], alpha=0.2, lw=0)
            axis.plot(thresholds, share, color=COLOURS[unit], lw=1.8, label=label)
    axis.axvline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    axis.annotate("target", (1, 0.03), xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=8.5)
    axis.set_xlabel("score: 0 is random play, 1 the target")
    axis.set_ylabel("share of runs that score at least so much")
    axis.set_ylim(0, 1.02)
    axis.set_xlim(thresholds[0], thresholds[-1])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.grid(color="#e6e9ed", lw=0.7)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, loc="lower left", fontsize=8.5)
    return figure


# ---- time to the target


def times(results: Sequence[Result]) -> Any:
    """For each preset when its seeds first reached the target: in steps or updates, and in seconds."""
    shown = [each for each in results if each.to_target]
    if not shown:
        return None
    pyplot = quiet_pyplot()
    groups = grouped(shown)
    rows = [result for group in groups.values() for result in group]
    gaps = [place for place, group in enumerate(groups.values()) for _ in group]  # a little room between environments
    heights = [-(row + 0.9 * gap) for row, gap in enumerate(gaps)]
    figure, axes = pyplot.subplots(
        1, 2, figsize=(9.6, 0.17 * (len(rows) + len(groups)) + 1.1), sharey=True, layout="constrained"
    )
    for axis, position in zip(axes, (0, 1)):
        for y, result in zip(heights, rows):
            _reached(axis, y, result, position)
        axis.set_xscale("log")
        axis.grid(axis="x", color="#e6e9ed", lw=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(left=False)
        axis.set_ylim(min(heights) - 0.8, 1.6)
    axes[0].xaxis.set_major_formatter(lambda value, _: thousands(round(value)))
    axes[1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[0].set_xlabel("steps (online) or updates (offline)")
    axes[1].set_xlabel("seconds")
    axes[0].set_yticks(heights, [result.preset for result in rows], fontsize=7.5)
    first = 0
    for (env, unit), group in groups.items():
        axes[0].text(0.005, heights[first] + 0.55, f"{env}, {LEARNING[unit]}", fontsize=7.5, fontweight="bold",
                     transform=axes[0].get_yaxis_transform(), va="bottom")  # fmt: skip
        first += len(group)
    marks = [
        pyplot.Line2D([], [], ls="", marker="|", ms=9, mew=2.2, color=INK, label="median"),
        pyplot.Line2D([], [], ls="", marker="o", ms=4, color=GREY, label="a seed"),
        pyplot.Line2D([], [], ls="", marker="x", ms=5, color=MISSED, label="a seed that never got there, at its end"),
    ]
    figure.legend(handles=marks, loc="outside upper center", ncols=3, frameon=False, fontsize=8.5)
    return figure


def _reached(axis: Any, y: float, result: Result, position: int) -> None:
    colour = COLOURS[result.unit]
    seeds = list(zip(result.runs, result.to_target))
    there = [reached[position] for _, reached in seeds if reached is not None]
    late = [run["curve"][-1][2 * position] for run, reached in seeds if reached is None]
    axis.plot(there, [y] * len(there), "o", ms=4, color=colour, alpha=0.55, mew=0)
    axis.plot(late, [y] * len(late), "x", ms=4.5, color=MISSED)
    median = median_to_target(result.to_target)
    if median is not None:
        axis.plot([median[position]], [y], "|", ms=9, mew=2.2, color=colour)
