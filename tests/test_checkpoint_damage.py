"""A damaged or hostile checkpoint is refused: nothing is executed, nothing is changed, the message names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.checkpoint import load_checkpoint, save_checkpoint
from rlexp.errors import CheckpointError, UntrustedError
from tests import damage
from tests.damage import HOSTILE_HEADERS, Damage, file_damages, forged, forged_document, forged_sums, snapshot

ARRAYS, SEGMENT = "algo.safetensors", "buffer-0-8.safetensors"
FILES = ["checkpoint.json", "config.yaml", "checksums.json", ARRAYS, "trainer.safetensors", SEGMENT]


def make_checkpoint(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    tree = {
        "algo": {"weight": torch.from_numpy(rng.random((4, 3))), "half": torch.ones(2, dtype=torch.bfloat16) * seed},
        "trainer": {"env_steps": seed, "obs": rng.random(5), "rng": rng.bit_generator.state, "scalar": np.float32(1)},
    }
    rows = {"obs": rng.integers(0, 256, (8, 4), np.uint8), "reward": rng.random(8, np.float32)}
    return save_checkpoint(path, tree, {"seed": seed, "algo": {"gamma": 0.99}}, segments={SEGMENT: lambda: rows})


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("originals")
    make_checkpoint(folder / "a", 1)
    make_checkpoint(folder / "b", 2)
    yield folder
    for name in "ab":  # no test has reached the originals
        load_all(folder / name)


def load_all(path: Path) -> None:
    for load_segment in load_checkpoint(path).segments.values():
        load_segment()


def pickle_in(name: str) -> Damage:
    return forged(name, damage.malicious_pickle)


def add_file(name: str, *, forge: bool) -> Damage:
    def harm(folder: Path, other: Path, marker: Path) -> None:
        (folder / name).write_bytes(damage.malicious_pickle(marker))
        if forge:
            damage.forge_sums(folder)

    return harm


def add_link(name: str, target: str) -> Damage:
    return lambda folder, other, marker: (folder / name).symlink_to(target)


def set_state(*path: str, value: Any) -> Damage:
    def change(document: dict[str, Any]) -> None:
        node = document
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return forged_document(change)


def deep(levels: int, opening: bytes, middle: bytes, closing: bytes) -> bytes:
    return b'{"format_version":1,"segments":[],"state":{"a":' + opening * levels + middle + closing * levels + b"}}"


HOSTILE: dict[str, Damage] = (
    {f"forged header of {name}: {what}": forged(name, data) for what, data in HOSTILE_HEADERS.items()
     for name in (ARRAYS, SEGMENT)}
    | {f"forged pickle as {name}": pickle_in(name) for name in FILES if name != "checksums.json"}
    | {f"format_version {value!r}": set_state("format_version", value=value)
       for value in (0, -1, 2, 10**30, "1", 1.0, True, None, [1])}
    | {f"segments {value!r}": set_state("segments", value=value)
       for value in (None, {}, "x", [1], ["../../etc/passwd"], [ARRAYS], ["buffer-8-9.safetensors"], [[SEGMENT]])}
    | {f"state {value!r}": set_state("state", value=value) for value in (None, [], 1, {})}
    | {f"marker {value!r}": set_state("state", "algo", "weight", value={"@array": value})
       for value in ("pickle", "torch.load", "torch.int8", "torch.bfloat16", "os.system", "scalar", None, 3, ["torch"])}
    | {
        "no format_version": forged_document(lambda document: document.pop("format_version")),
        "array that is nowhere": set_state("state", "trainer", "more", value={"@array": "numpy"}),
        "array that nothing refers to": forged_document(lambda document: document["state"]["trainer"].pop("obs")),
        "the same array in two files": lambda folder, other, marker: (
            shutil.copy(folder / ARRAYS, folder / "again.safetensors"), damage.forge_sums(folder)),
        "another checkpoint's arrays under forged sums": lambda folder, other, marker: (
            shutil.copy(other / "trainer.safetensors", folder / ARRAYS), damage.forge_sums(folder)),
        "checkpoint.json is a list": forged("checkpoint.json", b"[]"),
        "checkpoint.json is no UTF-8": forged("checkpoint.json", b'{"format_version": 1, "\xff": 0}'),
        "deep lists": forged("checkpoint.json", deep(100_000, b"[", b"", b"]")),
        "deep dicts": forged("checkpoint.json", deep(100_000, b'{"a":', b"1", b"}")),
        "lists just too deep": forged("checkpoint.json", deep(200, b"[", b"", b"]")),
        "unclosed lists": forged("checkpoint.json", b"[" * 1_000_000),
        "integer of a million digits": forged("checkpoint.json", deep(1, b"", b"9" * 1_000_000, b"")),
        "giant checkpoint.json": forged("checkpoint.json", b" " * (65 * 2**20)),
        "config with a Python object": forged("config.yaml", b"a: !!python/object/apply:os.mkdir [executed]\n"),
        "config with an unknown tag": forged("config.yaml", b"a: !thing 1\n"),
        "config that is a bomb of aliases": forged(
            "config.yaml", b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (i + 1, i + 1, i, i)
                                                      for i in range(97, 121))),
        "config with a date": forged("config.yaml", b"a: 2020-01-01\n"),
        "config with bytes": forged("config.yaml", b"a: !!binary aGVsbG8=\n"),
        "config with a set": forged("config.yaml", b"a: !!set {x, y}\n"),
        "config that is a list": forged("config.yaml", b"- 1\n"),
        "config that is empty": forged("config.yaml", b""),
        "config of two documents": forged("config.yaml", b"a: 1\n---\nb: 2\n"),
        "config that is too deep": forged("config.yaml", b"a: " + b"[" * 5000 + b"]" * 5000),
        "config just too deep": forged("config.yaml", b"a: " + b"[" * 100 + b"]" * 100),
        "giant config": forged("config.yaml", b"a: 1\n" + b"# x\n" * 2**19),
        "config that is no UTF-8": forged("config.yaml", b"a: \xff\xfe\n"),
        "file that is not listed": add_file("data.pkl", forge=False),
        "file that is listed but unknown": add_file("data.pkl", forge=True),
        "unlisted arrays": add_file("more.safetensors", forge=False),
        "folder inside": lambda folder, other, marker: (folder / "folder").mkdir(),
        "link inside": add_link("more", "checkpoint.json"),
        "hidden link inside": add_link(".more", "/"),
        "sums are a list": lambda folder, other, marker: (folder / "checksums.json").write_text("[]\n"),
        "sums are empty": lambda folder, other, marker: (folder / "checksums.json").write_text("{}\n"),
        "sums name a path": forged_sums(lambda sums: sums.update({"../b/config.yaml": sums["config.yaml"]})),
        "sums name a hidden file": forged_sums(lambda sums: sums.update({".x": sums["config.yaml"]})),
        "sums leave out the config": forged_sums(lambda sums: sums.pop("config.yaml")),
        "sums leave out an array": forged_sums(lambda sums: sums.pop(ARRAYS)),
        "sums are no objects": forged_sums(lambda sums: sums.update({ARRAYS: "0" * 64})),
        "sums of another kind": forged_sums(lambda sums: sums.update({ARRAYS: {"bytes": None, "sha256": None}})),
        "deep sums": lambda folder, other, marker: (folder / "checksums.json").write_bytes(b"[" * 100_000),
        "all gone but the folder": lambda folder, other, marker: [entry.unlink() for entry in folder.iterdir()],
        "gone": lambda folder, other, marker: shutil.rmtree(folder),
    }
)  # fmt: skip
DAMAGES = file_damages(FILES) | HOSTILE


def test_there_are_enough_kinds_of_damage() -> None:
    assert len(file_damages(FILES)) >= 120
    assert len(HOSTILE) >= 80


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_refused_without_executing_or_changing_anything(
    kind: str, originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(originals, tmp_path / "work")
    monkeypatch.chdir(tmp_path)
    checkpoint, other, marker = tmp_path / "work" / "a", tmp_path / "work" / "b", tmp_path / "executed"
    load_all(checkpoint)
    DAMAGES[kind](checkpoint, other, marker)
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_all(checkpoint)
    assert snapshot(tmp_path) == before
    assert not marker.exists()
    assert str(checkpoint) in str(caught.value)
    if kind in (names := {f"{name}: deleted": name for name in FILES}):
        assert f"{names[kind]} is missing" in str(caught.value)


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "x ${seed}", "\\${y}"])
def test_an_interpolation_in_the_config_of_a_checkpoint_is_never_resolved(
    value: str, originals: Path, tmp_path: Path
) -> None:
    shutil.copytree(originals / "a", tmp_path / "a")
    text = json.dumps({"algo": {"list": [{"key": value}]}}).encode()
    forged("config.yaml", text)(tmp_path / "a", tmp_path, tmp_path)
    with pytest.raises(UntrustedError, match=r"algo\.list\[0\]\.key"):
        load_checkpoint(tmp_path / "a")


def test_an_interpolation_in_a_key_is_refused_too(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "a", tmp_path / "a")
    forged("config.yaml", b"algo: {'${x}': 1}\n")(tmp_path / "a", tmp_path, tmp_path)
    with pytest.raises(UntrustedError):
        load_checkpoint(tmp_path / "a")


def test_messages_name_the_file_and_the_cause(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "a", tmp_path / "a")
    (tmp_path / "a" / ARRAYS).write_bytes(b"12345")
    with pytest.raises(CheckpointError, match=rf"{ARRAYS} has 5 bytes instead of \d+\.$"):
        load_checkpoint(tmp_path / "a")
    set_state("format_version", value=2)(tmp_path / "a", tmp_path, tmp_path)
    with pytest.raises(CheckpointError, match="newer rlexp: upgrade"):
        load_checkpoint(tmp_path / "a")


def test_what_systems_leave_behind_does_no_harm(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "a", tmp_path / "a")
    (tmp_path / "a" / ".DS_Store").write_bytes(b"\0")
    load_all(tmp_path / "a")
