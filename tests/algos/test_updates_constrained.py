"""What single updates of the offline algorithms that stay near their data minimise, by loops over rows and samples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions.transforms import TanhTransform

from rlexp.algos import BCQ, BEAR, CQL, EDAC, SACN, CalQL, DiscreteBCQ, DiscreteCQL, ReBRAC
from rlexp.algos.bear import Kernel
from rlexp.algos.cql import Backup
from rlexp.errors import ConfigError
from rlexp.models import Network
from rlexp.types import Batch
from tests.algos.common import CPU, random_batch
from tests.algos.test_oracles import env_spec
from tests.algos.test_updates import ROWS, critic_loss, observe, set_up


def sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action of a squashed Gaussian and its log-density, by torch.distributions."""
    mean, log_std = outputs.chunk(2, -1)
    normal = Normal(mean, log_std.clip(-20, 2).exp())
    before = normal.mean + normal.stddev * noise
    correction = TanhTransform().log_abs_det_jacobian(before, before.tanh())
    return before.tanh(), (normal.log_prob(before) - correction).sum(-1)


def metrics_of(algo: Any, batch: Batch) -> dict[str, float]:
    return {name: value.item() for name, value in algo.update(batch).metrics.items()}


# ---- CQL, Cal-QL


def conservative_gap(algo: Any, batch: Batch, critic: nn.Module, actor: nn.Module, noise: list[Tensor]) -> list[float]:
    """For each critic the mean of log Σ_j exp(Q)/μ − Q(data), one sampled action at a time."""
    uniform, current, following = noise
    data = critic(batch.obs, batch.action)[..., 0]
    gaps = [0.0] * len(data)
    for b in range(ROWS):
        obs, next_obs = batch.obs[b : b + 1], batch.next_obs[b : b + 1]
        terms: list[list[float]] = [[] for _ in gaps]
        for j in range(algo.n_action_samples):
            kinds = [
                (uniform[j, b][None] * 2 - 1, math.log(0.25), False),  # two dimensions of width 2
                *(
                    (action, log_prob.item(), True)
                    for action, log_prob in (
                        sample(actor(obs), current[j, b]),
                        sample(actor(next_obs), following[j, b]),
                    )
                ),
            ]
            for action, log_density, own in kinds:
                for i, q in enumerate(critic(obs, action)[..., 0]):
                    value = q.item()
                    if own and isinstance(algo, CalQL):
                        value = max(value, batch.extras["mc_return"][b].item())
                    terms[i].append(math.exp(value - log_density))
        for i in range(len(gaps)):
            gaps[i] += (math.log(sum(terms[i])) - data[i, b].item()) / ROWS
    return gaps


@pytest.mark.parametrize("cls", [CQL, CalQL])
@pytest.mark.parametrize("backup", list(Backup))
@pytest.mark.parametrize("target_gap", [None, 3.0])
def test_cql_adds_the_excess_over_the_data_to_the_bellman_error(
    cls: type[CQL], backup: Backup, target_gap: float | None
) -> None:
    samples, weight = 3, 2.0
    settings = {"backup": backup, "target_gap": target_gap, "conservative_weight": weight, "initial_alpha": 0.4}
    if target_gap is not None:
        settings["multiplier_learning_rate"] = 0.1
    algo = set_up(cls(n_action_samples=samples, **settings), "continuous")
    batch, (actor, critic, target), generator = observe(algo, "actor", "critic", "target_critic")
    alpha = algo.log_alpha.exp().item()
    multiplier = 1.0 if target_gap is None else algo.log_multiplier.exp().item()
    metrics = metrics_of(algo, batch)
    _, next_noise = torch.randn(2, ROWS, 2, generator=generator)
    noise = [torch.rand(samples, ROWS, 2, generator=generator)]
    noise += [torch.randn(samples, ROWS, 2, generator=generator) for _ in range(2)]
    with torch.no_grad():
        gaps = conservative_gap(algo, batch, critic, actor, noise)
        next_value = []
        for b in range(ROWS):
            obs = batch.next_obs[b : b + 1]
            draws = noise[2][:, b] if backup.name == "max" else next_noise[b][None]
            found = []
            for draw in draws:
                action, log_prob = sample(actor(obs), draw)
                entropy = alpha * log_prob.item() if backup.name == "soft" else 0.0
                found.append(min(q.item() for q in target(obs, action)) - entropy)
            next_value.append(max(found))
        td = critic_loss(critic(batch.obs, batch.action)[..., 0], batch, next_value)
    penalty = sum(multiplier * (weight * gap - (target_gap or 0.0)) for gap in gaps)
    assert metrics["q/conservative_gap"] == pytest.approx(sum(gaps) / 2, rel=1e-4)
    assert metrics["loss/critic"] == pytest.approx(td + penalty, rel=1e-4)
    if target_gap is not None:
        assert metrics["q/multiplier"] == pytest.approx(multiplier, rel=1e-5)
        grew = algo.log_multiplier.exp().item() > multiplier
        assert grew == (weight * sum(gaps) / 2 > target_gap)


