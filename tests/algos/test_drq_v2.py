"""DrQ-v2's mathematics: by hand, and against code written from the paper."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from rlexp.models.cnn import CNN
from tests.algos.common import random_batch, small_algo


def test_an_update_equals_one_written_from_the_paper() -> None:
    algo = small_algo("drq_v2", "algo.exploration_noise=0.4", "algo.feature_size=6", "algo.schedules={}", obs="image")
    batch = random_batch(algo, 4)
    noise = copy.deepcopy(algo).randomness(batch)  # with a copy of the generator
    before = copy.deepcopy(algo)
    algo.update(batch)

    cnn = next(module for module in before.encoder.modules() if isinstance(module, CNN))

    def encode(obs, shift):
        x = obs.movedim(-1, 1).float()
        x = functional.pad(x, (4, 4, 4, 4), mode="replicate")
        x = torch.stack([one[:, top : top + 36, left : left + 36] for one, (top, left) in zip(x, shift.tolist())])
        x = x / 255 - 0.5
        for i, layer in enumerate(cnn.convolutions):
            x = functional.conv2d(x, layer.weight, layer.bias, stride=1 if i else 2).relu()
        return x.flatten(1)

    def noisy(mean, draw):
        action = mean + (0.4 * draw).clamp(-0.3, 0.3)
        return action + (action.clamp(-1, 1) - action).detach()

    with torch.no_grad():
        following = encode(batch.next_obs, noise["next_shift"])
        action = noisy(before.actor(following).tanh(), noise["next_action"])
        q1, q2 = before.critic(following, action)[..., 0]  # the targets are still the critics
        target = batch.reward + batch.discount * torch.minimum(q1, q2)
    critic = torch.optim.Adam([*before.encoder.parameters(), *before.critic.parameters()], lr=1e-4)
    actor = torch.optim.Adam(before.actor.parameters(), lr=1e-4)
    features = encode(batch.obs, noise["shift"])
    old = copy.deepcopy(before.critic)
    q1, q2 = before.critic(features, batch.action)[..., 0]
    ((q1 - target).square().mean() + (q2 - target).square().mean()).backward()
    critic.step()
    features = features.detach()
    actor.zero_grad()
    q1, q2 = before.critic(features, noisy(before.actor(features).tanh(), noise["action"]))[..., 0]
    (-torch.minimum(q1, q2).mean()).backward()
    actor.step()
    for ours, theirs in zip((algo.encoder, algo.critic, algo.actor), (before.encoder, before.critic, before.actor)):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-6)
    for mine, was, now in zip(algo.target_critic.parameters(), old.parameters(), before.critic.parameters()):
        torch.testing.assert_close(mine, was + 0.01 * (now - was), rtol=1e-4, atol=2e-6)


def test_the_actor_does_not_change_the_encoder() -> None:
    algo = small_algo("drq_v2", obs="image")
    batch = random_batch(algo, 4)
    noise = algo.randomness(batch)
    before = [parameter.clone() for parameter in algo.encoder.parameters()]
    algo.actor_phase(algo.encoder(batch.obs), noise)
    assert all(torch.equal(a, b) for a, b in zip(before, algo.encoder.parameters()))


def test_the_value_of_an_action_is_asked_through_the_encoder() -> None:
    algo = small_algo("drq_v2", obs="image")
    batch = random_batch(algo, 4)
    q = algo.critic(algo.encoder(batch.obs), batch.action)[..., 0]
    torch.testing.assert_close(algo.action_value(batch.obs, batch.action), q.amin(0))


def test_the_encoder_decays_with_the_other_networks() -> None:
    changes = "model.weight_decay=0.5", "model.critic_weight_decay=0"
    algo, plain = small_algo("drq_v2", *changes, obs="image"), small_algo("drq_v2", obs="image")
    before = {key: p.detach().clone() for key, p in algo.encoder.named_parameters()}
    for agent in (algo, plain):
        agent.update(random_batch(agent, 4))
    others = dict(plain.encoder.named_parameters())
    for key, parameter in algo.encoder.named_parameters():
        taken = 1e-4 * 0.5 * before[key] if key.endswith("weight") else torch.zeros_like(parameter)
        torch.testing.assert_close(others[key] - parameter, taken, rtol=1e-2, atol=1e-7)
        assert not key.endswith("weight") or taken.abs().max() > 1e-6
