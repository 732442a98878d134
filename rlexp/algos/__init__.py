"""The algorithms: one file each, named after the paper."""

from rlexp.algos.a2c import A2C
from rlexp.algos.actor_critic import ActorCritic
from rlexp.algos.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rlexp.algos.bcq import BCQ
from rlexp.algos.bear import BEAR
from rlexp.algos.c51 import C51
from rlexp.algos.cal_ql import CalQL
from rlexp.algos.cql import CQL
from rlexp.algos.crr import CRR
from rlexp.algos.ddpg import DDPG
from rlexp.algos.discrete_bcq import DiscreteBCQ
from rlexp.algos.discrete_cql import DiscreteCQL
from rlexp.algos.discrete_sac import DiscreteSAC
from rlexp.algos.dqn import DQN
from rlexp.algos.edac import EDAC
from rlexp.algos.iqn import IQN
from rlexp.algos.ppo import PPO
from rlexp.algos.qrdqn import QRDQN
from rlexp.algos.rainbow import Rainbow
from rlexp.algos.rebrac import ReBRAC
from rlexp.algos.redq import REDQ
from rlexp.algos.rlpd import RLPD
from rlexp.algos.sac import SAC
from rlexp.algos.sac_n import SACN
from rlexp.algos.td3 import TD3
from rlexp.algos.td3_bc import TD3BC
from rlexp.algos.tqc import TQC
from rlexp.algos.trpo import TRPO

__all__ = [
    "A2C",
    "BCQ",
    "BEAR",
    "C51",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "IQN",
    "PPO",
    "QRDQN",
    "REDQ",
    "RLPD",
    "SAC",
    "SACN",
    "TD3",
    "TD3BC",
    "TQC",
    "TRPO",
    "ActorCritic",
    "Algorithm",
    "CalQL",
    "DiscreteBCQ",
    "DiscreteCQL",
    "DiscreteSAC",
    "OffPolicyAlgorithm",
    "OnPolicyAlgorithm",
    "Rainbow",
    "ReBRAC",
]
