"""What a user of Stable-Baselines3 would write: train with evaluations until solved, or only to the first step.

Run by path in a process of its own, without rlexp: ``python -P sb3_script.py '{"settings": …}'``. It prints one JSON
line: whether the task was solved, after how many steps.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def value_of(value: Any) -> Any:
    """Numbers as they are; a linear schedule as a function of the share of the budget that is left."""
    if not (isinstance(value, dict) and "linear" in value):
        return value
    start, end, until = value["linear"]
    return lambda left: start + (end - start) * min((1 - left) / until, 1.0)


def make_envs(env: dict[str, Any], count: int, seed: int, wrapper: Any = None) -> Any:
    """Environments as Stable-Baselines3 makes them, Atari games with its own preprocessing."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env

    if "atari" not in env:
        return make_vec_env(env["id"], n_envs=count, seed=seed, env_kwargs=env["kwargs"] or None, wrapper_class=wrapper)
    importlib.import_module("ale_py")  # registers the games
    from stable_baselines3.common.vec_env import VecFrameStack

    return VecFrameStack(make_atari_env(env["id"], count, seed, wrapper_kwargs=env["atari"]), env["frame_stack"])


def make_model(settings: dict[str, Any], seed: int, wrapper: Any = None) -> Any:
    """The model that translated settings describe."""
    env = settings["env"]
    envs = make_envs(env, env["num_envs"], seed, wrapper)
    arguments = {name: value_of(value) for name, value in settings["arguments"].items()}
    cls = getattr(importlib.import_module(settings["package"]), settings["class"])
    return cls("CnnPolicy" if "atari" in env else "MlpPolicy", envs, seed=seed, device="cpu", **arguments)


def first_step(settings: dict[str, Any], exit_code: int) -> None:
    """Leave at the first environment step."""
    import os

    import gymnasium as gym

    class Exit(gym.Wrapper):
        def step(self, action: Any) -> Any:
            os._exit(exit_code)

    make_model(settings, seed=0, wrapper=Exit).learn(1_000)


def solve(task: dict[str, Any]) -> dict[str, Any]:
    """Train until an evaluation reaches the threshold."""
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold

    settings, seed = task["settings"], task["seed"]
    model = make_model(settings, seed)
    env = settings["env"]
    evaluation = EvalCallback(
        make_envs(env, task["eval_envs"], seed + 1000),
        callback_on_new_best=StopTrainingOnRewardThreshold(task["threshold"]),
        n_eval_episodes=task["eval_episodes"],
        eval_freq=max(task["eval_interval"] // env["num_envs"], 1),
        verbose=0,
    )
    model.learn(task["budget"], callback=evaluation)
    model.save(task["save"])
    best = float(evaluation.best_mean_reward)
    return {"solved": best >= task["threshold"], "steps": model.num_timesteps, "best": best}


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    # d3rlpy needs the old gym package, and SB3 imports it where it finds it: that time is not SB3's.
    sys.modules["gym"] = None  # type: ignore[assignment]
    import torch

    torch.set_num_threads(task["threads"])
    if "first_step" in task:
        first_step(task["settings"], task["first_step"])
    else:
        print(json.dumps(solve(task)))


if __name__ == "__main__":
    main()
