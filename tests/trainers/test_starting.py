"""From offline to online: runs that start with the agent of an earlier one."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.checkpoint import identity, load_checkpoint
from rlexp.config.compose import compose
from rlexp.config.continuing import other_loop
from rlexp.config.trust import EVERYTHING, trusting
from rlexp.datasets.files import save_npz
from rlexp.errors import CheckpointError, ConfigError, RlexpError, RunError, UntrustedError
from rlexp.loading import load
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.collecting import Collector
from rlexp.trainers.workspace import Interrupted
from tests.damage import flip_bit
from tests.trainers.recording import (
    changed,
    composed,
    counting_config,
    rows_of,
    small_config,
    train,
    watch,
    without_time,
)

LISTENER = "tests.trainers.recording.Listener"
ALGORITHMS = ["iql", "awac", "cal_ql", "cql", "td3_bc", "rebrac", "sac_n"]


def pendulum(algo: str, loop: str, *overrides: str, **settings: Any) -> dict[str, Any]:
    dataset = ["dataset=random"] if loop != "replay" else ["dataset=null"]
    config = composed(f"algo={algo}", "env=pendulum", f"trainer={loop}", *dataset, *overrides, "model.hidden=[8]")
    small = {"env__max_episode_steps": 10, "trainer__batch_size": 8, "trainer__log_interval": 4}
    small |= {"trainer__eval_episodes": 1, "trainer__eval_interval": 8, "trainer__checkpoint_interval": 8}
    if loop == "offline":
        small |= {"trainer__total_updates": 12}
    else:
        small |= {"trainer__total_steps": 16, "trainer__learning_starts": 6}
    if loop != "replay":
        small |= {"dataset__size": 60}
    return changed(config, **(small | settings))


def offline(algo: str, path: Path, *overrides: str, **settings: Any) -> Path:
    Runner(pendulum(algo, "offline", *overrides, **settings)).train(path)
    return path


def parts_of(path: Path) -> dict[str, Any]:
    """What the algorithm of a checkpoint consists of, beside its random numbers."""
    state = load_checkpoint(path).tree["policy"]["algo"]
    return {name: part for name, part in state.items() if name != "generator"}


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else bool(np.all(left == right))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_offline_agent_goes_on_in_both_online_loops_and_acts_by_its_policy_from_the_first_step(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = offline(algo, tmp_path / "offline")
    for loop in ("replay", "mixed"):
        runner = Runner(pendulum(algo, loop, init_from=str(source), seed=5, trainer__keep_checkpoints=9))
        monkeypatch.setattr("rlexp.policy.Policy.random_action", None)  # nobody may ask for random actions
        runner.train(tmp_path / loop)
        begun = tmp_path / loop / "checkpoints" / "step_000000000000"
        assert equal(parts_of(begun), parts_of(source / "checkpoints" / "last"))
        rows = rows_of(tmp_path / loop)
        assert [row["step"] for row in rows] == [12 + row["env_steps"] for row in rows]
        assert [row["step"] for row in rows_of(source)] == [4, 8, 8, 12, 12]
        assert "eval/return_mean" in rows[0]  # of the agent as it came
        shares = {row.get("batch/offline_share") for row in rows if row["updates"]}
        assert shares - {None} == ({0.5} if loop == "mixed" else set())
        assert runner.algo.updates == 12 + rows[-1]["updates"] == 12 + 10


def test_where_the_agent_came_from_is_recorded(tmp_path: Path) -> None:
    source = offline("iql", tmp_path / "offline")
    Runner(pendulum("iql", "mixed", init_from=str(source))).train(tmp_path / "online")
    recorded = json.loads((tmp_path / "online" / "run.json").read_text())["init_from"]
    where = (source / "checkpoints" / "last").resolve()
    assert (recorded["path"], recorded["sha256"], recorded["step"]) == (str(where), identity(where), 12)
    assert recorded["run"] == json.loads((source / "run.json").read_text())["run_id"]
    Runner(pendulum("iql", "replay", init_from=str(tmp_path / "online"))).train(tmp_path / "third")
    assert rows_of(tmp_path / "third")[-1]["step"] == 12 + 16 + 16


@pytest.mark.parametrize("loop", ["replay", "mixed"])
def test_resume_is_exact_and_needs_the_earlier_run_no_more(loop: str, tmp_path: Path) -> None:
    source = offline("iql", tmp_path / "offline", "dataset.obs=standardize")

    def config(**settings: Any) -> dict[str, Any]:
        callbacks = [{"_target_": LISTENER, "signal_at": -1}]
        return pendulum("iql", loop, init_from=str(source), trainer__callbacks=callbacks, **settings)

    whole = train(config(), tmp_path / "whole")
    broken = config()
    broken["trainer"]["callbacks"][0]["signal_at"] = 11
    with pytest.raises(Interrupted):
        Runner(broken).train(tmp_path / "broken")
    shutil.rmtree(source)
    resume_run(tmp_path / "broken", trust=EVERYTHING)
    assert without_time(rows_of(tmp_path / "broken")) == without_time(rows_of(tmp_path / "whole"))
    ended = [parts_of(tmp_path / name / "checkpoints" / "last") for name in ("whole", "broken")]
    assert equal(*ended)
    loaded = load(tmp_path / "broken", trust=EVERYTHING)  # it brings its statistics along
    policy = loaded.runner.policy(loaded.checkpoint.tree["policy"])
    ours, theirs = (each.obs_normalizer.norms[""] for each in (policy, whole.trainer.policy))
    assert torch.equal(ours.mean, theirs.mean)


def test_a_run_killed_before_it_kept_its_agent_begins_with_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = offline("iql", tmp_path / "offline")
    for name in ("same", "other"):
        with monkeypatch.context() as patch:
            patch.setattr("rlexp.trainers.base.Trainer.train", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                Runner(pendulum("iql", "mixed", init_from=str(source))).train(tmp_path / name)
    resume_run(tmp_path / "same", trust=EVERYTHING)
    assert rows_of(tmp_path / "same")[0]["step"] == 12
    where = (source / "checkpoints" / "last").resolve()
    shutil.rmtree(where)
    shutil.copytree(tmp_path / "same" / "checkpoints" / "step_000000000000", where)
    with pytest.raises(RunError, match="has changed"):
        resume_run(tmp_path / "other", trust=EVERYTHING)


def test_statistics_and_reward_scale_stay_those_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = offline(
        "iql", tmp_path / "offline", "dataset.obs=standardize", dataset__reward="scale", dataset__reward_scale=0.25
    )
    saved = load_checkpoint(source / "checkpoints" / "last").tree["policy"]["obs_normalizer"]
    for loop in ("replay", "mixed"):
        rewards: list[float] = []
        with monkeypatch.context() as patch:
            seen = watch(patch)
            patch.setattr(Collector, "step", noting(rewards, Collector.step))
            runner = train(pendulum("iql", loop, init_from=str(source), seed=3), tmp_path / loop)
        normalizer = runner.trainer.policy.obs_normalizer
        assert normalizer.fixed
        assert equal(normalizer.state_dict(), saved)
        learned = {round(value, 5) for batch in seen.batches for value in batch.reward[-4:].tolist()}
        assert learned <= {round(0.25 * reward, 5) for reward in rewards}


def test_other_rewards_than_those_that_values_were_learned_by_are_refused(tmp_path: Path) -> None:
    source = offline("iql", tmp_path / "offline")
    changes = {"init_from": str(source), "dataset__reward": "scale", "dataset__reward_scale": 0.1}
    with pytest.raises(ConfigError, match=r"makes r · 0.1 \+ 0 .* learned its values from r · 1 \+ 0"):
        Runner(pendulum("iql", "mixed", **changes)).train(tmp_path / "online")
    assert not (tmp_path / "online").exists()


def noting(rewards: list[float], step: Any) -> Any:
    """A step that writes down its rewards."""

    def noted(*given: Any) -> Any:
        result = step(*given)
        rewards.extend(result.reward.tolist())
        return result

    return noted


def other_algorithm(source: Path) -> dict[str, Any]:
    return pendulum("awac", "mixed", init_from=str(source))


def other_spaces(source: Path) -> dict[str, Any]:
    return small_config("iql", "mixed", init_from=str(source))  # on CartPole


def other_networks(source: Path) -> dict[str, Any]:
    return pendulum("iql", "mixed", init_from=str(source), model__hidden=[4])


def other_statistics(source: Path) -> dict[str, Any]:
    return pendulum("iql", "mixed", init_from=str(source), env__normalize_obs=True)


def damaged(source: Path) -> dict[str, Any]:
    where = (source / "checkpoints" / "last").resolve()
    flip_bit("policy.safetensors", 0)(where, where, where)
    return pendulum("iql", "mixed", init_from=str(where))


def nothing_there(source: Path) -> dict[str, Any]:
    return pendulum("iql", "mixed", init_from=str(source / "nothing"))


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (other_algorithm, ConfigError, "an agent of IQL, and this run is one of AWAC"),
        (other_spaces, ConfigError, "has other observations"),
        (other_networks, CheckpointError, r"model\.hidden \[8\] → \[4\]"),
        (other_statistics, CheckpointError, r"without env\.normalize_obs"),
        (damaged, CheckpointError, "policy.safetensors"),
        (nothing_there, RlexpError, "there is no such run"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused_before_anything_is_written(
    make: Any, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    source = offline("iql", tmp_path / "offline")
    with pytest.raises(kind, match=says):
        Runner(make(source)).train(tmp_path / "online")
    assert not (tmp_path / "online").exists()


@pytest.mark.parametrize("loop", ["mixed", "replay"])
def test_a_resume_in_another_loop_is_answered_with_the_command_for_it(loop: str, tmp_path: Path) -> None:
    settings = {
        "algo__gamma": 0.9,
        "env__kwargs": {"g": 9.0},
        "buffer__n_step": 2,
        "trainer__eval_episodes": 2,
        "trainer__patience": 7,
        "trainer__callbacks": [{"_target_": LISTENER, "stop_at": 3}],
        "seed": 3,
    }
    source = offline("cal_ql", tmp_path / "offline", **settings)
    before = (source / "run.json").read_bytes()
    budget = ["trainer.total_steps=16", "trainer.learning_starts=8"]
    with pytest.raises(ConfigError, match="goes on in a new run") as refusal:
        resume_run(source, [f"trainer={loop}", *budget], trust=EVERYTHING)
    assert (source / "run.json").read_bytes() == before
    words = shlex.split(str(refusal.value).splitlines()[-1])
    assert words[0] == "rlexp"
    made, old = compose(words[1:]), pendulum("cal_ql", "offline", **settings)
    assert made["init_from"] == str(source)
    assert (made["trainer"]["total_steps"], made["trainer"]["learning_starts"]) == (16, 8)
    for group, node in made.items():
        if group == "trainer":
            both = [key for key in node if key in old[group] and key != "_target_"]
            assert {key: node[key] for key in both} == {key: old[group][key] for key in both}
        elif group not in ("name", "init_from"):
            assert node == (None if (group, loop) == ("dataset", "replay") else old[group]), group
    Runner(made).train(tmp_path / "online")
    with pytest.raises(ConfigError, match="cannot learn in that loop"):
        resume_run(offline("bc", tmp_path / "bc"), [f"trainer={loop}"], trust=EVERYTHING)


def test_the_command_for_another_loop_keeps_choices_beside_settings() -> None:
    asked = "algo=dqn env=atari env.game=breakout buffer=prioritized buffer.alpha=0.5 trainer.batch_size=32 threads=1"
    asked += " logger=[tensorboard] logger.tensorboard.hparams=false compile=false model=impala device=cpu seed=2"
    asked += " algo.schedules.epsilon=null algo.schedules.learning_rate.end=1e-5 trainer.total_steps=9000"
    old = compose([*asked.split(), "name=old", "env.reference_returns=[1.5,30]"])
    refusal = other_loop(old, ["trainer=mixed", "dataset=random", "trainer.batch_size=64"], Path("old"), EVERYTHING)
    made = compose(shlex.split(str(refusal).splitlines()[-1])[1:])
    assert made["dataset"]["_target_"].endswith("RandomDataset")
    assert made["trainer"] == made["trainer"] | old["trainer"] | {
        "_target_": "rlexp.trainers.mixed.Mixed",
        "batch_size": 64,
    }
    same = [key for key in made if key not in ("name", "init_from", "dataset", "trainer")]
    assert {key: made[key] for key in same} == {key: old[key] for key in same}


def test_no_command_is_proposed_that_would_run_code_which_nobody_has_trusted() -> None:
    old = compose(["algo=iql", "env=pendulum"])
    old["trainer"]["callbacks"] = [{"_target_": "os.system", "command": "touch x"}]
    with pytest.raises(UntrustedError, match="os"):
        other_loop(old, ["trainer=mixed"], Path("old"), trusting())


@pytest.mark.parametrize("loop", ["mixed", "replay"])
def test_the_command_for_another_loop_evaluates_by_data_where_it_has_some(loop: str) -> None:
    old = compose(["algo=iql", "env=pendulum", "evaluator=fqe", "evaluator.updates=7", "buffer.capacity=9999"])
    refusal = other_loop(old, [f"trainer={loop}"], Path("old"), EVERYTHING)
    made = compose(shlex.split(str(refusal).splitlines()[-1])[1:])
    assert (made["evaluator"] == old["evaluator"]) == (loop == "mixed")
    assert (made["dataset"] == old["dataset"]) == (loop == "mixed")
    assert made["buffer"] == old["buffer"]


def test_an_agent_trained_without_an_environment_goes_on_in_one_with_its_action_limits(tmp_path: Path) -> None:
    runner = Runner(pendulum("iql", "offline"))
    save_npz(tmp_path / "data.npz", runner.dataset.load(runner.env))  # type: ignore[union-attr]
    alone = ["algo=iql", "env=null", "dataset=npz", f"dataset.path={tmp_path / 'data.npz'}", "model.hidden=[8]"]
    for name, limits in (("seen", []), ("true", ["env.action_limit=2"])):
        Runner(composed(*alone, *limits, trainer__total_updates=2)).train(tmp_path / name)
    with pytest.raises(ConfigError, match=r"Pendulum-v1 takes \[-2\.0\] to \[2\.0\].*env\.action_limit="):
        Runner(pendulum("iql", "mixed", init_from=str(tmp_path / "seen"))).train(tmp_path / "online")
    summary = Runner(pendulum("iql", "mixed", init_from=str(tmp_path / "true"))).train(tmp_path / "online")
    assert summary["env_steps"] == 16
    with pytest.raises(ConfigError, match="in a new run, in the same environment: rlexp trainer=mixed … init_from="):
        resume_run(tmp_path / "true", ["trainer=mixed"], trust=EVERYTHING)


# ---- one clock for both phases, shares of sources, epochs


def test_pretraining_and_steps_lie_behind_each_other_on_one_axis(tmp_path: Path) -> None:
    config = counting_config(
        "mixed",
        trainer__offline_pretrain_updates=10,
        trainer__total_steps=20,
        trainer__learning_starts=0,
        trainer__log_interval=5,
        trainer__batch_size=4,
    )
    runner = train(config, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == [5, 10, 15, 20, 25, 30]
    assert [row["batch/offline_share"] for row in rows] == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert runner.trainer.step_key == "step"
    plain = train(counting_config("mixed", trainer__total_steps=8), tmp_path / "plain")
    assert plain.trainer.step_key == "env_steps"


@pytest.mark.parametrize("weights", [None, (3, 1)])
def test_the_share_of_each_source_is_what_lies_in_the_batch(
    weights: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    sources = [{"kind": "random", "size": 30, "seed": 1}, {"kind": "random", "size": 10, "seed": 2}]
    if weights:
        sources = [source | {"weight": weight} for source, weight in zip(sources, weights)]
    config = counting_config("offline", trainer__total_updates=4, trainer__log_interval=1, trainer__batch_size=16)
    config["dataset"] = {"_target_": "rlexp.datasets.combined.CombinedDataset", "sources": sources}
    train(config, tmp_path / "run")
    for row, batch in zip(rows_of(tmp_path / "run"), seen.batches, strict=True):
        first = (batch.index < 30).float().mean().item()
        assert (row["batch/source_0_share"], row["batch/source_1_share"]) == (first, 1 - first)


def test_a_budget_of_epochs_draws_as_many_transitions_as_the_data_have(tmp_path: Path) -> None:
    epochs = {"trainer__total_updates": None, "trainer__batch_size": 8, "trainer__log_interval": 5}
    train(counting_config("offline", trainer__total_epochs=2.0, **epochs), tmp_path / "run")  # of 60 transitions
    assert rows_of(tmp_path / "run")[-1]["updates"] == 15
    summary = resume_run(tmp_path / "run", ["trainer.total_epochs=2.5"], trust=EVERYTHING)
    assert (summary["updates"], summary["stop_reason"]) == (19, "budget")
    with pytest.raises(RunError, match=r"trainer.total_epochs=1"):
        resume_run(tmp_path / "run", ["trainer.total_epochs=1"], trust=EVERYTHING)
    for settings, says in (
        ({"trainer__total_epochs": 2.0}, r"set trainer.total_updates=null"),
        ({"trainer__total_updates": None}, "both null"),
    ):
        with pytest.raises(ConfigError, match=says):
            Runner(counting_config("offline", **settings))


def test_schedules_of_a_budget_of_epochs_end_with_it(tmp_path: Path) -> None:
    config = counting_config(
        "offline",
        trainer__total_updates=None,
        trainer__total_epochs=1.0,
        trainer__batch_size=6,
        trainer__log_interval=10,
        algo__schedules={"rate": {"shape": "linear", "end": 0.0}},
    )
    train(config, tmp_path / "run")
    assert rows_of(tmp_path / "run")[-1]["schedule/rate"] == pytest.approx(0.1)  # that of the last of ten updates
