"""Where offline transitions come from: files, a random policy, the replay buffers of earlier runs. Free of torch."""

from rlexp.datasets.base import Dataset
from rlexp.datasets.combined import CombinedDataset
from rlexp.datasets.files import Hdf5Dataset, NpzDataset
from rlexp.datasets.minari import MinariDataset
from rlexp.datasets.random import RandomDataset
from rlexp.datasets.replay import ReplayDataset, RunDataset
from rlexp.datasets.transitions import Transitions

__all__ = [
    "CombinedDataset",
    "Dataset",
    "Hdf5Dataset",
    "MinariDataset",
    "NpzDataset",
    "RandomDataset",
    "ReplayDataset",
    "RunDataset",
    "Transitions",
]
