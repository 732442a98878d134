"""The first updates of algorithms equal those of short, plain implementations without shared code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlexp.algos import A2C, DDPG, DQN, PPO, SAC, TD3, TQC
from rlexp.buffers import RolloutBuffer
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.models import Network
from rlexp.models.layers import MLP
from rlexp.types import Batch, Rollout
from tests.algos.common import CPU, as_tensors, random_steps
from tests.algos.oracles import a2c, dqn, ppo, sac, td3, tqc

OBS, WIDTH, ROWS = 4, 24, 32
GAMMA = 0.97
ACTIONS = {
    "discrete": ActionSpec("discrete", (), (3,)),
    "continuous": ActionSpec("continuous", (2,), (), (-1.0, -2.0), (1.0, 4.0)),
    "multi_discrete": ActionSpec("multi_discrete", (2,), (2, 3)),
    "multi_binary": ActionSpec("multi_binary", (3,), (2, 2, 2)),
}


def env_spec(kind: str) -> EnvSpec:
    return EnvSpec("Test-v0", ObsSpec({"": Leaf("box", (OBS,), "float32")}, True), ACTIONS[kind], None, None)


def set_up(algo: Any, kind: str) -> Any:
    algo.setup(env_spec(kind), Network(hidden=(WIDTH, WIDTH)), device=CPU, seed=3)
    return algo


def weights(net: MLP, member: int | None = None) -> list[Tensor]:
    """The parameters of one network (of an ensemble), as nn.Linear lays them out: weight, bias, weight, bias, …"""
    found: list[Tensor] = []
    for depth, layer in enumerate(net.layers):
        weight, bias = layer.weight.detach(), layer.bias.detach()
        if member is not None:
            head = depth == len(net.layers) - 1
            weight, bias = weight[member] if head else weight[member].T, bias[member, 0]
        found += [weight.clone(), bias.clone()]
    return found


def give(oracle: nn.Module, values: list[Tensor]) -> nn.Module:
    """Copy weights into a plain network."""
    with torch.no_grad():
        for parameter, value in zip(oracle.parameters(), values, strict=True):
            assert parameter.shape == value.shape
            parameter.copy_(value)
    return oracle


def assert_equal_weights(ours: list[Tensor], oracle: nn.Module, what: str) -> None:
    for i, (mine, theirs) in enumerate(zip(ours, oracle.parameters(), strict=True)):
        torch.testing.assert_close(
            mine, theirs.detach(), rtol=1e-4, atol=1e-6, msg=lambda text, i=i: f"{what}[{i}]: {text}"
        )


def assert_equal_metrics(ours: dict[str, Tensor], theirs: dict[str, float]) -> None:
    for name, value in theirs.items():
        assert float(ours[name]) == pytest.approx(value, rel=1e-4, abs=1e-6), name


def clone(generator: torch.Generator) -> torch.Generator:
    """A generator that will give the same numbers, so that the oracle sees the same noise."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def transitions(kind: str, seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if kind == "discrete":
        action = torch.randint(3, (ROWS,), generator=generator)
    else:
        action = torch.rand(ROWS, 2, generator=generator) * 2 - 1
    return {
        "obs": torch.randn(ROWS, OBS, generator=generator),
        "action": action,
        "reward": torch.randn(ROWS, generator=generator) * scale,
        "next_obs": torch.randn(ROWS, OBS, generator=generator),
        "terminated": torch.rand(ROWS, generator=generator) < 0.2,
    }


def as_batch(data: dict[str, Tensor]) -> Batch:
    discount = GAMMA * (1 - data["terminated"].float())
    return Batch(data["obs"], data["action"], data["reward"], data["next_obs"], discount)


# ---- DQN


def dqn_pair(double: bool, tau: float = 1.0) -> tuple[DQN, dqn.DQN]:
    settings = {"learning_rate": 1e-2, "target_interval": 2, "tau": tau, "max_grad_norm": 0.2}
    ours = set_up(DQN(gamma=GAMMA, double=double, **settings), "discrete")
    network = give(dqn.q_network(OBS, 3, WIDTH), weights(ours.q))
    return ours, dqn.DQN(network, lr=1e-2, double=double, sync_every=2, tau=tau, clip=0.2)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_dqn_equals_the_oracle(double: bool, tau: float) -> None:
    ours, oracle = dqn_pair(double, tau)
    clipped = 0
    for step in range(7):
        data = transitions("discrete", step, scale=2.0)
        found = ours.update(as_batch(data)).metrics
        expected = oracle.update(**data, gamma=GAMMA)
        assert_equal_metrics(found, expected)
        assert_equal_weights(weights(ours.q), oracle.q, "q")
        assert_equal_weights(weights(ours.target_q.net), oracle.target, "target")
        clipped += expected["loss/grad_norm"] > 0.2
    assert 0 < clipped < 7  # gradients were really scaled down, and not always


