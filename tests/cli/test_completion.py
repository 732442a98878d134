"""What the TAB key offers, asked as a shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.completion import INSTALL, UNINSTALL, completions
from rlexp.config.compose import choices
from tests.cli.conftest import Command

COMMANDS = ["train", "eval", "resume", "predict", "collect", "data", "list", "bench"]


def offered(line: str) -> list[str]:
    return completions(line, COMMANDS)


def test_the_first_word_is_a_command_a_group_or_a_setting_at_the_top() -> None:
    assert set(COMMANDS) < set(offered("rlexp "))
    assert offered("rlexp re") == ["resume"]
    assert offered("rlexp al") == offered("rlexp train al") == ["algo.", "algo="]
    assert offered("rlexp algo=ppo se") == ["search=", "seed="]
    assert offered("rlexp algo=ppo --mu") == ["--multirun"]
    assert offered("rlexp eval") == ["eval", "evaluator.", "evaluator="]


@pytest.mark.parametrize("group", ["algo", "env", "zoo", "trainer"])
def test_a_group_is_completed_by_its_choices(group: str) -> None:
    assert offered(f"rlexp seed=1 {group}=") == [f"{group}={choice}" for choice in choices(group)]


def test_choices_of_a_sweep_and_of_a_list_and_words_are_completed() -> None:
    assert offered("rlexp --multirun algo=ppo,trp") == ["algo=ppo,trpo"]
    assert offered("rlexp logger=[ten") == ["logger=[tensorboard"]
    assert offered("rlexp progress=p") == ["progress=plain"]
    assert offered("rlexp list zo") == ["zoo"]
    assert offered("rlexp bench sp") == ["speed"]
    assert offered("rlexp data in") == ["info"]
    assert offered("rlexp data info x.npz env=cartpole_m") == ["env=cartpole_masked"]


def test_own_choices_of_a_config_folder_are_completed(tmp_path: Path) -> None:
    (tmp_path / "mine" / "algo").mkdir(parents=True)
    (tmp_path / "mine" / "algo" / "zzz.yaml").write_text("# Mine\n")
    assert offered("rlexp --config-dir mine algo=zz") == ["algo=zzz"]
    assert offered("rlexp --config-dir gone algo=zz") == []


def test_settings_are_those_of_what_the_line_has_chosen() -> None:
    assert offered("rlexp algo=ddpg env=pendulum algo.expl") == ["algo.exploration=", "algo.exploration_noise="]
    assert offered("rlexp algo=ppo algo.expl") == []
    assert offered("rlexp algo=ddpg algo.exploration=") == [
        f"algo.exploration={each}" for each in ("gaussian", "none", "ou", "pink")
    ]
    assert offered("rlexp algo=dqn algo.double=") == ["algo.double=false", "algo.double=true"]
    assert offered("rlexp algo=dqn algo.schedules.eps") == ["algo.schedules.epsilon."]
    assert offered("rlexp algo=sac algo.gamma=") == ["algo.gamma=0.99"]
    assert offered("rlexp algo=nothing algo.") == []  # a line that cannot be composed


def test_runs_are_completed_and_their_own_settings(trained: Path, tmp_path: Path) -> None:
    trained.rename(tmp_path / "moved")
    (tmp_path / "outputs" / "sweep").mkdir(parents=True)
    (tmp_path / "moved").rename(tmp_path / "outputs" / "sweep" / "0")
    assert offered("rlexp resume ") == ["sweep/0"]
    assert offered("rlexp eval outputs/sw") == ["outputs/sweep/0"]
    assert offered("rlexp algo=ppo init_from=sw") == ["init_from=sweep/0"]
    assert offered("rlexp collect ra") == ["random"]
    assert offered("rlexp eval sweep/0 epi") == ["episodes="]
    assert offered("rlexp resume sweep/0 checkpoint=b") == ["checkpoint=best"]
    assert offered("rlexp resume sweep/0 algo.clip_r") == ["algo.clip_range="]
    assert offered("rlexp resume gone algo.clip_r") == []


@pytest.mark.parametrize("shell", INSTALL)
def test_every_shell_is_told_how_to_ask_and_how_to_forget(shell: str, rlexp: Command) -> None:
    answer = rlexp("-sc", f"install={shell}")
    assert (answer.code, answer.out.strip()) == (0, INSTALL[shell])
    assert f"-sc query={shell}" in answer.out
    assert rlexp("--shell-completion", f"uninstall={shell}").out.strip() == UNINSTALL[shell]


@pytest.mark.parametrize("asked", [[], ["install=tcsh"], ["instal=bash"], ["install=bash", "more"]])
def test_a_shell_that_is_not_known_is_refused(asked: list[str], rlexp: Command) -> None:
    answer = rlexp("-sc", *asked)
    assert (answer.code, answer.out) == (1, "")
    assert "rlexp -sc install=bash (or zsh, or fish)" in answer.err


def test_bash_completes_without_importing_torch(tmp_path: Path) -> None:
    command = tmp_path / "rlexp"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlexp "$@"\n')
    command.chmod(0o755)
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    ask = (
        'COMP_LINE="rlexp $1"; COMP_POINT=${#COMP_LINE}; _rlexp_completion rlexp; printf "[%s]" "${COMPREPLY[@]}"; echo'
    )
    script = f"{INSTALL['bash']}\nask() {{ {ask}; }}\nask res; ask 'seed=1 algo=discrete_'\n"
    script += "complete -p rlexp >/dev/null || echo lost\n"
    script += f"COMP_WORDBREAKS=; ask algo=ppo,trp\n{UNINSTALL['bash']}\ncomplete -p rlexp"
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(["bash", "-c", script], env=os.environ | paths, text=True, capture_output=True, check=False)
    assert done.stdout.splitlines() == [
        "[resume ]",
        "[discrete_bcq ][discrete_cql ][discrete_sac ]",  # behind the "=", where bash breaks words
        "[algo=ppo,trpo ]",
    ], done.stderr
    assert "no completion specification" in done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    command = tmp_path / "rlexp"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlexp "$@"\n')
    command.chmod(0o755)
    script = f"{INSTALL['fish']}\ncomplete -C 'rlexp resu'; complete -C 'rlexp seed=1 algo=discrete_s'"
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["fish", "-c", script], env=os.environ | paths, text=True, capture_output=True, check=False)
    assert done.stdout.splitlines() == ["resume", "algo=discrete_sac"], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_ends_what_is_complete_and_leaves_open_what_is_begun(tmp_path: Path) -> None:
    asked = 'compadd() { print -r -- compadd "$@" }; compdef() { : }; _files() { print files }; CURRENT=2'
    for answer, told in {
        "resume": ["compadd -- resume"],
        "algo=\nalgo.": ["compadd -S  -- algo= algo."],
        "": ["files"],
    }.items():
        (tmp_path / "rlexp").write_text(f"#!/bin/sh\nprintf '{answer}'\n")
        (tmp_path / "rlexp").chmod(0o755)
        script = f"{INSTALL['zsh']}\nwords=({tmp_path}/rlexp re)\n_rlexp_completion"
        done = subprocess.run(["zsh", "-fc", f"{asked}\n{script}"], text=True, capture_output=True, check=False)
        assert done.stdout.splitlines() == told, done.stderr
