"""``rlexp collect`` and ``rlexp data info``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from rlexp import Agent
from rlexp.config.compose import compose
from rlexp.datasets import (
    ExpertDataset,
    Hdf5Dataset,
    MinariDataset,
    NpzDataset,
    ReplayDataset,
    RunDataset,
    Transitions,
)
from rlexp.datasets.describing import describe
from rlexp.datasets.files import read_hdf5, read_npz, save_hdf5, save_npz
from rlexp.datasets.inspection import inspect
from rlexp.datasets.streams import open_stream
from rlexp.datasets.transitions import joined
from rlexp.envs import GymEnv
from rlexp.errors import DataError
from rlexp.runner import Runner
from tests.cli.conftest import QUICK, Command
from tests.counting import COUNTING

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def own_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sac"
    small = ["trainer.total_steps=60", "trainer.learning_starts=20", "trainer.batch_size=8", "progress=none"]
    small += ["trainer.eval_episodes=1", "trainer.eval_interval=30", "trainer.checkpoint_interval=30"]
    Runner(compose(["algo=sac", "env=pendulum", "env.max_episode_steps=20", *small, *QUICK])).train(path)
    return path


# ---- collect


def test_whole_episodes_of_a_trained_policy_are_collected(rlexp: Command, sac_run: Path) -> None:
    answer = rlexp("collect", sac_run, "to=data.hdf5", "episodes=3", "policy=deterministic", "seed=1")
    assert answer.code == 0, answer.err
    assert "60 transitions, 3 episodes" in answer.out
    arrays = read_hdf5(Path("data.hdf5"))
    assert arrays["observations"].shape == (60, 3)
    assert np.flatnonzero(arrays["timeouts"]).tolist() == [19, 39, 59]
    assert not arrays["terminals"].any()
    following = arrays["next_observations"][:-1] == arrays["observations"][1:]
    assert np.flatnonzero(~following.all(1)).tolist() == [19, 39]  # the true final observation, not the reset one


def test_the_seed_decides_what_is_collected(rlexp: Command, sac_run: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert rlexp("collect", sac_run, f"to={name}.npz", "steps=30", f"seed={seed}").code == 0
    a, b, c = (read_npz(Path(f"{name}.npz")) for name in "abc")
    assert all(np.array_equal(a[key], b[key]) for key in a)
    assert not np.array_equal(a["actions"], c["actions"])
    assert np.flatnonzero(a["timeouts"]).tolist() == [19]  # the last episode is cut


def test_ways_to_act_differ_as_they_should(rlexp: Command, sac_run: Path) -> None:
    ways = {
        "greedy": ["policy=deterministic"],
        "none": ["policy=epsilon", "epsilon=0"],
        "any": ["policy=epsilon", "epsilon=1"],
    }
    for name, options in (ways | {"sampled": ["policy=stochastic"]}).items():
        assert rlexp("collect", sac_run, f"to={name}.npz", "steps=200", *options).code == 0
    greedy, none, any_, sampled = (
        read_npz(Path(f"{name}.npz"))["actions"] for name in ("greedy", "none", "any", "sampled")
    )
    np.testing.assert_array_equal(greedy, none)
    assert not np.array_equal(greedy, sampled)
    assert np.histogram(any_, 4, (-2, 2))[0].min() > 25  # uniform over [-2, 2]


def test_a_mixture_lets_each_episode_be_played_by_one_checkpoint(rlexp: Command, sac_run: Path) -> None:
    mixture = ["checkpoints=[random,last]", "weights=[1,3]", "policy=deterministic"]
    assert rlexp("collect", sac_run, "to=data.npz", "episodes=40", *mixture).code == 0
    action = read_npz(Path("data.npz"))["actions"].reshape(40, 20)
    wild = action.std(1) > 0.7  # a hardly trained greedy policy is smooth
    assert 2 <= wild.sum() <= 20


def test_the_replay_memory_of_a_run_is_written(rlexp: Command, sac_run: Path) -> None:
    assert rlexp("collect", sac_run, "to=data.npz", "policy=replay").code == 0
    assert len(read_npz(Path("data.npz"))["rewards"]) == 60


AS_EVALUATED = "env.episodic_life=false env.clip_rewards=false"


def test_lives_and_clipped_rewards_of_training_are_told_from_scores(rlexp: Command, sac_run: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    small = ["trainer.total_steps=30", "trainer.learning_starts=20", "trainer.batch_size=2", "buffer.capacity=60"]
    small += ["trainer.eval_episodes=0", "progress=none", "env.size=36", "env.max_episode_steps=200", *QUICK]
    Runner(compose(["algo=dqn", "env=atari", "env.game=breakout", *small])).train(Path("run"))
    lives = rlexp("collect", "run", "to=lives.npz", "steps=120")
    games = rlexp("collect", "run", "to=games.npz", "steps=120", *AS_EVALUATED.split())
    assert (lives.code, games.code) == (0, 0), lives.err + games.err
    assert "(env.episodic_life=true env.clip_rewards=true): their return is no score. " in lives.out
    assert f"Add {AS_EVALUATED} to record what evaluation plays." in lives.out
    assert "no score" not in games.out
    assert read_npz(Path("lives.npz"))["terminals"].any()
    assert not read_npz(Path("games.npz"))["terminals"].any()
    memory = rlexp("collect", "run", "to=c.npz", "policy=replay")
    assert f"Evaluation plays with {AS_EVALUATED}." in memory.out  # what was played is played
    assert "no score" not in rlexp("collect", sac_run, "to=d.npz", "steps=5").out


def test_minari_is_written_and_trained_from(rlexp: Command) -> None:
    made = rlexp("collect", "random", "env=pendulum", "env.max_episode_steps=10", "to=pendulum/random-v0", "steps=40")
    assert made.code == 0, made.err
    assert [len(episode.rewards) for episode in minari.load_dataset("pendulum/random-v0")] == [10] * 4
    quick = ["trainer.total_updates=4", "trainer.batch_size=8", "trainer.eval_episodes=0", "hydra.run.dir=run", *QUICK]
    trained = rlexp("algo=crr", "env=pendulum", "dataset=minari", "dataset.id=pendulum/random-v0", *quick)
    assert trained.code == 0, trained.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["updates"] == 4
    assert summary["dataset"]["source"] == "the Minari dataset pendulum/random-v0"
    assert (summary["dataset"]["transitions"], summary["dataset"]["episodes"]) == (40, 4)
    told = f"(dataset=minari): 40 transitions, 4 episodes, return {summary['dataset']['return_mean']:.6g} ±"
    assert f"Data: the Minari dataset pendulum/random-v0 {told}" in trained.out


@pytest.mark.parametrize("to", ["data.npz", "data.hdf5", "pendulum/cut-v0"])
def test_an_episode_cut_by_the_number_of_steps_is_no_whole_one(rlexp: Command, to: str) -> None:
    made = rlexp("collect", "random", *PENDULUM, f"to={to}", "steps=25")
    assert re.search(r"25 transitions, 2 episodes, return \S+ ± \S+; 1 cut episode left out", made.out)
    assert f"={to})" in made.out.replace(str(Path.cwd()) + "/", "")  # a command that can be copied
    told = rlexp("data", "info", to)
    assert (told.code, told.err) == (0, "")
    assert "ends      2 truncated, 1 cut" in told.out
    assert "length    10 ± 0, from 10 to 10" in told.out
    assert "1 cut episode left out of lengths and returns" in told.out
    kinds = {".npz": NpzDataset, ".hdf5": Hdf5Dataset}
    dataset = kinds[Path(to).suffix](path=to) if Path(to).suffix in kinds else MinariDataset(id=to)
    data = dataset.load(ENV)
    assert len(data) == 25
    assert len(data.episode_returns()) == 2
    assert len(data.best_episodes(1.0)) == 20
    assert len(joined([data, data]).episode_returns()) == 4


def test_rows_without_a_next_observation_are_counted() -> None:
    arrays = pendulum_data()
    del arrays["next_observations"]
    data = Transitions.from_d4rl(arrays)
    assert data.dropped == len(arrays["rewards"]) - len(data) > 0
    assert f"{data.dropped} rows left out, because what was observed after a time limit" in describe(data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random", "env=pendulum", "steps=5"], "needs a place to write to"),
        (["random", "env=pendulum", "to=a.npz"], "either steps=… or episodes=…"),
        (["random", "env=pendulum", "to=a.npz", "steps=5", "episodes=2"], "either steps=… or episodes=…"),
        (["random", "to=a.npz", "steps=5"], "Choose the environment"),
        (["random", "env=pendulum", "to=a.npz", "steps=0"], "steps must be at least 1"),
        (["random", "env=pendulum", "algo=ppo", "to=a.npz", "steps=5"], "only the environment"),
        (["random", "env=pendulum", "to=a.npz", "steps=5", "policy=greedy"], "no such way to act"),
        (["random", "env=pendulum", "to=a.npz", "steps=5", "format=csv"], "no such format"),
        (["random", "env=pendulum", "to=a.npz", "steps=5", "epsilon=0.1"], "Add policy=epsilon"),
        (["random", "env=pendulum", "to=a.csv", "steps=5"], ".csv is not a format. Write an HDF5 file (.hdf5 or .h5)"),
        (["random", "env=pendulum", "to=a.npz", "steps=5", "format=hdf5"], "named as npz, but format=hdf5"),
        (["random", "env=pendulum", "to=..", "steps=5"], "no id of a Minari dataset"),
        (["random", "env=pendulum", "to=foo", "steps=5"], "'foo' is no id of a Minari dataset"),
        (["random", "env=pendulum", "to=a.npz", "stesp=5"], "Did you mean"),
        (["nowhere", "to=a.npz", "steps=5"], "nowhere"),
    ],
)
def test_what_cannot_be_collected_is_told_and_leaves_nothing(
    rlexp: Command, arguments: list[str], message: str
) -> None:
    answer = rlexp("collect", *arguments)
    assert answer.code == 1
    assert message in answer.err
    assert not Path("a.npz").exists()


def test_an_existing_file_is_not_overwritten(rlexp: Command) -> None:
    Path("a.npz").write_text("mine")
    answer = rlexp("collect", "random", "env=pendulum", "to=a.npz", "steps=5")
    assert answer.code == 1
    assert "exists already" in answer.err
    assert Path("a.npz").read_text() == "mine"


# ---- data info


def pendulum_data(episodes: int = 20, length: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """Good data: every episode is truncated by the time limit, with its true final observation."""
    rng = np.random.default_rng(seed)
    count = episodes * length
    chain = rng.normal(size=(episodes, length + 1, 3)).astype(np.float32)
    ends = np.arange(count) % length == length - 1
    data = Transitions(
        chain[:, :-1].reshape(count, 3),
        rng.uniform(-2, 2, (count, 1)).astype(np.float32),
        np.repeat(np.arange(episodes), length).astype(np.float32),
        chain[:, 1:].reshape(count, 3),
        np.zeros(count, bool),
        ends,
    )
    return {key: array.copy() for key, array in data.to_d4rl().items()}


PENDULUM = ["env=pendulum", "env.max_episode_steps=10"]
ENV = GymEnv(id="Pendulum-v1", max_episode_steps=10)


def write(kind: str, arrays: dict[str, np.ndarray]) -> str:
    data = Transitions.from_d4rl(arrays)
    (save_npz if kind == "npz" else save_hdf5)(Path(f"data.{kind}"), data)
    return f"data.{kind}"


def spoil(arrays: dict[str, np.ndarray], trap: str) -> None:
    if trap == "nan":
        arrays["observations"][33, 1] = np.nan
        arrays["rewards"][50] = np.inf
    elif trap == "actions":
        arrays["actions"][[4, 5, 6]] = 2.5
    elif trap == "time_limits":
        arrays["terminals"], arrays["timeouts"] = arrays["timeouts"], arrays["terminals"]
    elif trap == "crossing":
        ends = np.flatnonzero(arrays["timeouts"])[:-1]
        arrays["next_observations"][ends] = arrays["observations"][ends + 1]


TRAPS = {
    "nan": (
        ["observations is NaN or infinite in 1 row, first in row 33", "rewards is NaN or infinite in 1 row"],
        "drop_nan",
    ),
    "actions": (["outside of the bounds in 3 rows"], "clip_actions"),
    "time_limits": (["20 episodes terminate at step 10"], "time_limits"),
    "crossing": (["crosses into the next episode at 19 of 19 truncated ends"], "drop_crossing"),
}


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_good_data_have_no_problems_and_their_figures_are_right(rlexp: Command, kind: str) -> None:
    answer = rlexp("data", "info", write(kind, pendulum_data()), *PENDULUM, "plot=out/data.png")
    assert answer.code == 0, answer.out
    assert "200 transitions, 20 episodes" in answer.out
    assert "20 truncated" in answer.out
    assert "return    95 ± 57.6628, from 0 to 190" in answer.out  # episode k returns 10 k
    assert "No problems found" in answer.out
    assert Path("out/data.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_is_named_refused_and_repaired(rlexp: Command, trap: str, kind: str) -> None:
    arrays = pendulum_data()
    spoil(arrays, trap)
    path = write(kind, arrays)
    messages, repair = TRAPS[trap]
    answer = rlexp("data", "info", path, *PENDULUM)
    assert answer.code == 1
    for message in messages:
        assert message in answer.out
    assert f"dataset.repair=[{repair}]" in answer.out

    dataset = NpzDataset if kind == "npz" else Hdf5Dataset
    with pytest.raises(DataError, match=rf"dataset\.repair=\[{repair}\]"):
        dataset(path=path).load(ENV)
    said: list[str] = []
    mended = dataset(path=path, repair=[repair])
    mended.report = said.append
    data = mended.load(ENV)
    assert len(said) == 1
    if trap == "nan":
        assert len(data) == 198
        assert data.truncated[[32, 48]].all()  # cut before the rows that are gone
    elif trap == "actions":
        assert data.action[4:7].reshape(-1).tolist() == [2.0] * 3
    elif trap == "time_limits":
        assert (data.terminated.sum(), data.truncated.sum()) == (0, 20)
    else:
        assert len(data) == 181
        assert not (data.crossing() & data.truncated).any()


def test_all_traps_together_are_named_at_once_and_repaired_together(rlexp: Command) -> None:
    arrays = pendulum_data()
    for trap in ("nan", "actions", "crossing"):
        spoil(arrays, trap)
    half = np.arange(200) < 100
    arrays["terminals"], arrays["timeouts"] = arrays["timeouts"] & half, arrays["timeouts"] & ~half
    answer = rlexp("data", "info", write("hdf5", arrays), "env=pendulum", "env.max_episode_steps=30")
    for part in ("NaN", "bounds", "truncated ends", "of 10 terminations"):
        assert part in answer.out
    repairs = ["drop_nan", "clip_actions", "drop_crossing", "time_limits"]
    data = Hdf5Dataset(path="data.hdf5", repair=repairs).load(ENV)
    assert len(data) == 179  # 2 rows with NaN, 19 that cross
    assert not data.terminated.any()
    assert not data.crossing().any()


def test_what_is_suspicious_but_right_can_be_accepted() -> None:
    arrays = pendulum_data()
    spoil(arrays, "time_limits")
    data = NpzDataset(path=write("npz", arrays), accept=["time_limits"]).load(ENV)
    assert data.terminated.sum() == 20
    arrays = pendulum_data()
    spoil(arrays, "crossing")
    assert len(Hdf5Dataset(path=write("hdf5", arrays), accept=["crossing"]).load(ENV)) == 200


def test_without_an_environment_the_data_alone_make_suspicious(rlexp: Command) -> None:
    arrays = pendulum_data()
    spoil(arrays, "time_limits")
    arrays["actions"] = np.clip(arrays["actions"], -1, 1)
    arrays["actions"][7] = 1.5
    answer = rlexp("data", "info", write("npz", arrays))
    assert answer.code == 1
    assert "20 episodes terminate at step 10, and none is longer" in answer.out
    assert "outside of [-1, 1] in 1 row" in answer.out


def test_missing_ends_and_broken_chains_are_named(rlexp: Command) -> None:
    arrays = pendulum_data()
    with h5py.File("data.hdf5", "w") as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            file[key] = arrays[key]
    answer = rlexp("data", "info", "data.hdf5")
    assert "neither timeouts nor next_observations" in answer.out
    arrays["timeouts"][:] = False
    answer = rlexp("data", "info", write("npz", arrays))
    assert "19 episodes break off without an end" in answer.out


def test_an_episode_with_nan_is_no_whole_one_and_neither_is_its_rest(
    rlexp: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = pendulum_data()
    spoil(arrays, "nan")  # in episode 3, where the chain seems to break, and in the reward of episode 5
    arrays["next_observations"][[74, 99]] = np.nan  # in the midst of episode 7, and at the end of 9
    path = write("hdf5", arrays)
    for rows in (65_536, 5):  # pieces that end with a row that has NaN
        monkeypatch.setattr("rlexp.datasets.streams.ROWS", rows)
        answer = rlexp("data", "info", path, *PENDULUM)
        assert "200 transitions, 20 episodes" in answer.out
        assert "ends      16 truncated, 4 cut" in answer.out
        assert "length    10 ± 0, from 10 to 10" in answer.out
        assert "4 cut episodes left out" in answer.out
        assert "break off" not in answer.out


@pytest.mark.parametrize(("column", "row"), [("rewards", 9), ("actions", 10), ("observations", 9)])
def test_nan_elsewhere_hides_no_break(column: str, row: int, rlexp: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a row follows from the one before is told by two observations alone."""
    arrays = {key: array[:20] for key, array in pendulum_data().items()}
    arrays["timeouts"][:] = False
    arrays["terminals"][19] = True  # row 10 begins anew, and nothing says that row 9 ends
    arrays[column][row] = np.nan
    path = write("hdf5", arrays)
    for rows in (65_536, 5):
        monkeypatch.setattr("rlexp.datasets.streams.ROWS", rows)
        answer = rlexp("data", "info", path)
        assert "20 transitions, 2 episodes" in answer.out
        assert f"ends      1 broken off, 1 {'terminated' if row == 9 else 'cut'}" in answer.out
        assert "1 episode breaks off without an end" in answer.out


