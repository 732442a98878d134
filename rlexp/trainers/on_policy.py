"""The on-policy loop: collect a rollout with the current policy, learn from it, throw it away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rlexp.algos.base import ON_POLICY, OnPolicyAlgorithm
from rlexp.buffers import RolloutBuffer
from rlexp.config.component import component
from rlexp.config.fields import Size
from rlexp.trainers.base import Trainer
from rlexp.trainers.collecting import Collector


@component("trainer")
@dataclass(eq=False, kw_only=True)
class OnPolicy(Trainer):
    """Rollouts of ``rollout_steps`` steps in every environment, each followed by the algorithm's update."""

    loop: ClassVar[str] = ON_POLICY

    rollout_steps: Size = 256  # steps of each environment between updates

    def prepare(self) -> None:
        """Create the environments and the rollout's storage."""
        assert isinstance(self.algo, OnPolicyAlgorithm)
        assert isinstance(self.work.buffer, RolloutBuffer)
        self.collector = Collector(self.work.env, self.policy, self.work.seed)
        self.buffer = self.work.buffer
        self.buffer.build(self.policy.spec, self.collector.num_envs, self.rollout_steps, device=self.policy.device)

    def start_fresh(self) -> None:
        """Begin the first episodes."""
        self.collector.start()

    def iterate(self) -> None:
        """One rollout and one update."""
        policy, collector = self.policy, self.collector
        normalizer = policy.reward_normalizer
        for t in range(self.rollout_steps):
            obs = collector.obs_tensor()  # stored as the networks saw it
            act = policy.act(obs, collector.carry, explore=True)
            step = collector.step(policy.env_action(act.action), act.carry)
            reward = step.reward if normalizer is None else normalizer(step.reward)
            self.buffer.add(t, obs, act, step, reward)
            self.record_episodes(step.episodes)
        self.env_steps += self.rollout_steps * collector.num_envs
        assert isinstance(self.algo, OnPolicyAlgorithm)
        last_obs = policy.tensor(collector.obs)
        rollout = self.buffer.finish(self.algo.value, last_obs, policy.normalized, collector.carry)
        self.learn(rollout)

    def planned_updates(self, algo: Any, num_envs: int) -> int:
        """Minibatches over the whole budget."""
        rollouts = math.ceil(self.total_steps / (self.rollout_steps * num_envs))
        return rollouts * algo.updates_per_rollout(self.rollout_steps, num_envs)

    def loop_state(self) -> dict[str, Any]:
        """The environments; a rollout is always complete between iterations."""
        return {"collector": self.collector.state_dict()}

    def load_loop_state(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Put the environments back."""
        self.warn_restarted(self.collector.load_state_dict(state["collector"]))
