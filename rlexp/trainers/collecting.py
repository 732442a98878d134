"""Stepping the training environments: shared by every loop that has some."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.envs import GymEnv, VecEnv, VecStep
from rlexp.errors import CheckpointError, EnvError
from rlexp.policy import Policy
from rlexp.seeding import derive_seed
from rlexp.trainers.divergence import refuse_lost_actions
from rlexp.tree import ArrayTree
from rlexp.types import Obs


class Collector:
    """The environments, the observation to act on, the carry, and the normalisers' statistics."""

    def __init__(self, env: GymEnv, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.envs: VecEnv = env.build(derive_seed(seed, "train"))
        self.num_envs = self.envs.num_envs
        self.obs: ArrayTree
        self.carry: Tensor | None = None

    def start(self) -> ArrayTree:
        """Begin the first episodes."""
        self.obs = self.envs.reset()
        self._refuse_nan(self.obs)
        self._observe(self.obs)
        return self.obs

    def obs_tensor(self) -> Obs:
        """The observation to act on, on the device, as the networks see it."""
        return self.policy.normalized(self.policy.tensor(self.obs))

    def step(self, env_action: np.ndarray, carry: Tensor | None = None) -> VecStep:
        """Step every environment; afterwards ``obs`` and ``carry`` are those to act on next."""
        refuse_lost_actions(self.policy.algo, env_action)
        step = self.envs.step(env_action)
        self._refuse_nan(step.next_obs, step.reward)
        if step.obs is not step.next_obs:
            self._refuse_nan(step.obs)
        self.obs, self.carry = step.obs, carry
        if self.policy.reward_normalizer is not None:
            self.policy.reward_normalizer.update(step.reward, step.terminated | step.truncated)
        self._observe(step.obs)
        if carry is not None and step.episodes:
            self.carry = self.policy.algo.reset_carry(carry, torch.from_numpy(step.terminated | step.truncated))
        return step

    def _refuse_nan(self, obs: ArrayTree, reward: np.ndarray | None = None) -> None:
        """One NaN makes all weights NaN within an update, and the run would go on to its end without a word."""
        leaves = obs.items() if isinstance(obs, dict) else [("", obs)]
        for what, values in (*leaves, (None, reward)):
            if values is None or values.dtype.kind != "f":
                continue
            least = np.minimum.reduce(values.ravel(), initial=0.0)  # NaN if one of them is
            if least == least:
                continue
            envs = np.flatnonzero(np.isnan(values.reshape(len(values), -1)).any(1))
            named = "reward" if what is None else f"observation{f' {what!r}' if what else ''}"
            raise EnvError(
                f"The {named} of environment {', '.join(map(str, envs))} is NaN ({self.envs.spec.id}): nothing can be "
                "learned from it. Mend the environment, or let a wrapper end the episode there."
            )

    def _observe(self, obs: ArrayTree) -> None:
        if self.policy.obs_normalizer is not None and not self.policy.obs_normalizer.fixed:
            self.policy.obs_normalizer.update(self.policy.tensor(obs))

    def state_dict(self) -> dict[str, Any]:
        """Snapshots of the environments, and the carry."""
        return {"envs": self.envs.snapshot(), "carry": self.carry, "carry_kind": self.policy.algo.carry_kind}

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Put every environment back; returns those that could not be restored exactly and began a new episode."""
        self.obs, restarted = self.envs.restore(state["envs"])
        kind = self.policy.algo.carry_kind
        # The memory of another noise than now: this one begins anew.
        self.carry = self._checked_carry(state["carry"]) if state.get("carry_kind", kind) == kind else None
        if restarted and self.policy.reward_normalizer is not None:
            self.policy.reward_normalizer.returns[restarted] = 0.0
        if restarted and self.carry is not None:
            ended = torch.zeros(self.num_envs, dtype=torch.bool)
            ended[restarted] = True
            self.carry = self.policy.algo.reset_carry(self.carry, ended)
        return restarted

    def _checked_carry(self, carry: Any) -> Tensor | None:
        """What a checkpoint, which may be a stranger's, says is remembered."""
        if carry is None or not self.policy.algo.carry_size:  # it may remember nothing any more: a setting, as others
            return None
        wanted = (self.num_envs, self.policy.algo.carry_size)
        known = isinstance(carry, Tensor) and carry.dtype == torch.float32 and carry.dim() == 2
        if known and len(carry) == self.num_envs and not self.policy.algo.greedy_carry_size and carry.shape != wanted:
            return None  # that of a noise with other settings
        if not known or carry.shape != wanted:
            raise CheckpointError(f"what it remembers of the episodes is not a float32 tensor of shape {wanted}")
        return carry.to(self.policy.device)

    def close(self) -> None:
        """Free the environments."""
        self.envs.close()
