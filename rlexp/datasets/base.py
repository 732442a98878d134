"""What a dataset is: one method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions
    from rlexp.envs.gym_env import GymEnv


class Dataset(Protocol):
    """Where transitions come from; any class with this method is one.

    The same settings must give the same transitions: a resumed run compares their hash. An attribute ``report``, if
    there is one, is set to a function that shows a line of text to the person watching.
    """

    def load(self, env: GymEnv) -> Transitions:
        """The transitions in time order, in the units of ``env``, which the run is evaluated in."""
        ...
