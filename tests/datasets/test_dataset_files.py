import io
import os
import pickle
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_data import DICT, VECTOR, FixedEnv, dict_data, vector_data

import rlexp.datasets.files as files
from rlexp.datasets.files import Hdf5Dataset, NpzDataset, save_hdf5, save_npz
from rlexp.errors import DataError
from rlexp.tree import tree_leaves

KINDS = {"npz": (NpzDataset, save_npz), "hdf5": (Hdf5Dataset, save_hdf5)}


def load(path, spec=VECTOR):
    kind = "npz" if path.suffix == ".npz" else "hdf5"
    return KINDS[kind][0](path=str(path)).load(FixedEnv(spec))


def refused(path, message):
    with pytest.raises(DataError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("data", "spec"), [(vector_data(), VECTOR), (dict_data(), DICT)], ids=["vector", "dict"])
def test_what_is_saved_is_loaded(tmp_path, kind, data, spec):
    path = tmp_path / "new" / f"data.{kind}"
    KINDS[kind][1](path, data)
    assert load(path, spec).sha256 == data.sha256
    assert os.listdir(path.parent) == [path.name]  # no temporary file is left


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_save_leaves_the_old_file(tmp_path, kind, monkeypatch):
    path = tmp_path / f"data.{kind}"
    KINDS[kind][1](path, vector_data())
    monkeypatch.setattr(files.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        KINDS[kind][1](path, vector_data(seed=1))
    assert load(path).sha256 == vector_data().sha256
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_not_asked_for_are_not_touched(tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    arrays = vector_data().to_d4rl()
    if kind == "npz":
        np.savez(path, **arrays, infos=np.array([{"a": 1}], dtype=object))
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
            file["infos/text"] = "hello"
            file["metadata"] = h5py.ExternalLink("elsewhere.hdf5", "/x")
    assert load(path).sha256 == vector_data().sha256


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "other"), [("rewards", "reward"), ("terminals", "terminated"), ("timeouts", "timeout")]
)
def test_a_mistyped_key_in_a_file_is_told_with_the_right_name(tmp_path, kind, key, other):
    arrays = vector_data().to_d4rl()
    arrays[other] = arrays.pop(key)
    path = tmp_path / f"data.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    refused(path, rf"has no {key}, but {other}\. Rename it to {key}\.")


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_without_a_file_says_which_setting_to_change(tmp_path, kind):
    refused(tmp_path / f"none.{kind}", "does not exist. Set dataset.path")
    (tmp_path / f"folder.{kind}").mkdir()
    refused(tmp_path / f"folder.{kind}", "is not a file")


@pytest.mark.parametrize("kind", KINDS)
def test_the_home_directory_may_be_written_as_a_tilde(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    KINDS[kind][1](tmp_path / f"data.{kind}", vector_data())
    assert len(load(Path(f"~/data.{kind}"))) == 12


# --- pickles ----------------------------------------------------------------------------------------------------------


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_the_bomb_goes_off_when_unpickled(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "fired"))).close()  # noqa: S301 (or the tests below would show nothing)
    assert (tmp_path / "fired").exists()


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals", "timeouts", "observations/x"])
def test_a_pickle_inside_an_archive_is_refused_and_not_executed(tmp_path, key):
    arrays = vector_data().to_d4rl()
    arrays.pop(key, None)
    arrays[key] = np.array([Bomb(tmp_path / "fired")], dtype=object)
    np.savez(tmp_path / "data.npz", **arrays)
    refused(tmp_path / "data.npz", f"{key} holds Python objects.*could run a stranger's code")
    assert not (tmp_path / "fired").exists()


def test_a_pickle_under_the_name_of_an_archive_is_refused_and_not_executed(tmp_path):
    (tmp_path / "data.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "fired")))
    refused(tmp_path / "data.npz", "damaged or of another format")
    (tmp_path / "data.hdf5").write_bytes(pickle.dumps(Bomb(tmp_path / "fired")))
    refused(tmp_path / "data.hdf5", "damaged or of another format")
    assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize("member", ["actions", "actions.npy", "observations/x.npy"])
def test_a_raw_pickle_as_a_member_is_refused_and_not_executed(tmp_path, member):
    save_npz(tmp_path / "good.npz", vector_data())
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "data.npz", "w") as bad:
        for info in good.infolist():
            if info.filename.removesuffix(".npy") != member.removesuffix(".npy"):
                bad.writestr(info, good.read(info))
        bad.writestr(member, pickle.dumps(Bomb(tmp_path / "fired")))
    refused(tmp_path / "data.npz", "damaged or of another format")
    assert not (tmp_path / "fired").exists()


# --- archives that lie ------------------------------------------------------------------------------------------------


