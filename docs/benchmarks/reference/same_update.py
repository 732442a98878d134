"""Whether TD3 learns the same here and in Stable-Baselines3: python docs/benchmarks/reference/same_update.py

Both start from the same weights and see the same batches and the same noise; printed is how far their weights are apart
after some updates, beside how far the weights have moved. In double precision, as differences of rounding grow from
update to update. Needs stable-baselines3 and mujoco.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import torch
from stable_baselines3 import TD3
from stable_baselines3.common.logger import configure
from torch import Tensor, nn

from rlexp.config.compose import compose, register
from rlexp.runner import Runner
from rlexp.types import Batch

BATCH = 256
SHOWN = (1, 2, 10, 50, 100, 200)

Pairs = list[tuple[Tensor, Tensor]]  # parameters of rlexp, and their likes in Stable-Baselines3


def pairs(mine: Any, theirs: list[nn.Module]) -> Pairs:
    """Weights and biases of a network of rlexp, or of an ensemble, beside those of Stable-Baselines3's networks."""
    found: Pairs = []
    for member, network in enumerate(theirs):
        linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
        for layer, linear in zip(mine.layers, linears, strict=True):
            weight, bias = layer.weight, layer.bias
            if mine.ensemble is not None:
                head = layer is mine.layers[-1]
                weight, bias = weight[member] if head else weight[member].T, bias[member, 0]
            found += [(weight, linear.weight), (bias, linear.bias)]
    return found


def distance(two: Pairs) -> float:
    """The largest difference of two parameters."""
    return max((a - b).abs().max().item() for a, b in two)


@torch.no_grad()
def main() -> None:
    """Compare update by update."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    Tensor.float = Tensor.double  # type: ignore[method-assign]  # by which both would make observations float32
    peer = TD3("MlpPolicy", gymnasium.make("Hopper-v5"), seed=0, device="cpu")
    peer.set_logger(configure(None, []))
    register()
    runner = Runner(compose(["zoo=td3_hopper"]))
    algo: Any = runner.algo
    algo.setup(runner.spec, runner.model, device=torch.device("cpu"), seed=0)
    networks = {
        "actor": pairs(algo.actor, [peer.actor.mu]),
        "critics": pairs(algo.critic, list(peer.critic.q_networks)),
        "target of the actor": pairs(algo.target_actor.net, [peer.actor_target.mu]),
        "targets of the critics": pairs(algo.target_critic.net, list(peer.critic_target.q_networks)),
    }
    for two in networks.values():
        for mine, theirs in two:
            mine.copy_(theirs)
    start = [mine.clone() for two in networks.values() for mine, _ in two]

    data = torch.Generator().manual_seed(0)
    obs_dim, action_dim = runner.spec.obs.leaves[""].shape[0], runner.spec.action.dim
    for update in range(1, SHOWN[-1] + 1):
        obs, next_obs = torch.randn(2, BATCH, obs_dim, generator=data)
        action = 2 * torch.rand(BATCH, action_dim, generator=data) - 1
        reward = torch.randn(BATCH, generator=data)
        terminated = (torch.rand(BATCH, generator=data) < 0.1).float()
        theirs = SimpleNamespace(
            observations=obs,
            actions=action,
            next_observations=next_obs,
            rewards=reward[:, None],
            dones=terminated[:, None],
            discounts=None,
        )
        peer.replay_buffer = SimpleNamespace(sample=lambda *_, batch=theirs, **__: batch)
        noise = torch.randn(BATCH, action_dim, generator=data)
        with torch.enable_grad():
            with_noise(peer, noise)
            algo.noise = lambda *_, drawn=noise: drawn
            discount = algo.gamma * (1 - terminated)
            algo.update(Batch(obs=obs, action=action, reward=reward, next_obs=next_obs, discount=discount))
        if update in SHOWN:
            apart = ", ".join(f"{name} {distance(two):.1e}" for name, two in networks.items())
            now = [mine for two in networks.values() for mine, _ in two]
            print(f"after {update:5,} updates: {apart}; moved by {distance(list(zip(now, start))):.1e}")


def with_noise(peer: Any, noise: Tensor) -> None:
    """One update of the peer, whose next call of ``normal_`` gives this noise, scaled as it asks for."""
    original = Tensor.normal_
    Tensor.normal_ = lambda self, mean=0.0, std=1.0: self.copy_(mean + std * noise)  # type: ignore[assignment, misc]
    try:
        peer.train(1, BATCH)
    finally:
        Tensor.normal_ = original  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
