"""``rlexp list runs``, ``rlexp metrics`` and ``rlexp export``: what was run, found again and taken elsewhere."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from rlexp.errors import ExportError
from rlexp.loggers import tables
from rlexp.runs import natural
from tests.cli.conftest import Command
from tests.fake_runs import config_of, make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs: two gammas, two algorithms, one failed, one begun long ago."""
    folder = tmp_path / "outputs"
    make_run(folder / "sweep" / "2", config_of(algo__gamma=0.9, seed=1), 20.0)
    make_run(folder / "sweep" / "10", config_of(algo__gamma=0.99, seed=2), 50.0, best=60.0)
    make_run(folder / "ppo", config_of("ppo", "acrobot", model__hidden=[16, 16]), -80.0)
    make_run(folder / "old", config_of(seed=7), None, status="failed", reason="it broke")
    info = json.loads((folder / "old" / "run.json").read_text())
    (folder / "old" / "run.json").write_text(json.dumps(info | {"created": "2020-05-01T00:00:00+00:00"}))
    return folder


def names(out: str) -> list[str]:
    return [line.split()[0].removeprefix("outputs/") for line in out.splitlines()[1:]]


# ---- list runs


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([], ["old", "ppo", "sweep/2", "sweep/10"]),
        (["status=failed"], ["old"]),
        (["status=completed", "algo=dqn"], ["sweep/2", "sweep/10"]),
        (["algo=d*,ppo", "env=acrobot"], ["ppo"]),
        (["env=CartPole-v1", "seed=1,7"], ["old", "sweep/2"]),
        (["algo.gamma=9e-1"], ["sweep/2"]),
        (["model.hidden=[16,16]"], ["ppo"]),
        (["model.hidden=null", "limit=1"], ["old"]),
        (["since=1h"], ["ppo", "sweep/2", "sweep/10"]),
        (["since=2020-04-30", "seed=7"], ["old"]),
        (["sort=-return"], ["sweep/10", "sweep/2", "ppo", "old"]),
        (["sort=best", "limit=2"], ["ppo", "sweep/2"]),
        (["sort=created", "limit=1"], ["old"]),
        (["sort=-seed"], ["old", "sweep/10", "sweep/2", "ppo"]),
        (["outputs/sweep"], ["sweep/2", "sweep/10"]),
        (["sweep"], ["sweep/2", "sweep/10"]),
    ],
)
def test_runs_are_found_by_what_they_are(conditions: list[str], found: list[str], rlexp: Command, runs: Path) -> None:
    answer = rlexp("list", "runs", *conditions)
    assert (answer.code, names(answer.out)) == (0, found)


def test_a_listed_run_shows_status_progress_result_and_the_settings_asked_for(rlexp: Command, runs: Path) -> None:
    header, row = rlexp("list", "runs", "seed=2", "show=algo.gamma,model.hidden").out.splitlines()
    columns = ["run", "status", "done", "algo", "env", "seed", "steps", "updates", "time", "eval", "best"]
    assert header.split() == [*columns, "algo.gamma", "model.hidden"]
    shown = [cell for cell in row.split("  ") if cell.strip()]
    expected = ["outputs/sweep/10", "completed", "100%", "dqn", "CartPole-v1", "2", "1,000", "50", "0:10"]
    assert [cell.strip() for cell in shown] == [*expected, "50.0 ± 1.5", "60.0 ± 0.5", "0.99", "null"]


def test_a_column_that_is_there_is_not_shown_twice_and_choices_are_named_as_they_are_chosen(
    rlexp: Command, tmp_path: Path
) -> None:
    config = config_of("drq_v2", "pendulum_pixels")
    run = make_run(tmp_path / "outputs" / "pixels", config, rows=[], status="running")
    (run / "summary.json").unlink()
    header, row = rlexp("list", "runs", "algo=drq_v2", "show=algo,buffer,model.critic_hidden,compile").out.splitlines()
    assert header.split() == ["run", "status", "done", "algo", "env", "seed", "steps", "updates", "time", "buffer",
                              "model.critic_hidden", "compile"]  # fmt: skip
    assert (row.split()[3], row.split()[-3:]) == ("drq_v2", ["replay", "null", "false"])


