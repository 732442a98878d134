"""Episodes of a trained agent: its best checkpoint plays, of a run or of a preset that is trained for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.config.component import component
from rlexp.config.fields import Count
from rlexp.datasets.files import read_npz, save_npz
from rlexp.datasets.settings import DatasetSettings
from rlexp.datasets.trained import preset_folder, trained_preset
from rlexp.datasets.transitions import Transitions
from rlexp.errors import ConfigError
from rlexp.runs import run_path
from rlexp.seeding import derive_seed
from rlexp.tree import tree_map

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv
    from rlexp.policy import Policy

_FORMAT = 1  # raise when the same settings would give other data


@component("dataset", "expert")
@dataclass(eq=False, kw_only=True)
class ExpertDataset(DatasetSettings):
    """Whole episodes played by the best checkpoint of a run, or of a preset trained for it."""

    run: str | None = None  # run directory, or name of a run below outputs/, whose best checkpoint plays
    zoo: str | None = None  # preset that is trained once, on first use, and kept in the cache
    seed: int = 0  # of that training, and of the episodes
    episodes: Count = 50  # how many are played
    deterministic: bool = True  # greedy actions; false: sampled, as in training

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.run is None) == (self.zoo is None):
            raise ConfigError(
                "dataset=expert: set one of dataset.run=… (a run directory) and dataset.zoo=… (a preset)."
            )

    def load(self, env: GymEnv) -> Transitions:
        """The episodes in environment units, one after the other."""
        if self.run is not None:
            return self.prepared(self._play(run_path(self.run)), env.spec(), f"episodes of {self.run}")
        folder = preset_folder(self.zoo, self.seed)
        kind = "greedy" if self.deterministic else "sampled"
        path = folder.with_name(f"{folder.name}-{kind}-{self.episodes}-{_FORMAT}.npz")
        if not path.exists():
            trained_preset(self.zoo, self.seed, f"{self.episodes} episodes of the best checkpoint", self.report)
            save_npz(path, self._play(folder))
            self.report(f"The dataset is kept as {path}.")
        return self.prepared(Transitions.from_d4rl(read_npz(path), str(path)), env.spec(), str(path))

    def _play(self, run: Path) -> Transitions:
        from rlexp.config.trust import trusting
        from rlexp.loading import load

        loaded = load(run, which="best", trust=trusting())
        policy = loaded.runner.policy()
        policy.load_state_dict(loaded.checkpoint.tree["policy"], acting=True)
        seed = derive_seed(self.seed, "dataset", "expert")
        return play_episodes(policy, loaded.runner.env, self.episodes, seed, explore=not self.deterministic)


def play_episodes(policy: Policy, env: GymEnv, episodes: int, seed: int, *, explore: bool) -> Transitions:
    """``episodes`` whole episodes of a policy in one environment; the same seed gives the same ones."""
    import torch

    from rlexp.recording import taken

    spec = env.spec()
    generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "actions"))
    rows: list[tuple[Any, ...]] = []
    envs = env.build(seed, num_envs=1)
    try:
        obs, carry, left = envs.reset(), None, episodes
        while left:
            act = policy.act(policy.normalized(policy.tensor(obs)), carry, explore=explore, generator=generator)
            action = policy.env_action(act.action)
            step = envs.step(action)
            rows.append(_copied(obs, taken(action, spec), step.reward, step.next_obs, step.terminated, step.truncated))
            obs, carry = step.obs, act.carry
            if step.terminated[0] or step.truncated[0]:
                left -= 1
                carry = policy.algo.reset_carry(carry, torch.ones(1, dtype=torch.bool))
    finally:
        envs.close()
    return Transitions(*(tree_map(lambda *leaves: np.concatenate(leaves), *column) for column in zip(*rows)))


def _copied(*columns: Any) -> tuple[Any, ...]:
    """Environments write the next step over the arrays of this one."""
    return tuple(tree_map(np.array, column) for column in columns)