def test_cal_ql_differs_from_cql_only_where_returns_are_larger_than_values() -> None:
    def gap(cls: type[CQL], returns: float) -> float:
        algo = cls()
        algo.setup(env_spec("continuous"), Network(hidden=(16,)), device=CPU, seed=4)
        batch = random_batch(algo, ROWS)
        return metrics_of(algo, batch._replace(extras={"mc_return": torch.full((ROWS,), returns)}))[
            "q/conservative_gap"
        ]

    assert gap(CalQL, -100.0) == gap(CQL, -100.0)
    assert gap(CalQL, 100.0) > gap(CQL, 100.0) + 50


def test_cql_clones_the_data_at_first() -> None:
    algo = CQL(bc_updates=2, alpha=0.3, actor_learning_rate=1e-2)
    algo.setup(env_spec("continuous"), Network(hidden=(16,)), device=CPU, seed=4)
    for step in range(4):
        batch, (actor,), generator = observe(algo, "actor")
        loss = metrics_of(algo, batch)["loss/actor"]
        noise, _ = torch.randn(2, ROWS, 2, generator=generator)
        with torch.no_grad():
            action, log_prob = sample(actor(batch.obs), noise)
            mean, log_std = actor(batch.obs).chunk(2, -1)
            before = batch.action.atanh()
            density = Normal(mean, log_std.exp()).log_prob(before) - (1 - batch.action.square()).log()
            q = algo.critic(batch.obs, action)[..., 0].min(0).values
            followed = density.sum(-1) if step < 2 else q
        assert loss == pytest.approx((0.3 * log_prob - followed).mean().item(), rel=1e-3)


# ---- SAC-N, EDAC


def test_edac_without_its_penalty_is_sac_n_and_sac_n_takes_the_minimum_of_all() -> None:
    one, two = set_up(EDAC(eta=0.0, n_critics=4), "continuous"), set_up(SACN(n_critics=4), "continuous")
    batch = random_batch(one, ROWS, seed=9)
    left, right = metrics_of(one, batch), metrics_of(two, batch)
    for name, value in right.items():
        assert left[name] == pytest.approx(value, rel=1e-5)
    with torch.no_grad():
        q = two.critic(batch.obs, batch.action)[..., 0]
        assert torch.equal(two.reduce_target(q, {}), torch.stack([q[:, b].min() for b in range(ROWS)]))


def test_edac_penalises_gradients_that_point_the_same_way() -> None:
    critics, eta = 3, 2.0
    algo, plain = (set_up(EDAC(n_critics=critics, eta=eta), "continuous") for eta in (eta, 0.0))
    plain.load_state_dict(algo.state_dict())
    batch, (critic,), _ = observe(algo, "critic")
    metrics, without = metrics_of(algo, batch), metrics_of(plain, batch)
    action = batch.action.clone().requires_grad_()
    similarity = 0.0
    for b in range(ROWS):
        values = critic(batch.obs[b : b + 1], action[b : b + 1])[:, 0, 0]
        gradients = [torch.autograd.grad(q, action, retain_graph=True)[0][b] for q in values]
        for i in range(critics):
            for j in range(critics):
                if i != j:
                    cosine = torch.cosine_similarity(gradients[i], gradients[j], dim=0).item()
                    similarity += cosine / (critics - 1) / ROWS
    assert metrics["q/similarity"] == pytest.approx(similarity, rel=1e-3)
    assert metrics["loss/critic"] == pytest.approx(without["loss/critic"] + eta * similarity, rel=1e-4)


