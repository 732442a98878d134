"""Where offline transitions come from: files, a random policy, memory or best agent of an earlier run. Free of torch."""

from rlexp.datasets.base import Dataset
from rlexp.datasets.expert import ExpertDataset
from rlexp.datasets.files import Hdf5Dataset, NpzDataset
from rlexp.datasets.random import RandomDataset
from rlexp.datasets.replay import ReplayDataset
from rlexp.datasets.transitions import Transitions

__all__ = ["Dataset", "ExpertDataset", "Hdf5Dataset", "NpzDataset", "RandomDataset", "ReplayDataset", "Transitions"]
