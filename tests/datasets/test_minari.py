"""Minari's datasets: written for its library, read from it, in native spaces outside and canonical ones inside."""

import json

import h5py
import numpy as np
import pytest
from small_data import VECTOR, FixedEnv

from rlexp.datasets import MinariDataset, RandomDataset
from rlexp.datasets.minari import dataset_folder, is_minari, read_minari, save_minari
from rlexp.envs import GymEnv
from rlexp.errors import DataError
from tests.counting import COUNTING
from tests.trees import tree_equal

minari = pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari.*")

KINDS = [("vector", "continuous"), ("image", "discrete"), ("dict", "multi_discrete"), ("tuple", "multi_binary"),
         ("discrete", "discrete"), ("multi_discrete", "continuous"), ("multi_binary", "discrete")]  # fmt: skip


def counting(obs="vector", action="discrete", **kwargs) -> GymEnv:
    return GymEnv(id=COUNTING, kwargs={"obs": obs, "action": action, "length": 4, "end": "mixed"} | kwargs)


@pytest.mark.parametrize(("obs", "action"), KINDS)
def test_what_is_written_for_minari_is_read_back_and_is_native_to_the_library(obs, action):
    env = counting(obs, action)
    data = RandomDataset(size=10).load(env)
    save_minari("rlexp/counting-v0", data, env, algorithm="random")
    again = MinariDataset(id="rlexp/counting-v0").load(env)
    for name in ("obs", "next_obs", "action", "reward", "terminated"):
        assert tree_equal(getattr(again, name), getattr(data, name)), name
    np.testing.assert_array_equal(again.truncated, data.truncated | (np.arange(10) == 9))

    theirs = minari.load_dataset("rlexp/counting-v0")
    made = env.make()
    assert (theirs.observation_space, theirs.action_space) == (made.observation_space, made.action_space)
    assert [len(episode.rewards) for episode in theirs] == [4, 4, 2]
    for episode in theirs:
        assert (np.asarray(episode.rewards) == np.arange(1, len(episode.rewards) + 1)).all()
        for i in range(len(episode.rewards)):
            assert made.action_space.contains(np.asarray(episode.actions[i], made.action_space.dtype))


def test_the_last_of_the_observations_is_the_true_final_one():
    env = counting()
    save_minari("a-v0", RandomDataset(size=8).load(env), env)
    for episode in minari.load_dataset("a-v0"):
        assert episode.observations.shape == (5, 3)
        assert episode.observations[:, 1].tolist() == [0, 1, 2, 3, 4]


def test_a_dataset_made_by_the_library_alone_is_read(tmp_path):
    env = counting("vector", "continuous").make()
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=np.arange(3 * (n + 1), dtype=np.float32).reshape(n + 1, 3),
            actions=np.full((n, 2), 0.5, np.float32),
            rewards=np.arange(n, dtype=np.float64),
            terminations=np.arange(n) == (n - 1 if ends else -1),
            truncations=np.zeros(n, bool),
        )
        for n, ends in ((2, True), (3, False))
    ]
    minari.create_dataset_from_buffers(
        "theirs/x-v1", buffers, observation_space=env.observation_space, action_space=env.action_space
    )
    assert is_minari("theirs/x-v1")
    data = read_minari("theirs/x-v1")
    assert data.obs[:, 0].tolist() == [0, 3, 0, 3, 6]
    assert data.next_obs[:, 0].tolist() == [3, 6, 3, 6, 9]
    assert data.terminated.tolist() == [False, True, False, False, False]
    assert data.truncated.tolist() == [False, False, False, False, True]  # its record ends there
    assert data.reward.tolist() == [0, 1, 0, 1, 2]


def test_an_unknown_dataset_says_how_to_get_it():
    with pytest.raises(DataError, match="minari download D4RL/door/human-v2"):
        MinariDataset(id="D4RL/door/human-v2").load(FixedEnv(VECTOR))
    with pytest.raises(DataError, match="no id of a Minari dataset"):
        MinariDataset(id="../../etc").load(FixedEnv(VECTOR))


def test_an_id_without_a_version_is_told_what_ids_look_like_and_which_there_are():
    with pytest.raises(DataError, match=r"'foo' is no id of a Minari dataset.*random-v0\. A file is told by"):
        MinariDataset(id="foo").load(FixedEnv(VECTOR))
    env = counting()
    save_minari("mine/a-v0", RandomDataset(size=8).load(env), env)
    with pytest.raises(DataError, match="There are mine/a-v0 here"):
        MinariDataset(id="foo").load(FixedEnv(VECTOR))
    with pytest.raises(DataError, match=r"no Minari dataset foo-v0 in .* There are mine/a-v0 here"):
        MinariDataset(id="foo-v0").load(FixedEnv(VECTOR))


def test_an_existing_dataset_is_not_overwritten_and_a_failed_one_leaves_nothing(monkeypatch):
    env = counting()
    data = RandomDataset(size=8).load(env)
    save_minari("a-v0", data, env)
    with pytest.raises(DataError, match="already"):
        save_minari("a-v0", data, env)

    def fail(*args, **kwargs):
        dataset_folder("b-v0").mkdir(parents=True)
        raise OSError("no space left")

    monkeypatch.setattr(minari, "create_dataset_from_buffers", fail)
    with pytest.raises(OSError, match="no space"):
        save_minari("b-v0", data, env)
    assert not dataset_folder("b-v0").exists()


def test_links_out_of_the_file_and_damage_are_refused():
    env = counting()
    data = RandomDataset(size=8).load(env)
    for name in ("a-v0", "b-v0", "c-v0"):
        save_minari(name, data, env)
    with h5py.File(dataset_folder("a-v0") / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
    with pytest.raises(DataError, match="episode_0/rewards is a link to another place"):
        read_minari("a-v0")
    (dataset_folder("b-v0") / "data" / "main_data.hdf5").write_bytes(b"nothing")
    with pytest.raises(DataError, match="damaged"):
        read_minari("b-v0")
    metadata = dataset_folder("c-v0") / "data" / "metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"total_steps": 3}))
    with pytest.raises(DataError, match="more than the 3 steps"):
        read_minari("c-v0")
