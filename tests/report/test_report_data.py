"""What a report says, before a browser draws it."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rlexp.report.curves import Curve, read_curves
from rlexp.report.data import report_data
from rlexp.report.labels import group_labels
from rlexp.report.page import render, safe_json
from rlexp.report.videos import Videos
from rlexp.runs import find_runs
from tests.cli.conftest import Command
from tests.cli.conftest import rlexp as rlexp  # the fixture
from tests.fake_runs import config_of, make_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def data_of(*folders: Path, videos: str = "auto") -> dict[str, Any]:
    return report_data(find_runs(folders), None, Videos(videos, folders[0]))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two gammas, two seeds each, and a run that failed."""
    for gamma, seed, result in ((0.9, 1, 10.0), (0.9, 2, 30.0), (0.99, 1, 100.0), (0.99, 2, 140.0)):
        config = config_of(algo__gamma=gamma, seed=seed, name=f"{gamma}-{seed}")
        make_run(tmp_path / "sweep" / f"{gamma}-{seed}", config, result)
    make_run(tmp_path / "sweep" / "broken", config_of(seed=3), None, rows=[], status="failed", reason="no memory left")
    return tmp_path / "sweep"


# ---- what it says


def test_the_headline_tells_a_newcomer_what_was_run_varied_and_best(sweep: Path) -> None:
    assert data_of(sweep)["headline"] == (
        "5 runs of dqn on CartPole-v1, up to 3 seeds each. Varied: gamma (2 values). Best is gamma=0.99 with a return "
        "of 120.0 ± 28, mean over 2 seeds. Not completed: 1 failed."
    )


def test_runs_that_differ_only_in_their_seed_are_one_group_with_mean_and_spread(sweep: Path) -> None:
    data = data_of(sweep)
    groups = {group["label"]: group for group in data["groups"]}
    assert groups["gamma=0.9"]["result"] == 20.0
    assert groups["gamma=0.9"]["spread"] == 14.1421  # of a sample: √(2·10²)
    members = [data["runs"][position]["name"] for position in groups["gamma=0.9"]["runs"]]
    assert members == ["0.9-1", "0.9-2"]
    assert data["keys"] == ["seed", "algo.gamma"]


def test_a_failed_run_says_why_and_a_completed_one_has_no_problem(sweep: Path) -> None:
    problems = {run["name"]: run["problem"] for run in data_of(sweep)["runs"]}
    assert problems == {"broken": "no memory left"} | dict.fromkeys(["0.9-1", "0.9-2", "0.99-1", "0.99-2"])


def test_a_search_is_told_by_its_settings_and_says_what_pruned_means(tmp_path: Path) -> None:
    for trial, (rate, result) in enumerate(((0.000123456, 50.0), (0.00222222, 9.0))):
        pruning = {"_target_": "rlexp.sweeps.pruning.PruneTrial", "trial": trial}
        config = config_of(algo__learning_rate=rate, trainer__callbacks=[pruning])
        make_run(tmp_path / "search" / str(trial), config, result)
    path = tmp_path / "search" / "1" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stop_reason": "pruned"}))
    data = data_of(tmp_path / "search")
    assert data["keys"] == ["algo.learning_rate"]
    assert data["headline"] == (
        "2 runs of dqn on CartPole-v1, one seed each. Varied: learning_rate (2 values). Best is learning_rate=0.000123 "
        "with a return of 50.0 ± 1.5. "
        "1 run was pruned: ended early by the search, since others had done better by then."
    )


def test_each_environment_has_a_best_of_its_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config_of("dqn", "cartpole"), 400.0)
    make_run(tmp_path / "b", config_of("ppo", "cartpole"), 450.0)
    make_run(tmp_path / "c", config_of("dqn", "acrobot"), -90.0)
    make_run(tmp_path / "d", config_of("ppo", "acrobot"), -300.0)
    data = data_of(tmp_path)
    best = {each["env"]: data["groups"][each["group"]]["label"] for each in data["best"]}
    assert best == {"CartPole-v1": "ppo CartPole-v1", "Acrobot-v1": "dqn Acrobot-v1"}
    assert "Best on Acrobot-v1 is dqn Acrobot-v1 with a return of -90.0 ± 1.5." in data["headline"]


UNLIKE = {"algo__gamma": 0.5, "model__hidden": [8], "model__residual": True, "seed": 1, "env__num_envs": 3,
          "algo__learning_rate": 0.5}  # fmt: skip


