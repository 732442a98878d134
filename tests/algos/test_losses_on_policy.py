"""The loss functions of A2C, TRPO and RecurrentPPO: numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlexp.algos.a2c import a2c_loss
from rlexp.algos.actor_critic import explained_variance


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_a2c_weighs_log_probabilities_by_advantages() -> None:
    # −(2·log ½ + (−1)·log ¼) / 2 = −(2·(−0.6931) + 1.3863) / 2 = 0; value errors (1 − 3)² and (0 − 1)² -> 2.5
    loss = a2c_loss(t(math.log(0.5), math.log(0.25)), t(2.0, -1.0), t(1.0, 0.0), t(3.0, 1.0))
    assert loss.policy.item() == pytest.approx(0.0, abs=1e-6)
    assert loss.value.item() == pytest.approx(2.5)
    # without the second row: −2·log ½ = 1.3863
    assert a2c_loss(t(math.log(0.5)), t(2.0), t(0.0), t(0.0)).policy.item() == pytest.approx(2 * math.log(2))


def test_explained_variance_is_one_less_the_share_of_the_residual() -> None:
    # returns 1, 3 have variance 1; residuals 0, 1 have variance ¼
    assert explained_variance(t(1.0, 2.0), t(1.0, 3.0)).item() == pytest.approx(0.75)
    assert explained_variance(t(2.0, 2.0), t(1.0, 3.0)).item() == pytest.approx(0.0)  # their mean explains nothing
    assert math.isfinite(explained_variance(t(1.0, 2.0), t(1.0, 1.0)).item())  # returns that are all alike
