"""What a compiled update needs: one graph, the eager numbers, and no value read back from the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlexp.envs.spec import ActionSpec, Leaf
from rlexp.models import Activation, NetDefaults, Network, Norm, policy_distribution
from rlexp.models.distributions import SquashedGaussianHead
from rlexp.models.encoders import Encoder
from rlexp.normalize import ObsNormalizer
from rlexp.optim import Adam, RMSprop, polyak
from tests.models.specs import box, discrete, env_spec, image, multi_discrete, obs_spec


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def one_graph(function: Any, backend: str = "aot_eager") -> Any:
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)


def assert_one_graph() -> None:
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class ActorCritic:
    """A PPO-like update: two networks, one clipped step."""

    def __init__(self, action: ActionSpec, optimizer: type) -> None:
        torch.manual_seed(0)
        defaults = NetDefaults(hidden=(8, 8), activation=Activation.tanh, init="orthogonal")
        self.head = policy_distribution(action)
        self.actor = Network().build(env_spec(box(4)), self.head.out, defaults=defaults, out_gain=0.01)
        self.critic = Network().build(env_spec(box(4)), 1, defaults=defaults)
        self.log_std = torch.zeros(self.head.out, requires_grad=True) if self.head.needs_log_std else None
        params = [*self.actor.named_parameters(), *self.critic.named_parameters()]
        if self.log_std is not None:
            params.append(("log_std", self.log_std))
        self.optimizer = optimizer(params, 1e-2, max_grad_norm=0.1)

    def update(self, obs: Tensor, action: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        dist = self.head.dist(self.actor(obs), self.log_std)
        value = self.critic(obs).squeeze(-1)
        loss = -(dist.log_prob(action) * advantage).mean() - 0.1 * dist.entropy().mean()
        loss = loss + (value - advantage).square().mean()
        return loss.detach(), self.optimizer.step(loss)


class SoftCritic:
    """A SAC-like critic update: an ensemble with LayerNorm, its target, and a scheduled learning rate."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        defaults = NetDefaults(hidden=(8, 8), norm=Norm.layer)
        self.head = SquashedGaussianHead(2)
        self.actor = Network().build(env_spec(box(4)), self.head.out, defaults=defaults)
        self.critic = Network().build(env_spec(box(4)), 1, defaults=defaults, action_dim=2, ensemble=2)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.optimizer = Adam(self.critic.named_parameters(), torch.tensor(1e-2), weight_decay=0.1)
        self.source, self.copies = list(self.critic.parameters()), list(self.target.parameters())

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            next_action, log_prob = self.head.dist(self.actor(obs)).sample_with_log_prob(noise)
            goal = reward + 0.9 * (self.target(obs, next_action).squeeze(-1).amin(0) - log_prob)
        loss = (self.critic(obs, action).squeeze(-1) - goal).square().mean()
        self.optimizer.step(loss)
        polyak(self.copies, self.source, 0.05)
        return loss.detach()


ACTIONS = {
    "discrete": ActionSpec("discrete", (), (3,)),
    "multi_discrete": ActionSpec("multi_discrete", (2,), (2, 3)),
    "multi_binary": ActionSpec("multi_binary", (2,), (2, 2)),
    "continuous": ActionSpec("continuous", (2,), (), (-1.0, -1.0), (1.0, 1.0)),
}