def test_a_column_that_was_asked_for_stays_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(tables, "is_terminal", lambda file: True)
    monkeypatch.setattr(tables, "print_table", lambda columns, rows, **kwargs: shown.extend(columns))
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *args: os.terminal_size((20, 24)))
    run = {"name": "outputs/a", "status": "completed", "algo": "dqn", "env": "CartPole-v1", "settings": {"algo": "dqn"}}
    tables.print_runs([run], settings=["algo"])
    assert shown == ["run", "status", "algo"]


def test_pretraining_is_part_of_the_progress_of_a_mixed_run(rlexp: Command, tmp_path: Path) -> None:
    config = config_of(trainer__offline_pretrain_updates=1000)
    rows = [{"env_steps": 0, "updates": 500, "time_s": 1.0}]
    make_run(tmp_path / "outputs" / "mixed", config, rows=rows, status="running")
    (row,) = rlexp("list", "runs").out.splitlines()[1:]
    assert row.split()[1:3] == ["killed", "25%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algo.gama=1"], "algo.gama: none of the 4 runs has such a setting. Did you mean algo.gamma"),
        (["status=fialed"], "status=fialed: no run can be that. Did you mean failed or killed?"),
        (["since=yesterday"], "since=yesterday: write how long ago, 90m, 12h, 3d or 2w, or a date"),
        (["since=999999w"], "since=999999w: write how long ago, 90m, 12h, 3d or 2w, or a date"),
        (["sort=retrun"], "sort=retrun: none of the 4 runs has such a setting. Did you mean return?"),
        (["sort=algo.gama"], "sort=algo.gama: none of the 4 runs has such a setting. Did you mean algo.gamma"),
        (
            ["sort=-blah"],
            "sort=-blah: none of the 4 runs has such a setting. There are name, created, status, done, steps, updates, "
            "time, return, best, algo, env, seed, and any setting of a config (algo.gamma).\n",
        ),
        (
            ["nokey=3"],
            "nokey: none of the 4 runs has such a setting. There are status, algo, env, name, group, since, limit, "
            "sort, and any setting of a config (algo.gamma=…).\n",
        ),
        (["steps=1000"], "steps: none of the 4 runs has such a setting."),
        (["limit=many"], "limit must be a whole number, not many."),
        (["limit=0"], "limit must be at least 1, not 0."),
        (
            ["show=nothing"],
            "show=nothing: none of the runs has such a setting. Any setting of a config can be shown (algo.gamma).\n",
        ),
        (["nowhere"], "There is no folder nowhere."),
        (["--all"], "--all: no such option."),
    ],
)
def test_a_mistake_in_a_question_is_one_line(arguments: list[str], message: str, rlexp: Command, runs: Path) -> None:
    answer = rlexp("list", "runs", *arguments)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {message}")
    assert answer.err.count("\n") == 1


def test_nothing_found_is_no_error_and_a_damaged_run_says_why(rlexp: Command, runs: Path) -> None:
    assert rlexp("list", "runs", "seed=99").out == "None of the 4 runs below outputs is like that.\n"
    (runs / "ppo" / "config.yaml").write_text("seed: 1\n")
    answer = rlexp("list", "runs")
    assert [line.split()[:2] for line in answer.out.splitlines()][2] == ["outputs/ppo", "damaged"]
    assert "outputs/ppo: " in answer.err
    assert "was changed after the run was started" in answer.err


def test_numbers_in_names_are_sorted_by_their_value() -> None:
    assert sorted(["job10", "job9", "a", "10", "9"], key=natural) == ["9", "10", "a", "job9", "job10"]


# ---- metrics


