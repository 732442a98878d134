"""Environments: specs, making, seeding and vectorisation. Free of torch, so that worker processes start quickly."""

from rlexp.envs.atari import AtariEnv
from rlexp.envs.bit_flip import BitFlip
from rlexp.envs.drawn import CartPolePixels, PendulumPixels
from rlexp.envs.from_dataset import DatasetEnv
from rlexp.envs.gym_env import GymEnv, Vectorization
from rlexp.envs.locate import env_code_roots
from rlexp.envs.seeded import Episode, SeededEnv
from rlexp.envs.spaces import ActionCodec, ObsCodec
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec, spec_of
from rlexp.envs.subproc import SubprocVecEnv
from rlexp.envs.vector import SyncVecEnv, VecEnv, VecStep
from rlexp.envs.wrappers import ActionRepeat, FrameStack, MazeEnds, SelectObservation

__all__ = [
    "ActionCodec",
    "ActionRepeat",
    "ActionSpec",
    "AtariEnv",
    "BitFlip",
    "CartPolePixels",
    "DatasetEnv",
    "EnvSpec",
    "Episode",
    "FrameStack",
    "GymEnv",
    "Leaf",
    "MazeEnds",
    "ObsCodec",
    "ObsSpec",
    "PendulumPixels",
    "SeededEnv",
    "SelectObservation",
    "SubprocVecEnv",
    "SyncVecEnv",
    "VecEnv",
    "VecStep",
    "Vectorization",
    "env_code_roots",
    "spec_of",
]
