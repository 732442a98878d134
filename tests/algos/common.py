"""What the tests of all algorithms share: which there are, small configs for each, random data, and their state."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.algos.base import MIXED, OFFLINE, ON_POLICY, REPLAY, Algorithm, OnPolicyAlgorithm
from rlexp.buffers import RolloutBuffer
from rlexp.config.component import REGISTRY, schedulable
from rlexp.config.compose import choices, compose, register
from rlexp.config.overrides import apply_overrides, parse_override
from rlexp.envs.spec import EnvSpec, Leaf
from rlexp.envs.vector import VecStep
from rlexp.runner import Runner
from rlexp.types import Batch, Rollout
from tests.counting import COUNTING

register()

CPU = torch.device("cpu")
CONF = Path(__file__).parents[2] / "conf"
ALGOS = sorted(choices("algo"))
LOOPS = (ON_POLICY, REPLAY, OFFLINE, MIXED)
KINDS = ("discrete", "continuous", "multi_discrete", "multi_binary")
SMALL = {
    "minibatch_size": 10,
    "epochs": 2,
    "target_interval": 3,
    "sequence_length": 4,
    "actor_interval": 1,
    "return_interval": 25,
}  # for the algorithms that have such a field
QUIET = ["compile=false", "threads=1", "progress=none", "device=cpu", "model.hidden=[16]"]
INTERVALS = ["trainer.log_interval=20", "trainer.eval_interval=60", "trainer.checkpoint_interval=40"]


@functools.cache
def algorithm(name: str) -> type[Algorithm]:
    """The class behind conf/algo/<name>.yaml."""
    return REGISTRY["algo"][name]


def kinds_of(name: str) -> list[str]:
    """The action kinds an algorithm supports, in a fixed order."""
    return [kind for kind in KINDS if kind in algorithm(name).actions]


def home_loop(name: str) -> str:
    """The loop that conf/algo/<name>.yaml names."""
    found = re.search(r"override /trainer: (\w+)", (CONF / "algo" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


LOOP_CASES = [(name, loop) for name in ALGOS for loop in LOOPS if loop in algorithm(name).loops]
IN_ALL_LOOPS = {"sac", "iql"}


def run_cases(keep: Callable[[str, str], bool] = lambda name, loop: True) -> list[Any]:
    """Whole runs of every algorithm in every loop it can learn in.

    In `make test` each is run in the loop its config names, two of them in all loops; the rest by `make test-learning`.
    """
    return [
        pytest.param(name, loop, marks=() if loop == home_loop(name) or name in IN_ALL_LOOPS else pytest.mark.learning)
        for name, loop in LOOP_CASES
        if keep(name, loop)
    ]


LOOPS_ONCE = {("ppo", ON_POLICY), ("dqn", REPLAY), ("crr", OFFLINE), ("rlpd", MIXED)}


def once_per_loop(keep: Callable[[str, str], bool] = lambda name, loop: True) -> list[Any]:
    """Whole runs for what a loop does, not an algorithm: one for each in `make test`, all by `make test-learning`."""
    return [
        pytest.param(name, loop, marks=() if (name, loop) in LOOPS_ONCE else pytest.mark.learning)
        for name, loop in LOOP_CASES
        if keep(name, loop)
    ]


def some_of(names: Sequence[str]) -> list[Any]:
    """Algorithms for what their families have in common: one of each in `make test`, all by `make test-learning`."""
    families = {name for name, _ in LOOPS_ONCE} | {"sac"}
    return [pytest.param(name, marks=() if name.lower() in families else pytest.mark.learning) for name in names]


KIND_CASES = [(name, kind) for name in ALGOS for kind in kinds_of(name)]


def small_overrides(name: str, loop: str | None = None) -> list[str]:
    """A tiny run of an algorithm (in its own loop, if none is named) on the counting environment."""
    cls = algorithm(name)
    loop = loop or home_loop(name)
    kwargs = f"{{length: 5, stagger: 3, end: mixed, action: {kinds_of(name)[0]}, obs: vector}}"
    given = [f"algo={name}", f"trainer={loop}", "env=gym", f"env.id={COUNTING}", f"+env.kwargs={kwargs}"]
    given += ["env.num_envs=2", "trainer.eval_episodes=2", *QUIET, *INTERVALS]
    given += [f"algo.{key}={value}" for key, value in SMALL.items() if key in cls.__dataclass_fields__]
    given += ["trainer.total_updates=120" if loop == OFFLINE else "trainer.total_steps=120"]
    if loop == ON_POLICY:
        return [*given, "buffer=rollout", "trainer.rollout_steps=10"]
    given += ["trainer.batch_size=8", *([] if loop == OFFLINE else ["buffer.capacity=70"])]
    if loop in (REPLAY, MIXED):
        # Trainings at 60, 90 and 120 steps: a resume from 80 has to know the metrics of the first one.
        given += ["trainer.learning_starts=52", "trainer.train_frequency=30", "trainer.gradient_updates_per_step=8"]
    return given + (["dataset=random", "dataset.size=100"] if loop in (OFFLINE, MIXED) else ["dataset=null"])


@functools.cache
def _composed(name: str, loop: str | None) -> dict[str, Any]:
    return compose(small_overrides(name, loop))


def small_config(
    name: str, loop: str | None = None, kind: str | None = None, obs: str = "vector", changes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The config of :func:`small_overrides`, with other spaces and settings; composing is slow, so it is cached."""
    tops = [change for change in changes if "." not in change.partition("=")[0]]  # which a saved run would keep
    config = apply_overrides(_composed(name, loop), [change for change in changes if change not in tops])  # a copy
    config |= {key: value for key, value, _ in map(parse_override, tops)}
    config["env"]["kwargs"] |= {"action": kind or kinds_of(name)[0], "obs": obs}
    return config


