"""Help and listings: they show what can be composed, and answer at once because torch stays out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from rlexp.config.compose import CHOICE_GROUPS, choices
from rlexp.options import RUN_SETTINGS, EvalOptions, PredictOptions, ResumeOptions
from tests.cli.conftest import Command


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"], ["train", "--help"], ["algo=ppo", "-h"]])
def test_help_shows_every_command_and_everything_that_can_be_composed(arguments: list[str], rlexp: Command) -> None:
    answer = rlexp(*arguments)
    assert answer.code == 0
    for command in ("train", "--multirun", "resume RUN", "eval RUN", "predict RUN", "list"):
        assert command in answer.out
    assert max(map(len, answer.out.splitlines())) <= 120
    told = " ".join(answer.out.split())
    for group in set(CHOICE_GROUPS) - {"zoo", "search"}:
        assert f" {group} {', '.join(choices(group))}" in told
    assert f" zoo {len(choices('zoo'))} presets such as " in told
    assert {"ppo_cartpole", "sac_pendulum", "iql_pendulum"} <= set(choices("zoo"))
    assert " search one for every algo" in told


@pytest.mark.parametrize(
    ("command", "kind"), [("eval", EvalOptions), ("predict", PredictOptions), ("resume", ResumeOptions)]
)
def test_the_help_of_a_command_lists_every_option_it_takes(command: str, kind: type, rlexp: Command) -> None:
    answer = rlexp(command, "--help")
    assert (answer.code, answer.out.startswith(f"rlexp {command} RUN ")) == (0, True)
    settings = RUN_SETTINGS if kind is ResumeOptions else {"device"}  # what only acts shows no progress
    for name in (*(each.name for each in fields(kind)), *settings):
        assert f"\n  {name}=" in answer.out
    assert ("\n  progress=" in answer.out) == (kind is ResumeOptions)
    assert rlexp(command, "some/run", "-h") == answer


def test_what_the_help_proposes_can_be_composed(rlexp: Command) -> None:
    lines = [line.split("  ") for line in rlexp().out.splitlines() if "rlexp algo=ppo" in line or "--multirun" in line]
    proposed = [part.strip() for line in lines for part in line if part.strip().startswith("rlexp ")]
    assert len(proposed) >= 3
    names = {word.partition("=")[2] for line in proposed for word in line.split() if word.startswith("algo=")}
    assert {name for each in names for name in each.split(",")} <= set(choices("algo"))


def test_list_has_a_line_on_every_choice_of_every_group(rlexp: Command) -> None:
    answer = rlexp("list")
    assert answer.code == 0
    for group in CHOICE_GROUPS:
        for name, line in choices(group).items():
            assert any(row.startswith(f"{name} ") and row.endswith(line) for row in answer.out.splitlines()), name


@pytest.mark.parametrize("group", CHOICE_GROUPS)
def test_list_shows_one_group_in_the_singular_and_the_plural(group: str, rlexp: Command) -> None:
    one, many = rlexp("list", group), rlexp("list", f"{group}s")
    assert one == many
    assert [row.split()[0] for row in one.out.splitlines()[1:]] == sorted(choices(group))


def test_list_shows_own_configs(rlexp: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("# @package _global_\n# My own idea\n")
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    assert re.search(r"^mine +My own idea$", rlexp("list", "algo").out, re.MULTILINE)


def test_list_shows_the_configs_of_a_folder(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text("# @package _global_\n# My own idea\n")
    for arguments in (["algo", "--config-dir", "conf"], ["--config-dir=conf", "algos"], ["-cd", "conf"]):
        answer = rlexp("list", *arguments)
        assert (answer.code, bool(re.search(r"^mine +My own idea$", answer.out, re.MULTILINE))) == (0, True)
    for arguments in (["--config-dir", "conf", "list", "algo"], ["-cd=conf", "list"]):
        answer = rlexp(*arguments)
        assert (answer.code, bool(re.search(r"^mine +My own idea$", answer.out, re.MULTILINE))) == (0, True)
    assert rlexp("--config-dir", "conf", "list", "zoo") == rlexp("list", "zoo", "--config-dir", "conf")
    assert rlexp("--config-dir", "conf", "list", "--help") == rlexp("list", "--help")
    assert rlexp("--config-dir", "conf", "lits").err.startswith("error: There is no command 'lits'. Did you mean list?")
    for arguments in (["list", "--config-dir"], ["--config-dir"]):
        assert rlexp(*arguments).err == "error: --config-dir needs a folder: --config-dir DIR\n"
    answer = rlexp("list", "algo", "--config-dir", "nowhere")
    assert (answer.code, "config folder nowhere" in answer.err) == (1, True)
    assert rlexp("list", "--multirun").err == "error: --multirun: no such option. There are: --config-dir.\n"


def test_list_shows_the_runs_there_are(rlexp: Command, trained: Path) -> None:
    assert rlexp("list", "runs").out == "No runs below outputs.\n"
    header, row = rlexp("list", "runs", trained.parent).out.splitlines()
    assert header.split()[:5] == ["run", "status", "done", "algo", "env"]
    assert row.split()[1:7] == ["completed", "100%", "ppo", "CartPole-v1", "0", "256"]


def test_list_shows_how_far_a_killed_run_had_come(rlexp: Command, trained: Path) -> None:
    (trained / "status.json").write_text(json.dumps({"status": "running", "rows_high_water": 0}))
    (trained / "summary.json").unlink()
    with (trained / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 384, "updates": 9, "time_s": 61.0}\n{"env_steps": 448, "upda')  # killed as it wrote
    header, row = rlexp("list", "runs", trained.parent).out.splitlines()
    assert header.split() == ["run", "status", "done", "algo", "env", "seed", "steps", "updates", "time", "eval"]
    assert row.split()[1:9] == ["killed", "100%", "ppo", "CartPole-v1", "0", "384", "9", "1:01"]
    (trained / "metrics.jsonl").unlink()
    shutil.rmtree(trained / "checkpoints")
    row = rlexp("list", "runs", trained.parent).out.splitlines()[1]
    assert row.split()[1:9] == ["killed", "0%", "ppo", "CartPole-v1", "0", "0", "0", "0:00"]


def test_list_shows_how_far_a_run_had_come_that_was_killed_before_its_first_row(rlexp: Command, trained: Path) -> None:
    (trained / "status.json").write_text(json.dumps({"status": "running", "rows_high_water": 0}))
    (trained / "summary.json").unlink()
    (trained / "metrics.jsonl").unlink()
    row = rlexp("list", "runs", trained.parent).out.splitlines()[1]
    assert row.split()[1:8] == ["killed", "100%", "ppo", "CartPole-v1", "0", "256", "40"]
    (trained / "checkpoints" / "last" / "checkpoint.json").write_text("{")  # damaged: the one before counts
    row = rlexp("list", "runs", trained.parent).out.splitlines()[1]
    assert row.split()[1:8] == ["killed", "50%", "ppo", "CartPole-v1", "0", "128", "20"]


def test_a_checkpoint_that_is_a_link_tells_nothing(rlexp: Command, trained: Path, tmp_path: Path) -> None:
    (trained / "status.json").write_text(json.dumps({"status": "running", "rows_high_water": 0}))
    (trained / "summary.json").unlink()
    (trained / "metrics.jsonl").unlink()
    for number, path in enumerate(sorted((trained / "checkpoints").glob("step_*"))):
        path.rename(tmp_path / f"elsewhere{number}")
        path.symlink_to(tmp_path / f"elsewhere{number}")
    row = rlexp("list", "runs", trained.parent).out.splitlines()[1]
    assert row.split()[1:3] == ["killed", "0%"]


def test_list_shows_a_damaged_run_as_such(rlexp: Command, trained: Path) -> None:
    (trained / "status.json").write_text("{")
    answer = rlexp("list", "runs", trained.parent)
    assert answer.code == 0
    assert "damaged" in answer.out


def test_an_unknown_command_or_group_is_answered_with_the_nearest(rlexp: Command) -> None:
    answer = rlexp("trian", "algo=ppo")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: There is no command 'trian'. Did you mean train? Overrides are written KEY=VALUE.\n"
    answer = rlexp("list", "algoss")
    assert (answer.code, answer.err) == (
        1,
        "error: rlexp list algoss: there is no such group. Did you mean algo?\n",
    )


def test_an_unknown_flag_is_answered_with_the_nearest(rlexp: Command) -> None:
    answer = rlexp("--multirn", "algo=ppo,dqn")
    assert (answer.code, answer.err) == (1, "error: --multirn: no such option. Did you mean --multirun?\n")
    assert rlexp("algo=ppo", "--cfg", "foo").code == 1


def test_the_version_is_that_of_the_package(rlexp: Command) -> None:
    from importlib.metadata import version

    assert rlexp("--version").out == f"rlexp {version('rlexp')}\n"


WITHOUT_TORCH = """
import sys
from rlexp.cli import dispatch
for arguments in ([], ["--help"], ["list"], *(["list", group] for group in GROUPS), ["list", "runs", RUNS]):
    assert dispatch(arguments) == 0
import rlexp
rlexp.__all__, dir(rlexp), rlexp.RlexpError
heavy = {"torch", "gymnasium", "tensorboard", "wandb", "h5py"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_and_listings_do_not_import_torch(trained: Path) -> None:
    code = f"GROUPS = {CHOICE_GROUPS!r}; RUNS = {str(trained.parent)!r}\n{WITHOUT_TORCH}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "completed" in done.stdout
