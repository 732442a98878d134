"""Several sources as one dataset, and the memories of runs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from small_data import VECTOR, FixedEnv, vector_data

from rlexp.buffers.ring import ReplayBuffer
from rlexp.config.compose import compose
from rlexp.datasets import CombinedDataset, RunDataset
from rlexp.datasets.files import save_hdf5, save_npz
from rlexp.datasets.transitions import joined
from rlexp.errors import ConfigError, DataError
from rlexp.runner import Runner
from tests.trainers.recording import counting_config, train

ENV = FixedEnv(VECTOR)


@pytest.fixture
def files(tmp_path):
    save_npz(tmp_path / "a.npz", vector_data(10, seed=1))
    save_hdf5(tmp_path / "b.hdf5", vector_data(30, seed=2))
    return [{"kind": "npz", "path": str(tmp_path / "a.npz")}, {"kind": "hdf5", "path": str(tmp_path / "b.hdf5")}]


def filled(data) -> ReplayBuffer:
    buffer = ReplayBuffer()
    buffer.build(VECTOR, 1, 0.9, 0, capacity=len(data))
    buffer.extend(data)
    return buffer


def test_sources_follow_one_another_and_none_runs_into_the_next(files):
    data = CombinedDataset(sources=files).load(ENV)
    np.testing.assert_array_equal(data.obs, np.concatenate([vector_data(10, 1).obs, vector_data(30, 2).obs]))
    assert data.truncated[9]
    assert data.truncated[39]
    assert data.sources == ((10, None), (30, None))


def test_a_source_is_sampled_by_its_weight_and_its_rows_equally(files):
    weighted = [files[0] | {"weight": 3}, files[1] | {"weight": 1}]
    data = CombinedDataset(sources=weighted).load(ENV)
    assert data.sources == ((10, 3.0), (30, 1.0))
    index = filled(data).sample(1000, 40).index.numpy()
    assert np.mean(index < 10) == pytest.approx(0.75, abs=0.01)
    counts = Counter(index.tolist())
    assert set(counts) == set(range(40))
    assert min(counts[i] for i in range(10)) == pytest.approx(3000, rel=0.1)
    assert max(counts[i] for i in range(10, 40)) == pytest.approx(333, rel=0.25)


def test_batches_sampled_together_are_those_sampled_one_by_one(files):
    data = CombinedDataset(sources=[files[0] | {"weight": 1}, files[1] | {"weight": 2}]).load(ENV)
    together, alone = filled(data), filled(data)
    parts = [alone.sample(8).index.numpy() for _ in range(5)]
    np.testing.assert_array_equal(together.sample(8, 5).index.numpy(), np.concatenate(parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "nzp"}, "Did you mean .?npz"),
        ({"kind": "combined"}, "no such dataset"),
        ({"weight": 0}, "greater than 0"),
        ({"pth": "x"}, r"dataset\.sources\[0\]\.pth"),
        ({"reward": "standardize"}, "for all sources together"),
        ({"_target_": "os.system"}, "no such dataset"),
    ],
)
def test_a_source_that_cannot_be_is_refused(files, change, message):
    with pytest.raises(ConfigError, match=message):
        CombinedDataset(sources=[files[0] | {"weight": 1} | change, files[1] | {"weight": 1}])


def test_weights_are_given_to_all_or_none(files):
    with pytest.raises(ConfigError, match="to each source, or to none"):
        CombinedDataset(sources=[files[0] | {"weight": 1}, files[1]])
    with pytest.raises(ConfigError, match="two or more"):
        CombinedDataset(sources=files[:1])


def test_the_command_line_composes_sources_and_prioritized_sampling_is_refused():
    sources = "dataset.sources=[{kind: random, size: 50, weight: 1}, {kind: random, size: 60, seed: 1, weight: 2}]"
    config = compose(["algo=sac_n", "env=pendulum", "dataset=combined", sources, "buffer=prioritized"])
    assert config["dataset"]["sources"][1]["seed"] == 1
    with pytest.raises(ConfigError, match="weights of sources"):
        Runner(config)


def test_runs_below_a_folder_are_one_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("RLEXP_PLUGINS", "tests")
    kwargs = {"length": 5, "end": "truncated"}
    for seed in (0, 1):
        config = counting_config("replay", env__kwargs=kwargs, env__num_envs=2, trainer__total_steps=16)
        train(config | {"seed": seed}, tmp_path / "runs" / f"run{seed}")
    train(counting_config("on_policy", env__kwargs=kwargs, trainer__total_steps=8), tmp_path / "runs" / "none")
    env = Runner(counting_config("replay", env__kwargs=kwargs)).env
    said = []
    dataset = RunDataset(path=str(tmp_path / "runs"))
    dataset.report = said.append
    data = dataset.load(env)
    assert len(data) == 32
    assert data.obs[:, 1].tolist() == [0, 1, 2, 3, 4, 0, 1, 2] * 4  # two environments of two runs
    assert len(said) == 1
    assert "no replay memory" in said[0]
    assert len(RunDataset(path=str(tmp_path / "runs" / "run0")).load(env)) == 16
    with pytest.raises(DataError, match="no replay memory"):
        RunDataset(path=str(tmp_path / "runs" / "none")).load(env)
    with pytest.raises(DataError, match="no run with a replay memory"):
        RunDataset(path=str(tmp_path / "nowhere")).load(env)


def test_a_mistyped_key_of_a_source_is_named_even_where_there_is_only_one(files):
    with pytest.raises(ConfigError, match=r"dataset\.sources\[0\]\.wieght: .*Did you mean weight"):
        CombinedDataset(sources=[files[0] | {"wieght": 2}])


def test_data_that_cannot_be_put_together_are_named():
    wide = vector_data(4)
    wide = replace(wide, obs=np.zeros((4, 5), np.float32), next_obs=np.zeros((4, 5), np.float32), source="b")
    with pytest.raises(DataError, match=r"\(3,\) \(a\) and \(5,\) \(b\)"):
        joined([replace(vector_data(4), source="a"), wide])
