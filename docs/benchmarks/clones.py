"""How far cloned policies come from random play to their expert, all in the same 100 episodes.

python docs/benchmarks/clones.py EXPERT_RUN CLONE_RUN…        # writes clones.json beside this file
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch

from rlexp import Agent
from rlexp.evaluation import Evaluation
from rlexp.types import Act

EPISODES = 100
SEED = 2026
OUT = Path(__file__).with_name("clones.json")


def returns_of(agent: Agent) -> list[float]:
    """Returns of the episodes that SEED stands for."""
    played: Evaluation = agent.evaluate(EPISODES, seed=SEED)
    return list(played.returns)


def random_returns(agent: Agent) -> list[float]:
    """The same episodes with uniform actions in place of the agent's."""
    generator = torch.Generator().manual_seed(SEED)

    def uniform(obs: torch.Tensor, carry: object, **_: object) -> Act:
        action = torch.rand(len(obs), agent.policy.spec.action.dim, generator=generator) * 2 - 1
        return Act(action)

    agent.policy.act = uniform  # type: ignore[method-assign]
    return returns_of(agent)


def main(expert: str, clones: list[str]) -> None:
    """Play everybody's episodes and keep what came out."""
    load = Agent.load
    rows = {
        "random": [statistics.mean(random_returns(load(expert)))],
        "expert": [statistics.mean(returns_of(load(expert, checkpoint="best")))],
    }
    for folder in clones:
        command = json.loads((Path(folder) / "run.json").read_text())["command"]
        preset = next(word.removeprefix("zoo=") for word in command if word.startswith("zoo="))
        rows.setdefault(preset, []).append(statistics.mean(returns_of(load(folder))))
    OUT.write_text(json.dumps({"episodes": EPISODES, "seed": SEED, "returns": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
