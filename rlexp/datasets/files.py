"""Datasets in files, possibly a stranger's: only numbers are read. No pickle; no link out of the file is followed.

Decoders raise whatever they like on damaged bytes, so each reader turns any exception into a :class:`DataError` that
names the file, and compares declared sizes with what the file can hold before it allocates.
"""

from __future__ import annotations

import math
import os
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rlexp.config.component import component
from rlexp.datasets.checks import OPTIONAL_KEYS, REQUIRED_KEYS, check_keys
from rlexp.datasets.settings import FileSettings
from rlexp.datasets.spaces import spaces_of
from rlexp.datasets.transitions import Transitions
from rlexp.errors import DataError

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv
    from rlexp.envs.spec import EnvSpec

_KEYS = (*REQUIRED_KEYS, *OPTIONAL_KEYS)
_TREES = ("observations", "next_observations")  # these may have named parts
_MAX_DEPTH = 8  # of groups within groups; hard links can form a circle
# HDF5's own filters and h5py's lzf. Any other id would make HDF5 look for a plugin to load.
_FILTERS = {1, 2, 3, 4, 5, 6, 32000}
_MAX_RATIO = 1100  # deflate reaches 1032 on constant data
_SMALL = 65536


@component("dataset", "npz")
@dataclass(eq=False, kw_only=True)
class NpzDataset(FileSettings):
    """Transitions from a NumPy archive with D4RL's keys."""

    path: str  # the .npz file: observations, actions, rewards, terminals [timeouts, next_observations]

    def load(self, env: GymEnv) -> Transitions:
        """Read the file and check it against the environment."""
        path = _existing(self.path, "npz")
        return self.prepared(Transitions.from_d4rl(read_npz(path), str(path)), env.spec(), str(path))

    def spaces(self, limit: float | None = None) -> EnvSpec:
        """What the file tells of observations and actions."""
        path = _existing(self.path, "npz")
        return spaces_of(read_npz(path), limit, str(path))


@component("dataset", "hdf5")
@dataclass(eq=False, kw_only=True)
class Hdf5Dataset(FileSettings):
    """Transitions from an HDF5 file with D4RL's keys."""

    path: str  # the .hdf5 file: observations, actions, rewards, terminals [timeouts, next_observations]

    def load(self, env: GymEnv) -> Transitions:
        """Read the file and check it against the environment."""
        path = _existing(self.path, "hdf5")
        return self.prepared(Transitions.from_d4rl(read_hdf5(path), str(path)), env.spec(), str(path))

    def spaces(self, limit: float | None = None) -> EnvSpec:
        """What the file tells of observations and actions."""
        path = _existing(self.path, "hdf5")
        with hdf5_arrays(path) as arrays:
            return spaces_of(arrays, limit, str(path))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive that have D4RL's names; others are not touched."""
    arrays: dict[str, np.ndarray] = {}
    with reading(path, "NumPy archive (.npz)"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        check_keys(members, str(path))
        members = {key: info for key, info in members.items() if _wanted(key)}
        check_memory(sum(info.file_size for info in members.values()), path)
        for key, info in members.items():
            with archive.open(info) as file:
                shape, dtype = _npy_header(file)
                _check_dtype(dtype, key, path)
                if file.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
                    raise DataError(_damaged(path, f"{key} is declared as {dtype} {shape}, which is not its size"))
            with archive.open(info) as file:  # read to its end, so that zipfile compares the checksum
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an HDF5 file that have D4RL's names; others are not touched."""
    with hdf5_arrays(path) as arrays:
        check_memory(sum(math.prod(each.shape) * each.dtype.itemsize for each in arrays.values()), path)
        return {key: _read(each) for key, each in arrays.items()}


def _read(dataset: Any) -> np.ndarray:
    """All rows, doubles as singles, read straight into memory that has room for one row more, which a buffer needs."""
    if not dataset.shape or not math.prod(dataset.shape):
        return np.asarray(dataset[()])
    double = dataset.dtype.kind == "f" and dataset.dtype.itemsize > 4
    room = np.empty((len(dataset) + 1, *dataset.shape[1:]), np.float32 if double else dataset.dtype.newbyteorder("="))
    dataset.read_direct(room, dest_sel=np.s_[: len(dataset)])
    return room[: len(dataset)]


@contextmanager
def hdf5_arrays(path: Path) -> Iterator[dict[str, Any]]:
    """The datasets of an HDF5 file that have D4RL's names, checked but not read: a slice of one is read when taken."""
    import h5py

    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        datasets: dict[str, Any] = {}
        check_keys(file, str(path))
        for key in _KEYS:
            if key in list(file):  # `in file` would follow the link
                _collect(file, key, key, path, datasets)
        for key, dataset in datasets.items():
            _checked_size(dataset, key, path)
        yield datasets


def save_npz(path: str | Path, data: Transitions) -> None:
    """Write a NumPy archive that :class:`NpzDataset` reads; the file appears complete or not at all."""
    with _replacing(Path(path)) as file:
        np.savez(file, **_columns(data))  # type: ignore[arg-type]


def save_hdf5(path: str | Path, data: Transitions) -> None:
    """Write an HDF5 file that :class:`Hdf5Dataset` reads; the file appears complete or not at all."""
    import h5py

    with _replacing(Path(path)) as file, h5py.File(file, "w") as target:
        for key, array in _columns(data).items():
            target.create_dataset(key, data=array, compression="gzip", compression_opts=1, shuffle=True)


def _columns(data: Transitions) -> dict[str, np.ndarray]:
    """What is written: an episode that the data cut at their end has no end there."""
    arrays = data.to_d4rl()
    if data.gaps is not None and data.gaps[-1:].any():
        arrays["timeouts"] = arrays["timeouts"].copy()
        arrays["timeouts"][-1] = False
    return arrays


def _wanted(key: str) -> bool:
    return key in _KEYS or key.startswith(tuple(f"{tree}/" for tree in _TREES))


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"array format {version} is for structured data")
    return shape, dtype


