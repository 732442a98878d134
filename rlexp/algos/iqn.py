"""Implicit quantile network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlexp.algos.dqn import Draw, dueling_values
from rlexp.algos.qrdqn import QRDQN, qrdqn_fractions
from rlexp.config.component import component
from rlexp.config.fields import Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import MLP, Model, linear
from rlexp.types import Batch, Obs


def iqn_cosines(tau: Tensor, n: int) -> Tensor:
    """The features cos(π i τ), i = 0 … n − 1, of fractions τ: […] -> […, n]."""
    return torch.cos(tau.unsqueeze(-1) * (math.pi * torch.arange(n, device=tau.device)))


class QuantileNetwork(nn.Module):
    """f(ψ(s) ⊙ φ(τ)): features of the observation times an embedding of the fraction, then a layer and the head."""

    def __init__(self, torso: nn.Module, out: int, n_cosines: int, noisy: float | None) -> None:
        super().__init__()
        features = int(torso.out)  # type: ignore[arg-type]
        self.torso = torso
        self.embedding = linear(n_cosines, features)
        self.tail = MLP(features, out, hidden=(features,), noisy=noisy)
        self.n_cosines = n_cosines
        self.noise_sizes = [] if noisy is None else [int(torso.noise_size), self.tail.noise_size]  # type: ignore[arg-type]
        self.noise_size = sum(self.noise_sizes)

    def forward(self, obs: Obs, tau: Tensor, noise: Tensor | None = None) -> Tensor:
        """Outputs [B, N, out] at fractions ``tau`` [B, N], or [N] the same for all."""
        if noise is None:
            features, tail_noise = self.torso(obs), None
        else:
            torso_noise, tail_noise = noise.split(self.noise_sizes)
            features = self.torso(obs, noise=torso_noise)
        embedded = torch.relu(self.embedding(iqn_cosines(tau, self.n_cosines)))
        return self.tail(features.unsqueeze(-2) * embedded, tail_noise).float()  # type: ignore[no-any-return]


@component("algo", "iqn")
@dataclass(eq=False, kw_only=True)
class IQN(QRDQN):
    """QR-DQN whose network is asked for the quantile at any τ (Dabney et al., 2018, arXiv:1806.06923).

    Z_τ(s, a) = f(ψ(s) ⊙ φ(τ))_a,  φ(τ) = ReLU(W cos(π i τ) + b);  Σ_i E_j[ρ_τi(r + γ Z̄_τ′j(s′, a*) − Z_τi(s, a))],
    τ_i, τ′_j uniform, a* greedy in the mean over the midpoints of K shares of [0, 1], which is how it acts as well
    (the paper draws those K fractions at random: the same mean, with more variance).
    """

    n_quantiles: Size = 64  # fractions τ drawn for each transition of an update
    n_target_quantiles: Size = 64  # fractions τ′ drawn for its target
    n_action_quantiles: Size = 32  # fractions whose mean is Q(s, a) when an action is chosen
    n_cosines: Size = 64  # features of a fraction

    def q_network(self, spec: EnvSpec, model: Model) -> nn.Module:
        """A torso of the model, the embedding of fractions, and an output for each action (and the state)."""
        torso = self.net(spec, model, None)
        noisy = self.noisy_sigma if self.noisy else None
        return QuantileNetwork(torso, spec.action.n + self.dueling, self.n_cosines, noisy)

    def head(self, net: nn.Module, obs: Obs, draw: Draw) -> Tensor:
        """Quantiles [B, A, N] at the fractions drawn; none drawn: at the midpoints for choosing an action."""
        tau = draw["tau"] if "tau" in draw else qrdqn_fractions(self.n_action_quantiles, self.device)
        out = net(obs, tau, noise=draw.get("weights")).transpose(1, 2)
        return dueling_values(out) if self.dueling else out

    def choice(self, batch: Batch, target: Tensor, draws: dict[str, Draw]) -> Tensor:
        """The best action by fixed fractions, not by those that happened to be drawn for the target."""
        net = self.q if self.double else self.target_q
        return self.greedy(self.head(net, batch.next_obs, draws["choice"]), batch.next_obs)

    def fraction(self, draw: Draw) -> Tensor:
        """The τ that were drawn, [B, N]."""
        return draw["tau"]

    def randomness(self, batch: Batch) -> dict[str, Draw]:
        """Weight noise as ever, and the fractions of prediction and target."""
        draws = super().randomness(batch)
        rows = len(batch.reward)
        draws["online"] |= {"tau": self.uniform(rows, self.n_quantiles)}
        draws["target"] |= {"tau": self.uniform(rows, self.n_target_quantiles)}
        return draws