def test_pieces_make_no_difference(rlexp: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = pendulum_data()
    for trap in ("nan", "crossing"):
        spoil(arrays, trap)
    path = write("hdf5", arrays)
    whole = rlexp("data", "info", path, *PENDULUM).out
    monkeypatch.setattr("rlexp.datasets.streams.ROWS", 7)
    assert rlexp("data", "info", path, *PENDULUM).out == whole


def wrong_shapes(arrays: dict[str, np.ndarray], what: str) -> None:
    if what == "a number":
        arrays["rewards"] = np.array(1, np.float32)
    elif what == "wide":
        arrays["next_observations"] = np.zeros((200, 4), np.float32)
    elif what == "entries":
        arrays["next_observations/a"] = arrays.pop("next_observations")
    elif what == "two rewards":
        arrays["rewards"] = np.zeros((200, 2), np.float32)
    elif what == "flags":
        arrays["terminals"] = np.full(200, 2)


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a number", "rewards is a single number"),
        ("wide", r"next_observations have the shape \(4,\)"),
        ("entries", "other entries than observations"),
        ("two rewards", r"rewards is float32 \(200, 2\)"),
        ("flags", "terminals holds values other than 0 and 1"),
    ],
)
def test_arrays_that_do_not_fit_together_are_told_alike_by_looking_and_loading(
    rlexp: Command, kind: str, what: str, message: str
) -> None:
    arrays = pendulum_data()
    wrong_shapes(arrays, what)
    path = Path(f"data.{kind}")
    if kind == "npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    answer = rlexp("data", "info", path)
    assert answer.code == 1
    assert re.search(message, answer.err)
    with pytest.raises(DataError, match=message):
        (NpzDataset if kind == "npz" else Hdf5Dataset)(path=str(path), repair=["drop_crossing"]).load(ENV)