@pytest.mark.parametrize(("kind", "optimizer"), [*((kind, Adam) for kind in ACTIONS), ("discrete", RMSprop)])
def test_a_policy_update_is_one_graph_with_the_eager_numbers(kind: str, optimizer: type) -> None:
    eager, traced = ActorCritic(ACTIONS[kind], optimizer), ActorCritic(ACTIONS[kind], optimizer)
    compiled = one_graph(traced.update)
    for _ in range(4):
        obs, advantage = torch.randn(16, 4), torch.randn(16)
        head = eager.head
        log_std = torch.zeros(head.out) if head.needs_log_std else None
        action = head.dist(torch.zeros(16, head.out), log_std).sample(head.draw_noise(16))
        torch.testing.assert_close(compiled(obs, action, advantage), eager.update(obs, action, advantage))
    for ours, theirs in zip(traced.optimizer.params, eager.optimizer.params, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert_one_graph()


def test_a_critic_update_with_its_target_is_one_graph_with_the_eager_numbers() -> None:
    eager, traced = SoftCritic(), SoftCritic()
    compiled = one_graph(traced.update)
    for step in range(4):
        for agent in (eager, traced):
            agent.optimizer.lr.fill_(1e-2 / (step + 1))  # must reach the graph without tracing it again
        batch = (torch.randn(16, 4), torch.rand(16, 2) * 2 - 1, torch.randn(16), torch.randn(16, 2))
        torch.testing.assert_close(compiled(*batch), eager.update(*batch))
    for ours, theirs in zip([*traced.source, *traced.copies], [*eager.source, *eager.copies], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert_one_graph()


def test_a_graph_stays_valid_when_state_is_loaded() -> None:
    eager, traced = SoftCritic(), SoftCritic()
    compiled = one_graph(traced.update)
    batch = (torch.randn(16, 4), torch.rand(16, 2) * 2 - 1, torch.randn(16), torch.randn(16, 2))
    compiled(*batch)
    for name in ("critic", "target", "optimizer"):
        getattr(traced, name).load_state_dict(copy.deepcopy(getattr(eager, name).state_dict()))
    torch.testing.assert_close(compiled(*batch), eager.update(*batch))
    for ours, theirs in zip(traced.copies, eager.copies, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert_one_graph()


def test_scheduled_tau_is_traced_as_a_tensor() -> None:
    target, source, tau = [torch.zeros(3), torch.zeros(2, 2)], [torch.ones(3), torch.ones(2, 2)], torch.tensor(0.5)
    compiled = one_graph(lambda: polyak(target, source, tau))
    compiled()
    tau.fill_(0.1)
    compiled()
    for tensor in target:
        torch.testing.assert_close(tensor, torch.full_like(tensor, 0.55))
    assert_one_graph()


def every_kind() -> tuple[dict[str, Leaf], dict[str, Tensor]]:
    leaves = {
        "camera": image(36, 36, 3),
        "speed": box(2),
        "grid": box(2, 3),
        "gear": discrete(4),
        "dials": multi_discrete(2, 3),
        "lights": Leaf("multi_binary", (2,), "int8"),
    }
    obs = {
        "camera": torch.randint(256, (5, 36, 36, 3), dtype=torch.uint8),
        "speed": torch.randn(5, 2),
        "grid": torch.randn(5, 2, 3),
        "gear": torch.randint(4, (5,)),
        "dials": torch.randint(2, (5, 2)),
        "lights": torch.randint(2, (5, 2), dtype=torch.int8),
    }
    return leaves, obs


def test_every_encoder_and_the_normaliser_trace_as_one_graph() -> None:
    leaves, obs = every_kind()
    encoder, normalizer = Encoder(obs_spec(**leaves)), ObsNormalizer(obs_spec(**leaves))
    normalizer.update(obs)
    forward = lambda obs: encoder(normalizer(obs))  # noqa: E731
    torch.testing.assert_close(one_graph(forward, "eager")(obs), forward(obs))
    assert_one_graph()


class ScalarReads(TorchDispatchMode):
    """Counts values read back from tensors, each of which would make a GPU wait."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_updates_and_encoders_read_no_value_back() -> None:
    leaves, obs = every_kind()
    encoder, normalizer = Encoder(obs_spec(**leaves)), ObsNormalizer(obs_spec(**leaves))
    policy, critic = ActorCritic(ACTIONS["discrete"], Adam), SoftCritic()
    with ScalarReads() as reads:
        normalizer.update(obs)
        encoder(normalizer(obs))
        policy.update(torch.randn(16, 4), torch.randint(3, (16,)), torch.randn(16))
        critic.update(torch.randn(16, 4), torch.zeros(16, 2), torch.randn(16), torch.randn(16, 2))
    assert reads.count == 0
    with ScalarReads() as reads:
        torch.zeros(()).item()
    assert reads.count == 1  # the counter itself works
