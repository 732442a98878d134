"""``rlexp list zoo``: every preset with its target, its budget and what it reached when it was last measured.

Answers at once: presets are read, not composed, and results come from the digest in this package. Free of torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

from rlexp.config.messages import suggest
from rlexp.errors import ConfigError
from rlexp.loggers.format import duration, number
from rlexp.loggers.tables import print_presets
from rlexp.zoo.presets import Preset, read_presets
from rlexp.zoo.targets import TARGETS

FILTERS = ("preset", "algo", "env")
NOT_MEASURED = "not measured"
ANY_GAME = "for any game"  # nothing to measure before one is chosen


def list_zoo(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the presets, or those for which ``algo=ppo env=cartpole`` is true; ``*`` stands for anything."""
    wanted = dict(_filter(word) for word in words)
    presets = list(read_presets(folders).values())
    for key, pattern in wanted.items():
        known = list(dict.fromkeys(each for preset in presets for each in _names(preset)[key]))
        if not any(fnmatchcase(each, pattern) for each in known):
            raise ConfigError(f"{key}={pattern}: no preset is like that.{suggest(pattern, sorted(known))}")
        presets = [each for each in presets if any(fnmatchcase(name, pattern) for name in _names(each)[key])]
    if not presets:
        print("No preset is like that.")
        return 0
    last = known_results()
    print_presets([row(preset, last.get(preset.name)) for preset in presets])
    return 0


def _names(preset: Preset) -> dict[str, list[str]]:
    """What each filter compares with."""
    return {"preset": [preset.name], "algo": [preset.algo], "env": preset.envs}


def _filter(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or key not in FILTERS:
        raise ConfigError(f"rlexp list zoo {word}: presets are chosen by {', '.join(f'{each}=…' for each in FILTERS)}.")
    return key, value


def known_results() -> dict[str, dict[str, Any]]:
    """The digest of the last results of rlexp's own presets."""
    return json.loads((resources.files("rlexp.zoo") / "results.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def row(preset: Preset, last: Mapping[str, Any] | None) -> dict[str, str]:
    """What is shown of a preset."""
    target, budget = TARGETS.get(preset.name), preset.budget
    shown = {
        "preset": preset.name,
        "algo": preset.algo,
        "env": next(iter(preset.envs), ""),
        "target": "" if target is None else str(target),
        "budget": "" if budget is None else f"{_short(budget[0])} {budget[1]}",
        "mean [95 % interval]": ANY_GAME if preset.any_game else NOT_MEASURED,
        "n": "",
        "met by median": "",
        "time": "",
    }
    if last is not None:
        mean, *spread = (_figure(each, last["success"]) for each in (last["mean"], *(last["interval"] or ())))
        shown |= {
            "mean [95 % interval]": f"{mean} [{', '.join(spread)}]" if spread else mean,
            "n": str(last["n"]),
            "met by median": _met(last),
            "time": duration(last["wall_time_s"]),
        }
    return shown


def _figure(value: float, success: bool) -> str:
    return f"{value:.2f}" if success else number(value)


def _met(last: Mapping[str, Any]) -> str:
    """The median over seeds decides, whatever their mean; where seeds differ, how many of them are as wanted."""
    if last["met"] is None:
        return ""
    seeds = "" if last["at_target"] == last["n"] else f" ({last['at_target']} of {last['n']} seeds)"
    return ("yes" if last["met"] else "missed") + seeds


def _short(count: Any) -> str:
    """``401k``: three digits are enough to compare."""
    if not isinstance(count, int | float):
        return str(count)
    count = float(f"{count:.3g}")
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k" if count >= 1_000 else f"{count:g}"
