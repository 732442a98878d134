"""Learning from a dataset alone: the spaces come from the data, and nothing is evaluated."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_data import dict_data, vector_data

from rlexp.checkpoint import Checkpoint
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING, trusting
from rlexp.datasets import CombinedDataset, Hdf5Dataset, MinariDataset, NpzDataset, RandomDataset, RunDataset
from rlexp.datasets.files import save_hdf5, save_npz
from rlexp.datasets.minari import save_minari
from rlexp.envs import GymEnv
from rlexp.envs.from_dataset import spec_from
from rlexp.envs.spec import OBS_FLAGS
from rlexp.errors import CheckpointError, ConfigError, EnvError
from rlexp.evaluation import Evaluator
from rlexp.loading import check_same_spaces, load
from rlexp.prediction import Predictor
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from tests.counting import COUNTING
from tests.goal_line import LINE
from tests.trainers.recording import counting_config, train

SMALL = ["trainer.batch_size=8", "model.hidden=[8]", "threads=1", "compile=false", "progress=none", "device=cpu"]


def crr(*overrides: str) -> Runner:
    return Runner(compose(["algo=crr", "env=from_dataset", "trainer.total_updates=4", *SMALL, *overrides]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_hdf5(tmp_path / "data.hdf5", vector_data(40))
    return tmp_path / "data.hdf5"


def test_spaces_are_read_from_the_data(tmp_path, file):
    data = vector_data(40)
    spec = Hdf5Dataset(path=str(file)).spaces()
    assert spec.obs.leaves[""].shape == (3,)
    assert spec.action.low == tuple(data.action.min(0).tolist())
    assert spec.action.high == tuple(data.action.max(0).tolist())
    assert Hdf5Dataset(path=str(file)).spaces(1.0).action.high == (1.0, 1.0)
    save_npz(tmp_path / "dict.npz", dict_data(60))
    spec = NpzDataset(path=str(tmp_path / "dict.npz")).spaces()
    kinds = {name: (leaf.kind, leaf.dtype, leaf.shape) for name, leaf in spec.obs.leaves.items()}
    assert kinds["image"] == ("box", "uint8", (2, 2))
    assert kinds["room"] == ("discrete", "int64", ())
    assert kinds["arm/joint"] == ("box", "float32", (2,))
    assert spec.action.kind == "multi_discrete"
    assert spec.action.nvec == (3, 5)


def test_sources_together_are_as_wide_as_the_widest(tmp_path, file):
    narrow = vector_data(20, seed=3)
    narrow.action[:, 0] = np.linspace(-0.1, 7, 20)
    save_npz(tmp_path / "b.npz", narrow)
    sources = [{"kind": "hdf5", "path": str(file)}, {"kind": "npz", "path": str(tmp_path / "b.npz")}]
    spec = CombinedDataset(sources=sources).spaces()
    assert spec.action.high[0] == 7
    assert spec.action.low[0] == vector_data(40).action[:, 0].min()


def test_minari_and_runs_say_their_own_spaces(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    env = GymEnv(id=COUNTING, kwargs={"action": "continuous", "length": 4})
    save_minari("counting-v0", RandomDataset(size=8).load(env), env)
    assert MinariDataset(id="counting-v0").spaces().action == env.spec().action
    monkeypatch.setenv("RLEXP_PLUGINS", "tests")
    train(counting_config("replay", trainer__total_steps=8), tmp_path / "run")
    assert RunDataset(path=str(tmp_path / "run")).spaces().action.nvec == (3,)


def test_a_run_without_an_environment_trains_resumes_and_acts(tmp_path, file):
    runner = crr("dataset=hdf5", f"dataset.path={file}")
    summary = runner.train(tmp_path / "run")
    assert (summary["env"], summary["updates"], summary["eval"]) == ("from_dataset", 4, None)
    assert resume_run(tmp_path / "run", ["trainer.total_updates=8"], trust=EVERYTHING)["updates"] == 8
    file.unlink()  # what was learned needs the data no more
    loaded = load(tmp_path / "run", trust=trusting())
    policy = loaded.runner.policy(loaded.checkpoint.tree["policy"])
    obs = policy.tensor(np.zeros((1, 3), np.float32))
    low, high = loaded.runner.spec.action.bounds
    action = policy.env_action(policy.act(obs, None, explore=False).action)
    assert ((low <= action) & (action <= high)).all()
    assert len(Predictor(loaded.runner.env, policy, 0)([0.0, 0.0, 0.0], deterministic=True)) == 2
    with pytest.raises(EnvError, match="no environment to play in"):
        Evaluator(loaded.runner.env)(policy, 1, seed=0)


def test_a_policy_of_data_alone_is_played_in_an_environment_with_the_same_spaces(tmp_path, file):
    crr("dataset=hdf5", f"dataset.path={file}", "env.action_limit=1").train(tmp_path / "run")
    kwargs = "+env.kwargs={length: 3, action: continuous, obs: vector}"
    counting = ["env=gym", f"env.id={COUNTING}", kwargs]
    loaded = load(tmp_path / "run", overrides=counting, trust=trusting(), playing=True)
    policy = loaded.runner.policy(loaded.checkpoint.tree["policy"])
    evaluator = Evaluator(loaded.env)
    assert evaluator(policy, 2, seed=0).lengths == [3, 3]
    evaluator.close()
    for others, message in [
        (["env=cartpole"], r"CartPole-v1 has other observations \(float32 \(4,\)\)"),
        (["env=pendulum"], r"Pendulum-v1 takes other actions \(1 number from -2 to 2\)"),
        ([*counting, "env.normalize_obs=true"], "leave out env.normalize_obs"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load(tmp_path / "run", overrides=others, trust=trusting(), playing=True)
    with pytest.raises(ConfigError, match="keeps its env"):
        load(tmp_path / "run", overrides=["env=pendulum"], trust=trusting())  # to predict, there is nothing to choose


def test_a_policy_beyond_the_limits_of_an_environment_has_to_be_trained_again(tmp_path, file):
    crr("dataset=hdf5", f"dataset.path={file}", "env.action_limit=5").train(tmp_path / "run")
    counting = ["env=gym", f"env.id={COUNTING}", "+env.kwargs={action: continuous, obs: vector}"]
    with pytest.raises(ConfigError, match=r"acts in 2 numbers from -5 to 5, .* Train it again .* env.action_limit"):
        load(tmp_path / "run", overrides=counting, trust=trusting(), playing=True)


@pytest.mark.parametrize(("evaluator", "key"), [("fqe", "fqe_value"), ("initial_value", "initial_value")])
def test_without_an_environment_the_data_judge(evaluator, key, tmp_path, file):
    overrides = ["evaluator.updates=3", "evaluator.hidden=[8]"] if evaluator == "fqe" else []
    runner = crr("dataset=hdf5", f"dataset.path={file}", f"evaluator={evaluator}", *overrides)
    summary = runner.train(tmp_path / "run")
    assert np.isfinite(summary["eval"][key])
    assert summary["eval"]["states"] == 3  # of three episodes; the last one has no end
    assert "return_mean" not in summary["eval"]


def test_env_null_means_the_same():
    config = compose(["algo=crr", "env=null", "dataset=npz", "dataset.path=x.npz"])
    assert config["env"]["_target_"].endswith("DatasetEnv")
    assert "id" not in config["env"]


def test_what_needs_an_environment_is_refused(file):
    with pytest.raises(ConfigError, match=r"but RandomDataset needs one\. Choose an environment"):
        crr("dataset=random")
    with pytest.raises(ConfigError, match="dataset is null"):
        crr("dataset=null")
    with pytest.raises(ConfigError, match="mixed loop steps an environment"):
        Runner(compose(["algo=rlpd", "env=from_dataset", "dataset=hdf5", f"dataset.path={file}", *SMALL]))
    with pytest.raises(ConfigError, match=r"env\.num_envs"):
        crr("dataset=hdf5", f"dataset.path={file}", "env.num_envs=2")
    with pytest.raises(ConfigError, match=r"env\.spaces cannot be read"):
        crr("dataset=hdf5", f"dataset.path={file}", "+env.spaces={obs: 1}")


def test_what_networks_do_not_see_is_known_from_the_data_too(tmp_path):
    env = GymEnv(id=LINE)
    save_npz(tmp_path / "goals.npz", RandomDataset(size=40).load(env))
    given = ["dataset=npz", f"dataset.path={tmp_path / 'goals.npz'}"]
    spec = crr(*given).spec
    assert set(spec.obs.seen) == set(env.spec().obs.seen) == {"observation", "desired_goal"}
    assert "achieved_goal" in crr(*given, "env.show_achieved_goal=true").spec.obs.seen
    assert spec_from(spec.to_dict()) == spec


def test_a_checkpoint_from_before_it_was_written_what_networks_see_still_loads():
    runner = Runner(compose(["algo=sac", "env=gym", f"env.id={LINE}", *SMALL]))
    now, earlier = runner.spec.to_dict(), runner.spec.to_dict()
    for flag in OBS_FLAGS:
        del earlier["obs"][flag]
    for spec in (now, earlier):
        check_same_spaces(runner, Checkpoint(Path("here"), {"spec": spec}, {}, {}))
    assert list(spec_from(earlier).obs.seen) == list(runner.spec.obs.leaves)  # as it was read then
    now["obs"]["achieved_unseen"] = False
    with pytest.raises(CheckpointError, match="other observations"):
        check_same_spaces(runner, Checkpoint(Path("here"), {"spec": now}, {}, {}))


def test_the_config_keeps_what_was_found(tmp_path, file):
    crr("dataset=hdf5", f"dataset.path={file}").train(tmp_path / "run")
    loaded = load(tmp_path / "run", trust=trusting())
    assert loaded.runner.config["trainer"]["eval_episodes"] == 0
    assert json.dumps(loaded.runner.config["env"]["spaces"]["action"]["shape"]) == "[2]"
