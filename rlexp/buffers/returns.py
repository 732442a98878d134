"""Advantages and returns from a rollout."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al., 2016): advantages and λ-returns, all [T, N].

    δ_t = r_t + γ V(s'_t) (1 − terminated_t) − V(s_t)        bootstraps through truncation, not through termination
    A_t = δ_t + γλ (1 − done_t) A_{t+1}                      the trace is cut at both
    """
    # s'_t is the true next observation: at truncation its value is that of the final observation, not of the reset.
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    decay = torch.full_like(delta, gamma * gae_lambda).masked_fill_(done, 0.0)
    # NumPy, because a row is a handful of numbers: 256 rows take 0.25 ms here and 1.3 ms in torch.
    deltas, decays = delta.cpu().numpy(), decay.cpu().numpy()
    advantages = np.empty_like(deltas)
    following = np.zeros_like(deltas[0])
    for delta_t, decay_t, advantage_t in zip(deltas[::-1], decays[::-1], advantages[::-1]):
        np.multiply(decay_t, following, out=advantage_t)
        advantage_t += delta_t
        following = advantage_t
    advantage = torch.from_numpy(advantages).to(reward.device)
    return advantage, advantage + value
