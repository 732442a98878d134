"""Checkpoints come back bit for bit, cost what is new, and replace each other without a gap."""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlexp import checkpoint as checkpoint_module
from rlexp import files
from rlexp.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from rlexp.errors import CheckpointError, ConfigError
from rlexp.seeding import generator_state, numpy_generator, restore_generator
from tests.damage import snapshot

FROZEN = Path(__file__).parent / "data" / "checkpoint_v1"
CONFIG = {"seed": 0, "algo": {"_target_": "rlexp.algos.PPO", "gamma": 0.99, "widths": [64, 64]}, "device": None}


def frozen_tree() -> dict[str, Any]:
    """What tests/data/checkpoint_v1 was made from. Later versions must go on reading it: never make it anew."""
    return {
        "algo": {
            "actor": {"weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7, "bias": torch.tensor(-0.0)},
            "half": torch.tensor([1.5, -2.0, math.pi], dtype=torch.bfloat16),
            "steps": [torch.tensor(3, dtype=torch.int64), np.float32(0.1), np.array([True, False])],
        },
        "trainer": {"env_steps": 12, "rng": {"state": 2**127 + 1, "name": "PCG64"}, "best": -math.inf, "done": False},
        "normalizer": {"mean/~": np.array([[1e-300], [5e-324]]), "count": np.array(7, np.uint64)},
        "callbacks": [],
    }


FROZEN_SEGMENTS = {
    "buffer-0-2.safetensors": {"obs": np.array([[1, 2], [3, 255]], np.uint8), "reward": np.array([0.5, -1], "f4")},
    "buffer-2-3.safetensors": {"obs": np.array([[9, 9]], np.uint8), "reward": np.array([1 / 3], "f4")},
}


def same(left: Any, right: Any) -> bool:
    """Equal in type and in every bit, also where a NaN or a negative zero is."""
    if isinstance(left, dict):
        return type(right) is dict and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right) if t.numel()]
        return not raw or torch.equal(*raw)
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return bool(left == right)


def make_segments(content: dict[str, dict[str, np.ndarray]], produced: list[str] | None = None) -> Any:
    def producer(name: str) -> Any:
        def produce() -> dict[str, np.ndarray]:
            if produced is not None:
                produced.append(name)
            return content[name]

        return produce

    return {name: producer(name) for name in content}


# -- round trips

_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f8", ">i4"]
_arrays = st.sampled_from(_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
_tensors = st.builds(
    lambda array, kind: torch.from_numpy(np.array(array)).to(kind),
    hnp.arrays("f4", hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool]),
)
_plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just(math.nan) | st.text()
_scalars = st.sampled_from([np.float32(0.1), np.int64(-3), np.bool_(True), np.float64(-0.0), np.uint8(255)])
_keys = st.text(max_size=4).filter(lambda key: key != "@array") | st.sampled_from(["a/b", "a~1b", "~", "/", ""])
_values = st.recursive(
    _plain | _arrays | _tensors | _scalars,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_keys, children, max_size=3),
    max_leaves=12,
)
_trees = st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}", fullmatch=True), _values, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(_trees)
def test_any_state_tree_comes_back_bit_for_bit_with_its_types(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]
) -> None:
    path = save_checkpoint(tmp_path_factory.mktemp("run") / "c", tree, CONFIG)
    assert same(native(tree), load_checkpoint(path).tree)


def native(value: Any) -> Any:
    """Big-endian arrays come back in the order of this machine, with the same values."""
    if isinstance(value, dict):
        return {key: native(child) for key, child in value.items()}
    if isinstance(value, list):
        return [native(child) for child in value]
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("="))
    return value


_resolved = st.text(max_size=8).filter(lambda text: "${" not in text)
_config_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _resolved,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_resolved, children, max_size=3),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_resolved, _config_values, max_size=4))
def test_any_plain_config_comes_back_with_its_types(config: dict[str, Any]) -> None:
    assert same(config, files.parse_config(files.config_bytes(config)))


