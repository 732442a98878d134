"""rlexp: reinforcement-learning experiments composed from typed configs.

``from rlexp import PPO`` gives the agent of an algorithm, ``rlexp.PPOAlgorithm`` the dataclass behind it. Names are
resolved when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlexp.agent import Agent
    from rlexp.callbacks import Callback
    from rlexp.errors import RlexpError

_ALGORITHMS = {  # public name -> config in conf/algo
    "A2C": "a2c",
    "AWAC": "awac",
    "AWR": "awr",
    "BC": "bc",
    "BCQ": "bcq",
    "BEAR": "bear",
    "C51": "c51",
    "CQL": "cql",
    "CRR": "crr",
    "CalQL": "cal_ql",
    "CrossQ": "crossq",
    "DDPG": "ddpg",
    "DQN": "dqn",
    "DiscreteBCQ": "discrete_bcq",
    "DiscreteCQL": "discrete_cql",
    "DiscreteSAC": "discrete_sac",
    "DrQv2": "drq_v2",
    "EDAC": "edac",
    "IQL": "iql",
    "IQN": "iqn",
    "MARWIL": "marwil",
    "PPO": "ppo",
    "QRDQN": "qrdqn",
    "REDQ": "redq",
    "RLPD": "rlpd",
    "Rainbow": "rainbow",
    "ReBRAC": "rebrac",
    "RecurrentPPO": "recurrent_ppo",
    "SAC": "sac",
    "SACN": "sac_n",
    "TD3": "td3",
    "TD3BC": "td3_bc",
    "TQC": "tqc",
    "TRPO": "trpo",
    "XQL": "xql",
}
_CONTRIB = {"RecurrentPPO"}  # those that live in rlexp.contrib
_OTHERS = {"Agent": "rlexp.agent", "Callback": "rlexp.callbacks", "RlexpError": "rlexp.errors"}

__all__ = ["Agent", "Callback", "RlexpError", *_ALGORITHMS, *(f"{name}Algorithm" for name in _ALGORITHMS)]


def __getattr__(name: str) -> Any:
    if name in _OTHERS:
        value = getattr(importlib.import_module(_OTHERS[name]), name)
    elif name in _ALGORITHMS:
        from rlexp.agent import agent_class

        algorithm = __getattr__(f"{name}Algorithm")
        value = agent_class(_ALGORITHMS[name], name, algorithm.__doc__)
    elif name.removesuffix("Algorithm") in _ALGORITHMS:
        algorithm = name.removesuffix("Algorithm")
        value = getattr(importlib.import_module(f"rlexp.{'contrib' if algorithm in _CONTRIB else 'algos'}"), algorithm)
    else:
        raise AttributeError(f"module 'rlexp' has no attribute {name!r}")
    globals()[name] = value  # the next access finds it directly
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
