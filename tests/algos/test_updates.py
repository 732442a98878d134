"""What single updates minimise where there is no whole oracle, and what else is particular to one algorithm.

Expectations are recomputed from copies of the networks, with torch.distributions and loops over rows and critics.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal
from torch.distributions.transforms import TanhTransform

from rlexp.algos import CRR, DDPG, DQN, PPO, REDQ, RLPD, TD3, TQC, DiscreteSAC, DrQv2
from rlexp.algos.crr import AdvantageType, WeightType
from rlexp.config.compose import compose
from rlexp.errors import ConfigError
from rlexp.models import Network
from rlexp.types import Batch
from tests.algos.common import (
    ALGOS,
    CPU,
    algorithm,
    flatten,
    random_batch,
    random_rollout,
    small_algo,
    small_runner,
)
from tests.algos.test_oracles import clone, env_spec

ROWS = 12


def set_up(algo: Any, kind: str) -> Any:
    """Ready to learn, after an update that makes targets, critics and moments differ from each other."""
    algo.setup(env_spec(kind), Network(hidden=(16,)), device=CPU, seed=4)
    for seed in range(3):
        algo.update(random_batch(algo, ROWS, seed=100 + seed))
    return algo


def observe(algo: Any, *names: str) -> tuple[Batch, list[Any], torch.Generator]:
    """A batch with copies of networks as they are before it, and a generator that gives the update's noise."""
    return (
        random_batch(algo, ROWS, seed=5),
        [copy.deepcopy(getattr(algo, name)) for name in names],
        clone(algo.generator),
    )


def critic_loss(values: Tensor, batch: Batch, next_value: list[float]) -> float:
    """Σ over the critics of the mean squared distance to r + γ V(s′)."""
    total = 0.0
    for q in values:
        for b in range(ROWS):
            target = batch.reward[b].item() + batch.discount[b].item() * next_value[b]
            total += (q[b].item() - target) ** 2 / ROWS
    return total


def gaussian(outputs: Tensor, min_log_std: float) -> Independent:
    mean, log_std = outputs.chunk(2, -1)
    return Independent(Normal(torch.tanh(mean), torch.clip(log_std, min_log_std, 0.0).exp()), 1)


@pytest.mark.parametrize("advantage_type", list(AdvantageType))
@pytest.mark.parametrize("weight_type", list(WeightType))
def test_crr_regresses_onto_the_better_actions(advantage_type: AdvantageType, weight_type: WeightType) -> None:
    samples, beta, bound = 3, 0.02, 1.5
    settings: Any = {"advantage_type": advantage_type, "weight_type": weight_type, "min_log_std": -0.02}
    settings |= {"beta": beta, "max_weight": bound} if weight_type is WeightType.exp else {}
    algo = set_up(CRR(n_action_samples=samples, **settings), "continuous")
    batch, (actor, critic, target), generator = observe(algo, "actor", "critic", "target_critic")
    metrics = {name: value.item() for name, value in algo.update(batch).metrics.items()}
    new_critic = algo.critic  # the actor's weights come from the critics after their step
    with torch.no_grad():
        next_noise = torch.randn(ROWS, 2, generator=generator)
        noise = torch.randn(samples, ROWS, 2, generator=generator)
        policy = gaussian(actor(batch.next_obs), -0.02)
        next_action = (policy.mean + policy.stddev * next_noise).clip(-1, 1)
        next_q = target(batch.next_obs, next_action)[..., 0]
        values = critic(batch.obs, batch.action)[..., 0]
        expected_critic = critic_loss(values, batch, [min(q[b].item() for q in next_q) for b in range(ROWS)])

        policy = gaussian(actor(batch.obs), -0.02)
        q_data = new_critic(batch.obs, batch.action)[..., 0]
        loss, advantages, weights = 0.0, [], []
        for b in range(ROWS):
            baseline = []
            for j in range(samples):
                action = (policy.mean[b] + policy.stddev[b] * noise[j, b]).clip(-1, 1)
                both = new_critic(batch.obs[b : b + 1], action[None])
                baseline.append(min(both[0, 0, 0].item(), both[1, 0, 0].item()))
            against = sum(baseline) / samples if advantage_type.name == "mean" else max(baseline)
            advantages.append(min(q_data[0, b].item(), q_data[1, b].item()) - against)
            exponential = torch.tensor(advantages[b] / beta).exp().item()
            weights.append(float(advantages[b] > 0) if weight_type.name == "binary" else min(exponential, bound))
        log_prob = policy.log_prob(batch.action)
        loss = -sum(weights[b] * log_prob[b].item() for b in range(ROWS)) / ROWS
    assert 0 < sum(weight == max(weights) for weight in weights) < ROWS  # some were bounded, or better, and some not
    assert metrics["loss/critic"] == pytest.approx(expected_critic, rel=1e-4)
    assert metrics["q/mean"] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-6)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-3)
    assert metrics["advantage/mean"] == pytest.approx(sum(advantages) / ROWS, rel=1e-3, abs=1e-6)
    assert metrics["advantage/weight"] == pytest.approx(sum(weights) / ROWS, rel=1e-3)


