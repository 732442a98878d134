"""What RecurrentPPO remembers: the same while acting, in updates, at truncation, in checkpoints and in predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rlexp
from rlexp.buffers import RolloutBuffer
from rlexp.contrib import RecurrentPPO
from rlexp.errors import CheckpointError
from rlexp.models import Network, Recurrence
from rlexp.runner import Runner
from rlexp.trainers.collecting import Collector
from tests.algos.common import CPU, as_tensors, flatten, random_rollout, random_steps, small_algo, small_config
from tests.algos.test_oracles import env_spec

T, N = 11, 3


def agent(kind: str = "discrete", **settings: Any) -> RecurrentPPO:
    algo = RecurrentPPO(recurrent_size=6, **settings)
    algo.setup(env_spec(kind), Network(hidden=(8,)), device=CPU, seed=1)
    with torch.no_grad():  # a fresh policy hardly looks at what it remembers
        algo.actor.head.weight.mul_(300)
    return algo


@pytest.mark.parametrize("recurrence", list(Recurrence))
@pytest.mark.parametrize("kind", ["discrete", "continuous", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("length", [1, 4, 11, 32])  # cut into many, cut with padding, just whole, shorter than wanted
def test_sequences_give_the_probabilities_and_values_of_acting(length: int, kind: str, recurrence: Recurrence) -> None:
    """Acting is the oracle: step by step, its state set back by the collector wherever an episode ended."""
    algo = agent(kind, sequence_length=length, recurrence=recurrence)
    rollout = random_rollout(algo, T, N)
    assert rollout.done[:-1].any()
    advantage, returns = algo.advantages(rollout)
    obs, data = algo.rows(rollout, advantage, returns)
    loss, _ = algo.losses(obs, data)
    assert loss.approx_kl.item() == pytest.approx(0, abs=1e-6)  # every ratio is 1
    assert loss.clip_fraction.item() == 0
    assert loss.value.item() == pytest.approx((rollout.value - returns).square().mean().item(), rel=1e-4)
    # it can fail: with the episodes' starts left out, the probabilities are others
    if length > 1:
        careless, _ = algo.losses(obs, data | {"starts": torch.zeros_like(data["starts"])})
        assert careless.approx_kl.item() > 1e-5


def test_padding_has_no_influence() -> None:
    algo = agent(sequence_length=4)  # 11 steps: the last sequences have one step of padding
    rollout = random_rollout(algo, T, N)
    advantage, returns = algo.advantages(rollout)
    obs, data = algo.rows(rollout, advantage, returns)
    assert data["mask"].sum().item() == T * N
    expected = [*algo.losses(obs, data)[0], algo.losses(obs, data)[1]]
    for name in ("advantage", "returns", "log_prob", "value"):
        data[name] = torch.where(data["mask"] == 1, data[name], torch.tensor(7.0))
    obs = torch.where(data["mask"].unsqueeze(-1) == 1, obs, torch.tensor(3.0))
    found = [*algo.losses(obs, data)[0], algo.losses(obs, data)[1]]
    for mine, theirs in zip(found, expected):
        torch.testing.assert_close(mine, theirs)


def test_truncation_bootstraps_with_what_was_remembered_at_that_moment() -> None:
    algo = agent()
    buffer = RolloutBuffer()
    buffer.build(algo.spec, N, T)
    obs, following = random_steps(algo.spec, T, N, seed=3)
    carry: Tensor | None = None
    expected = torch.zeros(T, N)
    with torch.no_grad():
        for t, step in enumerate(following):
            act = algo.act(as_tensors(obs), carry, explore=True, generator=torch.Generator().manual_seed(t))
            buffer.add(t, as_tensors(obs), act, step)
            for n in range(N):  # one environment at a time: the true next observation after this very history
                seen = torch.from_numpy(step.next_obs[n : n + 1])
                if not step.terminated[n]:
                    expected[t, n] = algo.value(seen, act.carry[n : n + 1])
            obs, carry = step.obs, algo.reset_carry(act.carry, torch.from_numpy(step.terminated | step.truncated))
        rollout = buffer.finish(algo.value, as_tensors(obs), last_carry=carry)
        forgetful = algo.value(torch.from_numpy(following[3].next_obs))[-1]
    assert following[3].truncated[-1]
    torch.testing.assert_close(rollout.next_value, expected)
    assert abs(forgetful - expected[3, -1]) > 1e-4  # the memory matters


def test_greedy_actions_depend_on_the_past_until_it_is_forgotten() -> None:
    algo = agent("continuous")
    first, second = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        fresh = algo.act(second, None, explore=False, generator=algo.generator).action
        act = algo.act(first, None, explore=False, generator=algo.generator)
        after = algo.act(second, act.carry, explore=False, generator=algo.generator).action
        ended = algo.reset_carry(act.carry, torch.tensor([True]))
        again = algo.act(second, ended, explore=False, generator=algo.generator).action
    assert not torch.allclose(after, fresh)
    assert torch.equal(again, fresh)


def test_predictions_remember_a_session_and_forget_on_demand(tmp_path: Path) -> None:
    changes = ("trainer.total_steps=40", "trainer.eval_interval=0")
    runner = Runner(small_config("recurrent_ppo", kind="continuous", changes=changes))
    runner.train(tmp_path / "run")
    loaded = rlexp.RecurrentPPO.load(tmp_path / "run", trust=["tests"])
    rng = np.random.default_rng(0)
    session = [rng.normal(size=3).astype(np.float32) for _ in range(3)]
    first = [loaded.predict(obs) for obs in session]
    second = [loaded.predict(obs, reset=i == 0) for i, obs in enumerate(session)]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(loaded.predict(session[0]), first[0])  # without reset, the session went on
    together = loaded.predict([session[0], session[1]])  # two episodes side by side begin
    np.testing.assert_allclose(together[0], first[0], rtol=1e-5)


def test_a_checkpoint_holds_what_is_remembered_and_another_shape_is_refused() -> None:
    runner = Runner(small_config("recurrent_ppo"))
    policy = runner.policy()
    collectors = [Collector(runner.env, policy, seed=0) for _ in range(2)]
    try:
        collectors[0].start()
        for _ in range(3):
            act = policy.act(collectors[0].obs_tensor(), collectors[0].carry, explore=True)
            collectors[0].step(policy.env_action(act.action), act.carry)
        state = collectors[0].state_dict()
        assert state["carry"].abs().sum() > 0
        collectors[1].load_state_dict(state)
        assert torch.equal(collectors[1].carry, collectors[0].carry)
        for wrong in (torch.zeros(2, 3), torch.zeros(1, policy.algo.carry_size), [1.0], state["carry"].double()):
            with pytest.raises(CheckpointError, match="remembers"):
                collectors[1].load_state_dict(state | {"carry": wrong})
    finally:
        for collector in collectors:
            collector.close()


@pytest.mark.parametrize("recurrence", ["lstm", "gru"])
def test_both_recurrences_learn_from_every_parameter(recurrence: str) -> None:
    algo = small_algo("recurrent_ppo", f"algo.recurrence={recurrence}", "algo.sequence_length=5")
    before = flatten(algo.state_dict())
    algo.update(random_rollout(algo))
    after = flatten(algo.state_dict())
    for name, value in before.items():
        if name.startswith(("actor/", "critic/")):
            assert not torch.equal(value, after[name]), name
