"""For the tests of the loops: algorithms that learn nothing, a watch on what the loops do, and the truth to compare.

The truth comes from the definitions in tests/counting.py and the actions that were taken, never from rlexp's own steps.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.algos.base import (
    CONTINUOUS,
    DISCRETE,
    MIXED,
    OFFLINE,
    REPLAY,
    Algorithm,
    OffPolicyAlgorithm,
    OnPolicyAlgorithm,
)
from rlexp.callbacks import Callback
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, compose, register
from rlexp.config.fields import Count, Positive
from rlexp.policy import batch_map
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.trainers.collecting import Collector
from rlexp.types import Act, Batch, Rollout, Update
from tests.counting import COUNTING, START, episode_length, episode_seed, offset

QUICK = ("threads=1", "compile=false", "progress=none", "device=cpu")
VALUE_WEIGHTS = torch.tensor([0.01, 1.0, 0.1])


def value_of(obs: Tensor) -> Tensor:
    """The value function of :class:`RecordingOnPolicy`, and of any algorithm a test gives it to."""
    return obs @ VALUE_WEIGHTS


class _Rates:
    """Reports its hyperparameters at every update, as :class:`Watch` sees them."""

    def rates(self) -> dict[str, Tensor]:
        return {"rate/float": torch.tensor(float(self.rate)), "rate/int": torch.tensor(float(self.period))}  # type: ignore[attr-defined]


@dataclass(eq=False, kw_only=True)
class Recording(_Rates, OffPolicyAlgorithm):
    """Acts at random and learns nothing, in every loop that has batches."""

    loops: ClassVar[frozenset[str]] = frozenset({REPLAY, OFFLINE, MIXED})
    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE, CONTINUOUS})

    rate: Positive = 1.0  # a number that can be scheduled
    period: Count = 10  # a whole number that can be scheduled

    def build(self, spec: Any, model: Any) -> None:
        self.steps = torch.zeros(())

    def act(self, obs: Any, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        if not explore:
            return Act(torch.zeros((len(obs), *self.spec.action.shape), dtype=getattr(torch, self.spec.action.dtype)))
        if self.spec.action.kind == "discrete":
            return Act(torch.randint(self.spec.action.n, (len(obs),), generator=generator))
        return Act(torch.rand((len(obs), *self.spec.action.shape), generator=generator) * 2 - 1)

    def update(self, batch: Batch) -> Update:
        self.updates += 1
        self.steps += 1
        return Update(self.rates())


@dataclass(eq=False, kw_only=True)
class CarelessRecording(Recording):
    """Does not count its updates."""

    def update(self, batch: Batch) -> Update:
        return Update({})


@dataclass(eq=False, kw_only=True)
class UnitRecording(Recording):
    """Acts in [-1, 1]."""

    unit_actions: ClassVar[bool] = True


@dataclass(eq=False, kw_only=True)
class RecordingOnPolicy(_Rates, OnPolicyAlgorithm):
    """Acts at random, has the value function ``value_of`` and learns nothing."""

    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE})

    rate: Positive = 1.0  # a number that can be scheduled
    period: Count = 10  # a whole number that can be scheduled

    build, act_randomly = Recording.build, Recording.act

    def act(self, obs: Any, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        action = self.act_randomly(obs, carry, explore=explore, generator=generator).action
        return Act(action, extras={"value": self.value(obs), "log_prob": -value_of(obs)})

    def value(self, obs: Any) -> Tensor:
        return value_of(obs)

    def update(self, batch: Rollout) -> Update:
        self.updates += 1
        self.steps += 1
        return Update(self.rates())


# ---- configs


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return compose([*QUICK, *overrides])


def composed(*overrides: str, **settings: Any) -> dict[str, Any]:
    """A config with quick settings; ``settings`` are written ``trainer__batch_size=8``."""
    return changed(copy.deepcopy(_composed(overrides)), **settings)


def changed(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The config with some values set."""
    for name, value in settings.items():
        *parents, key = name.split("__")
        node = config
        for parent in parents:
            node = node[parent]
        assert key in node, f"{name} is not in the config"
        node[key] = value
    return config