def labels(folder: Path) -> dict[str, list[str]]:
    """Of each environment what its curves are called."""
    found: dict[str, list[str]] = {}
    for group in data_of(folder)["groups"]:
        found.setdefault(group["env"], []).append(group["label"])
    return found


def test_many_unlike_runs_are_called_by_algorithm_or_preset_and_what_varies_among_those(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config_of("ppo"), 1.0)
    make_run(tmp_path / "b", config_of("ppo", **UNLIKE), 2.0, command=["rlexp", "zoo=ppo_cartpole"])
    make_run(tmp_path / "c", config_of("dqn", algo__gamma=0.1), 3.0)
    make_run(tmp_path / "d", config_of("dqn", algo__gamma=0.2), 4.0)
    make_run(tmp_path / "e", config_of("dqn", "acrobot"), 5.0)
    data = data_of(tmp_path)
    names = ["ppo", "ppo_cartpole", "dqn gamma=0.1", "dqn gamma=0.2"]
    assert labels(tmp_path) == {"CartPole-v1": names, "Acrobot-v1": ["dqn"]}
    assert data["headline"].endswith(
        "Best on CartPole-v1 is dqn gamma=0.2 with a return of 4.00 ± 1.5. Return on Acrobot-v1: 5.00 ± 1.5."
    )


def test_runs_that_differ_in_more_than_a_name_has_room_for_are_called_by_their_own_names(tmp_path: Path) -> None:
    make_run(tmp_path / "first", config_of(), 1.0)
    make_run(tmp_path / "2", config_of(**UNLIKE), 2.0)
    assert labels(tmp_path) == {"CartPole-v1": ["run 2", "first"]}
    make_run(tmp_path / "ppo-3", config_of("ppo"), 3.0)
    assert labels(tmp_path) == {"CartPole-v1": ["dqn run 2", "dqn first", "ppo"]}
    assert max(map(len, labels(tmp_path)["CartPole-v1"])) < 20


def test_the_more_settings_were_varied_the_less_is_said_of_each(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config_of(), 1.0)
    make_run(tmp_path / "b", config_of(**UNLIKE, algo__tau=0.5), 2.0)
    said = "Varied: gamma, learning_rate, tau, hidden, residual and num_envs."
    assert said in data_of(tmp_path)["headline"]
    more = {"buffer__capacity": 99, "trainer__learning_starts": 9, "algo__max_grad_norm": 3.0}
    make_run(tmp_path / "c", config_of(**UNLIKE, **more), 2.0)
    assert "They differ in 9 settings." in data_of(tmp_path)["headline"]


def test_the_environment_with_the_most_runs_comes_first(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config_of("dqn", "acrobot"), -90.0)
    for name, seed in (("b", 1), ("c", 2)):
        make_run(tmp_path / name, config_of("dqn", seed=seed), 100.0)
    data = data_of(tmp_path)
    assert [each["env"] for each in data["best"]] == ["CartPole-v1", "Acrobot-v1"]
    assert data["headline"].startswith("3 runs of dqn on CartPole-v1 and Acrobot-v1")


def test_headline_varied_and_config_call_an_algorithm_by_one_name(tmp_path: Path) -> None:
    for algo in ("crossq", "drq_v2"):
        make_run(tmp_path / algo, config_of(algo, "pendulum_pixels"))
        path = tmp_path / algo / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"algo": algo}))
    data = data_of(tmp_path)
    assert data["headline"].startswith("2 runs of crossq and drq_v2 ")
    for run, group in zip(data["runs"], data["groups"]):
        assert run["algo"] == run["config"]["algo"] == group["values"]["algo"]
    assert data["runs"][0]["config"]["buffer"] == "replay"


def test_a_run_without_evaluations_is_judged_by_its_training_episodes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", result=None, rows=[{"env_steps": 10, "updates": 0, "rollout/return_mean": 7.5}])
    data = data_of(tmp_path)
    assert (data["runs"][0]["result"], data["runs"][0]["kind"]) == (7.5, "rollout")
    assert data["metric"] == "rollout/return_mean"


