"""Rainbow."""

from __future__ import annotations

from dataclasses import dataclass

from rlexp.algos.c51 import C51
from rlexp.config.component import component
from rlexp.config.fields import Structure


@component("algo", "rainbow")
@dataclass(eq=False, kw_only=True)
class Rainbow(C51):
    """C51 with every option of the DQN family (Hessel et al., 2018, arXiv:1710.02298).

    Only defaults differ: double, dueling and noisy here, prioritized replay and 3-step returns in
    ``conf/algo/rainbow.yaml``. For the most out of few steps, at several times the computation of DQN.
    """

    double: bool = True  # the online network chooses the action that the target network evaluates
    dueling: Structure = True  # the network predicts V(s) and the advantages of the actions
    noisy: Structure = True  # explore by noise on the weights, whose scale is learned, instead of by ε
