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

import yaml

from rlexp.config.compose import choice_files
from rlexp.config.messages import suggest
from rlexp.errors import ConfigError
from rlexp.loggers.format import duration, number
from rlexp.loggers.tables import print_presets
from rlexp.zoo.targets import TARGETS

FILTERS = ("preset", "algo", "env")
NOT_MEASURED = "not measured"

Preset = dict[str, Any]


def list_zoo(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the presets, or those for which ``algo=ppo env=cartpole`` is true; ``*`` stands for anything."""
    wanted = dict(_filter(word) for word in words)
    presets = [read_preset(name, path) for name, path in choice_files("zoo", folders).items()]
    for key, pattern in wanted.items():
        known = list(dict.fromkeys(each for preset in presets for each in preset["names"][key]))
        if not any(fnmatchcase(each, pattern) for each in known):
            raise ConfigError(f"{key}={pattern}: no preset is like that.{suggest(pattern, sorted(known))}")
        presets = [each for each in presets if any(fnmatchcase(name, pattern) for name in each["names"][key])]
    if not presets:
        print("No preset is like that.")
        return 0
    last = known_results()
    print_presets([row(preset, last.get(preset["preset"])) for preset in presets])
    return 0


def _filter(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or key not in FILTERS:
        raise ConfigError(f"rlexp list zoo {word}: presets are chosen by {', '.join(f'{each}=…' for each in FILTERS)}.")
    return key, value


def read_preset(name: str, path: Path) -> Preset:
    """Of a preset's file: algorithm, environment and budget, as far as it says so itself."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        chosen = _choices(content.get("defaults") or [])
        env, trainer = content.get("env") or {}, content.get("trainer") or {}
        game = env.get("game") or env.get("id")
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a preset: {' '.join(str(error).split())}") from None
    budget = next(((trainer[key], key[6:]) for key in ("total_steps", "total_updates") if trainer.get(key)), None)
    environments = [str(each) for each in (game, chosen.get("env")) if each]
    return {
        "preset": name,
        "algo": chosen.get("algo", ""),
        "env": environments[0] if environments else "",
        "budget": budget,
        "names": {"preset": [name], "algo": [chosen.get("algo", "")], "env": environments},
    }


def _choices(defaults: Sequence[Any]) -> dict[str, str]:
    """Group: choice, of a defaults list."""
    entries = [item for each in defaults if isinstance(each, Mapping) for item in each.items()]
    return {str(key).rpartition("/")[2].removeprefix("override "): str(value) for key, value in entries}


def known_results() -> dict[str, dict[str, Any]]:
    """The digest of the last results of rlexp's own presets."""
    return json.loads((resources.files("rlexp.zoo") / "results.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def row(preset: Preset, last: Mapping[str, Any] | None) -> dict[str, str]:
    """What is shown of a preset."""
    target, budget = TARGETS.get(preset["preset"]), preset["budget"]
    shown = {
        "preset": preset["preset"],
        "algo": preset["algo"],
        "env": preset["env"],
        "target": "" if target is None else str(target),
        "budget": "" if budget is None else f"{_short(budget[0])} {budget[1]}",
        "mean [95 % interval]": NOT_MEASURED,
        "n": "",
        "met": "",
        "time": "",
    }
    if last is not None:
        mean, *spread = (_figure(each, last["success"]) for each in (last["mean"], *(last["interval"] or ())))
        shown |= {
            "mean [95 % interval]": f"{mean} [{', '.join(spread)}]" if spread else mean,
            "n": str(last["n"]),
            "met": _met(last),
            "time": duration(last["wall_time_s"]),
        }
    return shown


def _figure(value: float, success: bool) -> str:
    return f"{value:.2f}" if success else number(value)


def _met(last: Mapping[str, Any]) -> str:
    """The median over seeds decides; where seeds differ, how many of them are as wanted."""
    if last["met"] is None:
        return ""
    seeds = "" if last["at_target"] == last["n"] else f" ({last['at_target']} of {last['n']})"
    return ("yes" if last["met"] else "missed") + seeds


def _short(count: Any) -> str:
    if not isinstance(count, int | float):
        return str(count)
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k" if count >= 1_000 else f"{count:g}"