def test_discrete_sac_takes_its_expectations_over_all_actions() -> None:
    algo = set_up(DiscreteSAC(initial_alpha=0.3, target_entropy_ratio=0.4), "discrete")
    batch, (actor, critic, target, log_alpha), _ = observe(algo, "actor", "critic", "target_critic", "log_alpha")
    before, moment = algo.generator.get_state(), algo.alpha_optimizer.exp_avg[0].item()
    metrics = {name: value.item() for name, value in algo.update(batch).metrics.items()}
    assert torch.equal(algo.generator.get_state(), before)  # nothing is sampled
    alpha = log_alpha.exp().item()
    with torch.no_grad():
        following, current = (Categorical(logits=actor(obs)).probs.tolist() for obs in (batch.next_obs, batch.obs))
        next_q, new_q = target(batch.next_obs), algo.critic(batch.obs)
        log = lambda p: torch.tensor(p).log().item()  # noqa: E731
        next_value, loss, entropy = [], 0.0, 0.0
        for b in range(ROWS):
            soft = [
                min(next_q[0, b, a].item(), next_q[1, b, a].item()) - alpha * log(p) for a, p in enumerate(following[b])
            ]
            next_value.append(sum(p * v for p, v in zip(following[b], soft)))
            for a, p in enumerate(current[b]):
                loss += p * (alpha * log(p) - min(new_q[0, b, a].item(), new_q[1, b, a].item())) / ROWS
                entropy -= p * log(p) / ROWS
        taken = torch.stack([q[torch.arange(ROWS), batch.action] for q in critic(batch.obs)])
    assert metrics["loss/critic"] == pytest.approx(critic_loss(taken, batch, next_value), rel=1e-4)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-4)
    assert metrics["policy/entropy"] == pytest.approx(entropy, rel=1e-4)
    assert metrics["policy/alpha"] == pytest.approx(alpha, rel=1e-6)
    # The temperature's gradient, as its first moment took it in: H − 0.4 log 3, above zero, so that α must fall.
    gradient = (algo.alpha_optimizer.exp_avg[0].item() - 0.9 * moment) / 0.1
    assert gradient == pytest.approx(entropy - 0.4 * log(3.0), rel=1e-3)
    assert algo.log_alpha.item() < log_alpha.item()


