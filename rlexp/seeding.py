"""Where randomness comes from: every stream is derived from the run's seed and a name. Free of torch."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

_MAX_SEED = 2**31 - 1  # ALE and others take a signed 32-bit seed


def derive_seed(seed: int, *stream: str | int) -> int:
    """A seed for the stream named by ``stream``, e.g. ``derive_seed(0, "env", index, episode)``."""
    text = ":".join(map(str, (seed, *stream)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") % _MAX_SEED


def numpy_generator(seed: int, *stream: str | int) -> np.random.Generator:
    """An independent NumPy generator for one purpose of one run."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *stream)))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a NumPy generator as plain JSON values."""
    return dict(generator.bit_generator.state)


def restore_generator(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Put back a state taken by :func:`generator_state`."""
    generator.bit_generator.state = state
