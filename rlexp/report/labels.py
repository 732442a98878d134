"""What the curves of a report are called: short enough for a legend, and telling them apart on their task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.comparing import SEED, Flat, varied
from rlexp.report.text import clip, text_of

ROOM = 4  # settings that a name has room for
WHICH = ("algo", "env.id")  # what is run on what: said by its value alone


def settings_of(keys: Sequence[str]) -> list[str]:
    """Of what varied the settings: not the seed, nor the choice of algorithm and environment."""
    return [key for key in keys if key not in (SEED, *WHICH)]


def group_labels(
    runs: Sequence[Mapping[str, Any]], flats: Sequence[Flat], groups: Sequence[Sequence[int]], keys: Sequence[str]
) -> list[str]:
    """A label for each group of runs (their positions), which vary in ``keys``.

    Few settings are a good name. Runs of many algorithms differ in most of theirs: there the name is the algorithm or
    preset, with the settings that vary among its own runs on the task. Where those are many, too, or where one
    algorithm ran once with each, it is the name of the run.
    """
    firsts = [members[0] for members in groups]
    if len(settings_of(keys)) <= ROOM:
        names = [_told(flats[first], keys) or _kind(runs[first]) or _name(runs[first]) for first in firsts]
    else:
        names = [""] * len(groups)
        kinds: dict[tuple[str, str], list[int]] = {}
        for position, first in enumerate(firsts):
            kinds.setdefault((str(runs[first].get("env") or ""), _kind(runs[first])), []).append(position)
        for (env, kind), alike in kinds.items():
            there = [members for members in groups if str(runs[members[0]].get("env") or "") == env]
            one_algo = len({str(runs[member].get("algo") or "") for members in there for member in members}) == 1
            own = varied([flats[firsts[position]] for position in alike])
            by_run = len(settings_of(own)) > ROOM or (one_algo and 1 < len(there) == sum(map(len, there)))
            for position in alike:
                run = runs[firsts[position]]
                name = _name(run) if by_run else _told(flats[firsts[position]], own)
                said_by_it = by_run and (one_algo or name.startswith(str(run.get("algo"))))
                names[position] = name if said_by_it else f"{kind} {name}".strip()
    tasks = [(str(runs[first].get("env") or ""), name) for first, name in zip(firsts, names)]
    twice = {each for each, count in Counter(tasks).items() if count > 1}
    return [
        clip(name if task not in twice else f"{name} ({runs[first]['label']})")
        for name, task, first in zip(names, tasks, firsts)
    ]


def _kind(run: Mapping[str, Any]) -> str:
    """The preset a run was started from, or else its algorithm."""
    command = (run.get("info") or {}).get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    return next((word[4:] for word in words if word.startswith("zoo=")), str(run.get("algo") or ""))


def _name(run: Mapping[str, Any]) -> str:
    """A run's own name; of a job in a sweep that is a number."""
    name = str(run["label"])
    return f"run {name}" if name.isdecimal() else name


def _told(flat: Flat, keys: Sequence[str]) -> str:
    names = short_names(keys)
    return " ".join(_part(key, names[key], flat[key]) for key in keys if key != SEED and key in flat)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Keys without their group, where that leaves no doubt: algo.gamma is gamma."""
    ends = Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def _part(key: str, name: str, value: Any) -> str:
    if key in WHICH:
        return str(value)
    return f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={text_of(value)}"
