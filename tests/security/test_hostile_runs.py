"""A damaged or hostile run directory is refused by every surface: nothing is executed, nothing is overwritten."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from rlexp import Agent, cli
from rlexp.checkpoint import load_checkpoint
from rlexp.datasets.replay import read_memory
from rlexp.errors import RlexpError
from tests import damage
from tests.damage import HOSTILE_HEADERS, Damage, forge_sums
from tests.security.hostile import (
    RUN_SURFACES,
    Scene,
    alarm,
    command,
    content,
    edit_json,
    forge_state,
    in_turn,
    names_of,
    newest,
    replace,
    setting,
    without,
)

Change = Callable[[Path], Any]


def test_what_is_not_damaged_opens_through_every_surface(scene: Scene) -> None:
    """Or the refusals below would show nothing."""
    for name in ("ppo", "dqn", "crr"):
        run = scene.copy(name)
        before = content(scene.folder)
        command("eval", str(run), "episodes=1")
        command("predict", str(run))
        assert Agent.load(run).policy
        command("resume", str(run))  # completed: it says so
        assert content(scene.folder) == before
    assert len(read_memory(scene.folder / "dqn")) == 120
    command("resume", str(run), "trainer.total_updates=12")
    assert content(scene.folder) != before


# -- damaged files of a checkpoint


CHECKPOINT_FILES = ("checkpoint.json", "config.yaml", "checksums.json", "policy.safetensors", "loop.safetensors")
SEGMENT = "buffer-0-59.safetensors"


def sparse(name: str, size: int = 2**40) -> Damage:
    """A terabyte that takes no room on the disk: reading it would take the night, or all the memory."""

    def harm(folder: Path, other: Path, marker: Path) -> None:
        with open(folder / name, "r+b") as file:
            file.truncate(size)

    return harm


def file_damages(name: str) -> dict[str, Damage]:
    found: dict[str, Damage] = {f"cut to {part:.0%}": damage.truncate(name, part) for part in (0.0, 0.1, 0.5, 0.9, 1.0)}
    found |= {f"bit flip {seed}": damage.flip_bit(name, seed) for seed in range(5)}
    return found | {
        "byte appended": damage.append(name, b"\0"),
        "deleted": damage.delete(name),
        "zeros": damage.zero(name),
        "link": damage.link_out(name),
        "folder": damage.to_folder(name),
        "pipe": damage.to_pipe(name),
        "pickle": damage.to_pickle(name),
        "sparse terabyte": sparse(name),
    }


DAMAGED = in_turn((name, kind) for name in CHECKPOINT_FILES for kind in [*file_damages(name), "swapped"])


@pytest.mark.parametrize(("which", "surface"), DAMAGED, ids=names_of(DAMAGED))
def test_a_damaged_file_of_a_checkpoint_is_refused(scene: Scene, which: tuple[str, str], surface: str) -> None:
    name, kind = which
    run, other = scene.copy("ppo"), scene.copy("other")
    harm = damage.swap(name) if kind == "swapped" else file_damages(name)[kind]
    harm(newest(run), newest(other), scene.marker)
    blamed = CHECKPOINT_FILES if name == "checksums.json" else (name,)  # a wrong sum is as good as a wrong file
    scene.refused(run, surface, *blamed)
    scene.refused(newest(run), "Agent.load", *blamed)


SEGMENTS = in_turn(file_damages(SEGMENT), ("eval", "resume", "read_memory"))


@pytest.mark.parametrize(("kind", "surface"), SEGMENTS, ids=names_of(SEGMENTS))
def test_a_damaged_replay_segment_is_refused(scene: Scene, kind: str, surface: str) -> None:
    run = scene.copy("dqn")
    for folder in run.glob("checkpoints/step_*"):  # both checkpoints hold it
        file_damages(SEGMENT)[kind](folder, folder, scene.marker)
        shutil.rmtree(scene.folder / "elsewhere", ignore_errors=True)
    scene.refused(run, surface, SEGMENT)


# -- damaged files of the run itself


# Nobody can see a changed digit in a file without a checksum, so these are the damages that show in its form.
VISIBLE = ("cut to 0%", "cut to 10%", "cut to 50%", "zeros", "link", "folder", "pipe", "pickle", "sparse terabyte")
OPENED = [("run.json", kind) for kind in (*VISIBLE, "deleted")]
OPENED += [("config.yaml", kind) for kind in file_damages("config.yaml")]
RESUMED = [("status.json", kind) for kind in VISIBLE] + [("metrics.jsonl", kind) for kind in (*VISIBLE, "deleted")]
DAMAGED_RUNS = in_turn(OPENED) + in_turn(RESUMED, ("resume",))  # the others do not read how a run stands


@pytest.mark.parametrize(("which", "surface"), DAMAGED_RUNS, ids=names_of(DAMAGED_RUNS))
def test_a_damaged_file_of_a_run_is_refused(scene: Scene, which: tuple[str, str], surface: str) -> None:
    name, kind = which
    run = scene.copy("ppo")
    file_damages(name)[kind](run, run, scene.marker)
    scene.refused(run, surface, name)


@pytest.mark.parametrize("seed", range(12))
def test_a_bit_flip_in_run_json_is_refused_or_changes_nothing_that_counts(scene: Scene, seed: int) -> None:
    run = scene.copy("ppo")
    damage.flip_bit("run.json", seed)(run, run, scene.marker)
    before = content(scene.folder)
    try:
        command("eval", str(run), "episodes=1")
    except RlexpError as error:
        message = str(error)
    else:
        message = "run.json was still good"
    assert "run.json" in message or "config.yaml" in message
    assert content(scene.folder) == before


HOSTILE_INFO: dict[str, Any] = {
    "format_version": [0, 2, "1", None, [1]],
    "run_id": ["../../x", "", None, 5, "a" * 13, "*", "-" * 12],
    "decisions": [None, 5, {}, *[{"compile": False, "threads": 1, "device": "cpu"} | wrong for wrong in (
        {"compile": 0}, {"compile": None}, {"threads": 0}, {"threads": 10**9}, {"threads": "auto"}, {"threads": True},
        {"device": 5}, {"device": None})]],
    "resumes": [None, {}, "x"],
    "config_sha256": [None, "0" * 64, 5],
}  # fmt: skip
HOSTILE_INFOS = [(key, value) for key, values in HOSTILE_INFO.items() for value in values]


@pytest.mark.parametrize(("key", "value"), HOSTILE_INFOS, ids=[f"{key}={value!r}" for key, value in HOSTILE_INFOS])
def test_a_hostile_entry_of_run_json_is_refused(scene: Scene, key: str, value: Any) -> None:
    run = scene.copy("ppo")
    edit_json(run / "run.json", lambda info: info.update({key: value}))
    scene.refused(run, "resume", "run.json", "config.yaml")


@pytest.mark.parametrize("status", ["done", "", 5, ["completed"], {"a": 1}, True])
def test_a_status_that_is_none_is_refused(scene: Scene, status: Any) -> None:
    run = scene.copy("ppo")
    edit_json(run / "status.json", lambda found: found.update(status=status))
    scene.refused(run, "resume", "status.json")


# -- things in the wrong place


def test_a_checkpoint_of_another_run_is_refused(scene: Scene) -> None:
    run, other = scene.copy("ppo"), scene.copy("other")
    shutil.rmtree(newest(run))
    shutil.copytree(newest(other), run / "checkpoints" / newest(other).name)
    for surface in RUN_SURFACES:
        assert "another run" in scene.refused(run, surface, newest(run).name)


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_a_file_of_another_run_is_refused(scene: Scene, name: str) -> None:
    run, other = scene.copy("ppo"), scene.copy("other")
    shutil.copy(other / name, run / name)
    for surface in RUN_SURFACES:
        scene.refused(run, surface, "config.yaml")


@pytest.mark.parametrize("link", ["last", "best"])
def test_a_link_that_leads_out_of_the_run_is_never_followed(scene: Scene, link: str) -> None:
    run, other = scene.copy("ppo"), scene.copy("other")
    path = run / "checkpoints" / link
    for target in (newest(other), Path("../../other/checkpoints/last"), Path(".."), Path("/")):
        path.unlink()
        path.symlink_to(target)
        before = content(scene.folder)
        if link == "best":
            with pytest.raises(Exception, match="is not a checkpoint of this run"):
                command("eval", str(run), "checkpoint=best", "episodes=1")
        else:  # the run's own newest checkpoint is used, with a warning
            assert Agent.load(run)._checkpoint.path == newest(run)  # type: ignore[union-attr]
        assert content(scene.folder) == before


def test_a_checkpoint_that_is_a_link_is_refused(scene: Scene) -> None:
    run, other = scene.copy("ppo"), scene.copy("other")
    path = newest(run)
    shutil.rmtree(path)
    path.symlink_to(newest(other))
    for surface in RUN_SURFACES:
        scene.refused(run, surface, path.name)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "wandb", "videos", ".lock", "metrics.jsonl"])
def test_a_resume_never_writes_through_a_link(scene: Scene, name: str) -> None:
    run, elsewhere = scene.copy("ppo"), scene.folder / "mine"
    if (run / name).exists():
        shutil.move(run / name, elsewhere)
    else:
        elsewhere.mkdir()
    (run / name).symlink_to(elsewhere)
    scene.refused(run, "resume", name)


def test_a_run_may_be_opened_through_a_link_to_the_whole_of_it(scene: Scene) -> None:
    run = scene.copy("ppo")
    (scene.folder / "short").symlink_to(run)
    command("eval", str(scene.folder / "short"), "episodes=1")
    command("eval", str(scene.folder / "short" / "checkpoints" / "last"), "episodes=1")


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(scene: Scene) -> None:
    run = scene.copy("ppo")
    shutil.rmtree(run / "checkpoints")
    for surface in RUN_SURFACES:
        scene.refused(run, surface, "checkpoint")


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    run = scene.copy("dqn")
    damage.flip_bit("policy.safetensors", 0)(newest(run), newest(run), scene.marker)
    before = content(scene.folder)
    assert Agent.load(run)._checkpoint.path.name == "step_000000000060"  # type: ignore[union-attr]
    assert "policy.safetensors differs from its checksum" in caplog.text
    assert content(scene.folder) == before


# -- malice: every checksum agrees


def forged_file(name: str, data: bytes) -> Change:
    def change(run: Path) -> None:
        replace(newest(run) / name, data)
        forge_sums(newest(run))

    return change


FORGED_ARRAYS = in_turn(("policy.safetensors", what) for what in HOSTILE_HEADERS)
FORGED_ARRAYS += in_turn(((SEGMENT, what) for what in HOSTILE_HEADERS), ("resume", "read_memory"))


@pytest.mark.parametrize(("which", "surface"), FORGED_ARRAYS, ids=names_of(FORGED_ARRAYS))
def test_a_forged_array_file_is_refused(scene: Scene, which: tuple[str, str], surface: str) -> None:
    name, what = which
    run = scene.copy("dqn")
    shutil.rmtree(min(run.glob("checkpoints/step_*")))
    forged_file(name, HOSTILE_HEADERS[what])(run)
    scene.refused(run, surface, name, "checkpoint.json")


PICKLES = in_turn((*CHECKPOINT_FILES[:2], *CHECKPOINT_FILES[3:], "extra.safetensors", "data.pkl", "model.pt", "x.py"))


@pytest.mark.parametrize(("name", "surface"), PICKLES, ids=names_of(PICKLES))
def test_a_pickle_under_a_forged_checksum_is_refused(scene: Scene, name: str, surface: str) -> None:
    run = scene.copy("ppo")
    forged_file(name, damage.malicious_pickle(scene.marker))(run)
    scene.refused(run, surface, name, "checksums.json")


def change_array(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def harm(run: Path) -> None:
        path = newest(run) / "policy.safetensors"
        arrays = safetensors.numpy.load_file(path)
        arrays[key] = np.ascontiguousarray(change(arrays[key]))
        replace(path, safetensors.numpy.save(arrays))
        forge_sums(newest(run))

    return harm


ACTOR = "policy/algo/actor/layers.0.weight"
ARRAYS: dict[str, Change] = {
    "weights transposed": change_array(ACTOR, np.transpose),
    "weights of another width": change_array(ACTOR, lambda array: array[:8]),
    "weights flat": change_array(ACTOR, np.ravel),
    "weights empty": change_array(ACTOR, lambda array: array[:0]),
    "weights scalar": change_array(ACTOR, lambda array: array.sum()),
    "generator too short": change_array("policy/algo/generator", lambda array: array[:100]),
    "generator of zeros": change_array("policy/algo/generator", np.zeros_like),
    "generator of floats": change_array("policy/algo/generator", lambda array: array.astype(np.float32)),
    "moments of another shape": change_array("policy/algo/optimizer/exp_avg/0", lambda array: array[:3]),
    "step a vector": change_array("policy/algo/optimizer/step", lambda array: np.zeros((3,), np.float32)),
}


@pytest.mark.parametrize(("what", "surface"), in_turn(ARRAYS), ids=names_of(in_turn(ARRAYS)))
def test_arrays_that_do_not_fit_the_networks_are_refused(scene: Scene, what: str, surface: str) -> None:
    run = scene.copy("ppo")
    ARRAYS[what](run)
    if what.startswith("generator"):
        surface = "resume"  # only who learns on needs it
    assert newest(run).name in scene.refused(run, surface, "does not fit the config")


def test_weights_that_are_not_numbers_are_only_bad_weights(scene: Scene) -> None:
    run = scene.copy("ppo")
    change_array(ACTOR, lambda array: array * np.nan)(run)
    command("eval", str(run), "episodes=1")


def state(*keys: Any, value: Any) -> Change:
    return lambda run: forge_state(run, setting("state", *keys, value=value))


def no_state(*keys: Any) -> Change:
    return lambda run: forge_state(run, without("state", *keys))


# What every surface needs.
POLICY_STATE: dict[str, Change] = {
    **{f"policy {value!r}": lambda run, value=value: forge_policy(run, value) for value in (None, [], "x", 3)},
    "actor null": lambda run: forge_part(run, "actor", None),
    "actor text": lambda run: forge_part(run, "actor", "x"),
    "actor list": lambda run: forge_part(run, "actor", [1, 2]),
    "optimizer null": lambda run: forge_part(run, "optimizer", None),
    "optimizer empty": lambda run: forge_part(run, "optimizer", {}),
    "generator text": lambda run: forge_part(run, "generator", "torch.load"),
    "updates negative": state("policy", "algo", "updates", value=-1),
    "updates text": state("policy", "algo", "updates", value="os.system"),
    "updates null": state("policy", "algo", "updates", value=None),
    "an unknown layer": state("policy", "algo", "actor", "layers.9.weight", value=5),
    "a marker that names code": state("policy", "algo", "updates", value={"@array": "os.system"}),
}  # fmt: skip


def forge_policy(run: Path, value: Any) -> None:
    """Replace the whole policy, and take its arrays away with it."""
    (newest(run) / "policy.safetensors").unlink()
    forge_state(run, setting("state", "policy", value=value))


def forge_part(run: Path, part: str, value: Any) -> None:
    path = newest(run) / "policy.safetensors"
    arrays = {name: array for name, array in safetensors.numpy.load_file(path).items() if f"algo/{part}" not in name}
    replace(path, safetensors.numpy.save(arrays))
    forge_state(run, setting("state", "policy", "algo", part, value=value))


@pytest.mark.parametrize(("what", "surface"), in_turn(POLICY_STATE), ids=names_of(in_turn(POLICY_STATE)))
def test_a_forged_policy_state_is_refused(scene: Scene, what: str, surface: str) -> None:
    run = scene.copy("ppo")
    POLICY_STATE[what](run)
    if what.startswith("generator"):
        surface = "resume"  # only who learns on needs it
    assert newest(run).name in scene.refused(run, surface, "policy", "checkpoint.json", "does not fit the config")


SPECS: dict[str, Change] = {
    "no spec": no_state("spec"),
    "spec null": state("spec", value=None),
    "spec text": state("spec", value="CartPole-v1"),
    "another observation": state("spec", "obs", "single", value=False),
    "another action": state("spec", "action", "nvec", value=[10**9]),
}


@pytest.mark.parametrize("what", SPECS)
def test_a_policy_for_other_spaces_is_refused(scene: Scene, what: str) -> None:
    run = scene.copy("ppo")
    SPECS[what](run)
    scene.refused(run, "Agent.load", "CartPole-v1")


ENV = ("loop", "collector", "envs", "envs", 0)
PROGRESS_STATE: dict[str, Change] = {
    **{f"no {key}": no_state(key) for key in ("progress", "callbacks")},
    **{f"progress without {key}": no_state("progress", key) for key in ("env_steps", "rows", "episodes", "best_eval")},
    **{f"{key} {value!r}": state("progress", key, value=value)
       for key in ("env_steps", "updates", "rows") for value in (-1, 10**30, 1.5, "1", None, True)},
    "more rows than there are": state("progress", "rows", value=10**6),
    "seconds negative": state("progress", "seconds", value=-5.0),
    "seconds text": state("progress", "seconds", value="soon"),
    "episodes of text": state("progress", "episodes", value=[["a", "b"]]),
    "episodes of three": state("progress", "episodes", value=[[1.0, 2, 3]]),
    "episodes null": state("progress", "episodes", value=None),
    "metrics of text": state("progress", "metrics", value={"loss": "x"}),
    "metrics a list": state("progress", "metrics", value=[1]),
    "evaluation without a return": state("progress", "best_eval", value={"episodes": 1}),
    "evaluation of text": state("progress", "last_eval", value={"return_mean": "best"}),
    "evaluation a list": state("progress", "last_eval", value=[1]),
    "clock before the beginning": state("progress", "last_eval_clock", value=-2),
    "stop reason a list": state("progress", "stop_reason", value=["budget"]),
    "callbacks that are not there": state("callbacks", value=[{"x": 1}]),
    "callbacks null": state("callbacks", value=None),
    "loop null": lambda run: forge_loop(run, None),
    "loop empty": lambda run: forge_loop(run, {}),
    "no environments": lambda run: forge_loop(run, {"collector": {"envs": {"envs": []}, "carry": None}}),
    "environments of another kind": lambda run: forge_loop(run, {"collector": {"envs": 5, "carry": None}}),
    "an environment too many": lambda run: forge_loop(run, {"collector": {"envs": {"envs": [{}, {}]}, "carry": None}}),
    "an environment that is empty": lambda run: forge_loop(run, {"collector": {"envs": {"envs": [{}]}, "carry": None}}),
    "environment of another index": state(*ENV, "index", value=3),
    "environment with a negative episode": state(*ENV, "episode", value=-1),
    "environment seeded with text": state(*ENV, "seed", value="__import__('os')"),
    "environment with another length": state(*ENV, "length", value=10**9),
    "environment with more": state(*ENV, "more", value=1),
}  # fmt: skip


def forge_loop(run: Path, value: Any) -> None:
    (newest(run) / "loop.safetensors").unlink()
    forge_state(run, setting("state", "loop", value=value))


@pytest.mark.parametrize("what", PROGRESS_STATE)
def test_a_forged_state_of_the_training_is_refused(scene: Scene, what: str) -> None:
    run = scene.copy("ppo")
    PROGRESS_STATE[what](run)
    scene.refused(run, "resume", newest(run).name, "metrics.jsonl")


def impossible_actions(run: Path) -> None:
    """The running episode is said to have been played with actions that do not exist."""
    path = newest(run) / "loop.safetensors"
    arrays = safetensors.numpy.load_file(path)
    (name,) = (name for name in arrays if name.endswith("actions"))
    arrays[name] = np.full((5,), 77, arrays[name].dtype)
    replace(path, safetensors.numpy.save(arrays))
    forge_state(run, setting("state", *ENV, "length", value=5))


BUFFER = ("loop", "buffer")
MEMORY: dict[str, Change] = {
    "no buffer": lambda run: forge_memory(run, None),
    "buffer a list": lambda run: forge_memory(run, []),
    "buffer empty": lambda run: forge_memory(run, {}),
    **{f"{key} {value!r}": state(*BUFFER, key, value=value)
       for key in ("rows", "num_envs", "max_rows", "next_end") for value in (-1, 10**15, "1", None, True)},
    "more ends than rows": state(*BUFFER, "next_end", value=10**6),
    "generator null": state(*BUFFER, "generator", value=None),
    "generator of another kind": state(*BUFFER, "generator", "bit_generator", value="MT19937"),
    "generator out of range": state(*BUFFER, "generator", "state", "state", value=2**200),
    "no segments": lambda run: forge_segments(run, []),
    "a segment missing": lambda run: forge_segments(run, [SEGMENT]),
    "a segment twice": lambda run: forge_segments(run, [SEGMENT, SEGMENT]),
    "a segment out of the folder": lambda run: forge_segments(run, ["../x-0-1.safetensors"]),
}  # fmt: skip


def forge_memory(run: Path, value: Any) -> None:
    path = newest(run) / "loop.safetensors"
    arrays = {name: array for name, array in safetensors.numpy.load_file(path).items() if "/buffer/" not in name}
    replace(path, safetensors.numpy.save(arrays))
    forge_state(run, setting("state", *BUFFER, value=value))


def forge_segments(run: Path, names: list[str]) -> None:
    for path in newest(run).glob("buffer-*"):
        if path.name not in names:
            path.unlink()
    forge_state(run, lambda document: document.update(segments=names))


FORGED_MEMORY = [("an impossible action", "resume"), *in_turn(MEMORY, ("resume", "read_memory", "read_memory"))]


@pytest.mark.parametrize(("what", "surface"), FORGED_MEMORY, ids=names_of(FORGED_MEMORY))
def test_a_forged_replay_memory_is_refused(scene: Scene, what: str, surface: str) -> None:
    run = scene.copy("dqn")
    shutil.rmtree(min(run.glob("checkpoints/step_*")))
    (impossible_actions if what == "an impossible action" else MEMORY[what])(run)
    scene.refused(run, surface, newest(run).name)


def test_a_checkpoint_that_was_only_saved_holds_no_memory_to_learn_from(scene: Scene) -> None:
    saved = Agent.load(scene.copy("dqn")).save(scene.folder / "saved")
    scene.refused(saved, "read_memory", "holds no replay memory")


# -- listing


SUMMARIES: dict[str, Callable[[Path], Any]] = {
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "link to itself": lambda path: path.symlink_to(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "pickle": lambda path: path.write_bytes(damage.malicious_pickle(path.with_name("executed"))),
    "list": lambda path: path.write_text("[1]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "text for numbers": lambda path: path.write_text('{"env_steps": "many", "updates": [], "wall_time_s": "long"}'),
    "numbers without end": lambda path: path.write_text(
        '{"env_steps": 1e999, "updates": NaN, "wall_time_s": Infinity, "eval": 5, "best_eval": {"return_mean": []}}'
    ),
    "a number of 4000 digits": lambda path: path.write_text(f'{{"env_steps": {"9" * 4000}}}'),
    "escape sequences": lambda path: path.write_text(
        '{"env_steps": 1, "updates": 1, "wall_time_s": 1, "algo": "\\u001b[2J[bold]x[/red]", "status": "\\u0007"}'
    ),
}


@pytest.mark.parametrize("what", SUMMARIES)
def test_a_listing_of_runs_survives_a_strangers_summary(
    scene: Scene, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = scene.copy("ppo"), scene.copy("other")
    (run / "summary.json").unlink()
    SUMMARIES[what](run / "summary.json")
    before = content(scene.folder)
    with alarm() as heard:
        assert cli.dispatch(["list", "runs", str(scene.folder)]) == 0
    output = capsys.readouterr().out
    assert not heard
    assert content(scene.folder) == before
    assert str(scene.folder / "other") in output
    assert "\x1b" not in output
    assert "damaged" in output or what == "escape sequences"


# -- counting


def test_there_are_enough_kinds_of_damage() -> None:
    files = [DAMAGED, SEGMENTS, DAMAGED_RUNS, FORGED_ARRAYS, PICKLES, ARRAYS]
    assert sum(map(len, [*files, HOSTILE_INFOS, POLICY_STATE, SPECS, PROGRESS_STATE, FORGED_MEMORY])) >= 300


def test_the_originals_are_whole_after_all(originals: Path) -> None:
    for name in ("ppo", "dqn", "crr", "other"):
        assert os.path.isdir(originals / name)
        load_checkpoint(newest(originals / name))
        assert json.loads((originals / name / "status.json").read_text())["status"] == "completed"