def test_edacs_critics_learn_to_disagree() -> None:
    def similarity_after(eta: float) -> float:
        algo = set_up(EDAC(n_critics=3, eta=eta, critic_learning_rate=1e-2), "continuous")
        return [metrics_of(algo, random_batch(algo, ROWS, seed=1))["q/similarity"] for _ in range(30)][-1]

    assert similarity_after(10.0) < similarity_after(0.0) - 0.3  # the smallest possible is −3/2


def test_edac_needs_critics_to_compare() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        EDAC(n_critics=1)


# ---- BCQ, BEAR


def decoded(vae: Any, obs: Tensor, latent: Tensor) -> Tensor:
    return vae.decoder(obs, latent.clip(-0.5, 0.5))


def soft_clipped_value(target: Any, obs: Tensor, actions: list[Tensor], weight: float) -> float:
    found = []
    for action in actions:
        values = [q.item() for q in target(obs, action)]
        found.append(weight * min(values) + (1 - weight) * max(values))
    return max(found)


def test_bcq_bootstraps_from_the_best_of_actions_like_the_datas() -> None:
    samples, phi = 3, 0.2
    algo = set_up(BCQ(n_target_samples=samples, phi=phi, min_weight=0.7), "continuous")
    names = ("actor", "critic", "target_actor", "target_critic", "vae")
    batch, (actor, critic, target_actor, target, vae), generator = observe(algo, *names)
    metrics = metrics_of(algo, batch)
    vae_noise = torch.randn(ROWS, 4, generator=generator)
    next_noise = torch.randn(samples, ROWS, 4, generator=generator)
    noise = torch.randn(1, ROWS, 4, generator=generator)[0]
    assert (next_noise.abs() > 0.5).any()  # the clipping is seen
    with torch.no_grad():
        made = vae.encoder(batch.obs, batch.action)
        mean, log_std = made[:, :4], made[:, 4:].clip(-4, 15)
        again = vae.decoder(batch.obs, mean + log_std.exp() * vae_noise).tanh()
        expected_vae = (again - batch.action).square().mean()
        expected_vae += 0.5 * -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean()

        def moved(net: nn.Module, obs: Tensor, latent: Tensor) -> Tensor:
            action = decoded(algo.vae, obs, latent).tanh()  # the model after its step
            return (action + phi * net(obs, action).tanh()).clip(-1, 1)

        next_value = []
        for b in range(ROWS):
            obs = batch.next_obs[b : b + 1]
            actions = [moved(target_actor, obs, next_noise[j, b][None]) for j in range(samples)]
            next_value.append(soft_clipped_value(target, obs, actions, 0.7))
        expected_critic = critic_loss(critic(batch.obs, batch.action)[..., 0], batch, next_value)
        expected_actor = -algo.critic(batch.obs, moved(actor, batch.obs, noise))[0].mean()
    assert metrics["loss/vae"] == pytest.approx(expected_vae.item(), rel=1e-4)
    assert metrics["loss/critic"] == pytest.approx(expected_critic, rel=1e-4)
    assert metrics["loss/actor"] == pytest.approx(expected_actor.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("cls", [BCQ, BEAR])
def test_the_action_taken_is_the_best_of_the_samples(cls: type[BCQ]) -> None:
    algo = set_up(cls(n_action_samples=20), "continuous")
    obs = torch.randn(5, 4)
    with torch.no_grad():
        taken = algo.act(obs, None, explore=False, generator=algo.generator).action
        for n in range(5):
            one = obs[n : n + 1]
            if cls is BCQ:
                actions = decoded(algo.vae, one.expand(20, 4), algo.greedy_noise[:, 0]).tanh()
                actions = (actions + 0.05 * algo.actor(one.expand(20, 4), actions).tanh()).clip(-1, 1)
            else:
                actions = sample(algo.actor(one), algo.greedy_noise[:, 0])[0]
            best = algo.critic(one.expand(20, 4), actions)[0, :, 0].argmax()
            torch.testing.assert_close(taken[n], actions[best])


def test_bcq_stays_near_what_its_model_of_the_data_says() -> None:
    algo = BCQ(phi=0.1, actor_learning_rate=0.5)
    algo.setup(env_spec("continuous"), Network(hidden=(16,)), device=CPU, seed=4)
    for seed in range(20):
        algo.update(random_batch(algo, ROWS, seed))
    obs, noise = torch.randn(50, 4), torch.randn(3, 50, 4)
    with torch.no_grad():
        moved = algo.sampled_actions(algo.actor, obs, noise)
        plain = torch.stack([decoded(algo.vae, obs, each).tanh() for each in noise])
    assert 0 < (moved - plain).abs().max() <= 0.1 + 1e-6


@pytest.mark.parametrize("kernel", list(Kernel))
@pytest.mark.parametrize("warmup", [0, 100])
def test_bear_keeps_the_policy_within_reach_of_the_data(kernel: Kernel, warmup: int) -> None:
    samples, sigma = 4, 2.0
    settings = {"kernel": kernel, "mmd_sigma": sigma, "warmup_updates": warmup, "mmd_threshold": 0.1}
    algo = set_up(BEAR(n_mmd_samples=samples, n_target_samples=3, **settings), "continuous")
    names = ("actor", "critic", "target_actor", "target_critic")
    batch, (actor, critic, target_actor, target), generator = observe(algo, *names)
    multiplier = algo.log_multiplier.exp().item()
    metrics = metrics_of(algo, batch)
    torch.randn(ROWS, 4, generator=generator)
    next_noise = torch.randn(3, ROWS, 2, generator=generator)
    data_noise = torch.randn(samples, ROWS, 4, generator=generator)
    noise = torch.randn(samples, ROWS, 2, generator=generator)

    def unsquashed(outputs: Tensor, draw: Tensor) -> Tensor:
        mean, log_std = outputs.chunk(2, -1)
        return mean + log_std.clip(-20, 2).exp() * draw

    def likeness(x: Tensor, y: Tensor) -> float:
        distance = (x - y).abs().sum() if kernel.name == "laplacian" else (x - y).square().sum()
        return math.exp(-distance.item() / (2 * sigma))

    with torch.no_grad():
        next_value, mmd, values = [], [], []
        for b in range(ROWS):
            obs, next_obs = batch.obs[b : b + 1], batch.next_obs[b : b + 1]
            actions = [unsquashed(target_actor(next_obs), next_noise[j, b]).tanh() for j in range(3)]
            next_value.append(soft_clipped_value(target, next_obs, actions, 0.75))
            x = [decoded(algo.vae, obs, data_noise[j, b][None]) for j in range(samples)]
            y = [unsquashed(actor(obs), noise[j, b]) for j in range(samples)]
            pairs = [(p, q) for p in range(samples) for q in range(samples)]
            squared = sum(likeness(x[p], x[q]) + likeness(y[p], y[q]) - 2 * likeness(x[p], y[q]) for p, q in pairs)
            mmd.append(math.sqrt(squared / samples**2 + 1e-6))
            values.append(min(q.item() for q in algo.critic(obs, y[0].tanh())) if warmup == 0 else 0.0)
        expected_critic = critic_loss(critic(batch.obs, batch.action)[..., 0], batch, next_value)
    assert metrics["loss/critic"] == pytest.approx(expected_critic, rel=1e-4)
    assert metrics["policy/mmd"] == pytest.approx(sum(mmd) / ROWS, rel=1e-3)
    expected_actor = sum(multiplier * d - q for d, q in zip(mmd, values)) / ROWS
    assert metrics["loss/actor"] == pytest.approx(expected_actor, rel=1e-3)
    # Adam's steps are of its learning rate at first: up, where the policy is too far.
    assert (algo.log_multiplier.exp().item() > multiplier) == (sum(mmd) / ROWS > 0.1)


@pytest.mark.parametrize(("start", "bound"), [(20.0, 10.0), (-20.0, -5.0)])
def test_bears_multiplier_is_bounded(start: float, bound: float) -> None:
    algo = set_up(BEAR(), "continuous")
    with torch.no_grad():
        algo.log_multiplier.fill_(start)
    algo.update(random_batch(algo, ROWS))
    assert algo.log_multiplier.item() == bound


# ---- ReBRAC


def test_rebrac_subtracts_the_distance_to_the_datas_next_action_from_the_target() -> None:
    algo = set_up(ReBRAC(actor_interval=1, actor_bc_coef=0.7, critic_bc_coef=0.4), "continuous")
    batch, (actor, critic, target_actor, target), generator = observe(
        algo, "actor", "critic", "target_actor", "target_critic"
    )
    assert 0 < batch.extras["next_action_known"].sum() < ROWS
    metrics = metrics_of(algo, batch)
    noise = torch.randn(ROWS, 2, generator=generator)
    with torch.no_grad():
        next_value, loss = [], 0.0
        for b in range(ROWS):
            obs = batch.next_obs[b : b + 1]
            action = (target_actor(obs).tanh() + (0.2 * noise[b]).clip(-0.5, 0.5)).clip(-1, 1)
            distance = sum((action[0, j] - batch.extras["next_action"][b, j]).item() ** 2 for j in range(2))
            penalty = 0.4 * distance if batch.extras["next_action_known"][b] else 0.0
            next_value.append(min(q.item() for q in target(obs, action)) - penalty)
        action = actor(batch.obs).tanh()
        q = [min(x.item() for x in algo.critic(batch.obs[b : b + 1], action[b : b + 1])) for b in range(ROWS)]
        scale = ROWS / sum(abs(x) for x in q)
        for b in range(ROWS):
            distance = sum((action[b, j] - batch.action[b, j]).item() ** 2 for j in range(2))
            loss += (0.7 * distance - scale * q[b]) / ROWS
        expected_critic = critic_loss(critic(batch.obs, batch.action)[..., 0], batch, next_value)
    assert metrics["loss/critic"] == pytest.approx(expected_critic, rel=1e-4)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-3)