@pytest.mark.parametrize("mean_actor", [True, False])
@pytest.mark.parametrize("cls", [REDQ, RLPD])
def test_redq_and_rlpd_bootstrap_from_a_random_subset_and_follow_all_critics(cls: type[REDQ], mean_actor: bool) -> None:
    critics, chosen = 5, 2
    settings = {"n_critics": critics, "n_target_critics": chosen, "mean_actor": mean_actor, "actor_interval": 1}
    algo = set_up(cls(**settings), "continuous")
    names = ("actor", "target_critic", "log_alpha")
    subsets = set()
    for _ in range(4):
        batch, (actor, target, log_alpha), generator = observe(algo, *names)
        with torch.no_grad():
            values = algo.critic(batch.obs, batch.action)[..., 0].clone()
        metrics = {name: value.item() for name, value in algo.update(batch).metrics.items()}
        order = torch.rand(critics, generator=generator).argsort()[:chosen].tolist()
        noise, next_noise = torch.randn(2, ROWS, 2, generator=generator)
        subsets.add(tuple(sorted(order)))
        alpha = log_alpha.exp().item()

        def sample(obs: Tensor, noise: Tensor, actor: Any = actor) -> tuple[Tensor, Tensor]:
            mean, log_std = actor(obs).chunk(2, -1)
            normal = Normal(mean, log_std.clip(-20, 2).exp())
            before = normal.mean + normal.stddev * noise
            correction = TanhTransform().log_abs_det_jacobian(before, before.tanh())
            return before.tanh(), (normal.log_prob(before) - correction).sum(-1)

        with torch.no_grad():
            next_action, next_log_prob = sample(batch.next_obs, next_noise)
            next_q = target(batch.next_obs, next_action)[..., 0]
            next_value = [
                min(next_q[i, b].item() for i in order) - alpha * next_log_prob[b].item() for b in range(ROWS)
            ]
            action, log_prob = sample(batch.obs, noise)
            q = algo.critic(batch.obs, action)[..., 0]
            q = torch.stack([sum(q) / critics if mean_actor else q.min(0).values])[0]
        assert metrics["loss/critic"] == pytest.approx(critic_loss(values, batch, next_value), rel=1e-4)
        assert metrics["loss/actor"] == pytest.approx((alpha * log_prob - q).mean().item(), rel=1e-4)
    assert len(subsets) > 1  # drawn anew for every update


def test_rlpd_has_the_layer_norms_that_keep_it_in_bounds() -> None:
    algo = set_up(RLPD(), "continuous")
    assert all(layer.norm_weight is not None for layer in list(algo.critic.layers)[:-1])
    assert all(layer.norm_weight is None for layer in algo.actor.layers)


def test_redq_is_what_its_paper_says_where_nothing_is_set() -> None:
    algo = REDQ()
    assert (algo.n_critics, algo.n_target_critics, algo.mean_actor, algo.actor_interval) == (10, 2, True, 20)
    assert compose(["algo=redq", "env=pendulum"])["trainer"]["gradient_updates_per_step"] == 20


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        (
            "sac",
            {"target_entropy_scale": 0.5},
            "target_entropy_scale has no effect with a fixed temperature, alpha=0.1",
        ),
        ("tqc", {"initial_alpha": 0.5}, "initial_alpha has no effect"),
        ("rlpd", {"schedules": {"alpha_learning_rate": {"end": 0.0}}}, "A schedule of alpha_learning_rate has no"),
        ("discrete_sac", {"target_entropy_ratio": 0.3}, "target_entropy_ratio has no effect"),
    ],
)
def test_settings_of_a_learned_temperature_are_refused_beside_a_fixed_one(
    name: str, settings: dict[str, Any], says: str
) -> None:
    algorithm(name)(**settings)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=says):
        algorithm(name)(alpha=0.1, **settings)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "settings", "other", "says"),
    [
        (
            "td3",
            {"target_noise_clip": 0.3},
            {"target_noise": 0.0},
            "target_noise_clip has no effect with target_noise=0",
        ),
        (
            "rebrac",
            {"schedules": {"target_noise_clip": {"end": 0.3}}},
            {"target_noise": 0.0},
            "A schedule of target_noise_clip has no effect with target_noise=0",
        ),
        ("c51", {"noisy_sigma": 0.3, "noisy": True}, {"noisy": False}, "noisy_sigma has no effect with noisy=false"),
        ("rainbow", {"noisy_sigma": 0.3}, {"noisy": False}, "noisy_sigma has no effect with noisy=false"),
    ],
)
def test_settings_of_noise_that_is_switched_off_are_refused(
    name: str, settings: dict[str, Any], other: dict[str, Any], says: str
) -> None:
    algorithm(name)(**settings)
    with pytest.raises(ConfigError, match=says):
        algorithm(name)(**settings | other)


