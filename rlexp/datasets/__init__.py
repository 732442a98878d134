"""Where offline transitions come from: files, a random policy, the memory or best agent of a run. Free of torch."""

from rlexp.datasets.base import Dataset
from rlexp.datasets.combined import CombinedDataset
from rlexp.datasets.expert import ExpertDataset
from rlexp.datasets.files import Hdf5Dataset, NpzDataset
from rlexp.datasets.minari import MinariDataset
from rlexp.datasets.random import RandomDataset
from rlexp.datasets.replay import ReplayDataset, RunDataset
from rlexp.datasets.transitions import Transitions

__all__ = [
    "CombinedDataset",
    "Dataset",
    "ExpertDataset",
    "Hdf5Dataset",
    "MinariDataset",
    "NpzDataset",
    "RandomDataset",
    "ReplayDataset",
    "RunDataset",
    "Transitions",
]
