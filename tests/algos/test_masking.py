"""Algorithms for discrete actions keep to those that are possible: exploring, at random, greedily, and in targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp import Agent
from rlexp.algos.base import DISCRETE, MULTI_DISCRETE, ON_POLICY, REPLAY
from rlexp.config.compose import compose
from rlexp.envs.spec import MASK
from rlexp.errors import DataError, EnvError
from rlexp.runner import Runner
from tests.algos.common import ALGOS, QUIET, algorithm
from tests.masked import MASKED, Masked

DISCRETE_ALGOS = [name for name in ALGOS if DISCRETE in algorithm(name).actions]
MULTI_ALGOS = [name for name in ALGOS if MULTI_DISCRETE in algorithm(name).actions]


def overrides(name: str, *more: str) -> list[str]:
    loops = algorithm(name).loops
    if ON_POLICY in loops:
        loop = ["trainer.rollout_steps=20", "trainer.total_steps=160"]
    elif REPLAY in loops:
        loop = ["trainer=replay", "dataset=null", "trainer.learning_starts=40", "trainer.total_steps=160"]
    else:
        loop = ["dataset.size=100", "trainer.total_updates=160", "trainer.batch_size=8"]
    given = [f"algo={name}", "env=gym", f"env.id={MASKED}", "env.num_envs=2"]
    return [*given, *loop, *QUIET, "trainer.eval_interval=80", "trainer.eval_episodes=4", *more]


def telling() -> list[Any]:
    """How masks are told is the environment's matter: `make test` tries every way with two algorithms."""
    return [
        pytest.param(name, tells, marks=() if tells == "info" or name in ("ppo", "dqn") else pytest.mark.learning)
        for name in DISCRETE_ALGOS
        for tells in ("info", "method", "obs")
    ]


@pytest.mark.parametrize(("name", "tells"), telling())
def test_no_impossible_action_is_ever_taken(name: str, tells: str, tmp_path: Path) -> None:
    """The environment fails if one is."""
    runner = Runner(compose(overrides(name, f"+env.kwargs.tells={tells}")))
    assert runner.train(tmp_path / "run")["status"] == "completed"
    assert runner.spec.obs.masked
    assert MASK not in runner.spec.obs.seen


@pytest.mark.parametrize("name", MULTI_ALGOS)
def test_the_variables_of_a_multi_discrete_space_are_masked_side_by_side(name: str, tmp_path: Path) -> None:
    runner = Runner(compose(overrides(name, "+env.kwargs.multi=true", "env.vectorization=subprocess")))
    assert runner.train(tmp_path / "run")["status"] == "completed"


def test_a_saved_agent_is_told_what_is_possible_with_the_observation(tmp_path: Path) -> None:
    Runner(compose(overrides("dqn"))).train(tmp_path / "run")
    agent = Agent.load(tmp_path / "run", trust=["tests"])
    for possible in range(5):
        mask = np.eye(5, dtype=np.int8)[possible]
        obs = {"obs": np.zeros(3, np.float32), MASK: mask}
        assert agent.predict(obs) == agent.predict(obs, deterministic=False) == possible + 2  # the space starts at 2
    with pytest.raises(DataError, match="leaves no action possible"):
        agent.predict({"obs": np.zeros(3, np.float32), MASK: np.zeros(5, np.int8)})
    with pytest.raises(DataError, match="action_mask, obs"):
        agent.predict(np.zeros(3, np.float32))


def test_values_of_impossible_actions_do_not_enter_the_target() -> None:
    runner = Runner(compose(overrides("dqn", "algo.double=false")))
    algo: Any = runner.algo
    algo.setup(runner.spec, runner.model, device=torch.device("cpu"), seed=0)
    obs = {"obs": torch.randn(64, 3), MASK: torch.rand(64, 5) < 0.5}
    obs[MASK][:, 1] = True
    q = algo.q(obs)
    kept = torch.where(obs[MASK], q, -torch.inf)
    torch.testing.assert_close(algo.masked(q, obs).amax(-1), kept.amax(-1))
    assert (kept.amax(-1) < q.amax(-1)).any()  # it made a difference


def test_the_largest_entropy_is_that_of_the_possible_actions() -> None:
    runner = Runner(compose(overrides("discrete_sac", "algo.target_entropy_ratio=0.5")))
    algo: Any = runner.algo
    algo.setup(runner.spec, runner.model, device=torch.device("cpu"), seed=0)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0]])
    target = algo.target_entropy({"obs": torch.zeros(2, 3), MASK: mask})
    torch.testing.assert_close(target, torch.tensor([0.5 * np.log(4.0), 0.0], dtype=torch.float32))
    policy = algo.policy({"obs": torch.zeros(2, 3), MASK: mask})
    assert policy.probs[0, 4] == 0
    assert policy.probs[1].tolist() == [1, 0, 0, 0, 0]
    assert torch.isfinite(policy.entropy()).all()


class Forgetful(Masked):
    """Gives masks at resets only."""

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {})


class Hopeless(Masked):
    """Leaves nothing to do."""

    def _observe(self) -> Any:
        obs, _ = super()._observe()
        return obs, {"action_mask": np.zeros(5, bool)}


class Short(Masked):
    """Has a mask for fewer actions than there are."""

    def _observe(self) -> Any:
        obs, _ = super()._observe()
        return obs, {"action_mask": np.ones(4, bool)}


@pytest.mark.parametrize(
    ("env", "problem"),
    [(Forgetful, "give it at every step"), (Hopeless, "leaves no action possible"), (Short, "4 entries for 5 actions")],
)
def test_a_mask_that_makes_no_sense_is_told_of(env: Any, problem: str, tmp_path: Path) -> None:
    runner = Runner(compose(overrides("dqn", "env.id=custom")), env_factory=env)
    with pytest.raises(EnvError, match=problem):
        runner.train(tmp_path / "run")
