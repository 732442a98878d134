"""What holds for every test."""

import gc


def pytest_collection_finish() -> None:
    """Composing makes so many objects that the collector walks through all of torch again and again: a fifth of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