def test_double_dqn_is_not_plain_dqn() -> None:
    (plain, _), (double, _) = dqn_pair(False), dqn_pair(True)
    for step in range(7):
        for agent in (plain, double):
            agent.update(as_batch(transitions("discrete", step)))
    assert not torch.allclose(plain.q.layers[0].weight, double.q.layers[0].weight, atol=1e-4)


# ---- SAC


@pytest.mark.parametrize("fixed_alpha", [None, 0.2])
def test_sac_equals_the_oracle(fixed_alpha: float | None) -> None:
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate"), 3e-3)
    alpha = {"initial_alpha": 0.5, "alpha_learning_rate": 3e-3} if fixed_alpha is None else {"alpha": fixed_alpha}
    ours = set_up(SAC(gamma=GAMMA, tau=0.05, **alpha, **rates), "continuous")
    oracle = sac.SAC(
        give(sac.network(OBS, 4, WIDTH), weights(ours.actor)),
        [give(sac.network(OBS + 2, 1, WIDTH), weights(ours.critic, i)) for i in range(2)],
        lr=3e-3,
        tau=0.05,
        target_entropy=-2.0,
        initial_alpha=0.5,
        fixed_alpha=fixed_alpha,
    )
    for step in range(6):
        data = transitions("continuous", step)
        noise, next_noise = torch.randn(2, ROWS, 2, generator=clone(ours.generator))
        found = ours.update(as_batch(data)).metrics
        assert_equal_metrics(found, oracle.update(**data, gamma=GAMMA, noise=noise, next_noise=next_noise))
        assert_equal_weights(weights(ours.actor), oracle.actor, "actor")
        for i in range(2):
            assert_equal_weights(weights(ours.critic, i), oracle.critics[i], f"critic {i}")
            assert_equal_weights(weights(ours.target_critic.net, i), oracle.targets[i], f"target {i}")
        assert ours.log_alpha.exp().item() == pytest.approx(oracle.alpha(), rel=1e-5)
    assert (ours.log_alpha.exp().item() == pytest.approx(0.2)) == (fixed_alpha is not None)  # it learned, or did not


def test_the_squashed_density_of_a_saturated_action_is_exact() -> None:
    # u = 8: tanh(u) is 1 − 2.3e-7, where the textbook's log(1 − tanh²) has lost all digits
    ours = set_up(SAC(), "continuous")
    outputs = torch.tensor([[8.0, -8.0, 0.0, 0.0]])
    _, log_prob = ours.head.dist(outputs).sample_with_log_prob(torch.zeros(1, 2))
    # log N(u; u, 1) − log(1 − tanh² 8), twice, in float64
    u = torch.tensor(8.0, dtype=torch.float64)
    each = -0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64)) - torch.log(1 / torch.cosh(u) ** 2)
    torch.testing.assert_close(log_prob.double(), 2 * each[None], rtol=1e-5, atol=0)


# ---- TQC


@pytest.mark.parametrize(("critics", "quantiles", "drop", "kappa"), [(3, 5, 2, 1.0), (2, 4, 0, 0.3), (1, 6, 5, 1.0)])
def test_tqc_equals_the_oracle(critics: int, quantiles: int, drop: int, kappa: float) -> None:
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"), 3e-3)
    settings = {"n_critics": critics, "n_quantiles": quantiles, "n_dropped": drop, "kappa": kappa}
    ours = set_up(TQC(gamma=GAMMA, tau=0.05, initial_alpha=0.5, **settings, **rates), "continuous")
    oracle = tqc.TQC(
        give(sac.network(OBS, 4, WIDTH), weights(ours.actor)),
        [give(sac.network(OBS + 2, quantiles, WIDTH), weights(ours.critic, i)) for i in range(critics)],
        lr=3e-3,
        tau=0.05,
        target_entropy=-2.0,
        initial_alpha=0.5,
        drop=drop,
        kappa=kappa,
    )
    for step in range(5):
        data = transitions("continuous", step, scale=2.0)
        noise, next_noise = torch.randn(2, ROWS, 2, generator=clone(ours.generator))
        found = ours.update(as_batch(data)).metrics
        assert_equal_metrics(found, oracle.update(**data, gamma=GAMMA, noise=noise, next_noise=next_noise))
        assert_equal_weights(weights(ours.actor), oracle.actor, "actor")
        for i in range(critics):
            assert_equal_weights(weights(ours.critic, i), oracle.critics[i], f"critic {i}")
            assert_equal_weights(weights(ours.target_critic.net, i), oracle.targets[i], f"target {i}")
        assert ours.log_alpha.exp().item() == pytest.approx(oracle.alpha(), rel=1e-5)


