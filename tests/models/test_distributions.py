"""Against torch.distributions, as an independent implementation, and against frequencies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as reference

from rlexp.envs.spec import ActionSpec
from rlexp.models.distributions import (
    Bernoulli,
    BoundedGaussianHead,
    Categorical,
    DeterministicHead,
    DiagGaussian,
    MultiCategoricalHead,
    SquashedGaussian,
    SquashedGaussianHead,
    policy_distribution,
)

SPECS = {
    "discrete": ActionSpec("discrete", (), (4,)),
    "multi_discrete": ActionSpec("multi_discrete", (3,), (2, 4, 3)),
    "even": ActionSpec("multi_discrete", (2,), (3, 3)),
    "multi_binary": ActionSpec("multi_binary", (3,), (2, 2, 2)),
    "continuous": ActionSpec("continuous", (2,), (), (-1.0, -math.inf), (1.0, math.inf)),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("batch", [(5,), (2, 3)])
def test_shapes_and_types_are_those_of_the_action_space(name: str, batch: tuple[int, ...]) -> None:
    spec = SPECS[name]
    head = policy_distribution(spec)
    log_std = torch.zeros(spec.dim) if head.needs_log_std else None
    dist = head.dist(torch.randn(*batch, head.out), log_std)
    noise = head.draw_noise(*batch, generator=generator())
    assert torch.equal(noise, head.draw_noise(*batch, generator=generator()))
    for action in (dist.sample(noise), dist.mode()):
        assert action.shape == (*batch, *spec.shape)
        assert str(action.dtype) == f"torch.{spec.dtype}"
        assert dist.log_prob(action).shape == batch
    assert dist.entropy().shape == batch
    assert dist.kl(head.dist(torch.randn(*batch, head.out), log_std)).shape == batch


def test_categorical_agrees_with_torch() -> None:
    p, q, action = torch.randn(6, 4) * 3, torch.randn(6, 4), torch.randint(4, (6,))
    ours, theirs = Categorical(p), reference.Categorical(logits=p)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    expected = reference.kl_divergence(theirs, reference.Categorical(logits=q))
    torch.testing.assert_close(ours.kl(Categorical(q)), expected)


def test_bernoulli_agrees_with_torch() -> None:
    p, q, action = torch.randn(6, 3) * 3, torch.randn(6, 3), torch.randint(2, (6, 3))
    ours, theirs = Bernoulli(p), reference.Bernoulli(logits=p)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action.float()).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    expected = reference.kl_divergence(theirs, reference.Bernoulli(logits=q)).sum(-1)
    torch.testing.assert_close(ours.kl(Bernoulli(q)), expected)


@pytest.mark.parametrize("nvec", [(2, 4, 3), (3, 3), (1, 5), (4,)])
def test_multi_categorical_is_a_product_of_categoricals(nvec: tuple[int, ...]) -> None:
    head = MultiCategoricalHead(nvec)
    assert head.out == sum(nvec)
    p, q = torch.randn(6, head.out, requires_grad=True), torch.randn(6, head.out)
    action = torch.stack([torch.randint(n, (6,)) for n in nvec], -1)
    parts = [reference.Categorical(logits=logits) for logits in p.split(nvec, -1)]
    others = [reference.Categorical(logits=logits) for logits in q.split(nvec, -1)]
    dist = head.dist(p)
    log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    entropy = sum(part.entropy() for part in parts)
    torch.testing.assert_close(dist.log_prob(action), log_prob)
    torch.testing.assert_close(dist.entropy(), entropy)
    torch.testing.assert_close(dist.kl(head.dist(q)), sum(map(reference.kl_divergence, parts, others)))
    torch.testing.assert_close(dist.mode(), torch.stack([part.logits.argmax(-1) for part in parts], -1))
    ours = torch.autograd.grad((dist.log_prob(action) + dist.entropy()).sum(), p)[0]
    torch.testing.assert_close(ours, torch.autograd.grad((log_prob + entropy).sum(), p)[0], rtol=1e-4, atol=1e-6)


def test_uneven_choices_never_leave_their_range() -> None:
    head = MultiCategoricalHead((2, 4, 1))
    dist = head.dist(torch.zeros(10_000, head.out))
    sample = dist.sample(head.draw_noise(10_000, generator=generator()))
    assert sample.amax(0).tolist() == [1, 3, 0]


def assert_frequencies(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Within five standard deviations of the expected counts."""
    total = counts.sum()
    deviation = (total * probs * (1 - probs)).sqrt()
    assert ((counts - total * probs).abs() <= 5 * deviation + 1e-3).all(), (counts / total, probs)