def test_too_few_numbers_in_an_action_are_told() -> None:
    spec = GymEnv(id=COUNTING, kwargs={"action": "continuous"}).spec()
    problems = inspect(open_stream(write("npz", pendulum_data())), spec).problems
    assert any(
        re.search(r"actions has shape \(200, 1\), but 200 transitions of .* have \(200, 2\)", each) for each in problems
    )


def test_data_of_another_environment_are_named_as_problems(rlexp: Command) -> None:
    answer = rlexp("data", "info", write("npz", pendulum_data()), "env=cartpole")
    assert answer.code == 1
    assert "observations has shape (200, 3), but 200 transitions of CartPole-v1 have (200, 4)" in answer.out
    assert "actions is float32, but CartPole-v1 has whole numbers there" in answer.out


def test_actions_out_of_bounds_are_counted_alike_by_looking_and_clipping() -> None:
    arrays = pendulum_data()
    arrays["actions"][:4, 0] = 2.001, 2.5, -3, -2.0039  # of a range of 4, rounding may put 0.004 outside
    path, told = write("npz", arrays), list[str]()
    assert "actions lie outside of the bounds in 2 rows." in " ".join(inspect(open_stream(path), ENV.spec()).problems)
    dataset = NpzDataset(path=path, repair=["clip_actions"])
    dataset.report = told.append
    assert np.abs(dataset.load(ENV).action).max() == 2
    assert told == ["data.npz: 2 actions clipped to the bounds."]