# ---- DDPG and TD3


RATES = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("ours", "critics", "delay", "scale", "clip", "max_norm"),
    [
        (DDPG(gamma=GAMMA, tau=0.05, **RATES), 1, 1, 0.0, 0.0, None),
        (TD3(gamma=GAMMA, tau=0.05, **RATES), 2, 2, 0.2, 0.5, None),
        (TD3(gamma=GAMMA, tau=0.05, n_critics=3, actor_interval=3, target_noise=1.0, max_grad_norm=0.1, **RATES),
         3, 3, 1.0, 0.5, 0.1),
    ],
    ids=["ddpg", "td3", "td3 with everything"],
)  # fmt: skip
def test_ddpg_and_td3_equal_the_oracle(
    ours: DDPG, critics: int, delay: int, scale: float, clip: float, max_norm: float | None
) -> None:
    set_up(ours, "continuous")
    oracle = td3.TD3(
        give(td3.network(OBS, 2, WIDTH), weights(ours.actor)),
        [give(td3.network(OBS + 2, 1, WIDTH), weights(ours.critic, i)) for i in range(critics)],
        actor_lr=3e-3,
        critic_lr=1e-2,
        tau=0.05,
        delay=delay,
        noise_scale=scale,
        noise_clip=clip,
        max_norm=max_norm,
    )
    for step in range(7):
        data = transitions("continuous", step, scale=2.0)
        noise = torch.randn(ROWS, 2, generator=clone(ours.generator))
        found = ours.update(as_batch(data)).metrics
        expected = oracle.update(**data, gamma=GAMMA, noise=noise)
        assert found.keys() == expected.keys()  # the actor learns at the same updates
        assert_equal_metrics(found, expected)
        assert_equal_weights(weights(ours.actor), oracle.actor, "actor")
        assert_equal_weights(weights(ours.target_actor.net), oracle.target_actor, "target actor")
        for i in range(critics):
            assert_equal_weights(weights(ours.critic, i), oracle.critics[i], f"critic {i}")
            assert_equal_weights(weights(ours.target_critic.net, i), oracle.target_critics[i], f"target {i}")


# ---- PPO


T, N, EPOCHS, MINIBATCHES = 16, 3, 2, 4
SETTINGS = {
    "plain": {},
    "everything": {"value_clip": 0.05, "entropy_coef": 0.03, "value_coef": 0.8, "clip_range": 0.05},
    "raw advantages": {"normalize_advantage": False, "max_grad_norm": 100.0},
}