def test_the_metrics_of_many_runs_are_one_csv_table(rlexp: Command, runs: Path) -> None:
    answer = rlexp("metrics", "outputs/sweep", "to=metrics.csv")
    assert (answer.code, answer.out) == (0, "20 rows of 2 runs, 13 columns: metrics.csv\n")
    with open("metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("run", "status", "algo", "env", "seed", "algo.gamma", "env_steps", "updates", "time_s"),
        *("eval/return_mean", "eval/return_std", "loss/q", "rollout/return_mean"),
    ]
    assert [row["algo.gamma"] for row in rows] == ["0.9"] * 10 + ["0.99"] * 10
    assert [float(row["eval/return_mean"]) for row in rows if row["eval/return_mean"]] == [
        *(4.0, 8.0, 12.0, 16.0, 20.0),
        *(10.0, 20.0, 30.0, 40.0, 50.0),
    ]
    run = ["outputs/sweep/2", "completed", "dqn", "CartPole-v1", "1", "0.9"]
    assert list(rows[2].values()) == [*run, "400", "20", "4.0", "", "", "0.5", "4.0"]


def test_metrics_are_chosen_and_go_to_standard_output(rlexp: Command, runs: Path) -> None:
    out = rlexp("metrics", "outputs", "algo=dqn", "status=completed", "metrics=eval/*mean", "config=none").out
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 10
    assert set(rows[0]) == {
        "run",
        "status",
        "algo",
        "env",
        "seed",
        "env_steps",
        "updates",
        "time_s",
        "eval/return_mean",
    }


def test_the_same_table_is_written_as_parquet(rlexp: Command, runs: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    assert rlexp("metrics", "outputs", "to=all.parquet", "config=all").code == 0
    table = parquet.read_table("all.parquet")
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert (kinds["env_steps"], kinds["loss/q"], kinds["algo.gamma"], kinds["seed"]) == (
        *("int64", "double", "double", "int64"),
    )
    assert (kinds["model.hidden"], kinds["env.normalize_obs"]) == ("string", "bool")
    rows = table.to_pylist()
    assert len(rows) == 40
    assert [row["eval/return_mean"] for row in rows if row["run"] == "outputs/ppo"][1::2] == [-16, -32, -48, -64, -80]
    assert {row["algo.clip_range"] for row in rows if row["algo"] == "dqn"} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "rlexp metrics needs runs, or a folder that holds some: rlexp metrics outputs"),
        (["outputs", "to=table.xls"], "to=table.xls: a table is written to a .csv or .parquet file"),
        (
            ["outputs", "metrics=los/q"],
            "metrics=los/q: none of the runs has such a metric. There are: eval/return_mean",
        ),
        (["outputs", "config=some"], "config=some: it is differing, all or none."),
        (["outputs", "seed=99"], "None of the 4 runs below outputs is like that."),
        (["outputs", "to=there.csv"], "there.csv exists already. Choose another name, or delete it."),
        (["empty"], "There are no runs below empty."),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_first(
    arguments: list[str], message: str, rlexp: Command, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "there.csv").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    answer = rlexp("metrics", *arguments)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_run_whose_metrics_are_damaged_is_left_out_and_named(rlexp: Command, runs: Path) -> None:
    spoiled = min(runs.glob("*/metrics.jsonl"))
    spoiled.write_bytes(b"\x00{nonsense\n" + spoiled.read_bytes())
    answer = rlexp("metrics", "outputs", "to=rest.csv")
    assert answer.code == 0
    assert f"left out: {spoiled}" in answer.err
    assert "metrics.jsonl" in answer.err
    assert f"outputs/{spoiled.parent.name}" not in Path("rest.csv").read_text()


def test_numbers_that_parquet_cannot_hold_are_one_line(rlexp: Command, runs: Path) -> None:
    pytest.importorskip("pyarrow")
    min(runs.glob("*/metrics.jsonl")).write_text('{"env_steps": 1' + "0" * 400 + ', "eval/return_mean": 3.0}\n')
    answer = rlexp("metrics", "outputs", "to=all.parquet")
    assert (answer.code, Path("all.parquet").exists()) == (1, False)
    assert "a run has numbers too large for it" in answer.err