def test_a_damaged_run_is_shown_as_such_beside_the_others(sweep: Path) -> None:
    (sweep / "0.9-1" / "config.yaml").write_text("seed: 1\n")
    data = data_of(sweep)
    damaged = next(run for run in data["runs"] if run["name"] == "0.9-1")
    assert (damaged["status"], damaged["group"]) == ("damaged", None)
    assert "was changed" in damaged["problem"]


def test_details_hold_command_versions_and_the_whole_config(tmp_path: Path) -> None:
    make_run(tmp_path / "run", command=["rlexp", "algo=dqn", "name=a b"])
    (run,) = data_of(tmp_path)["runs"]
    details = dict(run["details"])
    assert details["command"] == "rlexp algo=dqn 'name=a b'"
    assert re.search(r"torch \d", details["versions"])
    assert run["config"]["algo.gamma"] == 0.99
    assert run["config"]["env.id"] == "CartPole-v1"


# ---- curves


def test_curves_that_are_logged_together_share_their_places(tmp_path: Path) -> None:
    make_run(tmp_path / "run", result=100.0)
    (run,) = data_of(tmp_path)["runs"]
    grid, values = run["curves"]["eval/return_mean"]
    assert values == [20, 40, 60, 80, 100]
    assert run["grids"][grid] == [[200, 400, 600, 800, 1000], [10, 20, 30, 40, 50], [2, 4, 6, 8, 10]]
    assert len(run["grids"]) == 1
    assert run["last"]["loss/q"] == 0.2


def test_a_long_curve_is_thinned_to_means_and_keeps_its_end() -> None:
    rows = [{"env_steps": step, "updates": 0, "time_s": 0.0, "value": float(step)} for step in range(1, 1001)]
    read, joined = read_curves(rows, 100)
    grid, values = read["curves"]["value"]
    assert (len(values), joined) == (63, 16)  # 1000 → 500 → 250 → 125 → 63 points
    assert values[0] == 8.5  # the mean of 1 … 16
    assert read["grids"][grid][0][0] == 16
    assert (read["grids"][grid][0][-1], read["last"]["value"]) == (1000, 1000)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1000, 12345])
def test_thinning_never_exceeds_its_limit_and_never_loses_the_last_place(count: int) -> None:
    curve = Curve(8)
    for step in range(count):
        curve.add((float(step),), 1.0)
    curve.finish()
    assert 1 <= len(curve.values) <= 8
    assert set(curve.values) == {1.0}
    assert curve.points[-1] == (count - 1.0,)


def test_what_is_not_finite_is_a_gap_and_what_is_no_number_is_left_out() -> None:
    rows = [
        {"env_steps": 1, "loss": 1.0, "text": "x", "flag": True},
        {"env_steps": 2, "loss": float("nan")},
        {"env_steps": float("inf"), "loss": float("inf")},
        {"env_steps": 4, "loss": 2.0},
    ]
    read, _ = read_curves(rows, 10)
    assert read["curves"] == {"loss": [0, [1, None, None, 2]]}
    assert read["grids"][0][0] == [1, 2, 0, 4]
    json.dumps(read, allow_nan=False)


# ---- strangers


def hostile(folder: Path) -> Path:
    """Everything that a run can say is a piece of a page."""
    config = config_of(name=EVIL, algo__gamma=0.5, env__id=EVIL, env__kwargs={EVIL: EVIL})
    rows = [{"env_steps": 1, "updates": 1, "time_s": 1, EVIL: 1.0, "eval/return_mean": 3.0}]
    run = make_run(folder / "<b>bold", config, 5.0, rows=rows, command=["rlexp", EVIL], status="failed", reason=EVIL)
    info = json.loads((run / "run.json").read_text())
    info |= {"versions": {EVIL: EVIL}, "platform": EVIL, "git": {EVIL: {"commit": EVIL}}, "created": EVIL}
    (run / "run.json").write_text(json.dumps(info))
    (run / "videos").mkdir()
    (run / "videos" / "<img src=x>.mp4").write_bytes(b"0")
    make_run(folder / "other", config_of(algo__gamma=0.9), 6.0)
    return folder


