"""What acts: an algorithm with its normalisers, between NumPy observations and environment actions.

Trainers, evaluation, prediction and export all go through this, so none of them can forget a normaliser or a rescaling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.algos.base import Algorithm
from rlexp.envs.spec import EnvSpec
from rlexp.errors import CheckpointError
from rlexp.normalize import ObsNormalizer, RewardNormalizer
from rlexp.tree import ArrayTree, tree_first, tree_map
from rlexp.types import Act, Batch, Obs


class Policy:
    """An algorithm that was set up, and the statistics its observations and rewards are normalised with."""

    def __init__(
        self,
        spec: EnvSpec,
        algo: Algorithm,
        *,
        normalize_obs: bool = False,
        by_dataset: bool = False,
        normalize_reward: bool = False,
        num_envs: int = 1,
        adopts: bool = False,
    ) -> None:
        self.spec, self.algo, self.device = spec, algo, algo.device
        self.adopts = adopts  # whether it goes on by the statistics of a dataset that an earlier run had
        self.rescale = algo.unit_actions and spec.action.kind == "continuous"
        self.obs_normalizer = (  # by_dataset: with the fixed statistics of the data that was learned from
            ObsNormalizer(spec.obs, device=self.device, fixed=by_dataset) if normalize_obs or by_dataset else None
        )
        self.reward_normalizer = RewardNormalizer(num_envs, float(algo.gamma)) if normalize_reward else None

    def tensor(self, obs: ArrayTree) -> Obs:
        """Observations on the device, as they are."""
        if self.device.type == "cpu":
            return tree_map(torch.from_numpy, obs)
        return tree_map(lambda leaf: torch.from_numpy(leaf).to(self.device, non_blocking=True), obs)

    def normalized(self, obs: Obs) -> Obs:
        """Observations as the networks see them."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator | None = None) -> Act:
        """Actions in agent units for normalised observations on the device."""
        with torch.no_grad():
            return self.algo.act(obs, carry, explore=explore, generator=generator or self.algo.generator)

    def env_action(self, action: Tensor | np.ndarray) -> np.ndarray:
        """Agent units to environment units."""
        array = action.numpy(force=True) if isinstance(action, Tensor) else action
        return self.spec.action.to_env(array) if self.rescale else array

    def agent_action(self, action: np.ndarray) -> np.ndarray:
        """Environment units (a dataset's) to agent units."""
        return self.spec.action.from_env(action) if self.rescale else action

    def random_action(self, obs: ArrayTree, rng: np.random.Generator) -> np.ndarray:
        """Uniformly random actions in agent units, of those that are possible."""
        count = len(tree_first(obs))
        if self.rescale:
            return rng.uniform(-1, 1, (count, self.spec.action.dim)).astype(np.float32)
        return self.spec.action.sample(count, rng, self.spec.obs.mask_in(obs))

    def prepare(self, batch: Batch) -> Batch:
        """A sampled batch on the device, normalised with the statistics of now: replay stores what really happened."""
        if self.device.type != "cpu":
            batch = batch_map(lambda t: t.to(self.device, non_blocking=True), batch)
        if self.obs_normalizer is not None:
            batch = batch._replace(obs=self.normalized(batch.obs), next_obs=self.normalized(batch.next_obs))
        if self.reward_normalizer is not None:
            batch = batch._replace(reward=self.reward_normalizer.scale(batch.reward))
            if (returns := batch.extras.get("mc_return")) is not None:
                batch = batch._replace(extras=batch.extras | {"mc_return": returns * self.reward_normalizer.factor})
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The algorithm and the normalisers."""
        return {
            "algo": self.algo.state_dict(),
            "obs_normalizer": None if self.obs_normalizer is None else self.obs_normalizer.state_dict(),
            "reward_normalizer": None if self.reward_normalizer is None else self.reward_normalizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, acting: bool = False) -> None:
        """Restore what :meth:`state_dict` gave; ``acting``: only what acting needs."""
        self.algo.load_state_dict(state["algo"], acting=acting)
        self._adopt_statistics(state["obs_normalizer"])
        normalizers: dict[str, Any] = {"obs": self.obs_normalizer}
        if not acting:
            normalizers["reward"] = self.reward_normalizer
        for what, normalizer in normalizers.items():
            saved = state[f"{what}_normalizer"]
            if (saved is None) != (normalizer is None):
                had = "without" if saved is None else "with"
                other = " or dataset.obs=standardize" if what == "obs" else ""
                raise CheckpointError(f"The checkpoint was trained {had} env.normalize_{what}{other}: leave it so.")
            if normalizer is not None:
                normalizer.load_state_dict(saved)

    def start_from(self, state: dict[str, Any]) -> None:
        """Take over what the agent of another run has learned: networks, targets, optimizers and statistics.

        Not its random numbers, and nothing of the episodes that were running.
        """
        saved, mine = state["reward_normalizer"], self.reward_normalizer
        if (saved is None) != (mine is None):
            raise CheckpointError(f"it learned {'without' if saved is None else 'with'} env.normalize_reward")
        self.load_state_dict(state, acting=True)
        if mine is not None:
            mine.load_state_dict(saved | {"returns": np.zeros_like(mine.returns)})

    def _adopt_statistics(self, saved: dict[str, Any] | None) -> None:
        """Fixed statistics of a dataset stay with the agent, also where it goes on without that dataset."""
        if self.obs_normalizer is None and self.adopts and saved is not None and saved.get("fixed"):
            self.obs_normalizer = ObsNormalizer(self.spec.obs, device=self.device, fixed=True)
        elif self.obs_normalizer is not None and saved is not None:
            fixed = saved.get("fixed", self.obs_normalizer.fixed)  # not in the first checkpoints of this format
            if fixed != self.obs_normalizer.fixed:
                had, has = ("the fixed statistics of a dataset", "running ones")[:: 1 if fixed else -1]
                raise CheckpointError(f"Its observations were normalised by {had}, and here by {has}: leave it so.")


def batch_map(fn: Any, batch: Batch) -> Batch:
    """Apply ``fn`` to every tensor of a batch."""
    parts: list[Any] = [None if part is None else tree_map(fn, part) for part in batch]
    return Batch(*parts)