def test_rebracs_critics_have_three_layers_with_norms_after_the_activation() -> None:
    algo = ReBRAC()
    algo.setup(env_spec("continuous"), Network(), device=CPU, seed=0)
    assert [tuple(layer.weight.shape[1:]) for layer in algo.critic.layers][1:-1] == [(256, 256)] * 2
    assert algo.critic.norm.name == "layer_after"
    assert all(layer.norm_weight is None for layer in algo.actor.layers)


# ---- discrete forms


def test_discrete_cql_adds_the_excess_of_all_actions_over_the_datas() -> None:
    algo = set_up(DiscreteCQL(conservative_weight=0.7, target_interval=2), "discrete")
    batch, (q, target), _ = observe(algo, "q", "target_q")
    metrics = metrics_of(algo, batch)
    loss = 0.0
    with torch.no_grad():
        for b in range(ROWS):
            values, taken = q(batch.obs[b : b + 1])[0], batch.action[b]
            best = q(batch.next_obs[b : b + 1])[0].argmax()
            y = batch.reward[b] + batch.discount[b] * target(batch.next_obs[b : b + 1])[0, best]
            error = (values[taken] - y).abs().item()
            loss += (0.5 * error**2 if error < 1 else error - 0.5) / ROWS
            loss += 0.7 * (math.log(sum(math.exp(v) for v in values)) - values[taken].item()) / ROWS
    assert metrics["loss/q"] == pytest.approx(loss, rel=1e-4)


