import json
import sys

import numpy as np
import pytest

from rlexp.bench import command, profiling, scaling, solve, startup
from rlexp.bench.contest import BenchError, Entry, Rounds, contestants
from rlexp.bench.contestants import fill
from rlexp.bench.first_step import FIRST_STEP
from rlexp.bench.synthetic import ACTIONS, ENV_ID, OBSERVATIONS, write_data
from rlexp.bench.workloads import Workload, config_of, select
from rlexp.buffers import ReplayBuffer
from rlexp.cli import dispatch
from rlexp.datasets import NpzDataset
from rlexp.envs import GymEnv
from rlexp.errors import ConfigError


def quiet(text):
    pass


# ---- the loops that are measured


@pytest.mark.parametrize("target", ["rlexp.bench.contestants:run_rlexp", "rlexp.bench.profiling:run_profiled"])
def test_the_real_loop_runs_until_it_is_told_to_stop(target):
    work = Workload("tiny", "tiny", ("algo=dqn", "env=cartpole", "trainer.learning_starts=10"))
    spec = {"config": config_of(work) | {"compile": False}, "unit": "steps"}
    with contestants([Entry("rlexp", target, spec)], say=quiet) as (runner,):
        answer = runner.measure(0.2)
    assert answer["count"] > 0
    if "profiled" in target:
        parts = answer["parts"]
        assert set(parts) <= set(profiling.PARTS)
        assert {"acting", "environment", "storing", "sampling", "update"} <= set(parts)
        assert sum(parts.values()) <= answer["seconds"] + 0.05


def test_the_products_of_an_update_are_recorded_from_the_real_loop(tmp_path):
    (work,) = select(["crr_offline"])
    path = tmp_path / "data.npz"
    write_data(path, 600)
    spec = {"config": config_of(work, str(path), ["model.hidden=[8,8]"]), "unit": "updates"}
    with contestants([Entry("products", "rlexp.bench.profiling:run_products", spec)], say=quiet) as (runner,):
        answer = runner.measure(0.05)
    assert answer["flops"] > 0
    assert answer["products"] > 0


def test_synthetic_data_fit_their_environment(tmp_path):
    path = tmp_path / "data.npz"
    write_data(path, 2_500)
    data = NpzDataset(path=str(path)).load(GymEnv(id=ENV_ID))
    assert data.obs.shape == (2_500, OBSERVATIONS)
    assert data.action.shape == (2_500, ACTIONS)
    assert np.flatnonzero(data.truncated).tolist() == [999, 1_999, 2_499]
    assert not data.terminated.any()


def test_a_buffer_is_filled_to_the_size_asked_for():
    buffer = ReplayBuffer(capacity=1_000)
    buffer.build(GymEnv(id="CartPole-v1").spec(), 1, 0.99, 0)
    fill(buffer, 600)
    assert len(buffer) == 600


# ---- startup


def test_a_command_is_timed_to_its_exit_and_another_exit_code_is_an_error():
    assert startup.timed([sys.executable, "-c", f"raise SystemExit({FIRST_STEP})"], FIRST_STEP) > 0
    with pytest.raises(BenchError, match=r"code 3 instead of 77: oh no"):
        startup.timed([sys.executable, "-c", "import sys; print('oh no', file=sys.stderr); sys.exit(3)"], FIRST_STEP)


def test_a_run_with_the_hook_ends_at_its_first_step():
    startup.timed(startup._rlexp("algo=dqn", "env=cartpole", "compile=false", startup.HOOK), FIRST_STEP)


# ---- solve


def outcome(seconds, steps=1000, solved=True):
    return {"seed": 1, "seconds": seconds, "steps": steps, "solved": solved, "best": 0.0}


def test_solving_times_are_compared_at_the_better_number_of_threads():
    runs = {
        1: {"rlexp": [outcome(10), outcome(30), outcome(20)], "SB3": [outcome(90), outcome(80), outcome(70)]},
        2: {"rlexp": [outcome(40)] * 3, "SB3": [outcome(60), outcome(50), outcome(40, solved=False)]},
    }
    result = solve.summarize(solve.TASKS["ppo_cartpole"], runs)
    best = result["best"]
    assert (best["rlexp"]["threads"], best["rlexp"]["median"], best["rlexp"]["solved"]) == (1, 20, 3)
    assert (best["SB3"]["threads"], best["SB3"]["median"], best["SB3"]["solved"]) == (2, 50, 2)
    assert best["ratio"] == 2.5
    assert best["ratios"] == [6.0, 1.667, 2.0]
    assert result["verdict"] == "enough"


@pytest.mark.parametrize("task", solve.TASKS.values(), ids=lambda task: task.preset)
def test_every_task_can_be_run_by_both_sides(task, tmp_path):
    ours = solve._rlexp(task, 1, 1, None, tmp_path)
    assert f"zoo={task.preset}" in ours
    theirs = json.loads(solve._sb3(task, 1, 1, 500, tmp_path)[-1])
    assert (theirs["threshold"], theirs["eval_interval"], theirs["budget"]) == (task.threshold, task.eval_interval, 500)


