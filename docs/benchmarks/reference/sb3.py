"""Makes one curve of this folder: python docs/benchmarks/reference/sb3.py ppo Hopper-v5 1

Needs stable-baselines3 and mujoco. Ten evaluations, one after each tenth of the budget.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

BUDGET = {"ppo": 204_800, "sac": 50_000, "td3": 50_000}
SETTINGS = {"ppo": {}, "sac": {"learning_starts": 5_000}, "td3": {"learning_starts": 5_000}}


def main(algo: str, env: str, seed: int) -> None:
    """Train and evaluate in turn, writing a row at each tenth."""
    torch.set_num_threads(1)
    make = getattr(stable_baselines3, algo.upper())
    model = make("MlpPolicy", Monitor(gymnasium.make(env)), seed=seed, device="cpu", **SETTINGS[algo])
    evaluation = Monitor(gymnasium.make(env))
    evaluation.reset(seed=seed + 1000)
    start = time.time()
    with (Path(__file__).parent / f"{algo}_{env}_{seed}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["env_steps", "return_mean", "return_std", "seconds"])
        for tenth in range(10):
            model.learn(BUDGET[algo] // 10, reset_num_timesteps=tenth == 0)
            mean, std = evaluate_policy(model, evaluation, 10, deterministic=True)
            writer.writerow([model.num_timesteps, f"{mean:.2f}", f"{std:.2f}", round(time.time() - start)])
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