def counting_config(loop: str, **settings: Any) -> dict[str, Any]:
    """A recording algorithm in one of the loops, on the counting environment."""
    dataset = ["dataset=random"] if loop in ("offline", "mixed") else []
    buffer = "buffer=rollout" if loop == "on_policy" else "buffer=replay"
    name = "RecordingOnPolicy" if loop == "on_policy" else "Recording"
    config = composed("algo=discrete_sac", f"trainer={loop}", buffer, *dataset, "env=gym", f"env.id={COUNTING}")
    config["algo"] = {"_target_": f"{__name__}.{name}"}
    config["algo"] |= {"gamma": 0.5, "rate": 1.0, "period": 10, "schedules": {}}
    quiet = {"trainer__eval_episodes": 0, "trainer__checkpoint_interval": 0}
    if loop in ("offline", "mixed"):
        quiet |= {"dataset__size": 60}
    if loop in ("replay", "mixed"):
        quiet |= {"trainer__learning_starts": 0, "trainer__batch_size": 8}
    return changed(config, **(quiet | settings))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what depends on the clock."""
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in rows]


# ---- watching


class Learned(NamedTuple):
    """What an algorithm was given for one update, and when."""

    rows: int  # steps of all environments taken until then
    batch: Any  # a copy of the Batch or Rollout
    metrics: dict[str, float]  # what the update answered


@dataclass
class Watch:
    """Everything the environments were told and the algorithm was given."""

    actions: list[np.ndarray] = field(default_factory=list)  # [N, …] environment units, one entry per row
    learned: list[Learned] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # "step" and "update" in the order they happened

    @property
    def batches(self) -> list[Any]:
        return [each.batch for each in self.learned]


def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Look over the shoulder of the loops of all runs that follow."""
    seen = Watch()
    step, learn = Collector.step, Trainer.learn

    def watched_step(self: Collector, env_action: np.ndarray, carry: Any = None) -> Any:
        seen.actions.append(np.array(env_action))
        seen.events.append("step")
        return step(self, env_action, carry)

    def watched_learn(self: Trainer, batch: Any) -> Update:
        if isinstance(batch, Batch):
            kept: Any = batch_map(torch.clone, batch)
        else:
            kept = Rollout(*[part.clone() for part in batch[:-1]], {k: v.clone() for k, v in batch.extras.items()})
        update = learn(self, batch)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        seen.learned.append(Learned(len(seen.actions), kept, metrics))
        seen.events.append("update")
        return update

    monkeypatch.setattr(Collector, "step", watched_step)
    monkeypatch.setattr(Trainer, "learn", watched_learn)
    return seen


