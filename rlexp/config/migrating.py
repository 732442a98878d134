"""Configs that earlier versions saved, as this one would write them. Free of torch."""

from __future__ import annotations

from typing import Any


def migrated(config: dict[str, Any]) -> dict[str, Any]:
    """A saved config without the settings that were taken and ignored when it was saved, and are refused now."""
    env = config.get("env")
    if isinstance(env, dict) and env.get("workers") is not None and env.get("vectorization") == "sync":
        return config | {"env": env | {"workers": None}}  # Atari's vector backend is sync, too
    return config
