"""What holds for every test."""

from hydra.core.config_store import ConfigStore

# Whenever something is composed, Hydra copies the store with all schemas in it, which is half of the work, though only
# to change something else; what is read from the store is copied once more.
ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