def test_samples_have_the_probabilities_of_the_logits() -> None:
    count = 200_000
    head = policy_distribution(SPECS["discrete"])
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0])
    noise = head.draw_noise(count, generator=generator())
    sample = head.dist(logits.expand(count, 4)).sample(noise)
    assert_frequencies(torch.bincount(sample, minlength=4).float(), logits.softmax(0))
    head = policy_distribution(SPECS["multi_binary"])
    logits = torch.tensor([2.0, 0.0, -3.0])
    bits = head.dist(logits.expand(count, 3)).sample(head.draw_noise(count, generator=generator()))
    ones = bits.float().sum(0)
    for i in range(3):
        p = logits[i].sigmoid()
        assert_frequencies(torch.stack([ones[i], count - ones[i]]), torch.stack([p, 1 - p]))


@pytest.mark.parametrize("shape", [(6, 3), (3,)])
def test_gaussian_agrees_with_torch(shape: tuple[int, ...]) -> None:
    mean, log_std, action, noise = torch.randn(6, 3), torch.randn(shape), torch.randn(6, 3), torch.randn(6, 3)
    other_mean, other_log_std = torch.randn(6, 3), torch.randn(shape)
    ours = DiagGaussian(mean, log_std)
    theirs = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    others = reference.Independent(reference.Normal(other_mean, other_log_std.exp()), 1)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(
        ours.kl(DiagGaussian(other_mean, other_log_std)), reference.kl_divergence(theirs, others)
    )
    torch.testing.assert_close(ours.sample(noise), mean + log_std.exp() * noise)
    assert ours.mode() is mean


def test_squashed_gaussian_agrees_with_torch_and_with_itself() -> None:
    mean, log_std, noise = torch.randn(50, 2), torch.randn(50, 2) * 0.5, torch.randn(50, 2)
    ours = SquashedGaussian(mean, log_std)
    tanh = reference.TanhTransform(cache_size=1)
    base = reference.Independent(reference.Normal(mean.double(), log_std.double().exp()), 1)
    theirs = reference.TransformedDistribution(base, [tanh])
    action, log_prob = ours.sample_with_log_prob(noise)
    torch.testing.assert_close(action, (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(ours.sample(noise), action)
    torch.testing.assert_close(ours.mode(), mean.tanh())
    expected = theirs.log_prob(tanh((mean + log_std.exp() * noise).double())).float()
    torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-5)
    inside = action.abs().amax(-1) < 0.999  # closer to the bound, float32 has lost what atanh would need
    assert inside.sum() > 25
    torch.testing.assert_close(ours.log_prob(action)[inside], log_prob[inside], rtol=1e-3, atol=1e-3)


def test_squashed_gaussian_densities_integrate_to_one() -> None:
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    dist = SquashedGaussian(torch.full_like(grid, 0.4), torch.full_like(grid, -0.5))
    assert dist.log_prob(grid).exp().sum().item() * 1e-5 == pytest.approx(1, abs=1e-4)


def test_squashed_gaussian_uses_the_given_actions_and_stays_finite_at_the_bounds() -> None:
    mean, log_std = torch.zeros(3, 1, requires_grad=True), torch.zeros(3, 1)
    log_prob = SquashedGaussian(mean, log_std).log_prob(torch.tensor([[-1.0], [0.5], [1.0]]))
    assert log_prob.isfinite().all()
    u = math.atanh(0.5)
    expected = -0.5 * u * u - 0.5 * math.log(2 * math.pi) - math.log(1 - 0.25)
    assert log_prob[1].item() == pytest.approx(expected, rel=1e-5)
    assert torch.autograd.grad(log_prob.sum(), mean)[0].isfinite().all()
    far = SquashedGaussian(torch.full((1, 1), 30.0), torch.zeros(1, 1)).sample_with_log_prob(torch.zeros(1, 1))[1]
    assert far.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30), rel=1e-5)