def test_runs_without_a_memory_are_left_out_of_a_folder(rlexp: Command, sac_run: Path) -> None:
    small = ["trainer.total_steps=64", "trainer.rollout_steps=64", "trainer.eval_episodes=0", "progress=none"]
    Runner(compose(["algo=ppo", "env=pendulum", *small, *QUICK])).train(Path("runs/ppo"))
    shutil.copytree(sac_run, "runs/sac")
    answer = rlexp("data", "info", "runs")
    assert answer.code == 0, answer.err
    assert "60 transitions" in answer.out
    assert re.search(r"Left out: \S*ppo has no replay memory", answer.out)
    assert len(RunDataset(path="runs").load(ENV)) == 60
    alone = rlexp("data", "info", "runs/ppo")
    assert alone.code == 1
    assert "has no replay memory" in alone.err


def test_the_name_of_a_run_is_enough(rlexp: Command, sac_run: Path) -> None:
    Path("outputs").mkdir()
    Path("outputs/mine").symlink_to(sac_run)
    assert "60 transitions" in rlexp("data", "info", "mine").out
    env = GymEnv(id="Pendulum-v1", max_episode_steps=20)
    assert len(RunDataset(path="mine").load(env)) == len(ReplayDataset(run="mine").load(env)) == 60
    assert len(ExpertDataset(run="mine", episodes=1).load(env)) == 20
    assert Agent.load("mine").run_dir.name == "mine"