def test_non_contiguous_arrays_and_tensors_keep_their_values(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    tensor = torch.arange(24).reshape(4, 6)
    tree = {"a": {"t": base.T, "s": base[::2, 1::3], "b": np.broadcast_to(np.float32(2), (3, 2)), "x": tensor.T[1:]}}
    loaded = load_checkpoint(save_checkpoint(tmp_path / "c", tree, CONFIG)).tree["a"]
    assert same(loaded["t"], base.T.copy())
    assert same(loaded["s"], np.array([[1.0, 4.0], [13.0, 16.0]]))
    assert same(loaded["b"], np.full((3, 2), 2, np.float32))
    assert torch.equal(loaded["x"], tensor.T[1:])


def test_loaded_arrays_can_be_written_to(tmp_path: Path) -> None:
    tree = {"a": {"n": np.zeros(3), "t": torch.zeros(3, requires_grad=True)}}
    loaded = load_checkpoint(save_checkpoint(tmp_path / "c", tree, CONFIG)).tree["a"]
    loaded["n"][0] = 1
    loaded["t"][0] = 1
    assert not loaded["t"].requires_grad


def test_generators_continue_where_they_were(tmp_path: Path) -> None:
    numpy_rng, torch_rng = numpy_generator(3, "sampler"), torch.Generator().manual_seed(3)
    numpy_rng.integers(100, size=5, dtype=np.int32)
    torch.randn(5, generator=torch_rng)
    tree = {"trainer": {"numpy": generator_state(numpy_rng), "torch": torch_rng.get_state()}}
    loaded = load_checkpoint(save_checkpoint(tmp_path / "c", tree, CONFIG)).tree["trainer"]
    expected = numpy_rng.random(4), torch.randn(4, generator=torch_rng)
    other_numpy, other_torch = numpy_generator(9), torch.Generator()
    restore_generator(other_numpy, loaded["numpy"])
    other_torch.set_state(loaded["torch"])
    assert same(other_numpy.random(4), expected[0])
    assert torch.equal(torch.randn(4, generator=other_torch), expected[1])


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {"@array": 1}, {1, 2}, b"x", object(), np.array(["a"]), np.array([None]), 1j, np.zeros(2, "c16")],
    ids=lambda value: type(value).__name__,  # the repr of an object is its address, other in every process
)
def test_a_leaf_that_would_not_come_back_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="algo/optimizer"):
        save_checkpoint(tmp_path / "c", {"algo": {"optimizer": [{"betas": value}]}}, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_contains_itself_is_refused(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"a": {}}
    tree["a"]["again"] = tree["a"]
    with pytest.raises(ValueError, match="nested more than"):
        save_checkpoint(tmp_path / "c", tree, CONFIG)


@pytest.mark.parametrize("key", ["a/b", "", "../x", "buffer-0-5", "__metadata__", ".a"])
def test_a_top_level_key_that_is_no_file_name_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="names a file"):
        save_checkpoint(tmp_path / "c", {key: 1}, CONFIG)


def test_an_unresolved_config_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo\.path"):
        save_checkpoint(tmp_path / "c", {}, {"algo": {"path": "${oc.env:HOME}"}})


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (
        save_checkpoint(tmp_path / name, frozen_tree(), CONFIG, segments=make_segments(FROZEN_SEGMENTS))
        for name in ("a", "b")
    )
    assert snapshot(first) == snapshot(second)


def test_neither_checkpoint_nor_run_dir_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, rlexp.run_dir, rlexp.checkpoint as c\n"
        "path = c.save_checkpoint(sys.argv[1], {'a': {'x': np.ones(2)}}, {})\n"
        "c.load_checkpoint(path); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], check=True)


# -- segments


def test_a_segment_of_the_previous_checkpoint_is_linked_and_not_produced_again(tmp_path: Path) -> None:
    produced: list[str] = []
    names = list(FROZEN_SEGMENTS)
    first = save_checkpoint(
        tmp_path / "a", {}, CONFIG, segments=make_segments({names[0]: FROZEN_SEGMENTS[names[0]]}, produced)
    )
    second = save_checkpoint(
        tmp_path / "b", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS, produced), previous=first
    )
    assert produced == names
    assert os.path.samefile(first / names[0], second / names[0])
    loaded = load_checkpoint(second).segments
    assert list(loaded) == names
    for name in names:
        assert same(dict(sorted(loaded[name]().items())), FROZEN_SEGMENTS[name])


def test_segments_survive_the_checkpoint_that_wrote_them(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path / "a", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS))
    second = save_checkpoint(tmp_path / "b", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS), previous=first)
    for entry in first.iterdir():
        entry.unlink()
    verify_checkpoint(second)


def test_segments_are_copied_where_links_are_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    produced: list[str] = []
    first = save_checkpoint(tmp_path / "a", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS))
    second = save_checkpoint(
        tmp_path / "b", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS, produced), previous=first
    )
    assert produced == []
    assert not os.path.samefile(first / "buffer-0-2.safetensors", second / "buffer-0-2.safetensors")
    assert snapshot(first) == snapshot(second)


@pytest.mark.parametrize("harm", ["delete", "shorten", "sums", "gone"])
def test_a_segment_that_is_not_whole_any_more_is_produced_again(tmp_path: Path, harm: str) -> None:
    produced: list[str] = []
    first = save_checkpoint(tmp_path / "a", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS))
    name = "buffer-0-2.safetensors"
    if harm == "delete":
        (first / name).unlink()
    elif harm == "shorten":
        (first / name).write_bytes(b"")
    elif harm == "sums":
        (first / "checksums.json").write_text("{}")
    else:
        first.rename(tmp_path / "elsewhere")
    second = save_checkpoint(
        tmp_path / "b", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS, produced), previous=first
    )
    assert name in produced
    verify_checkpoint(second)


