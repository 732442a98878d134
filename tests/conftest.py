"""What holds for every test."""

import gc

from hydra.core.config_store import ConfigStore

# Whenever something is composed, Hydra copies the store with all schemas in it, which is half of the work, though only
# to change something else; what is read from the store is copied once more.
ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Composing makes so many objects that the collector walks through all of torch again and again: a fifth of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