def test_a_noise_that_is_scheduled_has_a_bound() -> None:
    TD3(target_noise=0.0, target_noise_clip=0.3, schedules={"target_noise": {"end": 0.2}})


def test_a_shift_is_refused_where_there_are_no_images() -> None:
    for obs, shift in (("image", 2), ("dict", 2), ("vector", 4)):
        runner = small_runner("drq_v2", f"algo.shift={shift}", obs=obs)
        runner.algo.check_new(runner.spec)
    runner = small_runner("drq_v2", "algo.shift=2")  # saved runs are built so, too
    with pytest.raises(ConfigError, match=r"shift has no effect with the observations of .*Counting-v0, which hold no"):
        runner.train("never")


def test_tqc_refuses_to_drop_every_quantile() -> None:
    with pytest.raises(ConfigError, match="n_dropped=5 must be less than n_quantiles=5"):
        TQC(n_quantiles=5, n_dropped=5)


def test_tqc_priorities_are_the_errors_of_the_means() -> None:
    algo = set_up(TQC(n_critics=2, n_quantiles=4, n_dropped=1), "continuous")
    batch, (actor, critic, target, log_alpha), generator = observe(
        algo, "actor", "critic", "target_critic", "log_alpha"
    )
    _, next_noise = torch.randn(2, ROWS, 2, generator=generator)
    found = algo.update(batch._replace(weight=torch.ones(ROWS))).priority
    with torch.no_grad():
        mean, log_std = actor(batch.next_obs).chunk(2, -1)
        normal = Normal(mean, log_std.clip(-20, 2).exp())
        before = normal.mean + normal.stddev * next_noise
        correction = TanhTransform().log_abs_det_jacobian(before, before.tanh())
        log_prob = (normal.log_prob(before) - correction).sum(-1)
        next_z, z = target(batch.next_obs, before.tanh()), critic(batch.obs, batch.action)
    for b in range(ROWS):
        kept = sorted(next_z[:, b].flatten().tolist())[:6]
        soft = sum(kept) / 6 - log_alpha.exp().item() * log_prob[b].item()
        y = batch.reward[b].item() + batch.discount[b].item() * soft
        expected = sum(abs(z[i, b].mean().item() - y) for i in range(2)) / 2
        assert found[b].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_rlpd_refuses_a_subset_larger_than_the_ensemble() -> None:
    with pytest.raises(ConfigError, match="n_target_critics=3 must not be more than n_critics=2"):
        RLPD(n_target_critics=3, n_critics=2)


# ---- DQN


def dqn(**settings: Any) -> DQN:
    algo = DQN(**settings)
    algo.setup(env_spec("discrete"), Network(hidden=(16,)), device=CPU, seed=0)
    return algo


def test_dqn_does_not_ask_its_network_where_every_action_is_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    algo, obs = dqn(epsilon=1.0), torch.randn(64, 4)
    asked = algo.explore(obs, {}, torch.rand(2, 64, generator=torch.Generator().manual_seed(3)))
    monkeypatch.setattr(type(algo), "head", lambda *_: pytest.fail("the network was asked"))
    assert torch.equal(algo.act(obs, None, explore=True, generator=torch.Generator().manual_seed(3)).action, asked)
    algo.epsilon = 0.5  # of 64 environments some then take the best one
    with pytest.raises(pytest.fail.Exception, match="was asked"):
        algo.act(obs, None, explore=True, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("epsilon", "greedy_share"), [(0.0, 1.0), (0.3, 0.7 + 0.1), (1.0, 1 / 3)])