def with_member(path, key, content):
    arrays = {name: array for name, array in vector_data().to_d4rl().items() if name != key}
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{key}.npy", content)


def npy(array, shape):
    """An array file whose header tells another shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": array.dtype.str, "fortran_order": False, "shape": shape})
    return file.getvalue() + array.tobytes()


@pytest.mark.parametrize("shape", [(10**12, 2), (13, 2), (11, 2), (-12, -2), (0,)])
def test_an_array_that_declares_another_size_is_refused_before_it_is_allocated(tmp_path, shape):
    with_member(tmp_path / "data.npz", "actions", npy(vector_data().action, shape))
    refused(tmp_path / "data.npz", "actions is declared as|cannot be read")


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x03\x00", b"\x93NUMPY\x01\x00\xff\xff{", b"x" * 500]
)
def test_an_array_without_a_sound_header_is_refused(tmp_path, content):
    with_member(tmp_path / "data.npz", "rewards", content)
    refused(tmp_path / "data.npz", "damaged or of another format")


@pytest.mark.parametrize("dtype", ["U3", "S3", "datetime64[s]", "complex64", [("a", "f4")]])
def test_arrays_that_hold_no_numbers_are_refused(tmp_path, dtype):
    np.savez(tmp_path / "data.npz", **{**vector_data().to_d4rl(), "rewards": np.zeros(12, dtype)})
    refused(tmp_path / "data.npz", "rewards holds .* values. Save it as an array of numbers")


@pytest.mark.parametrize("kind", KINDS)
def test_more_data_than_memory_is_refused_before_it_is_read(tmp_path, kind, monkeypatch):
    KINDS[kind][1](tmp_path / f"data.{kind}", vector_data())
    monkeypatch.setattr("rlexp.machine.available_memory", lambda: 100)
    refused(tmp_path / f"data.{kind}", "only 1e-07 GB of memory")


# --- HDF5 files that lead elsewhere ---------------------------------------------------------------------------------


def hdf5_without(path, key):
    with h5py.File(path, "w") as file:
        for name, array in vector_data().to_d4rl().items():
            if name != key:
                file[name] = array
    return h5py.File(path, "a")


@pytest.fixture
def secret(tmp_path):
    """A good array in another file: if a link to it were followed, the dataset would load."""
    path = tmp_path / "secret.hdf5"
    with h5py.File(path, "w") as file:
        file["x"] = file["group/x"] = vector_data().reward
    return path


def test_external_links_are_refused(tmp_path, secret):
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file["rewards"] = h5py.ExternalLink(str(secret), "/x")
    refused(tmp_path / "data.hdf5", "rewards is a link to another place")


def test_soft_links_through_external_links_are_refused(tmp_path, secret):
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file["door"] = h5py.ExternalLink(str(secret), "/group")
        file["rewards"] = h5py.SoftLink("/door/x")
    refused(tmp_path / "data.hdf5", "rewards is a link to another place")


def test_external_links_below_observations_are_refused(tmp_path, secret):
    with hdf5_without(tmp_path / "data.hdf5", "observations") as file:
        file.create_group("observations/inner")["x"] = h5py.ExternalLink(str(secret), "/x")
    refused(tmp_path / "data.hdf5", "observations/inner/x is a link to another place")
    with hdf5_without(tmp_path / "data.hdf5", "observations") as file:
        file["observations"] = h5py.ExternalLink(str(secret), "/group")
    refused(tmp_path / "data.hdf5", "observations is a link to another place")


def test_external_storage_is_refused(tmp_path):
    (tmp_path / "raw.bin").write_bytes(vector_data().reward.tobytes())
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file.create_dataset("rewards", (12,), "f4", external=[(str(tmp_path / "raw.bin"), 0, 48)])
        np.testing.assert_array_equal(file["rewards"][()], vector_data().reward)  # HDF5 itself would follow
    refused(tmp_path / "data.hdf5", "rewards keeps its data in another file")


def test_virtual_datasets_are_refused(tmp_path, secret):
    layout = h5py.VirtualLayout((12,), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "x", (12,))
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file.create_virtual_dataset("rewards", layout)
        np.testing.assert_array_equal(file["rewards"][()], vector_data().reward)  # HDF5 itself would follow
    refused(tmp_path / "data.hdf5", "rewards keeps its data in another file")


def test_groups_that_contain_themselves_are_refused(tmp_path):
    with hdf5_without(tmp_path / "data.hdf5", "observations") as file:
        group = file.create_group("observations")
        group["again"] = group
    refused(tmp_path / "data.hdf5", "is not an array")


def test_a_group_in_place_of_an_array_is_refused(tmp_path):
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file["rewards/x"] = np.zeros(12)
    refused(tmp_path / "data.hdf5", "rewards is not an array")


@pytest.mark.parametrize(
    "dtype", [h5py.string_dtype(), h5py.vlen_dtype(np.float32), h5py.ref_dtype, np.dtype("S3"), np.dtype([("a", "f4")])]
)
def test_hdf5_types_that_are_no_numbers_are_refused(tmp_path, dtype):
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file.create_dataset("rewards", (12,), dtype)
    refused(tmp_path / "data.hdf5", "rewards holds .*Save it as an array of numbers")


@pytest.mark.parametrize("chunks", [None, (1000, 1000), (30_000, 30_000)])
def test_an_absurd_declared_size_is_refused_before_it_is_allocated(tmp_path, chunks, monkeypatch):
    monkeypatch.setattr("rlexp.machine.available_memory", lambda: None)
    with hdf5_without(tmp_path / "data.hdf5", "actions") as file:
        file.create_dataset("actions", (10**7, 10**5), "f4", chunks=chunks)
    refused(tmp_path / "data.hdf5", "actions is declared with 4e.* GB, more than the file can hold")


def test_an_array_smaller_than_its_absurd_chunk_is_refused(tmp_path):
    with hdf5_without(tmp_path / "data.hdf5", "actions") as file:
        file.create_dataset("actions", (12, 2), "f4", chunks=(20_000, 20_000), maxshape=(None, None))
    refused(tmp_path / "data.hdf5", "more than the file can hold")


def test_filters_that_would_load_a_plugin_are_refused(tmp_path):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((12,))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())  # zstd's number
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        space = h5py.h5s.create_simple((12,))
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F32LE, space, plist)
    refused(tmp_path / "data.hdf5", r"plugins \[32015\]")


def test_an_array_without_a_shape_is_refused(tmp_path):
    with hdf5_without(tmp_path / "data.hdf5", "rewards") as file:
        file["rewards"] = h5py.Empty("f4")
    refused(tmp_path / "data.hdf5", "rewards is empty")


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Whole files as bytes: archives plain and deflated, HDF5 compressed and contiguous."""
    folder, data = tmp_path_factory.mktemp("originals"), vector_data()
    save_npz(folder / "plain.npz", data)
    np.savez_compressed(folder / "deflated.npz", **data.to_d4rl())
    save_hdf5(folder / "gzip.hdf5", data)
    with h5py.File(folder / "contiguous.hdf5", "w") as file:
        for key, array in data.to_d4rl().items():
            file[key] = array
    return {path.name: path.read_bytes() for path in folder.iterdir()}


