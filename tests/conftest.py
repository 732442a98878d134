"""What holds for every test."""

import gc
from collections.abc import Iterator

import pytest

from tests import remembering

remembering.install()


@pytest.fixture(scope="module")
def plain_hydra() -> Iterator[None]:
    """Configs are composed as for users, by Hydra's own loader."""
    with remembering.hydra_alone():
        yield


def pytest_collection_finish() -> None:
    """Composing makes so many objects that the collector walks through all of torch again and again: a fifth of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