def collected(ours: Any, steps: int, num_envs: int, seed: int) -> tuple[Rollout, list[Tensor]]:
    """A rollout of the algorithm's own actions; and its observations, actions, rewards, true next observations and
    ends, each [T, N, …], as the environments gave them.
    """
    buffer = RolloutBuffer()
    buffer.build(ours.spec, num_envs, steps)
    obs, following = random_steps(ours.spec, steps, num_envs, seed)
    seen = []
    with torch.no_grad():
        for t, step in enumerate(following):
            act = ours.act(as_tensors(obs), None, explore=True, generator=torch.Generator().manual_seed(t))
            buffer.add(t, as_tensors(obs), act, step)
            seen.append((as_tensors(obs), act.action))
            obs = step.obs
    given = [
        torch.stack([torch.from_numpy(getattr(step, name)) for step in following])
        for name in ("reward", "next_obs", "terminated", "truncated")
    ]
    return buffer.finish(ours.value, as_tensors(obs)), [*map(torch.stack, zip(*seen)), *given]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, "plain") for kind in ACTIONS]
    + [(kind, settings) for kind in ("discrete", "continuous") for settings in ("everything", "raw advantages")],
)
def test_ppo_equals_the_oracle_over_whole_rollouts(kind: str, settings: str) -> None:
    given = {"learning_rate": 3e-3, "epochs": EPOCHS, "minibatch_size": T * N // MINIBATCHES, "initial_log_std": -0.4}
    ours = set_up(PPO(gamma=GAMMA, gae_lambda=0.9, **given, **SETTINGS[settings]), kind)
    log_std = None if ours.log_std is None else ours.log_std.detach().clone().requires_grad_()
    oracle = ppo.PPO(
        give(ppo.network(OBS, ours.head.out, WIDTH), weights(ours.actor)),
        give(ppo.network(OBS, 1, WIDTH), weights(ours.critic)),
        ppo.distribution_of(kind, list(ACTIONS[kind].nvec), log_std),
        log_std,
        lr=3e-3,
        gamma=GAMMA,
        gae_lambda=0.9,
        clip=ours.clip_range,
        value_clip=ours.value_clip,
        value_coef=ours.value_coef,
        entropy_coef=ours.entropy_coef,
        normalize=ours.normalize_advantage,
        max_grad_norm=ours.max_grad_norm,
    )
    for iteration in range(2):
        rollout, seen = collected(ours, T, N, seed=iteration)
        generator = clone(ours.generator)
        orders = [torch.randperm(T * N, generator=generator) for _ in range(EPOCHS)]
        found = ours.update(rollout).metrics
        reports = oracle.update(
            *seen,
            [rows for order in orders for rows in order.chunk(MINIBATCHES)],
        )
        assert len(reports) == EPOCHS * MINIBATCHES == ours.updates / (iteration + 1)
        assert_equal_metrics(found, {name: sum(r[name] for r in reports) / len(reports) for name in reports[0]})
        assert_equal_weights(weights(ours.actor), oracle.actor, "actor")
        assert_equal_weights(weights(ours.critic), oracle.critic, "critic")
        if log_std is not None:
            torch.testing.assert_close(ours.log_std, log_std, rtol=1e-4, atol=1e-6)
            assert not torch.allclose(log_std, torch.tensor(-0.4))  # it was trained
    if settings == "everything":
        assert float(found["policy/clip_fraction"]) > 0  # the range was really left


def test_ppo_keeps_its_metrics_finite_when_a_rollout_is_one_step_long() -> None:
    ours = set_up(PPO(epochs=1), "discrete")
    buffer = RolloutBuffer()
    buffer.build(ours.spec, 1, 1)
    first, (step,) = random_steps(ours.spec, 1, 1, seed=0)
    with torch.no_grad():
        act = ours.act(as_tensors(first), None, explore=True, generator=torch.Generator().manual_seed(0))
    buffer.add(0, as_tensors(first), act, step)
    metrics = ours.update(buffer.finish(ours.value, as_tensors(step.obs))).metrics
    assert all(torch.isfinite(value) for value in metrics.values()), metrics
    assert all(torch.isfinite(p).all() for p in ours.actor.parameters())


# ---- A2C


@pytest.mark.parametrize("kind", ACTIONS)
def test_a2c_equals_the_oracle_over_whole_rollouts(kind: str) -> None:
    settings = {"value_coef": 0.7, "entropy_coef": 0.02, "max_grad_norm": 0.4}
    ours = set_up(A2C(gamma=GAMMA, learning_rate=3e-3, initial_log_std=-0.4, **settings), kind)
    log_std = None if ours.log_std is None else ours.log_std.detach().clone().requires_grad_()
    oracle = a2c.A2C(
        give(ppo.network(OBS, ours.head.out, WIDTH), weights(ours.actor)),
        give(ppo.network(OBS, 1, WIDTH), weights(ours.critic)),
        ppo.distribution_of(kind, list(ACTIONS[kind].nvec), log_std),
        log_std,
        lr=3e-3,
        gamma=GAMMA,
        **settings,
    )
    for iteration in range(4):
        rollout, seen = collected(ours, 5, 3, seed=iteration)
        assert_equal_metrics(ours.update(rollout).metrics, oracle.update(*seen))
        assert_equal_weights(weights(ours.actor), oracle.actor, "actor")
        assert_equal_weights(weights(ours.critic), oracle.critic, "critic")
        if log_std is not None:
            torch.testing.assert_close(ours.log_std, log_std, rtol=1e-4, atol=1e-6)