NAMES = ["plain.npz", "deflated.npz", "gzip.hdf5", "contiguous.hdf5"]


def loaded_or_refused(path) -> bool:
    """Whether a damaged file was refused; one that was not must have given plain, finite data that fits."""
    try:
        data = load(path)
    except DataError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert str(path) in message
        assert "\n" not in message
        return True
    assert len(data) > 0
    for array in (*data.to_d4rl().values(), *(leaf for _, leaf in tree_leaves(data.obs))):
        assert array.dtype.kind in "bf"
        assert np.isfinite(array).all()
    return False


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_refused(tmp_path, originals, name):
    content, path = originals[name], tmp_path / name
    for length in sorted({0, 1, 8, *np.linspace(2, len(content) - 1, 40).astype(int)}):
        path.write_bytes(content[:length])
        assert loaded_or_refused(path), f"{length} of {len(content)} bytes"


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_refused_or_leaves_plain_data(tmp_path, originals, name):
    content, path = originals[name], tmp_path / name
    rng, refusals = np.random.default_rng(0), 0
    for position in np.linspace(0, len(content) - 1, 150).astype(int):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        refusals += loaded_or_refused(path)
    assert refusals > 10


@pytest.mark.parametrize("name", NAMES)
def test_overwritten_blocks_are_refused_or_leave_plain_data(tmp_path, originals, name):
    content, path = originals[name], tmp_path / name
    rng = np.random.default_rng(1)
    for start in np.linspace(0, len(content) - 16, 40).astype(int):
        damaged = bytearray(content)
        damaged[start : start + 16] = rng.bytes(16) if start % 2 else b"\xff" * 16
        path.write_bytes(damaged)
        loaded_or_refused(path)


def test_foreign_content_is_refused(tmp_path):
    for i, content in enumerate(
        [b"", b"PK", b"\x89HDF\r\n\x1a\n", b"hello", os.urandom(5000), b"PK\x05\x06" + bytes(18)]
    ):
        for kind in KINDS:
            path = tmp_path / f"{i}.{kind}"
            path.write_bytes(content)
            assert loaded_or_refused(path)
