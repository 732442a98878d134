"""A damaged or hostile dataset is refused by the commands that would learn from it; its content is data or nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlexp import cli
from rlexp.config.compose import compose
from rlexp.datasets.files import save_hdf5, save_npz
from rlexp.datasets.random import RandomDataset
from rlexp.envs import GymEnv
from rlexp.errors import RlexpError
from rlexp.runner import Runner
from tests import damage
from tests.security.conftest import TINY
from tests.security.hostile import Scene, alarm, command, content, edit_json, forge_config, setting

Harm = Callable[[Path, Path], Any]  # (the file, the marker that a payload would create)


@pytest.fixture
def arrays(scene: Scene) -> dict[str, np.ndarray]:
    """Good data of Pendulum, from the cache."""
    return RandomDataset(size=100).load(GymEnv(id="Pendulum-v1")).to_d4rl()


def array_file(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An .npy file, whose header may tell another shape."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
    return file.getvalue() + array.tobytes()


def member(key: str, data: Callable[[Path], bytes]) -> Harm:
    """Replace one array of an archive by any bytes."""

    def harm(path: Path, marker: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        content[f"{key}.npy"] = data(marker)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in content.items():
                archive.writestr(name, part)

    return harm


def objects(marker: Path) -> bytes:
    """An array of Python objects, which NumPy would unpickle."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array([damage._Bomb(marker)], dtype=object))
    return file.getvalue()


def bomb(path: Path, marker: Path) -> None:
    """Four gigabytes of zeros in four megabytes, under a header that asks for a terabyte."""
    header = array_file(np.zeros(0, np.float32), (2**38,))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("observations.npy", header + bytes(2**24))


def lying_sizes(path: Path, marker: Path) -> None:
    """The directory of the archive declares a petabyte."""
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 20 : at + 28] = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    path.write_bytes(bytes(data))


def raw(data: Callable[[Path], bytes]) -> Harm:
    return lambda path, marker: path.write_bytes(data(marker))


def cut(part: float) -> Harm:
    return lambda path, marker: path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])


