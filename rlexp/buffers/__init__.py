"""Where transitions are kept: the replay ring and the on-policy rollout. Buffers never see networks or files."""

from rlexp.buffers.her import HerBuffer
from rlexp.buffers.prioritized import PrioritizedBuffer
from rlexp.buffers.ring import ReplayBuffer
from rlexp.buffers.rollout import RolloutBuffer

__all__ = ["HerBuffer", "PrioritizedBuffer", "ReplayBuffer", "RolloutBuffer"]
