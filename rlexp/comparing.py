"""What tells runs apart: their configs side by side. Free of torch.

A setting of a component (``algo.clip_range``) is compared among the runs that have that component. Where an algorithm,
environment or other component is exchanged, the settings that merely follow from that choice are not what was varied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.config.naming import component_name, one_of_a_class

UNLIKE = ("name", "progress", "logger", "device")  # of the occasion, not of the experiment
# How a run was computed and looked at: it differs, but changes nothing that is learned (or its last digits).
WATCHING = ("compile", "threads", "trainer.log_interval", "trainer.eval_interval", "trainer.eval_episodes",
            "trainer.checkpoint_interval", "trainer.keep_checkpoints")  # fmt: skip
CHOICES = ("algo", "env", "env.id", "dataset", "trainer", "buffer", "model")  # what other settings may follow from
# Of an environment's settings those that an algorithm may choose; all others say what the task is.
OF_THE_LOOP = ("env.num_envs", "env.vectorization", "env.workers", "env.normalize_obs", "env.normalize_reward")
SEED = "seed"
CALLBACKS, PRUNING = "trainer.callbacks", "rlexp.sweeps.pruning.PruneTrial"  # a search adds it, with the trial's number

Flat = dict[str, Any]  # a config with dotted keys; of a component the name it is chosen by: algo = "ppo"


def flat_config(config: Mapping[str, Any]) -> Flat:
    """A config as dotted keys and plain values; empty schedules are left out."""
    flat: Flat = {}

    def add(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if key == "_target_":
                flat[prefix.rstrip(".") or "_target_"] = component_name(node)
            elif isinstance(value, Mapping) and value:
                add(value, f"{name}.")
            elif not name.startswith("algo.schedules.") or value is not None:
                flat[name] = value

    add(config, "")
    return flat


def key_of(value: Any) -> str:
    """A value as text that is equal where the values are."""
    return json.dumps(value, sort_keys=True, default=str)


def compared(flat: Flat) -> Flat:
    """The settings that make an experiment what it is."""
    kept = {key: value for key, value in flat.items() if key.split(".")[0] not in UNLIKE}
    if isinstance(callbacks := kept.get(CALLBACKS), list):
        others = [each for each in callbacks if not (isinstance(each, Mapping) and each.get("_target_") == PRUNING)]
        kept[CALLBACKS] = others
    return kept


def differing(flats: Sequence[Flat]) -> list[str]:
    """The keys whose values differ between runs, in the order of the configs."""
    runs = [compared(flat) for flat in flats]
    keys = dict.fromkeys(key for run in runs for key in run)
    return [key for key in keys if len({key_of(run.get(key)) for run in _having(key, runs)}) > 1]


def _having(key: str, runs: Sequence[Flat]) -> list[Flat]:
    """The runs in which a key has a meaning: those that set it, or that could, having the same component."""
    group = key.split(".")[0]
    kinds = {key_of(run.get(group)) for run in runs if key in run}
    return [run for run in runs if key in run or ("." in key and key_of(run.get(group)) in kinds)]


def varied(flats: Sequence[Flat]) -> list[str]:
    """Of :func:`differing` what was varied: not what follows from another choice, such as the algorithm."""
    keys, runs = [key for key in differing(flats) if key not in WATCHING], [compared(flat) for flat in flats]
    # Choices of one class are varied by their settings, and no other setting follows from them.
    keys = [key for key in keys if not all(one_of_a_class(key, str(run[key])) for run in runs if key in run)]
    kept: list[str] = []
    for key in sorted(keys, key=lambda key: CHOICES.index(key) if key in CHOICES else len(CHOICES)):
        choices = [choice for choice in kept if choice in CHOICES and (choice.startswith("env") or not _of_task(key))]
        if key == SEED or not any(_follows(key, choice, runs) for choice in choices):
            kept.append(key)
    return [key for key in keys if key in kept]


def _of_task(key: str) -> bool:
    return key.startswith("env.") and key not in OF_THE_LOOP


def tasks(flats: Sequence[Flat], ids: Sequence[str]) -> list[str]:
    """What each run acts in: the environment's id, and what it is made or wrapped with where that differs under one id.

    Returns are comparable within a task; other settings of an environment (repeated actions, stacked frames) are
    ways to master the same one.
    """
    names = list(ids)
    for each in dict.fromkeys(ids):
        same = [position for position, name in enumerate(ids) if name == each]
        keys = differing([flats[position] for position in same])
        telling = [key for key in keys if key == "env.wrappers" or key.startswith("env.kwargs")]
        for position in same:
            parts = [_told(key, flats[position].get(key)) for key in telling]
            if said := ", ".join(part for part in parts if part):
                names[position] = f"{each} ({said})"
    return names


def _told(key: str, value: Any) -> str:
    if key == "env.wrappers":
        targets = [str(wrapper.get("_target_", "")) for wrapper in value or () if isinstance(wrapper, Mapping)]
        return " + ".join(target.rpartition(".")[2] for target in targets)
    return "" if value in (None, {}) else f"{key.rpartition('.')[2]}={value}"


def _follows(key: str, choice: str, runs: Sequence[Flat]) -> bool:
    """Whether the value of a key is the same wherever the choice is."""
    values: dict[str, set[str]] = {}
    for run in _having(key, runs):
        values.setdefault(key_of(run.get(choice)), set()).add(key_of(run.get(key)))
    return all(len(each) == 1 for each in values.values())


def seed_groups(flats: Sequence[Flat]) -> list[list[int]]:
    """The positions of runs that differ in nothing but their seed, in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for position, flat in enumerate(flats):
        settings = {key: value for key, value in compared(flat).items() if key not in (SEED, *WATCHING)}
        groups.setdefault(key_of(settings), []).append(position)
    return list(groups.values())