def sparse(path: Path, marker: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(2**40)


def to_link(target: str) -> Harm:
    def harm(path: Path, marker: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return harm


def to_pipe(path: Path, marker: Path) -> None:
    path.unlink()
    os.mkfifo(path)


ANY: dict[str, Harm] = {
    **{f"cut to {part:.0%}": cut(part) for part in (0.0, 0.01, 0.3, 0.7, 0.98)},
    "pickle": raw(damage.malicious_pickle),
    "text": raw(lambda marker: b"observations,actions\n1,2\n"),
    "zeros": raw(lambda marker: bytes(5000)),
    "pipe": to_pipe,
    "folder": lambda path, marker: (path.unlink(), path.mkdir()),
    "endless device": to_link("/dev/zero"),
    "link to itself": lambda path, marker: to_link(path.name)(path, marker),
    "deleted": lambda path, marker: path.unlink(),
}
NPZ: dict[str, Harm] = ANY | {
    **{f"objects as {key}": member(key, objects) for key in ("observations", "actions", "rewards", "terminals")},
    "objects as timeouts": member("timeouts", objects),
    "a pickle as a member": member("rewards", damage.malicious_pickle),
    "a script as a member": member("rewards", lambda marker: b"import os; os.mkdir('executed')"),
    "code in a header": member("rewards", lambda marker: header(f"__import__('os').mkdir({str(marker)!r})")),
    "a header of another shape": member("rewards", lambda marker: array_file(np.zeros(100, np.float32), (10**12,))),
    "a negative shape": member("rewards", lambda marker: array_file(np.zeros(100, np.float32), (-100,))),
    "text values": member("rewards", lambda marker: array_file(np.array(["a"] * 100))),
    "NaN": member("rewards", lambda marker: array_file(np.full(100, np.nan, np.float32))),
    "too few rows": member("rewards", lambda marker: array_file(np.zeros(50, np.float32))),
    "actions of another space": member("actions", lambda marker: array_file(np.zeros((100, 9), np.float32))),
    "actions out of range": member("actions", lambda marker: array_file(np.full((100, 1), 1e9, np.float32))),
    "a bomb": bomb,
    "sizes that lie": lying_sizes,
    "sparse terabyte": sparse,
}


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def edit(change: Callable[[h5py.File, Path], Any]) -> Harm:
    def harm(path: Path, marker: Path) -> None:
        with h5py.File(path, "a") as file:
            change(file, path.parent)

    return harm


def replaced(key: str, value: Any) -> Harm:
    def change(file: h5py.File, folder: Path) -> None:
        del file[key]
        file[key] = value(folder) if callable(value) else value

    return edit(change)


def external(file: h5py.File, folder: Path) -> None:
    (folder / "raw.bin").write_bytes(bytes(400))
    del file["rewards"]
    file.create_dataset("rewards", (100,), "f4", external=[(str(folder / "raw.bin"), 0, 400)])


def virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((100,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "x", (100,))
    del file["rewards"]
    file.create_virtual_dataset("rewards", layout)


HDF5: dict[str, Harm] = ANY | {
    "an external link": replaced("rewards", lambda folder: h5py.ExternalLink(str(folder / "other.hdf5"), "/x")),
    "a soft link": replaced("rewards", h5py.SoftLink("/actions")),
    "external storage": edit(external),
    "a virtual dataset": edit(virtual),
    "text values": replaced("rewards", np.array([b"a"] * 100)),
    "a pickle as bytes": replaced("rewards", np.void(pickle.dumps(print))),
    "a group": edit(lambda file, folder: regroup(file)),
    "NaN": replaced("rewards", np.full(100, np.nan, np.float32)),
    "too few rows": replaced("rewards", np.zeros(50, np.float32)),
    "an absurd size": edit(lambda file, folder: absurd(file)),
}


def regroup(file: h5py.File) -> None:
    del file["rewards"]
    file["rewards/x"] = np.zeros(100)


def absurd(file: h5py.File) -> None:
    del file["rewards"]
    file.create_dataset("rewards", (10**12,), "f4", chunks=(1000,))


CASES = [("npz", what) for what in NPZ] + [("hdf5", what) for what in HDF5]


@pytest.mark.parametrize(("kind", "what"), CASES, ids=["-".join(case) for case in CASES])
def test_a_hostile_dataset_of_a_run_is_refused(
    scene: Scene, arrays: dict[str, np.ndarray], kind: str, what: str
) -> None:
    """Through a run that is resumed, whose config names the file."""
    path, run = scene.folder / f"data.{kind}", scene.copy("crr")
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    (NPZ if kind == "npz" else HDF5)[what](path, scene.marker)
    target = f"rlexp.datasets.files.{'Npz' if kind == 'npz' else 'Hdf5'}Dataset"
    forge_config(run, setting("dataset", value={"_target_": target, "path": str(path)}))
    scene.refused(run, "resume", str(path))


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_a_run_goes_on_with_the_data_it_began_with_and_no_other(
    scene: Scene, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = RandomDataset(size=100).load(GymEnv(id="Pendulum-v1"))
    other = RandomDataset(size=100, seed=1).load(GymEnv(id="Pendulum-v1"))
    save = save_npz if kind == "npz" else save_hdf5
    path, run = scene.folder / f"data.{kind}", scene.folder / "run"
    save(path, data)
    dataset = [f"dataset={kind}", f"dataset.path={path}", "trainer.total_updates=4", "trainer.batch_size=8"]
    Runner(compose(["algo=crr", "env=pendulum", *dataset, *TINY])).train(run)
    command("resume", str(run), "trainer.total_updates=6")
    save(path, other)
    scene.refused(run, "resume", "dataset")


def test_a_damaged_dataset_is_refused_before_a_new_run_leaves_a_trace(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rlexp"])
    Path("data.npz").write_bytes(damage.malicious_pickle(scene.marker))
    before = content(scene.folder)
    with alarm() as heard, pytest.raises(SystemExit) as end:
        cli.main(["algo=crr", "env=pendulum", "dataset=npz", "dataset.path=data.npz", "hydra.run.dir=run", *TINY])
    assert (end.value.code, heard) == (1, [])
    assert "data.npz is damaged or of another format" in capsys.readouterr().err
    assert content(scene.folder) == before


def test_a_damaged_cache_is_collected_again_and_never_unpickled(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(scene.folder / "cache"))
    wanted = RandomDataset(size=50).load(GymEnv(id="Pendulum-v1"))
    (path,) = (scene.folder / "cache" / "datasets").iterdir()
    path.write_bytes(damage.malicious_pickle(scene.marker))
    with alarm() as heard:
        assert RandomDataset(size=50).load(GymEnv(id="Pendulum-v1")).sha256 == wanted.sha256
    assert not heard
    assert not scene.marker.exists()


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
@pytest.mark.parametrize("how", ["missing", "null"])
def test_minari_makes_no_environment_of_what_a_dataset_says(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, space: str, how: str
) -> None:
    """The library would, to learn the spaces that are not declared."""
    pytest.importorskip("minari")
    from rlexp.datasets.minari import MinariDataset, dataset_folder, save_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(scene.folder / "minari"))
    env = GymEnv(id="Pendulum-v1")
    save_minari("evil/x-v0", RandomDataset(size=100).load(env), env)
    spec = {
        "id": "Evil-v0", "entry_point": "os:mkdir", "reward_threshold": None, "nondeterministic": False,
        "max_episode_steps": None, "order_enforce": True, "disable_env_checker": True,
        "kwargs": {"path": str(scene.marker)}, "additional_wrappers": [], "vector_entry_point": None,
    }  # fmt: skip

    def spoil(metadata: dict[str, Any]) -> None:
        metadata.update({space: None, "env_spec": json.dumps(spec)})
        if how == "missing":
            del metadata[space]

    edit_json(dataset_folder("evil/x-v0") / "data" / "metadata.json", spoil)
    before = content(scene.folder)
    for surface in (
        lambda: command("data", "info", "evil/x-v0"),
        lambda: MinariDataset(id="evil/x-v0").load(env),
        lambda: MinariDataset(id="evil/x-v0").spaces(),
    ):
        with alarm() as heard, pytest.raises(RlexpError, match=f"declares no {space}.* Download"):
            surface()
        assert not heard
    assert not scene.marker.exists()
    assert content(scene.folder) == before
