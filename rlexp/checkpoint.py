"""A checkpoint: one flat directory that is either whole or refused. Free of torch until it meets a tensor.

    checkpoint.json             format_version, run, the segments, and the state tree with a marker for each array
    <key>.safetensors           the arrays below one top-level key of the tree, named by their path
    buffer-<from>-<to>.safetensors   segments: immutable slices of a buffer, shared with older checkpoints by hard link
    config.yaml                 the resolved config of the run
    checksums.json              size and sha256 of every other file, written last

Nothing is unpickled, and nothing is parsed before every checksum has been compared. Checksums find damage, not malice
(whoever writes the files can write the sums), so the parsers behind them are bounded and their errors reported, too.
The same tree gives the same bytes: safetensors files carry no metadata, whose order is not deterministic.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from rlexp import files
from rlexp.config.migrating import migrated
from rlexp.errors import CheckpointError
from rlexp.state_tree import DTYPES, Arrays, Tree, decode_tree, encode_tree

Segments = dict[str, Callable[[], Arrays]]  # file name -> its arrays

FORMAT_VERSION = 1
# MIGRATIONS[v] turns the state (JSON with markers) and arrays (by path) of format v into those of format v + 1.
MIGRATIONS: dict[int, Callable[[Tree, Arrays], tuple[Tree, Arrays]]] = {}

CHECKPOINT, CONFIG, CHECKSUMS = "checkpoint.json", "config.yaml", "checksums.json"
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]*-\d+-\d+\.safetensors")  # the dashes keep it apart from a key's file
_OURS = re.compile(r"checkpoint\.json|config\.yaml|checksums\.json|[\w-]+\.safetensors|\..*")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A verified checkpoint: the state tree as it was saved, its config, and loaders for the segments, in order."""

    path: Path
    tree: Tree
    config: dict[str, Any]
    segments: Segments
    run: str | None = None  # id of the run that wrote it; None: saved by itself


# -- saving


