"""The four loops."""

from rlexp.trainers.base import Trainer
from rlexp.trainers.mixed import Mixed
from rlexp.trainers.offline import Offline
from rlexp.trainers.on_policy import OnPolicy
from rlexp.trainers.replay import Replay
from rlexp.trainers.workspace import Interrupted, Workspace

__all__ = ["Interrupted", "Mixed", "Offline", "OnPolicy", "Replay", "Trainer", "Workspace"]
