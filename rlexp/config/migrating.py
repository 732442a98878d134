"""Configs that earlier versions saved, as this one would write them. Free of torch."""

from __future__ import annotations

from typing import Any


def migrated(config: dict[str, Any]) -> dict[str, Any]:
    """A saved config without the settings that were taken and ignored when it was saved, and are refused now."""
    env, algo = config.get("env"), config.get("algo")
    if isinstance(env, dict) and env.get("workers") is not None and env.get("vectorization") == "sync":
        config = config | {"env": env | {"workers": None}}  # Atari's vector backend is sync, too
    if isinstance(algo, dict) and str(algo.get("_target_")).startswith("rlexp."):  # others may mean something else
        config = config | {"algo": _algo(algo)}
    return config


def _algo(algo: dict[str, Any]) -> dict[str, Any]:
    """The settings that another one leaves without effect are as they are by default."""
    given = algo.get("schedules")
    schedules = given if isinstance(given, dict) else {}
    if algo.get("noisy") is False and "noisy_sigma" in algo:
        algo = algo | {"noisy_sigma": 0.5}
    if algo.get("target_noise") == 0 and "target_noise_clip" in algo and not schedules.get("target_noise"):
        algo = algo | {"target_noise_clip": 0.5}
        if schedules.get("target_noise_clip"):
            algo = algo | {"schedules": schedules | {"target_noise_clip": None}}
    return algo
