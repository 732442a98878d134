"""Sweeps: many runs from one command, planned before they begin, continued after they were interrupted."""

from rlexp.sweeps.kinds import Grid, OptunaSearch
from rlexp.sweeps.launchers import JoblibLauncher, LocalLauncher, RayLauncher, SlurmLauncher

__all__ = ["Grid", "JoblibLauncher", "LocalLauncher", "OptunaSearch", "RayLauncher", "SlurmLauncher"]
