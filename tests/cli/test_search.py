"""Searches: trials chosen by results, pruned, continued to exactly their number, and spaces for every algorithm."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from rlexp.config.check import check_config
from rlexp.config.compose import choices, compose
from rlexp.config.overrides import apply_overrides
from tests.algos.common import some_of
from tests.cli.conftest import PPO, Command
from tests.cli.test_sweeps import table

optuna = pytest.importorskip("optuna")
from rlexp.sweeps.search import Space  # noqa: E402

CONF = Path(__file__).parents[2] / "conf" / "search"
SPACE = ["algo.learning_rate=tag(log,interval(1e-5,1e-1))", "algo.epochs=int(interval(1,4))", "algo.gamma=0.9,0.99"]
TINY = [*PPO, "trainer.total_steps=192", "trainer.eval_interval=64", "trainer.checkpoint_interval=64", "progress=plain"]
SEARCH = ["--multirun", "sweep=optuna", "search=null", "sweep.startup_trials=2", *TINY, *SPACE]


def space(*texts: str) -> Space:
    return Space(OverridesParser.create().parse_overrides(list(texts)))


def test_every_algorithm_has_a_space() -> None:
    assert set(choices("search")) == set(choices("algo"))


@pytest.mark.parametrize("name", some_of(sorted(choices("algo"))))
def test_an_algorithm_accepts_the_ends_of_its_space(name: str) -> None:
    params = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    found = space(*(f"{key}={value}" for key, value in params.items()))
    assert set(found.distributions) == set(params)
    assert any("learning_rate" in key for key in params)
    config = compose([f"algo={name}"])
    for overrides in found.extremes():
        check_config(apply_overrides(config, overrides))


def test_hydras_syntax_is_what_optuna_searches() -> None:
    kinds = optuna.distributions
    found = space("seed=3", "a=tag(log,interval(1e-3,1))", "b=int(interval(2,5))", "c=range(0,10,3)", "d=x,[1,2]")
    assert found.fixed == ["seed=3"]
    assert found.distributions == {
        "a": kinds.FloatDistribution(1e-3, 1.0, log=True),
        "b": kinds.IntDistribution(2, 5),
        "c": kinds.IntDistribution(0, 9, step=3),
        "d": kinds.CategoricalDistribution(["x", "[1,2]"]),
    }
    assert list(found.extremes()) == [["a=0.001", "b=2", "c=0", "d=x"], ["a=1.0", "b=5", "c=9", "d=[1,2]"]]


def trials(sweep: Path) -> list[tuple[dict[str, Any], Any, str]]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(sweep / "optuna.log")))
    study = optuna.load_study(study_name="rlexp", storage=storage)
    return [(trial.params, trial.value, trial.state.name) for trial in study.trials]


def test_a_search_cut_short_goes_on_to_exactly_its_trials_as_if_nothing_had_happened(
    rlexp: Command, tmp_path: Path
) -> None:
    (tmp_path / "stopping.py").write_text(
        "import os, signal, pathlib\n"
        "from rlexp.callbacks import Callback\n\n\n"
        "class StopOnce(Callback):\n"
        "    def on_step(self, trainer):\n"
        "        place = trainer.work.run_dir.path\n"
        "        if place.name == '1' and place.parent.name == 'cut' and trainer.clock == 128:\n"
        "            if not os.path.exists('stopped.txt'):\n"
        "                pathlib.Path('stopped.txt').touch()\n"
        "                os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    callback = "trainer.callbacks=[{_target_: stopping.StopOnce}]"
    whole = rlexp(*SEARCH, callback, "sweep.trials=3", "name=whole")
    assert (whole.code, whole.err) == (0, "")
    cut = rlexp(*SEARCH, callback, "sweep.trials=3", "name=cut")
    assert cut.code == 143
    assert [row[0] for row in table(cut.out).values()] == ["completed", "interrupted"]
    assert [state for _, _, state in trials(tmp_path / "outputs" / "cut")] == ["COMPLETE", "RUNNING"]
    with (tmp_path / "outputs" / "cut" / "optuna.log").open("a") as log:
        log.write('{"torn": ')  # as a kill would leave it
    resumed = rlexp("resume", "cut", "trust=[stopping]")
    assert (resumed.code, resumed.err) == (0, "")
    assert trials(tmp_path / "outputs" / "cut") == trials(tmp_path / "outputs" / "whole")
    assert len(trials(tmp_path / "outputs" / "cut")) == 3
    assert sorted(each.name for each in (tmp_path / "outputs" / "cut").iterdir() if each.name.isdigit()) == list("012")


def test_pruned_trials_are_shown_as_such_and_the_best_is_ready_to_be_run(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp(*SEARCH, "sweep.trials=5", "sweep.prune_after=0.1", "name=found")
    assert answer.code == 0
    found = trials(tmp_path / "outputs" / "found")
    shown = [row[0] for row in table(answer.out).values()]
    assert shown == [{"COMPLETE": "completed", "PRUNED": "pruned"}[state] for _, _, state in found]
    assert "pruned" in shown
    assert f"{shown.count('completed')} of 5 jobs completed, {shown.count('pruned')} pruned" in answer.out
    first = shown.index("pruned")
    summary = json.loads((tmp_path / "outputs" / "found" / str(first) / "summary.json").read_text())
    assert (summary["status"], summary["stop_reason"]) == ("completed", "pruned")
    assert summary["env_steps"] < 192
    assert f"outputs/found/{first}  pruned" in rlexp("list", "runs").out
    best = max((value, number) for number, (_, value, state) in enumerate(found) if state == "COMPLETE")[1]
    (command,) = [line.split("command", 1)[1] for line in answer.out.splitlines() if line.startswith("  command ")]
    program, *arguments = shlex.split(command)
    config = compose([each for each in arguments if not each.startswith("progress")])
    assert program == "rlexp"
    assert config["algo"]["learning_rate"] == found[best][0]["algo.learning_rate"]
    assert f"outputs/found/{best} (job {best + 1})" in answer.out


def test_a_trial_that_failed_is_run_again_and_more_can_be_asked_for(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(
        "import os\nfrom rlexp.callbacks import Callback\n\n\n"
        "class Flaky(Callback):\n"
        "    def on_start(self, trainer):\n"
        "        if trainer.work.run_dir.path.name == '1' and not os.path.exists('mended'):\n"
        "            from rlexp.errors import EnvError\n"
        "            raise EnvError('not yet')\n"
    )
    callback = "trainer.callbacks=[{_target_: flaky.Flaky}]"
    budget = ["trainer.total_steps=64", "sweep.trials=2", "sweep.pruner=none"]
    answer = rlexp(*SEARCH, *budget, callback, "name=flaky")
    assert answer.code == 1
    assert [row[0] for row in table(answer.out).values()] == ["completed", "failed"]
    (tmp_path / "mended").touch()
    again = rlexp("resume", "flaky", "trust=[flaky]", "sweep.trials=3")
    assert again.code == 0
    assert [row[0] for row in table(again.out).values()] == ["completed"] * 3
    assert [state for _, _, state in trials(tmp_path / "outputs" / "flaky")] == ["COMPLETE"] * 3
    refused = rlexp("resume", "flaky", "trust=[flaky]", "sweep.trials=2")
    assert refused.err == "error: sweep.trials=2: 3 were begun already.\n"


REFUSED = {
    "algo.gamma=0.9,2": "algo.gamma=2: algo.gamma must be at most 1, not 2",
    "algo.gamma=0.9": "There is nothing to search: give values or intervals",
    "algo.gamma=interval(1,0.9)": "algo.gamma=interval(1,0.9) is nothing to search in",
    "algo.gamma=0.9,0.99 trainer.eval_episodes=0": "A search compares evaluations, and trainer.eval_episodes=0",
    "algo.gamma=0.9,0.99 launcher=slurm launcher.cluster=local": "A search learns from earlier trials, so not all",
    "algo.gamma=0.9,0.99 seed=${trainer.total_steps}": "seed=${trainer.total_steps}: a search takes plain values, no",
    "algo.gamma=0.9,0.99 hydra.sweep.subdir=x": "hydra.sweep.subdir: the runs of a search lie in folders 0, 1, …",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_search_that_could_not_run_is_refused_before_anything_is_written(
    typed: str, rlexp: Command, tmp_path: Path
) -> None:
    answer = rlexp("--multirun", "sweep=optuna", "search=null", *TINY, *typed.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {REFUSED[typed]}")
    assert list(tmp_path.iterdir()) == []


def test_a_strangers_search_reads_nothing_of_this_machine(rlexp: Command, tmp_path: Path) -> None:
    rlexp(*SEARCH, "trainer.total_steps=64", "sweep.trials=1", "name=theirs")
    path = tmp_path / "outputs" / "theirs" / "sweep.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"arguments": [*info["arguments"], "env.id=${oc.env:HOME}"]}))
    answer = rlexp("resume", "theirs", "sweep.trials=2")
    assert "holds an interpolation" in answer.err
    path.write_text(json.dumps(info | {"arguments": [*info["arguments"], "hydra.searchpath=[pkg://theirs]"]}))
    assert "changes how configs are found" in rlexp("resume", "theirs", "sweep.trials=2").err
    path.write_text(json.dumps(info | {"jobs": []}))
    log = tmp_path / "outputs" / "theirs" / "optuna.log"
    lines = [line.replace('\\"0.9', '\\"${oc.env:HOME}') for line in log.read_text().splitlines(keepends=True)]
    log.write_text("".join(lines))
    assert "optuna.log does not fit sweep.json" in rlexp("resume", "theirs", "sweep.trials=2").err
    log.write_text("".join(line for line in lines if json.loads(line)["op_code"] != 6))  # as if it had no result yet
    assert "optuna.log holds an interpolation" in rlexp("resume", "theirs", "sweep.trials=2").err
    path.write_text(json.dumps(info))
    log.rename(tmp_path / "elsewhere.log")
    log.symlink_to(tmp_path / "elsewhere.log")
    assert "is a symbolic link" in rlexp("resume", "theirs", "sweep.trials=2").err