def small_runner(name: str, *changes: str, kind: str | None = None, obs: str = "vector") -> Runner:
    """A runner whose components are built but not set up."""
    return Runner(small_config(name, None, kind, obs, changes))


def small_algo(
    name: str, *changes: str, kind: str | None = None, obs: str = "vector", seed: int = 0, compiled: bool = False
) -> Algorithm:
    """An algorithm that is ready to learn; ``changes`` are overrides like ``algo.tau=0.5``."""
    runner = small_runner(name, *changes, kind=kind, obs=obs)
    runner.algo.setup(runner.spec, runner.model, device=CPU, seed=seed)
    if compiled:
        runner.algo.compile_phases()
    return runner.algo


def other_value(name: str, field: str) -> float:
    """A value for a numeric field that differs from its default."""
    default = algorithm(name).__dataclass_fields__[field].default
    if schedulable(algorithm(name))[field] is int:
        return 2 if default != 2 else 3
    return default / 2 or 0.25


# ---- random data


def random_obs(spec: EnvSpec, rng: np.random.Generator, *batch: int) -> Any:
    """Observations of any space, NumPy, with these leading axes."""

    def leaf_values(leaf: Leaf) -> np.ndarray:
        shape = (*batch, *leaf.shape)
        if leaf.kind == "box":
            values = rng.integers(0, 256, shape) if leaf.dtype == "uint8" else rng.normal(size=shape)
        else:
            values = rng.integers(0, leaf.nvec[0] if leaf.kind == "discrete" else leaf.nvec or 2, shape)
        return values.astype(leaf.dtype)

    leaves = {name: leaf_values(leaf) for name, leaf in spec.obs.leaves.items()}
    return leaves[""] if spec.obs.single else leaves


