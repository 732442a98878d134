"""The algorithms: one file each, named after the paper."""

from rlexp.algos.a2c import A2C
from rlexp.algos.actor_critic import ActorCritic
from rlexp.algos.awac import AWAC
from rlexp.algos.awr import AWR
from rlexp.algos.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rlexp.algos.bc import BC
from rlexp.algos.bcq import BCQ
from rlexp.algos.bear import BEAR
from rlexp.algos.c51 import C51
from rlexp.algos.cal_ql import CalQL
from rlexp.algos.cql import CQL
from rlexp.algos.crossq import CrossQ
from rlexp.algos.crr import CRR
from rlexp.algos.ddpg import DDPG
from rlexp.algos.discrete_bcq import DiscreteBCQ
from rlexp.algos.discrete_cql import DiscreteCQL
from rlexp.algos.discrete_sac import DiscreteSAC
from rlexp.algos.dqn import DQN
from rlexp.algos.drq_v2 import DrQv2
from rlexp.algos.edac import EDAC
from rlexp.algos.iql import IQL
from rlexp.algos.iqn import IQN
from rlexp.algos.marwil import MARWIL
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
from rlexp.algos.xql import XQL

__all__ = [
    "A2C",
    "AWAC",
    "AWR",
    "BC",
    "BCQ",
    "BEAR",
    "C51",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "IQL",
    "IQN",
    "MARWIL",
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
    "XQL",
    "ActorCritic",
    "Algorithm",
    "CalQL",
    "CrossQ",
    "DiscreteBCQ",
    "DiscreteCQL",
    "DiscreteSAC",
    "DrQv2",
    "OffPolicyAlgorithm",
    "OnPolicyAlgorithm",
    "Rainbow",
    "ReBRAC",
]