def test_gradients_of_a_squashed_sample_are_those_of_its_density() -> None:
    """The shortcut (the Gaussian's log-density of its own noise) must not lose a path of the gradient."""
    mean, log_std = torch.randn(4, 2, requires_grad=True), torch.randn(4, 2).mul_(0.1).requires_grad_()
    noise = torch.randn(4, 2)
    ours = SquashedGaussian(mean, log_std).sample_with_log_prob(noise)[1]
    u = mean + log_std.exp() * noise
    naive = (reference.Normal(mean, log_std.exp()).log_prob(u) - (1 - u.tanh().square()).log()).sum(-1)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), (mean, log_std)), torch.autograd.grad(naive.sum(), (mean, log_std))
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_squashed_kl_is_that_of_the_gaussians() -> None:
    p, q = SquashedGaussian(torch.randn(1, 1), torch.zeros(1, 1)), SquashedGaussian(torch.randn(1, 1), torch.ones(1, 1))
    action, log_prob = p.sample_with_log_prob(torch.randn(400_000, 1, generator=generator()))
    assert (log_prob - q.log_prob(action)).mean().item() == pytest.approx(p.kl(q).item(), abs=0.02)


def test_squashed_head_bounds_the_deviation() -> None:
    head = SquashedGaussianHead(2, log_std_min=-5.0, log_std_max=2.0)
    assert head.out == 4
    dist = head.dist(torch.tensor([[0.1, 0.2, -50.0, 50.0]]))
    torch.testing.assert_close(dist.mean, torch.tensor([[0.1, 0.2]]))
    torch.testing.assert_close(dist.log_std, torch.tensor([[-5.0, 2.0]]))
    assert head.draw_noise(7, generator=generator()).shape == (7, 2)
    own_std = SquashedGaussianHead(2, state_dependent_std=False)
    assert own_std.out == 2
    assert own_std.needs_log_std
    assert own_std.dist(torch.zeros(5, 2), torch.zeros(2)).log_prob(torch.zeros(5, 2)).shape == (5,)


@pytest.mark.parametrize("state_dependent", [True, False])
def test_a_bounded_gaussian_samples_within_its_bounds_and_keeps_the_density_of_the_normal(
    state_dependent: bool,
) -> None:
    head = BoundedGaussianHead(2, log_std_min=-3.0, log_std_max=0.5, state_dependent_std=state_dependent)
    outputs, own = torch.randn(5, head.out) * 4, None if state_dependent else torch.tensor([-9.0, 9.0])
    dist = head.dist(outputs, own)
    mean, log_std = outputs.chunk(2, -1) if state_dependent else (outputs, own)
    theirs = reference.Independent(reference.Normal(mean.tanh(), log_std.clip(-3.0, 0.5).exp()), 1)
    action = torch.tensor([1.0, -1.0]).expand(5, 2)  # on the bounds
    torch.testing.assert_close(dist.log_prob(action), theirs.log_prob(action))
    noise = head.draw_noise(300, 5, generator=generator())
    sample = dist.sample(noise)
    assert sample.shape == (300, 5, 2)
    torch.testing.assert_close(sample, (theirs.mean + theirs.stddev * noise).clip(-1, 1))
    assert (sample.abs() == 1).any()
    assert torch.equal(dist.mode(), mean.tanh())


def test_a_deterministic_policy_has_one_action_whatever_the_noise() -> None:
    head = DeterministicHead(2)
    outputs = torch.randn(5, head.out)
    dist = head.dist(outputs)
    assert torch.equal(dist.sample(head.draw_noise(5, generator=generator())), outputs.tanh())
    assert torch.equal(dist.mode(), outputs.tanh())