def test_a_file_of_the_other_kind_is_told_with_what_reads_it() -> None:
    path = write("npz", pendulum_data())
    with pytest.raises(DataError, match=r"is of the kind npz, not hdf5\. Use dataset=npz"):
        Hdf5Dataset(path=path).load(ENV)


def test_runs_and_minari_datasets_are_looked_at_too(rlexp: Command, sac_run: Path) -> None:
    assert "60 transitions, 3 episodes" in rlexp("data", "info", sac_run).out
    assert rlexp("collect", "random", *PENDULUM, "to=pendulum/b-v0", "steps=25").code == 0
    answer = rlexp("data", "info", "pendulum/b-v0")
    assert answer.code == 0
    assert "Minari dataset pendulum/b-v0, 25 transitions, 3 episodes" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "takes info"),
        (["look", "x"], "takes info, not 'look'"),
        (["info"], "needs a dataset"),
        (["info", "nowhere.npz"], "nowhere.npz does not exist"),
        (["info", "foo"], "foo does not exist, and is no id of a local Minari dataset, like pendulum/random-v0"),
        (["info", "text.npz"], "neither a NumPy archive"),
        (["info", "damaged.npz"], "damaged"),
        (["info", "text.npz", "plto=a.png"], "Did you mean"),
    ],
)
def test_what_cannot_be_looked_at_is_told(rlexp: Command, arguments: list[str], message: str) -> None:
    Path("text.npz").write_text("no archive")
    Path("damaged.npz").write_bytes(b"PK\x03\x04 and nothing more")
    answer = rlexp("data", *arguments)
    assert answer.code == 1
    assert message in answer.err
