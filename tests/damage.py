"""Ways to damage a checkpoint, and to see afterwards that nobody touched or obeyed it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Damage = Callable[[Path, Path, Path], None]  # (checkpoint, another checkpoint, marker that hostile code would create)


def snapshot(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder: name -> (kind, content or target)."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode())
        elif path.is_dir():
            found[name] = ("folder", b"")
        elif path.is_file():
            found[name] = ("file", path.read_bytes())
        else:
            found[name] = ("other", b"")
    return found


def forge_sums(folder: Path) -> None:
    """Make checksums.json agree with whatever the files have become."""
    sums = {}
    for path in folder.iterdir():
        if path.name != "checksums.json" and path.is_file():
            data = path.read_bytes()
            sums[path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "checksums.json").write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")


def safetensors_bytes(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A safetensors file with any header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def malicious_pickle(marker: Path) -> bytes:
    """Whoever unpickles this creates the folder ``marker``."""
    return pickle.dumps(_Bomb(marker))


# -- honest damage: disks, copies, impatient people


def truncate(name: str, part: float) -> Damage:
    def damage(folder: Path, other: Path, marker: Path) -> None:
        data = (folder / name).read_bytes()
        _replace(folder / name, data[: min(int(len(data) * part), len(data) - 1)])

    return damage


def flip_bit(name: str, seed: int) -> Damage:
    def damage(folder: Path, other: Path, marker: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        position = random.Random(seed).randrange(8 * len(data))
        data[position // 8] ^= 1 << position % 8
        _replace(folder / name, bytes(data))

    return damage


def delete(name: str) -> Damage:
    return lambda folder, other, marker: (folder / name).unlink()


def append(name: str, extra: bytes) -> Damage:
    return lambda folder, other, marker: _replace(folder / name, (folder / name).read_bytes() + extra)


def zero(name: str) -> Damage:
    return lambda folder, other, marker: _replace(folder / name, bytes((folder / name).stat().st_size))


def swap(name: str) -> Damage:
    """Exchange a file between two checkpoints."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        mine, theirs = (folder / name).read_bytes(), (other / name).read_bytes()
        assert mine != theirs
        _replace(folder / name, theirs)
        _replace(other / name, mine)

    return damage


def link_out(name: str) -> Damage:
    """Move a file away and leave a link to it: the content is right, the place is not."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        elsewhere = marker.with_name("elsewhere")
        shutil.move(folder / name, elsewhere)
        (folder / name).symlink_to(elsewhere)

    return damage


def to_folder(name: str) -> Damage:
    def damage(folder: Path, other: Path, marker: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def to_pipe(name: str) -> Damage:
    """A reader that opens this carelessly waits for ever."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def to_pickle(name: str) -> Damage:
    return lambda folder, other, marker: _replace(folder / name, malicious_pickle(marker))


# -- malice: the checksums agree


def forged(name: str, content: bytes | Callable[[Path], bytes]) -> Damage:
    """Replace a file and make the checksums agree with it; ``content`` may depend on the marker."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        _replace(folder / name, content(marker) if callable(content) else content)
        forge_sums(folder)

    return damage


def forged_document(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change checkpoint.json and make the checksums agree with it."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        document = json.loads((folder / "checkpoint.json").read_text())
        change(document)
        _replace(folder / "checkpoint.json", json.dumps(document).encode())
        forge_sums(folder)

    return damage


def forged_sums(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change checksums.json itself, in the layout it would be written in."""

    def damage(folder: Path, other: Path, marker: Path) -> None:
        sums = json.loads((folder / "checksums.json").read_text())
        change(sums)
        _replace(folder / "checksums.json", (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode())

    return damage


HOSTILE_HEADERS: dict[str, bytes] = {
    "huge shape": safetensors_bytes({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, b"1234"),
    "overflowing shape": safetensors_bytes({"a": {"dtype": "F64", "shape": [2**62, 8], "data_offsets": [0, 0]}}),
    "empty but huge": safetensors_bytes({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
    "100 dimensions": safetensors_bytes({"a": {"dtype": "U8", "shape": [1] * 100, "data_offsets": [0, 1]}}, b"1"),
    "overlap": safetensors_bytes(
        {key: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for key in ("a", "b")}, b"1234"
    ),
    "hole": safetensors_bytes({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"),
    "past the end": safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"1234"),
    "negative": safetensors_bytes({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    "backwards": safetensors_bytes({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
    "unknown dtype": safetensors_bytes({"a": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
    "uncovered data": safetensors_bytes({}, b"1234"),
    "no JSON": safetensors_bytes(b"import os"),
    "deep JSON": safetensors_bytes(b'{"a":' * 50_000),
    "huge header": struct.pack("<Q", 2**62) + b"{}",
    "empty file": b"",
}


def file_damages(names: list[str]) -> dict[str, Damage]:
    """Every kind of honest damage, for every file."""
    found: dict[str, Damage] = {}
    for name in names:
        found |= {f"{name}: cut to {part:.0%}": truncate(name, part) for part in (0.0, 0.25, 0.5, 0.9, 1.0)}
        found |= {f"{name}: bit flip {seed}": flip_bit(name, seed) for seed in range(8)}
        found |= {f"{name}: {extra!r} appended": append(name, extra) for extra in (b"\0", b"\n", b" {}" * 40)}
        found[f"{name}: deleted"] = delete(name)
        found[f"{name}: zeros"] = zero(name)
        found[f"{name}: swapped"] = swap(name)
        found[f"{name}: link"] = link_out(name)
        found[f"{name}: folder"] = to_folder(name)
        found[f"{name}: pipe"] = to_pipe(name)
        found[f"{name}: pickle"] = to_pickle(name)
    return found


def _replace(path: Path, data: bytes) -> None:
    """Put new content under a name without writing into the old file, which other names may share."""
    path.unlink()
    path.write_bytes(data)


# -- crashes


class Crash(BaseException):
    """The process ends here: nothing that follows reaches the disk."""


def crash_at(operation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the given file operation, and every later one, not happen."""
    count = 0

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count > operation:
                raise Crash
            return function(*args, **kwargs)

        return call

    names = ["mkdir", "open", "fsync", "rename", "replace", "link", "symlink", "unlink", "rmdir", "chmod"]
    for name in names:
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    monkeypatch.setattr("safetensors.numpy.save_file", guarded(sys.modules["safetensors.numpy"].save_file))


def crashes(action: Callable[[], Any], operation: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        crash_at(operation, patch)
        try:
            action()
        except Crash:
            return True
    return False