# ---- scaling and profile


def measured(*rates, **answers):
    count = len(rates)
    return Rounds(list(rates), [{name: value[i] for name, value in answers.items()} for i in range(count)])


@pytest.fixture
def profile_results():
    work = Workload("ppo", "PPO somewhere", ())
    profiled = measured(
        100.0,
        50.0,
        count=[200, 100],
        parts=[{"acting": 0.2, "update": 0.6, "rest": 0.2}, {"acting": 0.2, "update": 0.6, "rest": 0.2}],
    )
    products = measured(1000.0, 1000.0, flops=[5e3, 5e3], peak=[1e6, 1e6])
    return [
        profiling.summarize(work, 16, profiled, measured(100.0, 100.0), products, measured(800.0, 800.0)),
        profiling.summarize(Workload("crr", "CRR", (), unit="updates"), 0, profiled, measured(9.0), products, None),
    ]


def test_a_profile_is_in_milliseconds_of_a_whole_iteration(profile_results):
    iteration, update = profile_results
    assert iteration["of"] == "iteration"
    assert iteration["parts_ms"]["acting"] == pytest.approx(1000 * 16 * (0.001 + 0.002) / 2)
    assert iteration["plain_ms"] == pytest.approx(160.0)
    assert iteration["limits_ms"] == pytest.approx({"products": 16.0, "environment": 20.0})
    assert iteration["flops_at_peak_ms"] == pytest.approx(1000 * 16 * 5e3 / 1e6)
    assert update["of"] == "update"
    assert update["limits_ms"] == pytest.approx({"products": 1.0})
    assert update["parts_ms"]["sampling"] == 0.0


def test_results_are_shown_and_drawn(profile_results, tmp_path, capsys):
    pictures = pytest.importorskip("rlexp.bench.pictures")
    pytest.importorskip("matplotlib")
    profiling.show(profile_results)
    pictures.profile(profile_results, tmp_path / "profile.png")
    curve = {"median": [10.0, 20.0], "rounds": [[9.0, 11.0], [19.0, 21.0]]}
    axis = {"name": "envs", "title": "T", "label": "L", "unit": "steps", "points": [1, 1_000], "curves": {"a": curve}}
    results = [axis, {"name": "fill", "error": "no"}]
    scaling.show(results)
    pictures.scaling(results, tmp_path / "scaling.png")
    assert all((tmp_path / name).stat().st_size > 1_000 for name in ("profile.png", "scaling.png"))
    shown = capsys.readouterr().out
    assert "products alone" in shown
    assert "1,000" in shown


def test_points_of_an_axis_are_measured_in_turn(monkeypatch):
    axis = scaling.Axis(
        "T", "L", (1, 2), {"curve": lambda n: Entry(str(n), "tests.bench.fake_peers:run_counting", {})}, "units"
    )
    monkeypatch.setitem(scaling.AXES, "fake", axis)
    (result,) = scaling.run(only=["fake"], points=[3, 5], rounds=2, seconds=0.02)
    assert result["points"] == [3, 5]
    assert [len(each) for each in result["curves"]["curve"]["rounds"]] == [2, 2]
    with pytest.raises(ConfigError, match="Did you mean ensemble"):
        scaling.run(only=["ensembl"], points=None, rounds=1, seconds=1.0)


@pytest.mark.parametrize("can", [True, False])
def test_curves_in_bfloat16_are_measured_where_the_processor_multiplies_so(monkeypatch, can):
    def entry(n):
        return Entry(str(n), "tests.bench.fake_peers:run_counting", {})

    monkeypatch.setattr(scaling, "multiplies_bfloat16", lambda: can)
    axis = scaling.Axis("T", "L", (1,), {"full": entry}, "units", {"short": entry})
    result = scaling.measure("fake", axis, [1], 1, 0.02)
    assert list(result["curves"]) == (["full", "short"] if can else ["full"])


def test_ensembles_are_measured_with_the_width_threads_and_precision_that_the_title_says():
    axis = scaling.AXES["ensemble"]
    for title, curve in (axis.curves | axis.in_bfloat16).items():
        entry = curve(5)
        config = entry.spec["config"]
        (width,) = (width for width in (64, 128, 256) if f"2×{width}" in title)
        assert config["model"]["hidden"] == [width, width]
        assert config["algo"]["n_critics"] == 5
        assert config["precision"] == ("bfloat16" if "bfloat16" in title else "float32")
        assert entry.threads == (2 if "two threads" in title else 1)


# ---- the command line


def test_bench_without_a_command_says_what_there_is(capsys):
    assert dispatch(["bench"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("speed", "startup", "solve", "scaling", "profile"))


def test_options_have_the_defaults_they_state():
    options = command.build_parser().parse_args(["speed"])
    assert (options.against, options.only, options.rounds, options.seconds) == ([], None, 5, 4.0)
    assert options.threads == [1, 2]
    assert str(options.output).endswith("speed.json")