def as_tensors(obs: Any) -> Any:
    return (
        {key: torch.from_numpy(leaf) for key, leaf in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
    )


def random_batch(algo: Algorithm, rows: int = 8, seed: int = 0, *, weighted: bool = False) -> Batch:
    """A batch as a buffer would sample it, every fourth row terminated."""
    rng = np.random.default_rng(seed)
    spec = algo.spec
    if algo.unit_actions and spec.action.kind == "continuous":
        action = rng.uniform(-1, 1, (rows, spec.action.dim)).astype(np.float32)
    else:
        action = spec.action.sample(rows, rng)
    discount = np.where(np.arange(rows) % 4 == 3, 0.0, float(algo.gamma)).astype(np.float32)
    batch = Batch(
        obs=as_tensors(random_obs(spec, rng, rows)),
        action=torch.from_numpy(action),
        reward=torch.from_numpy(rng.normal(size=rows).astype(np.float32)),
        next_obs=as_tensors(random_obs(spec, rng, rows)),
        discount=torch.from_numpy(discount),
        weight=torch.from_numpy(rng.uniform(0.5, 1.5, rows).astype(np.float32)) if weighted else None,
    )
    derived = {
        "mc_return": batch.reward * 2,
        "lambda_return": batch.reward * 3,
        "next_action": batch.action.roll(-1, 0),
    }
    extras = {name: derived[name] for name in algo.derived}
    if "next_action" in extras:
        extras["next_action_known"] = torch.from_numpy(rng.random(rows) < 0.7)
    return batch._replace(extras=extras)


def random_steps(spec: EnvSpec, steps: int, num_envs: int, seed: int) -> tuple[Any, list[VecStep]]:
    """A first observation and what environments gave after it, with terminated and truncated episodes in between."""
    rng = np.random.default_rng(seed)
    first, following = random_obs(spec, rng, num_envs), []
    for t in range(steps):
        obs = random_obs(spec, rng, num_envs)
        terminated, truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        terminated[0] = t % 7 == 2
        truncated[-1] = t % 5 == 3 or t == steps - 1  # the last step of the rollout too
        truncated &= ~terminated
        ended = terminated | truncated
        final = random_obs(spec, rng, num_envs)
        if isinstance(obs, dict):
            true = {key: np.where(_rows(ended, leaf), final[key], leaf) for key, leaf in obs.items()}
        else:
            true = np.where(_rows(ended, obs), final, obs)
        reward = rng.normal(size=num_envs).astype(np.float32)
        following.append(VecStep(obs, true if ended.any() else obs, reward, terminated, truncated, []))
    return first, following


def _rows(flags: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    return flags.reshape(-1, *(1,) * (leaf.ndim - 1))


@torch.no_grad()
def random_rollout(algo: OnPolicyAlgorithm, steps: int = 10, num_envs: int = 2, seed: int = 0) -> Rollout:
    """A rollout of the algorithm's own actions on random observations, put together by the real buffer."""
    buffer = RolloutBuffer()
    buffer.build(algo.spec, num_envs, steps)
    obs, following = random_steps(algo.spec, steps, num_envs, seed)
    generator, carry = torch.Generator().manual_seed(seed), None
    for t, step in enumerate(following):
        act = algo.act(as_tensors(obs), carry, explore=True, generator=generator)
        buffer.add(t, as_tensors(obs), act, step)
        obs, carry = step.obs, algo.reset_carry(act.carry, torch.from_numpy(step.terminated | step.truncated))
    return buffer.finish(algo.value, as_tensors(obs), last_carry=carry)


def data_for(algo: Algorithm, seed: int = 0, rows: int = 8) -> Any:
    """What this algorithm's update takes."""
    if isinstance(algo, OnPolicyAlgorithm):
        return random_rollout(algo, steps=rows + 2, seed=seed)
    return random_batch(algo, rows, seed)


# ---- state


def flatten(state: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a state tree by their path; tensors are copied."""
    if isinstance(state, (dict, list)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {key: leaf for k, child in items for key, leaf in flatten(child, f"{name}/{k}").items()}
    return {name[1:]: state.detach().clone() if isinstance(state, Tensor) else state}


def assert_same_bits(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Two flattened states are equal to the last bit."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, Tensor) else value == right[name]
        assert same, f"{name} differs"


def assert_close(left: dict[str, Any], right: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Two flattened states, or metrics, are equal up to rounding."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, right[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
        else:
            assert value == right[name], name
