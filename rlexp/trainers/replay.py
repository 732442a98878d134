"""The replay loop: act, store, and learn from what was stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rlexp.algos.base import REPLAY
from rlexp.buffers import ReplayBuffer
from rlexp.config.component import component
from rlexp.config.fields import Count, Natural, Size
from rlexp.errors import ConfigError
from rlexp.seeding import generator_state, numpy_generator, restore_generator
from rlexp.trainers.collecting import Collector
from rlexp.trainers.from_memory import FromMemory, derive_columns, sample_batches
from rlexp.types import Batch

MAX_BATCHES_AT_ONCE = 64  # batches gathered in one go; more would only cost memory


@component("trainer")
@dataclass(eq=False, kw_only=True)
class Replay(FromMemory):
    """One step of every environment at a time, with gradient updates in a fixed ratio to the steps."""

    loop: ClassVar[str] = REPLAY

    batch_size: Size = 256  # transitions in an update
    learning_starts: Natural = 1_000  # steps before the first update, at random unless the agent has learned before
    train_frequency: Count = 1  # environment steps between trainings
    gradient_updates_per_step: Count = 1  # updates at each training

    def prepare(self) -> None:
        """Create the environments and the replay memory."""
        assert isinstance(self.work.buffer, ReplayBuffer)
        self.collector = Collector(self.work.env, self.policy, self.work.seed)
        self.rng = numpy_generator(self.work.seed, "random-actions")
        self.buffer = self.work.buffer
        self.buffer.build(self.policy.spec, self.collector.num_envs, float(self.algo.gamma), self.work.seed)
        self.buffer.map_rewards(*self.work.reward_map)
        derive_columns(self.buffer, self.algo)
        self.saved: list[tuple[int, int]] = []  # ranges of rows that lie in segments

    def start_fresh(self) -> None:
        """Begin the first episodes."""
        self.buffer.start(self.collector.start())

    def iterate(self) -> None:
        """One step of every environment, and the updates that are due."""
        before = self.env_steps
        self.collect()
        if due := self.updates_due(before):
            self.learn_from_memory(due)

    def collect(self) -> None:
        """Step every environment once and store what happened."""
        policy, collector = self.policy, self.collector
        if self.env_steps < self.learning_starts and self.knows_nothing:
            action, carry = policy.random_action(collector.obs, self.rng), collector.carry
        else:
            act = policy.act(collector.obs_tensor(), collector.carry, explore=True)
            action, carry = act.action.numpy(force=True), act.carry
        step = collector.step(policy.env_action(action), carry)
        self.buffer.add(action, step)
        self.record_episodes(step.episodes)
        self.env_steps += collector.num_envs

    @property
    def knows_nothing(self) -> bool:
        """Whether the agent had learned nothing before its first step, so that random actions are as good."""
        return self.work.origin is None

    def updates_due(self, before: int) -> int:
        """Updates between two step counts: independent of how many environments run side by side."""
        start = max(before, self.learning_starts)
        trainings = self.env_steps // self.train_frequency - start // self.train_frequency
        return max(trainings, 0) * self.gradient_updates_per_step

    def learn_from_memory(self, count: int) -> None:
        """``count`` updates, their batches gathered together."""
        while count > 0:
            k = min(count, MAX_BATCHES_AT_ONCE)
            self.learn_from(self.sample(k), k)
            count -= k

    def sample(self, k: int) -> Batch:
        """``k`` batches, one after the other in [k·B, …]."""
        return sample_batches(self.buffer, self.batch_size, k, self.progress)

    def check_budget(self, num_envs: int) -> None:
        """Refuse a budget that is spent before learning starts."""
        end = math.ceil(self.total_steps / num_envs) * num_envs
        first = (self.learning_starts // self.train_frequency + 1) * self.train_frequency
        if end < first:
            raise ConfigError(
                f"trainer.total_steps={self.total_steps} would end the run before its first update, at step {first} "
                f"(trainer.learning_starts={self.learning_starts}, trainer.train_frequency={self.train_frequency}). "
                "Give more steps, or let learning start earlier."
            )

    def planned_updates(self, algo: Any, num_envs: int) -> int:
        """Updates over the whole budget."""
        steps = max(self.total_steps - self.learning_starts, 0)
        return steps // self.train_frequency * self.gradient_updates_per_step

    def loop_metrics(self) -> dict[str, float]:
        """How full the memory is."""
        return {"buffer/size": float(len(self.buffer))}

    def loop_state(self) -> dict[str, Any]:
        """Environments, random actions, and the memory's cursors; its rows go into segments."""
        return {
            "collector": self.collector.state_dict(),
            "rng": generator_state(self.rng),
            "buffer": self.buffer.state_dict(rows=False),
        }

    def segments(self) -> dict[str, Any]:
        """The memory's rows in immutable pieces: those saved before and still of use, and one with what is new."""
        oldest, stable = self.buffer.oldest_row, self.buffer.stable_rows
        self.saved = [(start, stop) for start, stop in self.saved if stop > oldest]
        begin = self.saved[-1][1] if self.saved else oldest
        if begin < stable:
            self.saved.append((begin, stable))
        return {f"buffer-{a}-{b}.safetensors": partial(self.buffer.rows_between, a, b) for a, b in self.saved}

    def load_loop_state(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Put environments and memory back."""
        restore_generator(self.rng, state["rng"])
        self.buffer.load_state_dict(state["buffer"])
        for name, rows in segments.items():
            start, stop = map(int, name.removesuffix(".safetensors").split("-")[1:])
            self.buffer.load_rows(start, rows())
            self.saved.append((start, stop))
        self.warn_restarted(self.collector.load_state_dict(state["collector"]))
        self.buffer.start(self.collector.obs)  # cuts the episodes that could not be continued