class Elements(HTMLParser):
    """The elements of a page, and whether they carry handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_nothing_that_a_run_says_becomes_an_element(tmp_path: Path) -> None:
    page = render(report_data(find_runs([hostile(tmp_path / "runs")]), EVIL + "@@DATA@@", Videos("auto", tmp_path)))
    parser = Elements()
    parser.feed(page)
    assert [attributes for tag, attributes in parser.found if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    assert not [tag for tag, _ in parser.found if tag in ("img", "b", "iframe", "object", "embed")]
    assert not [name for _, attributes in parser.found for name in attributes if name.startswith("on")]
    assert page.count("</script>") == 2
    embedded = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    runs = json.loads(embedded[1])["runs"]
    assert runs[0]["config"]["env.id"] == EVIL  # whole, as text


def test_data_cannot_end_their_element() -> None:
    text = safe_json({"a": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}


def test_the_page_asks_nobody_for_anything(sweep: Path) -> None:
    page = render(data_of(sweep))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "@import" not in page
    assert not [url for url in re.findall(r"https?://[^\s\"'`)]+", page) if url != "http://www.w3.org/2000/svg"]


# ---- videos


def test_small_videos_are_inside_and_large_ones_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs" / "a run")
    videos = run / "videos" / "eval"
    videos.mkdir(parents=True)
    (videos / "small.mp4").write_bytes(b"tiny")
    (videos / "large.webm").write_bytes(b"x" * 100)
    (videos / "walk.gif").write_bytes(b"gif")
    (videos / "notes.txt").write_text("no video")
    os.symlink("/etc/passwd", videos / "stolen.mp4")
    monkeypatch.setattr("rlexp.report.videos.SMALL", 50)
    found = {video["name"]: video for video in data_of(tmp_path / "runs")["runs"][0]["videos"]}
    assert set(found) == {"small.mp4", "large.webm", "walk.gif"}
    assert found["small.mp4"]["source"] == "data:video/mp4;base64,dGlueQ=="
    assert found["large.webm"]["source"] == "a%20run/videos/eval/large.webm"
    assert found["walk.gif"]["kind"] == "image"
    linked = data_of(tmp_path / "runs", videos="link")["runs"][0]["videos"]
    assert not any(video["source"].startswith("data:") for video in linked)
    assert data_of(tmp_path / "runs", videos="none")["runs"][0]["videos"] == []


# ---- the command


def test_a_report_is_written_and_replaced_but_nothing_else_is(rlexp: Command, sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for arguments in (["-o", page], [f"to={page}"], ["--output", page, "algo.gamma=0.9"]):
        answer = rlexp("report", sweep, *arguments)
        assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("2 runs, ")
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    answer = rlexp("report", sweep, "-o", mine)
    assert (answer.code, mine.read_text()) == (1, "<p>mine")
    assert "exists already and is not a report" in answer.err


def test_a_report_is_titled_by_what_was_named(rlexp: Command, sweep: Path, tmp_path: Path) -> None:
    runs = [sweep / name for name in ("0.9-1", "0.9-2", "0.99-1", "0.99-2")]
    page = tmp_path / "page.html"
    for given, title in (([sweep], "sweep"), (runs[:2], "0.9-1 and 0.9-2"), (runs, "4 runs in sweep")):
        assert rlexp("report", *given, "-o", page).code == 0
        assert f"<h1>{title}</h1>" in page.read_text()
    rlexp("report", *runs[:2], "-o", page, "title=Mine")
    assert "<h1>Mine</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "rlexp report needs runs, or a folder that holds some: rlexp report outputs"),
        (["SWEEP", "to=page.pdf"], "to=page.pdf: the report is a page, so its name ends in .html."),
        (["SWEEP", "videos=all"], "videos=all: no such way. There are: auto, embed, link, none."),
        (["SWEEP", "status=running"], "None of the 5 runs below"),
        (["SWEEP", "--open"], "--open: no such option."),
        (["nowhere"], "There is no folder nowhere."),
    ],
)
def test_a_mistaken_report_is_one_line(arguments: list[str], message: str, rlexp: Command, sweep: Path) -> None:
    answer = rlexp("report", *(str(sweep) if each == "SWEEP" else each for each in arguments))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {message}")
    assert not Path("report.html").exists()


def test_what_a_strangers_summary_calls_its_algorithm_need_not_be_text() -> None:
    keys = [f"algo.setting_{i}" for i in range(5)]
    runs = [
        {"algo": algo, "env": ["e"], "label": name} for algo, name in ((["x"], "one"), ("dqn", "two"), ({}, "three"))
    ]
    flats = [dict.fromkeys(keys, i) for i in range(3)]
    assert len(group_labels(runs, flats, [[0], [1], [2]], keys)) == 3