class Listener(Callback):
    """Writes down every hook; keeps the count of its calls in the checkpoint."""

    def __init__(self, stop_at: int = -1, signal_at: int = -1) -> None:
        self.stop_at, self.signal_at = stop_at, signal_at
        self.calls: list[tuple[str, Any]] = []
        self.count = 0

    def on_start(self, trainer: Trainer) -> None:
        self.calls.append(("start", (trainer.clock, self.count)))

    def on_step(self, trainer: Trainer) -> None:
        self.count += 1
        self.calls.append(("step", trainer.clock))
        if self.count == self.stop_at:
            trainer.stop("enough")
        if self.count == self.signal_at:
            trainer.work.signal_number = 15

    def on_eval(self, trainer: Trainer, evaluation: Any) -> None:
        self.calls.append(("eval", (trainer.clock, evaluation.score)))

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        self.calls.append(("checkpoint", path.name))

    def on_end(self, trainer: Trainer) -> None:
        self.calls.append(("end", trainer.clock))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "array": np.arange(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["array"].tolist() == list(range(state["count"]))
        self.count = state["count"]


def train(config: dict[str, Any], path: Path) -> Runner:
    """Run it; the runner keeps algorithm, trainer and buffer."""
    runner = Runner(config)
    runner.train(path)
    return runner


def weights(algo: Algorithm) -> dict[str, Tensor]:
    """Every tensor that learning changes."""
    found = {}

    def visit(where: str, value: Any) -> None:
        if isinstance(value, Tensor):
            found[where] = value.detach().clone()
        elif isinstance(value, dict):
            for key, child in value.items():
                visit(f"{where}.{key}", child)
        elif isinstance(value, (list, tuple)):
            for index, child in enumerate(value):
                visit(f"{where}[{index}]", child)

    visit("", algo.state_dict())
    return found


def same_weights(left: Algorithm, right: Algorithm) -> bool:
    """Whether two algorithms agree to the last bit."""
    ours, theirs = weights(left), weights(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- the truth


class World:
    """What N counting environments do when they are told ``actions`` [T, N, …] (canonical environment units)."""

    def __init__(
        self,
        seed: int,
        actions: Sequence[np.ndarray] | np.ndarray,
        *,
        length: int,
        stagger: int = 0,
        end: str = "mixed",
        discrete: bool = True,
    ) -> None:
        taken = np.array(actions)
        T, N = taken.shape[:2]
        self.obs = np.zeros((T + 1, N, 3), np.float32)  # acted on at row t
        self.next_obs = np.zeros((T, N, 3), np.float32)  # truly following
        self.reward = np.zeros((T, N), np.float32)
        self.terminated, self.truncated = np.zeros((T, N), bool), np.zeros((T, N), bool)
        self.episodes: list[tuple[int, int, int]] = []  # row of the end, return, length; in the order they end
        for env in range(N):
            reset_seed, episode, t, total = episode_seed(seed, env, 0), 0, 0, 0.0
            self.obs[0, env] = offset(reset_seed), 0, 0
            for row in range(T):
                t, total = t + 1, total + float(np.sum(taken[row, env] + (START if discrete else 0)))
                self.reward[row, env] = t
                self.next_obs[row, env] = self.obs[row + 1, env] = offset(reset_seed), t, total
                if t == episode_length(reset_seed, length, stagger):
                    dies = end == "terminated" or (end == "mixed" and reset_seed % 2 == 0)
                    (self.terminated if dies else self.truncated)[row, env] = True
                    self.episodes.append((row, t * (t + 1) // 2, t))
                    episode += 1
                    reset_seed, t, total = episode_seed(seed, env, episode), 0, 0.0
                    self.obs[row + 1, env] = offset(reset_seed), 0, 0
        self.episodes.sort(key=lambda each: each[0])

    @property
    def done(self) -> np.ndarray:
        return self.terminated | self.truncated

    def window(self, row: int, env: int, n: int, gamma: float, rows: int) -> dict[str, Any]:
        """The n-step transition that begins at ``row`` when ``rows`` rows are known, summed one by one."""
        reward, last = 0.0, row
        for k in range(n):
            last = row + k
            reward += gamma**k * float(self.reward[last, env])
            if self.done[last, env] or last + 1 == rows:
                break
        steps = last - row + 1
        return {
            "obs": self.obs[row, env],
            "reward": reward,
            "next_obs": self.next_obs[last, env],
            "discount": 0.0 if self.terminated[last, env] else gamma**steps,
            "steps": steps,
            "terminated": self.terminated[last, env],
            "truncated": self.truncated[last, env],
        }


# ---- real algorithms, small


def algorithms() -> list[str]:
    """Every algorithm there is a config for."""
    return list(choices("algo"))


def small_config(name: str, loop: str | None = None, **settings: Any) -> dict[str, Any]:
    """An algorithm in one of its loops (None: its own) with a small network, on an environment it can act in."""
    register()
    env = "cartpole" if DISCRETE in REGISTRY["algo"][name].actions else "pendulum"  # type: ignore[attr-defined]
    choice = []
    if loop is not None:
        choice = [f"trainer={loop}", "dataset=random" if loop in (OFFLINE, MIXED) else "dataset=null"]
    config = composed(f"algo={name}", f"env={env}", *choice, "model.hidden=[8]")
    small = {
        "total_steps": 120,
        "total_updates": 60,
        "rollout_steps": 16,
        "batch_size": 8,
        "learning_starts": 40,
        "train_frequency": 2,
        "offline_pretrain_updates": 9,
        "log_interval": 20,
        "eval_interval": 40,
        "eval_episodes": 2,
        "checkpoint_interval": 30,
    }
    config["trainer"] |= {key: value for key, value in small.items() if key in config["trainer"]}
    config["algo"] |= {key: value for key, value in {"epochs": 2, "minibatch_size": 8}.items() if key in config["algo"]}
    config["env"]["max_episode_steps"] = 25
    if config["dataset"] is not None:
        config["dataset"]["size"] = 100
    return changed(config, **settings)