def test_discrete_bcq_chooses_among_likely_actions_in_targets_and_when_it_acts() -> None:
    threshold = 0.8
    algo = set_up(DiscreteBCQ(threshold=threshold, target_interval=2, learning_rate=0.05), "discrete")
    batch, (q, target, imitator), _ = observe(algo, "q", "target_q", "imitator")

    def best(obs: Tensor, q: nn.Module, imitator: nn.Module) -> int:
        p = imitator(obs)[0].softmax(-1)
        allowed = [a for a in range(3) if p[a] / p.max() >= threshold]
        return max(allowed, key=lambda a: q(obs)[0, a].item())

    metrics = metrics_of(algo, batch)
    loss = imitation = 0.0
    with torch.no_grad():
        for b in range(ROWS):
            obs, following, taken = batch.obs[b : b + 1], batch.next_obs[b : b + 1], batch.action[b]
            y = batch.reward[b] + batch.discount[b] * target(following)[0, best(following, q, imitator)]
            error = (q(obs)[0, taken] - y).abs().item()
            loss += (0.5 * error**2 if error < 1 else error - 0.5) / ROWS
            logits = imitator(obs)[0]
            imitation -= (logits.log_softmax(-1)[taken].item() - 0.01 * logits.square().mean().item()) / ROWS
        greedy = algo.act(batch.obs, None, explore=False, generator=algo.generator).action
        free = algo.q(batch.obs).argmax(-1)
        expected = [best(batch.obs[b : b + 1], algo.q, algo.imitator) for b in range(ROWS)]
    assert metrics["loss/q"] == pytest.approx(loss, rel=1e-4)
    assert metrics["loss/imitation"] == pytest.approx(imitation, rel=1e-4)
    assert greedy.tolist() == expected
    assert greedy.tolist() != free.tolist()  # the constraint was felt