def save_checkpoint(
    path: Path | str,
    tree: Tree,
    config: dict[str, Any],
    *,
    segments: Segments | None = None,
    previous: Path | None = None,
    run: str | None = None,
) -> Path:
    """Write a checkpoint beside its final name, sync it, then rename it to ``path``, replacing a checkpoint there.

    A segment that ``previous`` holds under the same name is linked, not produced again: a name stands for its content.
    ``previous`` must therefore be a checkpoint that this very state grew from.
    """
    path = Path(path)
    segments = segments or {}
    document, arrays = encode_tree(tree)  # first: a tree that cannot be saved leaves no trace
    for name in segments:
        if not _SEGMENT.fullmatch(name):
            raise ValueError(f"A segment is named like 'buffer-0-1000.safetensors', not {name!r}.")
    head = {"format_version": FORMAT_VERSION} | ({} if run is None else {"run": run})
    text = _json_bytes({**head, "segments": list(segments), "state": document})
    config_text = files.config_bytes(config)
    if len(text) > files.MAX_JSON_BYTES:
        raise ValueError(f"The state holds {len(text)} bytes of plain values. Keep long lists in arrays.")
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        _refuse_foreign(path)
        _refuse_foreign(set_aside(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        files.write_synced(temporary / CHECKPOINT, text)
        files.write_synced(temporary / CONFIG, config_text)
        for key, group in arrays.items():
            _write_arrays(temporary / f"{key}.safetensors", group)
        sums = _write_segments(temporary, segments, previous)
        sums |= {name: _sum_of(temporary / name) for name in os.listdir(temporary) if name not in sums}
        files.write_synced(temporary / CHECKSUMS, _sums_bytes(sums))
        files.sync_directory(temporary)
        _install(temporary, path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"Could not write the checkpoint {path}: {files.reason(error)}. Check free space and permissions; "
            "what was saved before is untouched."
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path


def set_aside(path: Path) -> Path:
    """Where the checkpoint at ``path`` waits while a new one takes its place; a reader may find it there."""
    return path.with_name(f".old-{path.name}")


def _install(temporary: Path, path: Path) -> None:
    """Rename into place. At every moment the old checkpoint or the new one has a name that can be found."""
    aside = set_aside(path)
    if path.exists():
        if aside.exists():
            shutil.rmtree(aside)
        os.rename(path, aside)
    try:
        os.rename(temporary, path)
    except OSError:
        if aside.exists():
            os.rename(aside, path)
        raise
    files.sync_directory(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _refuse_foreign(path: Path) -> None:
    """Only a checkpoint (whole or damaged) or an empty folder may be replaced."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint, so it is not replaced by one. Choose another name.")
    names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(path)}
    strangers = [name for name, is_folder in names.items() if is_folder or not _OURS.fullmatch(name)]
    if strangers or (names and not names.keys() & {CHECKPOINT, CHECKSUMS}):
        raise CheckpointError(
            f"{path} holds {min(strangers or names)!r} and is not just a checkpoint, so it is not replaced by one. "
            "Choose another name."
        )


def _write_arrays(path: Path, arrays: Arrays) -> None:
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES or name == "__metadata__":
            raise TypeError(f"Array {name!r} of dtype {array.dtype} cannot be saved in {path.name}.")
    # np.asarray, not ascontiguousarray: the latter turns 0-dim arrays into vectors
    plain = {name: np.asarray(array, array.dtype.newbyteorder("="), order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(plain, path)
    shutil.copymode(path.with_name(CHECKPOINT), path)  # safetensors lets only the owner read
    files.sync_file(path)


def _write_segments(folder: Path, segments: Segments, previous: Path | None) -> dict[str, dict[str, Any]]:
    """Write the new segments and link the known ones, whose sums are returned.

    The sums are the recorded ones: summing an old file again would declare whatever it has become since to be right.
    """
    known: dict[str, dict[str, Any]] = {}
    if previous is not None:
        try:
            known = _read_sums(previous)
        except CheckpointError:
            known = {}  # everything is produced again
    sums = {}
    for name, produce in segments.items():
        if previous is not None and name in known and _link(previous / name, folder / name, known[name]):
            sums[name] = known[name]
        else:
            _write_arrays(folder / name, produce())
    return sums


def _link(source: Path, target: Path, expected: dict[str, Any]) -> bool:
    """Give ``source`` a second name, or copy it where the file system has no hard links; False if it is not whole."""
    try:
        status = os.lstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size != expected["bytes"]:
            return False
        try:
            os.link(source, target)
            return True
        except OSError:
            shutil.copyfile(source, target, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if _sum_of(target) != expected:
        target.unlink()
        return False
    files.sync_file(target)
    return True


# -- loading


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Verify a checkpoint and read it. Whatever is wrong with it is a CheckpointError; nothing in it is executed."""
    path = Path(path)
    _check_memory(path)
    names = verify_checkpoint(path)
    version, run, segments, state = _read_document(path)
    array_files = [name for name in sorted(names) if name.endswith(".safetensors") and name not in segments]
    for name in segments:
        if name not in names:
            raise _damaged(path, CHECKPOINT, f"names the segment {name!r}, which is not in the list of files")
        _check_header(path, name)  # before anything is half restored
    arrays: Arrays = {}
    for name in array_files:
        group = _read_arrays(path, name)
        if arrays.keys() & group.keys():
            raise _damaged(path, name, "holds an array that another file holds too")
        arrays |= group
    state, arrays = _migrate(path, version, state, arrays)
    try:
        tree = decode_tree(state, arrays)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _damaged(path, CHECKPOINT, f"does not fit the arrays: {error}") from None
    try:
        config = migrated(files.parse_config(files.read_bounded(path / CONFIG, files.MAX_CONFIG_BYTES)))
    except (OSError, ValueError) as error:
        raise _damaged(path, CONFIG, files.reason(error)) from None
    return Checkpoint(path, tree, config, {name: partial(_read_arrays, path, name) for name in segments}, run)


def read_counters(path: Path) -> dict[str, Any]:
    """How far the run had come when it wrote a checkpoint, as in a row of metrics. Read alone, so nothing is verified.

    For listings, which need to be quick and load nothing: a resume or evaluation verifies the whole.
    """
    progress = _read_document(path)[3].get("progress")
    progress = progress if isinstance(progress, dict) else {}
    counters: dict[str, Any] = {
        "env_steps": progress.get("env_steps"),
        "updates": progress.get("updates"),
        "time_s": progress.get("seconds"),
    }
    if not all(type(value) in (int, float) and 0 <= value < 2**62 for value in counters.values()):
        raise _damaged(path, CHECKPOINT, "does not say how far the run had come")
    return counters


def verify_checkpoint(path: Path | str) -> set[str]:
    """Check that every file is there and unchanged, and that there is nothing else; return their names.

    A file without a checksum is refused, since it was not part of what was saved: two checkpoints copied over each
    other look like that. Names with a leading dot are what systems leave behind (.DS_Store, .nfs…) and never read.
    """
    path = Path(path)
    if not os.path.isdir(path):
        aside = f" An older one of that name is at {set_aside(path)}." if os.path.isdir(set_aside(path)) else ""
        raise CheckpointError(f"There is no checkpoint at {path}.{aside}")
    sums = _read_sums(path)
    try:
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_symlink():
                raise _damaged(path, entry.name, "is a symbolic link, which could lead anywhere")
            if entry.name not in sums and entry.name != CHECKSUMS and not entry.name.startswith("."):
                raise _damaged(path, entry.name, "does not belong to it: remove the file if you put it there")
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {files.reason(error)}.") from None
    for name, expected in sums.items():
        try:
            found = _sum_of(path / name, expected["bytes"])
        except FileNotFoundError:
            raise _damaged(path, name, "is missing") from None
        except OSError as error:
            raise _damaged(path, name, files.reason(error)) from None
        if found["bytes"] != expected["bytes"]:
            raise _damaged(path, name, f"has {found['bytes']} bytes instead of {expected['bytes']}")
        if found != expected:
            raise _damaged(path, name, "differs from its checksum")
    return set(sums)


def _damaged(path: Path, name: str, cause: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} is damaged: {name} {cause}.")


def _check_memory(path: Path) -> None:
    """Refuse arrays that would not fit into memory, before a minute goes into their checksums."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in path.glob("*.safetensors"):
        if (size := os.lstat(file).st_size) > memory:
            raise _damaged(path, file.name, f"has {size} bytes, more than this machine has memory")


def _read_document(path: Path) -> tuple[int, str | None, list[str], Tree]:
    """checkpoint.json: (format version, run, names of the segments, state)."""
    try:
        document = files.parse_json(files.read_bounded(path / CHECKPOINT, files.MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise _damaged(path, CHECKPOINT, files.reason(error)) from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if type(version) is not int:
        raise _damaged(path, CHECKPOINT, "has no format_version")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"The checkpoint {path} has format {version}; this rlexp reads up to {FORMAT_VERSION}. "
            "It was written by a newer rlexp: upgrade to read it."
        )
    if any(step not in MIGRATIONS for step in range(version, FORMAT_VERSION)):
        raise CheckpointError(
            f"The checkpoint {path} has format {version}, which is too old: this rlexp writes {FORMAT_VERSION} and has "
            "no way from there. Use the rlexp version named in the run's run.json."
        )
    run, segments, state = document.get("run"), document.get("segments"), document.get("state")
    if not isinstance(state, dict) or not isinstance(segments, list) or not isinstance(run, str | None):
        raise _damaged(path, CHECKPOINT, "lacks the state or the list of segments")
    if not all(isinstance(name, str) and _SEGMENT.fullmatch(name) for name in segments):
        raise _damaged(path, CHECKPOINT, "lists something that is not a segment")
    return version, run, segments, state


def _migrate(path: Path, version: int, state: Tree, arrays: Arrays) -> tuple[Tree, Arrays]:
    for step in range(version, FORMAT_VERSION):
        try:
            state, arrays = MIGRATIONS[step](state, arrays)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            cause = f"cannot be brought from format {step} to {step + 1}: {error!r}"
            raise _damaged(path, CHECKPOINT, cause) from error
    return state, arrays


def _check_header(path: Path, name: str) -> None:
    try:
        with safe_open(path / name, framework="np"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, name, f"is not a valid safetensors file ({error})") from None


def _read_arrays(path: Path, name: str) -> Arrays:
    # A valid header can still ask NumPy for the impossible: TypeError is an unknown dtype, MemoryError and ValueError
    # a shape that is too large (with a zero in it, it passes for an empty array).
    try:
        return dict(safetensors.numpy.load_file(path / name))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise _damaged(path, name, f"is not a valid safetensors file ({error})") from None


def identity(path: Path | str) -> str:
    """What tells a checkpoint from all others: the hash of its list of checksums."""
    return hashlib.sha256(files.read_bounded(Path(path) / CHECKSUMS, files.MAX_JSON_BYTES)).hexdigest()


# -- checksums. The layout of this file and `format_version` stay what they are in every future format.


def _sum_of(path: Path, expected: Any = None) -> dict[str, Any]:
    """Size and hash; not the hash if the size is not the expected one, since a stranger's file may be terabytes."""
    with files.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if expected is not None and size != expected:
            return {"bytes": size, "sha256": None}
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _sums_bytes(sums: dict[str, dict[str, Any]]) -> bytes:
    return (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode()


def _read_sums(path: Path) -> dict[str, dict[str, Any]]:
    try:
        data = files.read_bounded(path / CHECKSUMS, files.MAX_JSON_BYTES)
        sums = files.parse_json(data)
    except FileNotFoundError:
        raise _damaged(path, CHECKSUMS, "is missing") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, CHECKSUMS, files.reason(error)) from None
    # It has no checksum of its own, so it has to be exactly what would be written again.
    if not _is_sums(sums) or _sums_bytes(sums) != data:
        raise _damaged(path, CHECKSUMS, "has been changed")
    for name in (CHECKPOINT, CONFIG):
        if name not in sums:
            raise _damaged(path, CHECKSUMS, f"does not list {name}")
    return sums


def _is_sums(sums: Any) -> bool:
    return isinstance(sums, dict) and all(
        _OURS.fullmatch(name) and name[0] != "." and isinstance(entry, dict) and entry.keys() == {"bytes", "sha256"}
        for name, entry in sums.items()
    )


def _json_bytes(value: Any) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()
