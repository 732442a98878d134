"""The algorithms: one file each, named after the paper."""

from rlexp.algos.a2c import A2C
from rlexp.algos.actor_critic import ActorCritic
from rlexp.algos.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rlexp.algos.c51 import C51
from rlexp.algos.crossq import CrossQ
from rlexp.algos.crr import CRR
from rlexp.algos.ddpg import DDPG
from rlexp.algos.discrete_sac import DiscreteSAC
from rlexp.algos.dqn import DQN
from rlexp.algos.iqn import IQN
from rlexp.algos.ppo import PPO
from rlexp.algos.qrdqn import QRDQN
from rlexp.algos.rainbow import Rainbow
from rlexp.algos.redq import REDQ
from rlexp.algos.rlpd import RLPD
from rlexp.algos.sac import SAC
from rlexp.algos.td3 import TD3
from rlexp.algos.tqc import TQC
from rlexp.algos.trpo import TRPO

__all__ = [
    "A2C",
    "C51",
    "CRR",
    "DDPG",
    "DQN",
    "IQN",
    "PPO",
    "QRDQN",
    "REDQ",
    "RLPD",
    "SAC",
    "TD3",
    "TQC",
    "TRPO",
    "ActorCritic",
    "Algorithm",
    "CrossQ",
    "DiscreteSAC",
    "OffPolicyAlgorithm",
    "OnPolicyAlgorithm",
    "Rainbow",
]