def test_dqn_takes_a_uniform_action_as_often_as_epsilon_says(epsilon: float, greedy_share: float) -> None:
    algo = dqn(epsilon=epsilon)
    obs = torch.randn(1, 4).expand(20_000, 4)
    greedy = algo.act(obs, None, explore=False, generator=algo.generator).action
    taken = algo.act(obs, None, explore=True, generator=algo.generator).action
    shares = torch.bincount(taken, minlength=3) / len(taken)
    expected = torch.full((3,), epsilon / 3)
    expected[greedy[0]] = greedy_share  # a random action may be the greedy one
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.015)


# ---- PPO


def ppo(**settings: Any) -> PPO:
    algo = PPO(**settings)
    algo.setup(env_spec("discrete"), Network(hidden=(16,)), device=CPU, seed=0)
    return algo


@pytest.mark.parametrize(
    ("rows", "size", "sizes"),
    [(12, 4, [4, 4, 4]), (14, 4, [4, 4, 4]), (3, 4, [3]), (4, 4, [4])],  # a remainder waits for the next epoch
)
def test_ppo_visits_rows_at_most_once_in_an_epoch(rows: int, size: int, sizes: list[int]) -> None:
    algo = ppo(epochs=3, minibatch_size=size)
    batches = algo.minibatches(rows, 1)
    assert [len(batch) for batch in batches] == sizes * 3
    assert len(batches) == algo.updates_per_rollout(rows, 1)
    orders = [torch.cat(batches[i * len(sizes) : (i + 1) * len(sizes)]).tolist() for i in range(3)]
    for order in orders:
        assert len(set(order)) == sum(sizes)
        assert set(order) <= set(range(rows))
    assert rows < 12 or len({tuple(order) for order in orders}) == 3  # shuffled anew


def test_ppo_stops_its_epochs_once_the_policy_has_moved_too_far() -> None:
    settings = {"epochs": 5, "minibatch_size": 4, "learning_rate": 0.05}
    patient, strict = ppo(**settings), ppo(**settings, target_kl=1e-5)
    for algo in (patient, strict):
        metrics = algo.update(random_rollout(algo)).metrics
        assert all(torch.isfinite(value) for value in metrics.values())
    assert patient.updates == 25  # 20 rows
    assert strict.updates == 2  # the first step starts from the old policy itself, the second sees it moved


# ---- SAC


@pytest.mark.parametrize("name", [name for name in ALGOS if hasattr(algorithm(name), "actor_interval")])
def test_actor_and_temperature_wait_for_their_interval_while_the_critics_go_on(name: str) -> None:
    algo = small_algo(name, "algo.actor_interval=3")
    for step in range(1, 7):
        before = flatten(algo.state_dict())
        metrics = algo.update(random_batch(algo, seed=step)).metrics
        after = flatten(algo.state_dict())
        changed = {key.split("/")[0] for key in before if "weight" in key or key == "log_alpha"}
        changed &= {key.split("/")[0] for key in before if not _same(before[key], after[key])}
        if isinstance(algo, DDPG) and not isinstance(algo, DrQv2):  # whose targets all wait, too
            always, waiting = {"critic"}, {"actor", "target_actor", "target_critic"}
        else:  # of which one has no targets, and one no temperature
            always, waiting = {"critic", "target_critic"}, {"actor", "log_alpha"}
            always, waiting = always & algo.parts().keys(), waiting & algo.parts().keys()
        assert changed == always | (waiting if step % 3 == 0 else set())
        assert ("loss/actor" in metrics) == (step % 3 == 0)


def _same(left: Any, right: Any) -> bool:
    return torch.equal(left, right) if isinstance(left, Tensor) else left == right
