"""Train, then evaluate, predict and resume: what each prints, writes and exits with."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from PIL import Image

from rlexp.config.compose import compose
from rlexp.run_dir import RunDir
from rlexp.runner import Runner
from tests.cli.conftest import INTERVALS, PPO, QUICK, Answer, Command, start

# ---- train


def test_a_first_run_works_and_says_where_everything_is(trained_once: tuple[Path, Answer]) -> None:
    path, answer = trained_once
    assert (answer.code, answer.err) == (0, "")
    assert "completed" in answer.out
    for said in ("outputs/first", "outputs/first/checkpoints/last", "outputs/first/metrics.jsonl", "rlexp eval"):
        assert said in answer.out
    assert sorted(each.name for each in path.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.yaml",
        "metrics.jsonl",
        "run.json",
        "status.json",
        "summary.json",
    ]
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["status"], summary["algo"], summary["env"]) == ("completed", "ppo", "CartPole-v1")
    assert (summary["env_steps"], summary["eval"]["episodes"]) == (256, 2)
    assert json.loads((path / "run.json").read_text())["command"][:3] == ["rlexp", "algo=ppo", "env=cartpole"]
    assert sorted(each.name for each in (path / "checkpoints").iterdir()) == [
        "best",
        "last",
        "step_000000000128",
        "step_000000000256",
    ]


@pytest.mark.parametrize(
    ("capacity", "said"),
    [(100, "100 transitions of 37 bytes, 0.0 MB when full."),
     (20_000, "160 transitions of 37 bytes, 0.0 MB at the end of this run (room for 20,000).")],
)  # fmt: skip
def test_the_memory_is_told_for_as_much_as_the_run_will_store(capacity: int, said: str, rlexp: Command) -> None:
    few = {"total_steps": 160, "learning_starts": 80, "batch_size": 8, "eval_episodes": 0}
    trainer = [f"trainer.{key}={value}" for key, value in few.items()]
    answer = rlexp("algo=dqn", "env=cartpole", f"buffer.capacity={capacity}", *trainer, *QUICK)
    assert answer.code == 0, answer.err
    assert f"Replay memory: {said}" in answer.out


def test_the_saved_config_has_plain_values_only(trained_once: tuple[Path, Answer]) -> None:
    text = (trained_once[0] / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert "${" not in text
    assert config["name"] == "first"
    assert config["algo"]["_target_"] == "rlexp.algos.ppo.PPO"
    assert config["trainer"]["total_steps"] == 256


def test_cfg_job_shows_the_config_and_runs_nothing(rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("algo=ppo", "algo.gamma=0.5", "name=shown", "--cfg", "job")
    assert answer.code == 0
    shown = yaml.safe_load(answer.out)
    assert (shown["algo"]["gamma"], shown["name"], shown["seed"]) == (0.5, "shown", 0)
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_shows_what_a_run_keeps(trained_once: tuple[Path, Answer], rlexp: Command, tmp_path: Path) -> None:
    """In particular no schedule that nobody began."""
    typed = [*PPO, *INTERVALS, "trainer.total_steps=256", "name=first"]
    shown = rlexp(*typed, "--cfg", "job").out
    kept = yaml.safe_load((trained_once[0] / "config.yaml").read_text())
    assert yaml.safe_load(shown) == kept
    assert set(kept["algo"]["schedules"].values()) == {None}
    assert yaml.safe_load(rlexp(*typed, "--cfg=job", "-p", "algo").out) == kept["algo"]
    assert rlexp("--cfg", "job", "-p", "alg").err == "error: --package alg: there is no such part of the config.\n"
    assert "sweep" in rlexp("--cfg", "hydra").out  # Hydra's own answer
    assert list(tmp_path.iterdir()) == []


def test_own_configs_are_found_by_their_folder(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "conf" / "zoo").mkdir(parents=True)
    (tmp_path / "conf" / "zoo" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /algo: ppo, override /env: acrobot, _self_]\nseed: 7\n"
    )
    for flag in (["--config-dir", "conf"], ["--config-dir=conf"], ["-cd", "conf"]):
        shown = yaml.safe_load(rlexp(*flag, "zoo=mine", "--cfg", "job").out)
        assert (shown["seed"], shown["env"]["id"]) == (7, "Acrobot-v1")
    answer = rlexp("--config-dir=conf", "zoo=mine", "algo.gama=1")
    assert (answer.code, answer.err) == (1, "error: algo.gama: PPO has no such setting. Did you mean gamma?\n")
    assert rlexp("--config-dir=conf", "zoo=min").err == "error: zoo=min: there is no such zoo. Did you mean mine?\n"
    answer = rlexp("--config-dir=nowhere", "zoo=mine")
    assert (answer.code, "config folder nowhere" in answer.err) == (1, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(
    number: signal.Signals, code: int, rlexp: Command, tmp_path: Path
) -> None:
    never = ["trainer.total_steps=100_000_000", "trainer.eval_episodes=0", "trainer.checkpoint_interval=0"]
    process = start(*PPO, *never, "trainer.log_interval=64", "name=stopped", cwd=tmp_path)
    path = tmp_path / "outputs" / "stopped"
    try:
        deadline = time.monotonic() + 120
        while not ((path / "metrics.jsonl").exists() and (path / "metrics.jsonl").read_bytes().count(b"\n")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (code, "")
    status = json.loads((path / "status.json").read_text())
    assert (status["status"], status["reason"]) == ("interrupted", number.name)
    assert f"({number.name})\n" in out  # why, in the closing block
    steps = json.loads((path / "summary.json").read_text())["env_steps"]
    checkpoint = RunDir.open(path).load("last")
    assert checkpoint is not None
    assert checkpoint.tree["progress"]["env_steps"] == steps
    answer = rlexp("resume", path, f"trainer.total_steps={steps + 64}")
    assert (answer.code, f"resumed at {steps:,} steps" in answer.out) == (0, True)
    assert json.loads((path / "summary.json").read_text())["env_steps"] == steps + 64


# ---- eval


def evaluated(answer: Answer) -> dict[str, str]:
    """The figures that ``rlexp eval`` printed, by name."""
    assert (answer.code, answer.err) == (0, "")
    return {row[:13].strip(): row[13:].strip() for row in answer.out.splitlines()[1:]}


def test_eval_plays_as_many_episodes_as_it_is_told(rlexp: Command, trained: Path) -> None:
    answer = rlexp("eval", trained, "episodes=3e0")
    assert answer.out.startswith("ppo on CartPole-v1, greedy actions, seed 0\n")
    assert evaluated(answer)["episodes"] == "3"
    assert evaluated(rlexp("eval", trained))["episodes"] == "20"


def test_eval_gives_the_same_result_for_the_same_seed_and_another_for_another(rlexp: Command, trained: Path) -> None:
    for how in ("deterministic=true", "deterministic=false"):
        first, again, other = (
            rlexp("eval", trained, "episodes=5", how, f"seed={seed}").out.splitlines()[1:] for seed in (4, 4, 5)
        )
        assert first == again
        assert first != other


def test_eval_can_sample_actions_as_in_training(rlexp: Command, trained: Path) -> None:
    greedy, sampled = (rlexp("eval", trained, "episodes=5", f"deterministic={how}") for how in ("true", "false"))
    assert "sampled actions" in sampled.out
    as_trained = rlexp("eval", trained, "episodes=5", "evaluator.deterministic=false")  # what training would have done
    assert as_trained.out.splitlines()[1:] == sampled.out.splitlines()[1:]
    assert rlexp("eval", trained, "episodes=5").out.splitlines()[1:] == greedy.out.splitlines()[1:]
    assert evaluated(greedy)["return"] != evaluated(sampled)["return"]


def test_eval_opens_the_checkpoint_it_is_told(rlexp: Command, trained: Path) -> None:
    used = {}
    for which in ("last", "best", "step_000000000128", "step_000000000256"):
        used[which] = evaluated(rlexp("eval", trained, "episodes=1", f"checkpoint={which}"))["checkpoint"]
    assert used["step_000000000128"].endswith("step_000000000128")
    assert used["last"] == used["step_000000000256"]
    assert used["best"] in (used["step_000000000128"], used["step_000000000256"])
    one = evaluated(rlexp("eval", trained / "checkpoints" / "step_000000000128", "episodes=1"))  # a checkpoint by path
    assert one["checkpoint"].endswith("step_000000000128")


def test_eval_takes_overrides_of_the_runs_settings(rlexp: Command, trained: Path) -> None:
    figures = evaluated(rlexp("eval", trained, "episodes=3", "env.max_episode_steps=7", "device=cpu"))
    assert (figures["return"], figures["length"]) == ("7.00 ± 0", "7.00")  # CartPole pays 1 a step


def test_rendering_without_its_package_names_the_line_that_installs_it(
    rlexp: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)  # importing it now fails as if it were not installed
    answer = rlexp("eval", trained, "episodes=1", "render=true")
    line = 'needs the package pygame, which is not installed: pip install "rlexp[classic]"'
    assert (answer.code, answer.out, answer.err) == (1, "", f"error: Showing CartPole-v1 {line}\n")


def test_rendering_without_a_display_says_so_in_one_line(
    rlexp: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "none_such")
    answer = rlexp("eval", trained, "episodes=1", "render=true")
    assert answer.code == 1
    assert answer.err.startswith("error: CartPole-v1 cannot be shown here (error: ")
    assert answer.err.endswith("). It takes a display; leave out render=true to do without.\n")
    assert answer.err.count("\n") == 1


def test_a_video_shows_every_state_of_the_episodes(rlexp: Command, trained: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    pytest.importorskip("pygame")
    answer = rlexp("eval", trained, "episodes=2", "video=true", "env.max_episode_steps=5", "checkpoint=last")
    assert answer.code == 0, answer.err
    (path,) = (trained / "videos").iterdir()
    assert str(path.name) in answer.out
    film = cv2.VideoCapture(str(path))
    shapes = []
    while (read := film.read())[0]:
        shapes.append(read[1].shape)
    assert shapes == [(400, 600, 3)] * 12


def test_a_gif_lies_where_it_is_asked_for(rlexp: Command, trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    answer = rlexp("eval", trained, "episodes=1", "video=new/short.gif", "env.max_episode_steps=5")
    assert answer.code == 0, answer.err
    assert "new/short.gif" in answer.out
    with Image.open(tmp_path / "new" / "short.gif") as image:
        assert (image.size, image.n_frames) == ((320, 213), 2)  # every third of six: 50 a second become 17
    assert not (trained / "videos").exists()


EVAL_MISTAKES = {
    "epsiodes=3": "epsiodes=3: no such option. Did you mean episodes?",
    "episodes=0": "episodes must be at least 1, not 0.",
    "video=perhaps": "video must be true, false, mp4, gif, or the name of a file that ends with .mp4 or .gif, "
    "not perhaps.",
    "episodes=x": "episodes must be a whole number, not x.",
    "deterministic=perhaps": "deterministic must be true or false, not perhaps.",
    "checkpoint=foo": "There is no checkpoint foo in ",
    "env=acrobot": "env=acrobot: a saved run keeps its env, since its checkpoints fit no other. "
    "Start a new run for that: rlexp env=acrobot … Single settings can be changed: env.NAME=…",
    "logger=tensorboard": "logger=tensorboard: no such option.",
    "env.id=Acrobot-v1": "Acrobot-v1 has other observations now than when ",
    "env.idd=Acrobot-v1": "env.idd: the saved run has no such setting. Did you mean id",
    "model.hidden=[8]": "The checkpoint ",
    "algo.gamma=2": "algo.gamma must be at most 1, not 2.0.",
}


@pytest.mark.parametrize("typed", EVAL_MISTAKES)
def test_a_mistake_in_evaluating_is_explained(typed: str, rlexp: Command, trained: Path) -> None:
    answer = rlexp("eval", trained, "episodes=1", typed)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {EVAL_MISTAKES[typed]}")
    assert answer.err.count("\n") == 1
    if typed == "model.hidden=[8]":
        assert "does not fit the config (size mismatch for " in answer.err


@pytest.mark.parametrize("command", ["eval", "predict", "resume"])
def test_a_command_on_a_run_says_what_it_needs(command: str, rlexp: Command, tmp_path: Path) -> None:
    for arguments in ([], ["episodes=3"]):
        answer = rlexp(command, *arguments)
        expected = f"error: rlexp {command} needs a run directory or checkpoint first: rlexp {command} outputs/NAME\n"
        assert (answer.code, answer.err) == (1, expected)
    told = rlexp(command, "nowhere").err
    assert told.startswith(
        f"error: There is no run directory at {tmp_path / 'nowhere'}, nor in outputs/. Check the path"
    )
    (tmp_path / "empty").mkdir()
    assert "is not a run directory: it has no run.json" in rlexp(command, "empty").err


@pytest.mark.parametrize("command", ["eval", "predict", "resume"])
@pytest.mark.parametrize(("typed", "searched"), [("killm", ", nor in outputs/"), ("outputs/killm", "")])
def test_a_mistyped_run_is_answered_with_the_nearest_one(
    command: str, typed: str, searched: str, rlexp: Command, tmp_path: Path
) -> None:
    for name in ("killme", "another"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
    assert rlexp(command, typed).err == (
        f"error: There is no run directory at {tmp_path / typed}{searched}. Did you mean killme? "
        "`rlexp list runs` shows the runs there are.\n"
    )


# ---- predict


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return give


def test_predict_answers_every_line_with_one_line(rlexp: Command, trained: Path, stdin: Any) -> None:
    observations = [[0.0, 0.1, 0.0, 0.0], [0.1, 0.0, -0.2, 0.3], [1, 1, 0, 0]]
    one_by_one = "".join(f"{json.dumps(obs)}\n" for obs in observations)
    stdin(one_by_one + "\n" + json.dumps(observations) + "\n")  # an empty line, then all at once
    answer = rlexp("predict", trained)
    assert (answer.code, answer.err) == (0, "")
    *single, batch = map(json.loads, answer.out.splitlines())
    assert len(single) == 3
    assert set(single) <= {0, 1}
    assert batch == single


def test_predict_can_sample_actions_by_a_seed(rlexp: Command, trained: Path, stdin: Any) -> None:
    outputs = []
    for seed in (1, 1, 2):
        stdin(json.dumps([[0.0, 0.0, 0.0, 0.0]] * 40) + "\n")
        outputs.append(rlexp("predict", trained, "deterministic=false", f"seed={seed}").out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert set(json.loads(outputs[0])) == {0, 1}


def dict_observation() -> dict[str, Any]:
    image = np.zeros((36, 36, 3), int).tolist()
    return {"image": image, "inner": {"count": -2, "bits": [0] * 10}, "vector": [0.0, 1.0, 2.0]}


def test_predict_takes_nested_observations_and_gives_native_actions(rlexp: Command, dict_run: Path, stdin: Any) -> None:
    obs = dict_observation()
    stdin(f"{json.dumps(obs)}\n{json.dumps([obs, obs])}\n")
    answer = rlexp("predict", dict_run, "trust=[tests]")
    assert (answer.code, answer.err) == (0, "")
    one, many = map(json.loads, answer.out.splitlines())
    assert many == [one, one]
    assert one[0] in (-2, -1, 0)  # MultiDiscrete([3, 4], start=[-2, 1])
    assert one[1] in (1, 2, 3, 4)


BAD_LINES = {
    "foo": "line 2 is not JSON: Expecting value at column 1.",
    "[0, 0, 0": "line 2 is not JSON: ",
    "[0, 0]": "line 2: The observation does not fit the environment: its shape is [2] instead of [4].",
    "[0, 0, 0, NaN]": "line 2: The observation does not fit the environment: it holds NaN or infinite values.",
    "[0, 0, 0, 1e999]": "line 2: The observation does not fit the environment: it holds NaN or infinite values.",
    '[0, 0, 0, "x"]': "line 2: The observation does not fit the environment: it is not an array of numbers.",
    "[[0, 0, 0, 0], [0]]": "line 2: The observation does not fit the environment: its rows have different lengths.",
    '{"a": 1}': "line 2: The observation does not fit the environment: it is not an array of numbers.",
    "null": "line 2: The observation does not fit the environment: it is not an array of numbers.",
    "[]": "line 2: The observation does not fit the environment: its shape is [0] instead of [4].",
    "[" * 100_000: "line 2 is not JSON: ",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:20])
def test_a_bad_line_is_named_and_standard_output_holds_actions_only(
    line: str, rlexp: Command, trained: Path, stdin: Any
) -> None:
    stdin(f"[0, 0, 0, 0]\n{line}\n[0, 0, 0, 0]\n")
    answer = rlexp("predict", trained)
    assert answer.code == 1
    assert answer.err.startswith(f"error: {BAD_LINES[line]}")
    assert answer.out in ("0\n", "1\n")  # the line before it


def test_bytes_that_are_no_text_are_refused_like_a_bad_line(rlexp: Command, trained: Path, stdin: Any) -> None:
    stdin(b"\xff\xfe\xfd\n")
    answer = rlexp("predict", trained)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: line 1 is not JSON: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector": [0.0]}, "vector: its shape is [1] instead of [3]."),
        (
            {"inner": {"count": 0.5, "bits": [0] * 10}},
            "inner: count: it holds fractions where whole numbers are needed.",
        ),
        ({"inner": {"count": 5000, "bits": [0] * 10}}, "inner: count: 5000 is not in it."),
        ({"extra": 1}, "it needs the keys image, inner, vector."),
    ],
)
def test_a_bad_part_of_a_nested_observation_is_named(
    change: dict[str, Any], message: str, rlexp: Command, dict_run: Path, stdin: Any
) -> None:
    stdin(json.dumps(dict_observation() | change) + "\n")
    answer = rlexp("predict", dict_run, "trust=[tests]")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"error: line 1: The observation does not fit the environment: {message}\n"


# ---- resume


def rows(path: Path) -> list[dict[str, Any]]:
    kept = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in kept]


def contents(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def test_resuming_a_completed_run_says_so_and_changes_nothing(rlexp: Command, trained: Path) -> None:
    before = contents(trained)
    for arguments in ([], ["progress=none"]):
        answer = rlexp("resume", trained, *arguments)
        assert (answer.code, answer.err) == (0, "")
        assert f"{trained} is completed. To extend it, give a larger budget" in answer.out
    assert contents(trained) == before


def test_a_larger_budget_extends_a_completed_run(rlexp: Command, trained: Path) -> None:
    before = rows(trained)
    answer = rlexp("resume", trained, "trainer.total_steps=320")
    assert (answer.code, "resumed at 256 steps" in answer.out) == (0, True)
    assert rows(trained)[: len(before)] == before
    assert rows(trained)[-1]["env_steps"] == 320
    assert RunDir.open(trained).config["trainer"]["total_steps"] == 320
    assert RunDir.open(trained).info["resumes"][0]["command"] == [
        "rlexp",
        "resume",
        str(trained),
        "trainer.total_steps=320",
    ]


def test_what_a_resume_changes_is_said_in_one_line(rlexp: Command, trained: Path) -> None:
    changes = ["algo.gamma=0.9", "trainer.total_steps=320", "algo.schedules.clip_range={end: 0.1}"]
    answer = rlexp("resume", trained, *changes)
    (line,) = [each for each in answer.out.splitlines() if each.startswith("Changed")]
    assert line.startswith("Changed from here on: algo.gamma 0.99 → 0.9, algo.schedules.clip_range null → {")
    assert line.endswith(", trainer.total_steps 256 → 320.")
    assert "Changed" not in rlexp("resume", trained, "trainer.total_steps=320").out


def test_loggers_can_be_added_and_removed_on_resume(rlexp: Command, trained: Path) -> None:
    answer = rlexp("resume", trained, "trainer.total_steps=320", "logger=[tensorboard]")
    assert answer.code == 0
    assert "logger.tensorboard added" in answer.out
    assert list((trained / "tensorboard").iterdir())
    answer = rlexp("resume", trained, "trainer.total_steps=384", "logger=[]")
    assert "logger.tensorboard removed" in answer.out
    assert RunDir.open(trained).config["logger"] == {}


@pytest.mark.parametrize("steps", [100, 200])
def test_a_budget_that_is_spent_already_is_refused(steps: int, rlexp: Command, trained: Path) -> None:
    before = contents(trained)
    answer = rlexp("resume", trained, f"trainer.total_steps={steps}")
    message = f"256 steps are done, so the budget of trainer.total_steps={steps} is already spent. Give a larger one."
    assert (answer.code, answer.err) == (1, f"error: {message}\n")
    after = contents(trained)
    assert {name for name in after if after[name] != before.get(name)} <= {".lock"}


def test_overrides_of_a_completed_run_are_checked_although_there_is_nothing_to_do(
    rlexp: Command, trained: Path
) -> None:
    for value, message in (("2", "must be at most 1, not 2.0."), ("x", "must be a number, not x.")):
        answer = rlexp("resume", trained, f"algo.gamma={value}")
        assert (answer.code, answer.err) == (1, f"error: algo.gamma {message}\n")
    answer = rlexp("resume", trained, "algo.gamma=0.9")
    assert (answer.code, "is completed, and algo.gamma 0.99 → 0.9 alone gives it nothing to do" in answer.out) == (
        0,
        True,
    )


def test_a_run_is_found_by_its_name_below_outputs(rlexp: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    trained.rename(tmp_path / "outputs" / "mine")
    assert evaluated(rlexp("eval", "mine", "episodes=2"))["episodes"] == "2"
    assert "mine is completed" in rlexp("resume", "mine").out


def test_a_run_whose_environment_a_function_made_is_pointed_back_to_python(rlexp: Command, tmp_path: Path) -> None:
    config = compose([*PPO, "trainer.total_steps=64", "env=gym", "env.id=make_env", "progress=none"])
    Runner(config, env_factory=lambda: gym.make("CartPole-v1")).train(tmp_path / "made")
    for command in ("eval", "predict", "resume"):
        answer = rlexp(command, "made", *(["trainer.total_steps=128"] if command == "resume" else []))
        assert answer.code == 1
        assert answer.err.startswith("error: Unknown environment id 'make_env'.")
        assert "If the run was made in Python" in answer.err
        assert "rlexp.Agent.load('made', env=the_function).resume() or .evaluate().\n" in answer.err


def test_a_run_killed_before_its_first_checkpoint_starts_again(rlexp: Command, trained: Path) -> None:
    whole = rows(trained)
    shutil.rmtree(trained / "checkpoints")
    (trained / "summary.json").unlink()
    (trained / "status.json").write_text(json.dumps({"status": "running", "rows_high_water": 0}))
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    (trained / "metrics.jsonl").write_text(lines[0] + lines[1][:10])  # killed while it wrote
    assert RunDir.open(trained).state() == "killed"
    answer = rlexp("eval", trained)
    assert (answer.code, f"Train it first: rlexp resume {trained}" in answer.err) == (1, True)
    assert rlexp("resume", trained).code == 0
    assert rows(trained) == whole
    assert RunDir.open(trained).state() == "completed"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hidden=[8]", "does not fit the config of the run (size mismatch for "),
        ("algo.gamma=2", "algo.gamma must be at most 1, not 2.0."),
        ("algo.gama=0.9", "algo.gama: the saved run has no such setting. Did you mean gamma"),
        ("algo=sac", "algo=sac: a saved run keeps its algo, since its checkpoints fit no other. Start a new run"),
        ("zoo=ppo_cartpole", "zoo=ppo_cartpole: a saved run keeps its zoo, since it was composed when it began."),
        ("seed=5", "seed=5: a saved run keeps its seed, since its random numbers go on where they stopped. Start a"),
        ("compile=true", "compile=true: a saved run keeps its compile, since another would change the numbers"),
        ("logger=tensorbord", "logger=tensorbord: there is no such logger. Did you mean tensorboard?"),
        ("totl_steps=3", "totl_steps=3: no such option."),
        ("env.id=Acrobot-v1", "does not fit the config of the run ("),
    ],
)
def test_a_resume_that_cannot_work_leaves_the_run_as_it_was(
    override: str, message: str, rlexp: Command, trained: Path
) -> None:
    before = contents(trained)
    answer = rlexp("resume", trained, override, "trainer.total_steps=320")
    assert answer.code == 1
    assert message in answer.err
    assert answer.err.count("\n") == 1
    after = contents(trained)
    assert {name for name in after if after[name] != before.get(name)} <= {".lock"}  # it holds the last writer's pid
    assert rlexp("resume", trained, "trainer.total_steps=320").code == 0  # and it can still be used


def test_a_preset_with_another_algorithm_than_its_own_is_told(
    rlexp: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("trainer.total_steps=60", "trainer.learning_starts=50", "trainer.eval_episodes=1", "compile=false")
    other = rlexp("zoo=td3_pendulum", "algo=sac", "env=pendulum", *short)
    assert other.code == 0
    assert other.err == "warning: td3_pendulum is tuned for algo=td3; algo=sac gets the same settings.\n"
    assert rlexp("zoo=td3_pendulum", "algo=td3", "env=pendulum", *short).err == ""