def _collect(group: Any, name: str, key: str, path: Path, found: dict[str, Any]) -> None:
    """Gather the datasets at ``name`` and below, through hard links only."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: {key} is a link to another place, which is not followed. Store the data itself.")
    item = group[name]
    if isinstance(item, h5py.Dataset):
        found[key] = item
    elif isinstance(item, h5py.Group) and key.split("/")[0] in _TREES and key.count("/") < _MAX_DEPTH:
        for part in list(item):
            _collect(item, part, f"{key}/{part}", path, found)
    else:
        raise DataError(f"{path}: {key} is not an array. Store {', '.join(REQUIRED_KEYS)} as arrays of numbers.")


def check_hdf5_links(path: Path) -> None:
    """Refuse a file in which anything leads out of it, or needs code that is not HDF5's own."""
    import h5py

    def walk(group: Any, where: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise DataError(_damaged(path, "its groups are nested too deeply"))
        for name in list(group):
            key = f"{where}/{name}".lstrip("/")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise DataError(f"{path}: {key} is a link to another place, which is not followed.")
            item = group[name]
            if isinstance(item, h5py.Group):
                walk(item, key, depth + 1)
            elif isinstance(item, h5py.Dataset):
                _check_storage(item, key, path)

    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        walk(file, "", 0)


def _check_storage(dataset: Any, key: str, path: Path) -> None:
    """The numbers of a dataset must lie in this file, compressed by filters of HDF5's own."""
    from h5py import h5d

    plist = dataset.id.get_create_plist()
    # before anything that would open the files a virtual dataset names
    if plist.get_layout() == h5d.VIRTUAL or plist.get_external_count():
        raise DataError(f"{path}: {key} keeps its data in another file, which is not read. Store the data itself.")
    filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    if not filters <= _FILTERS:
        raise DataError(f"{path}: {key} needs the HDF5 plugins {sorted(filters - _FILTERS)}. Compress it with gzip.")


def _checked_size(dataset: Any, key: str, path: Path) -> int:
    """The size in bytes of a dataset whose numbers lie in this file and are as many as it says."""
    from h5py import h5d

    _check_storage(dataset, key, path)
    layout = dataset.id.get_create_plist().get_layout()
    _check_dtype(dataset.dtype, key, path)
    if dataset.shape is None:
        raise DataError(f"{path}: {key} is empty. Store one row per transition.")
    size, stored = math.prod(dataset.shape) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if layout == h5d.CHUNKED:
        chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize
        absurd = max(size, chunk) > _MAX_RATIO * max(stored, _SMALL)
    else:
        absurd = size > stored
    if absurd or stored > path.stat().st_size:
        raise DataError(_damaged(path, f"{key} is declared with {size / 1e9:.3g} GB, more than the file can hold"))
    return size


def _check_dtype(dtype: np.dtype, key: str, path: Path) -> None:
    if dtype.hasobject:
        raise DataError(
            f"{path}: {key} holds Python objects, text or references. Loading pickled objects could run a stranger's "
            "code, so they are refused. Save it as an array of numbers."
        )
    if dtype.kind not in "biuf":
        raise DataError(f"{path}: {key} holds {dtype} values. Save it as an array of numbers.")


def check_memory(size: int, path: Path) -> None:
    """Refuse data that this machine cannot hold."""
    from rlexp.machine import available_memory, gigabytes  # here, because buffers bring torch

    free = available_memory()
    if free is not None and size > free:
        raise DataError(
            f"{path} declares {gigabytes(size)} of data, but only {gigabytes(free)} of memory can be used. "
            "Use a machine with more memory or a smaller dataset."
        )


def kind_of(path: Path) -> str | None:
    """``npz`` or ``hdf5``, by the first bytes of a file."""
    with open(path, "rb") as file:
        magic = file.read(8)
    return "npz" if magic.startswith(b"PK") else "hdf5" if magic == b"\x89HDF\r\n\x1a\n" else None


def _existing(path: str, kind: str) -> Path:
    found = Path(path).expanduser()
    if not found.is_file():
        problem = "is not a file" if found.exists() else "does not exist"
        raise DataError(f"The dataset {found} {problem}. Set dataset.path to an existing file.")
    if (other := kind_of(found)) not in (kind, None):
        raise DataError(f"{found} is of the kind {other}, not {kind}. Use dataset={other} dataset.path={found}.")
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a decoder raises into a :class:`DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib, ast, NumPy and HDF5 each raise their own on damaged bytes
        cause = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(_damaged(path, f"it cannot be read as {kind}; {cause}")) from None


def _damaged(path: Path, cause: str) -> str:
    return f"{path} is damaged or of another format: {cause}. Download or save it again."


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
