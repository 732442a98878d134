"""Run directories as a training leaves them, without the training."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.compose import compose
from rlexp.run_dir import RunDir


@functools.cache
def _composed(algo: str, env: str) -> dict[str, Any]:
    return compose([f"algo={algo}", f"env={env}", "threads=1", "compile=false"])


def config_of(algo: str = "dqn", env: str = "cartpole", **settings: Any) -> dict[str, Any]:
    """A whole config; ``settings`` are dotted with two underscores: algo__gamma=0.9."""
    config = copy.deepcopy(_composed(algo, env))
    config["trainer"]["total_steps"] = 1000
    for name, value in settings.items():
        *parents, key = name.split("__")
        node = config
        for parent in parents:
            node = node[parent]
        node[key] = value
    return config


def rows_to(result: float, points: int = 5, steps: int = 1000) -> list[dict[str, Any]]:
    """A curve that rises linearly from 0 to ``result``, and losses in between."""
    rows: list[dict[str, Any]] = []
    for point in range(1, points + 1):
        place = {"env_steps": steps * point // points, "updates": 10 * point, "time_s": 2.0 * point}
        rows.append({**place, "loss/q": 1.0 / point, "rollout/return_mean": result * point / points / 2})
        rows.append({**place, "eval/return_mean": result * point / points, "eval/return_std": 1.0})
    return rows


def make_run(
    path: Path,
    config: Mapping[str, Any] | None = None,
    result: float | None = 100.0,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    status: str = "completed",
    reason: str = "budget",
    command: Sequence[str] = ("rlexp", "algo=dqn"),
    best: float | None = None,
) -> Path:
    """A run that came to ``result``."""
    config = dict(config or config_of())
    with RunDir.create(path, config, list(command)) as run:
        for row in rows if rows is not None else rows_to(result or 0.0):
            run.append(row)
        evaluation = None if result is None else {"return_mean": result, "return_std": 1.5, "episodes": 10}
        top = evaluation if best is None else {"return_mean": best, "return_std": 0.5, "episodes": 10}
        run.write_summary(
            {
                "status": status,
                "algo": config["algo"]["_target_"].rpartition(".")[2].lower(),
                "env": config["env"]["id"],
                "seed": config["seed"],
                "env_steps": 1000,
                "updates": 50,
                "wall_time_s": 10.0,
                "eval": evaluation,
                "best_eval": top,
            }
        )
        run.set_status(status, reason=reason)
    return path