def test_parquet_without_pyarrow_names_the_extra(rlexp: Command, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = rlexp("metrics", "outputs", "to=all.parquet")
    expected = "error: A .parquet file needs pyarrow: pip install 'rlexp[parquet]', or write a .csv.\n"
    assert (answer.code, answer.err) == (1, expected)


# ---- export


def test_a_run_is_exported_with_its_normaliser_under_its_name(rlexp: Command, trained: Path) -> None:
    answer = rlexp("export", "--to", "torch", trained)  # options may stand before the run
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].startswith("ppo on CartPole-v1, step_")
    assert lines[1:4] == [
        "inputs    obs float32 [batch, 4]",
        "outputs   action int64 [batch]",
        "equal     to the agent on 96 observations",
    ]
    assert lines[4].startswith("written   trained.pt2 (")
    assert Path("trained.pt2").is_file()
    again = rlexp("export", trained, "to=torch")
    assert (again.code, again.err) == (
        1,
        "error: trained.pt2 exists already. Choose another name, or delete it.\n",
    )
    for place in ("trained.pt2/policy.pt2", "/proc/policy.pt2"):
        refused = rlexp("export", trained, f"to={place}")
        assert (refused.code, refused.out) == (1, "")
        assert "policy.pt2 cannot be written: " in refused.err


def test_jobs_of_two_sweeps_are_exported_under_different_names(rlexp: Command, trained: Path) -> None:
    for sweep in ("first", "second"):
        shutil.copytree(trained, Path("outputs", sweep, "0"), symlinks=True)
        Path("outputs", sweep, "sweep.json").touch()
        answer = rlexp("export", f"outputs/{sweep}/0", "to=torch")
        assert (answer.code, answer.err) == (0, "")
        assert f"written   {sweep}-0.pt2 (" in answer.out
        assert Path(f"{sweep}-0.pt2").is_file()


def test_what_takes_a_minute_is_said_beforehand(rlexp: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ExportError("no more")

    monkeypatch.setattr("rlexp.exporting.export", fail)
    monkeypatch.setattr("rlexp.exporting._require_onnx", lambda: None)
    said = "Translating the policy to ONNX and comparing it: up to a minute.\n"
    for kind, before in (("onnx", said), ("torch", "")):
        answer = rlexp("export", trained, f"to={kind}")
        assert (answer.code, answer.out, answer.err) == (1, "", f"{before}error: no more\n")


def test_an_export_that_cannot_be_is_refused_before_it_is_announced(
    rlexp: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    answer = rlexp("export", trained, "to=new/policy.onnx")
    assert (answer.code, answer.err) == (1, "error: to=onnx needs onnx: pip install 'rlexp[onnx]'\n")
    monkeypatch.setattr("rlexp.exporting._require_onnx", lambda: None)
    answer = rlexp("export", trained, "to=/proc/new/policy.onnx")
    assert answer.code == 1
    assert answer.err.startswith("error: /proc/new/policy.onnx cannot be written: ")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "rlexp export needs a run directory or checkpoint first: rlexp export outputs/NAME"),
        (["outputs/ppo"], "rlexp export needs a format or a file: to=torch, to=onnx, to=policy.pt2 or to=policy.onnx"),
        (["outputs/ppo", "to=tensorflow"], "to=tensorflow: a policy is exported to torch (a .pt2 file) or onnx."),
        (["outputs/ppo", "--format", "onnx"], "--format: no such option."),
        (["outputs/ppo", "to=onnx", "checkpont=best"], "checkpont=best: no such option. Did you mean checkpoint?"),
        (["outputs/ppo", "to=a.pt2"], "outputs/ppo is completed, but its checkpoints are gone."),
    ],
)
def test_a_mistaken_export_is_one_line(arguments: list[str], message: str, rlexp: Command, runs: Path) -> None:
    answer = rlexp("export", *arguments)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {message}")