def test_a_damaged_segment_does_not_become_right_by_being_linked(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path / "a", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS))
    data = bytearray((first / "buffer-0-2.safetensors").read_bytes())
    data[-1] ^= 1
    (first / "buffer-0-2.safetensors").write_bytes(data)
    second = save_checkpoint(tmp_path / "b", {}, CONFIG, segments=make_segments(FROZEN_SEGMENTS), previous=first)
    with pytest.raises(CheckpointError, match="buffer-0-2"):
        verify_checkpoint(second)


# -- replacing and failing


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", {"a": {"x": np.zeros(3)}}, CONFIG)
    save_checkpoint(path, {"b": 1}, CONFIG)
    assert load_checkpoint(path).tree == {"b": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("content", ["notes.txt", "folder/", "model.safetensors", "config.yaml"])
def test_a_folder_that_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / content).mkdir() if content.endswith("/") else (folder / content).write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match="Choose another name"):
        save_checkpoint(folder, {"a": 1}, CONFIG)
    assert snapshot(tmp_path) == before


def test_a_file_or_link_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            save_checkpoint(tmp_path / name, {"a": 1}, CONFIG)


def test_a_full_disk_is_reported_and_leaves_the_old_checkpoint_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_checkpoint(tmp_path / "c", frozen_tree(), CONFIG)
    before = snapshot(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_module.safetensors.numpy, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(path, frozen_tree(), CONFIG)
    monkeypatch.undo()
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(path, {"a": 1}, CONFIG)
    assert snapshot(tmp_path) == before


def test_a_failed_rename_puts_the_old_checkpoint_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "c", frozen_tree(), CONFIG)
    before, rename = snapshot(tmp_path), os.rename

    def only_aside(source: Any, target: Any) -> None:
        if ".tmp-" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", only_aside)
    with pytest.raises(CheckpointError, match="Input/output"):
        save_checkpoint(path, {"a": 1}, CONFIG)
    assert snapshot(tmp_path) == before


def test_a_segment_that_cannot_be_produced_leaves_no_litter(tmp_path: Path) -> None:
    def fail() -> dict[str, np.ndarray]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "c", {}, CONFIG, segments={"buffer-0-1.safetensors": fail})
    with pytest.raises(ValueError, match="is named like"):
        save_checkpoint(tmp_path / "c", {}, CONFIG, segments={"../x.safetensors": fail})
    assert list(tmp_path.iterdir()) == []


# -- formats


def test_the_frozen_checkpoint_of_format_1_is_still_read() -> None:
    loaded = load_checkpoint(FROZEN)
    assert same(frozen_tree(), loaded.tree)
    assert same(CONFIG, loaded.config)
    assert list(loaded.segments) == list(FROZEN_SEGMENTS)
    for name, arrays in FROZEN_SEGMENTS.items():
        assert same(dict(sorted(loaded.segments[name]().items())), arrays)


def test_an_older_format_is_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename_key(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
        state["loop"] = state.pop("trainer")
        return state, arrays

    def rename_array(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
        state["normalizer"]["n"] = state["normalizer"].pop("count")
        arrays["normalizer/n"] = arrays.pop("normalizer/count")
        return state, arrays

    monkeypatch.setattr(checkpoint_module, "FORMAT_VERSION", 3)
    monkeypatch.setattr(checkpoint_module, "MIGRATIONS", {1: rename_key, 2: rename_array})
    tree = load_checkpoint(FROZEN).tree
    assert tree["loop"]["env_steps"] == 12
    assert same(tree["normalizer"]["n"], np.array(7, np.uint64))
    assert "trainer" not in tree


def test_a_format_without_a_migration_is_called_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "FORMAT_VERSION", 3)
    monkeypatch.setattr(checkpoint_module, "MIGRATIONS", {2: lambda state, arrays: (state, arrays)})
    with pytest.raises(CheckpointError, match="format 1, which is too old"):
        load_checkpoint(FROZEN)


def test_a_migration_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "FORMAT_VERSION", 2)
    monkeypatch.setattr(checkpoint_module, "MIGRATIONS", {1: lambda state, arrays: (state["missing"], arrays)})
    with pytest.raises(CheckpointError, match="from format 1 to 2"):
        load_checkpoint(FROZEN)


def test_the_files_are_the_documented_ones() -> None:
    assert sorted(entry.name for entry in FROZEN.iterdir()) == [
        "algo.safetensors",
        "buffer-0-2.safetensors",
        "buffer-2-3.safetensors",
        "checkpoint.json",
        "checksums.json",
        "config.yaml",
        "normalizer.safetensors",
    ]
    assert json.loads((FROZEN / "checkpoint.json").read_text())["format_version"] == 1
