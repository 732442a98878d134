"""Everything a user can do wrong is told before anything runs: exit code 1, cause and fix, nothing left behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from rlexp.buffers import ring
from rlexp.datasets.files import save_hdf5, save_npz
from rlexp.datasets.transitions import Transitions
from rlexp.run_dir import RunDir
from tests.cli.conftest import PPO, QUICK, Command
from tests.counting import COUNTING


def left_behind(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each != folder / "outputs")


MISTAKES = {
    # composing (tests/config has many more)
    "algo=crr env=pendulum algo.betta=3": "algo.betta: CRR has no such setting. Did you mean beta?",
    "algo=crrr": "algo=crrr: there is no such algo. Did you mean crr?",
    "algo.gamma=2": "algo.gamma must be at most 1, not 2.0.",
    "name=a/b": "name is the run's folder below outputs/ and must not hold a slash, not 'a/b'.",
    "name=..": "name is the run's folder below outputs/ and must not hold a slash, not '..'.",
    "env=gym": "env.id must be given: env.id=…",
    "model.hidden=[0]": "model.hidden must be a list of widths of at least 1, not [0].",
    "algo=rlpd env=pendulum algo.n_target_critics=5": "algo: n_target_critics=5 must not be more than n_critics=2",
    # the flags of other programs
    "--algo ppo --env cartpole": "--algo: no such option. Settings are written without dashes: algo=ppo\n",
    "--seed=3": "--seed: no such option. Settings are written without dashes: seed=3\n",
    "--init-from first": "--init-from: no such option. Settings are written without dashes: init_from=first\n",
    "algo=ppo --trainer.total_steps 9": "--trainer.total_steps: no such option. Settings are written without dashes: "
    "trainer.total_steps=9\n",
    "--env --seed 3": "--env: no such option. Settings are written without dashes: env=…\n",
    "--xyzzy 3": "--xyzzy: no such option. There are: --multirun, ",
    # an algorithm in the wrong place
    "algo=sac env=cartpole": "algo=sac acts in continuous action spaces, but CartPole-v1 has a discrete one. "
    "For CartPole-v1 choose algo=discrete_sac or algo=c51 or algo=dqn or algo=iqn or algo=qrdqn or algo=rainbow; "
    "`rlexp list algo` shows all.\n",
    "algo=dqn env=pendulum": "algo=dqn acts in discrete action spaces, but Pendulum-v1 has a continuous one. "
    "For Pendulum-v1 choose algo=crossq or ",
    f"algo=dqn env=gym env.id={COUNTING} +env.kwargs={{action:multi_binary}}": "algo=dqn acts in discrete action "
    "spaces, but tests.counting:Counting-v0 has a multi_binary one. For tests.counting:Counting-v0 choose algo=a2c "
    "or algo=ppo or algo=recurrent_ppo or algo=trpo; `rlexp list algo` shows all.\n",
    f"algo=sac env=gym env.id={COUNTING} +env.kwargs={{action:unbounded}}": "algo=sac squashes its actions into the "
    "bounds of the action space, but tests.counting:Counting-v0 has none. Give a bound with env.action_limit=…",
    "algo=ppo trainer=offline": "algo=ppo cannot learn in the offline loop. Use trainer=on_policy.",
    "algo=crr env=pendulum trainer=replay": "algo=crr cannot learn in the replay loop. Use trainer=offline.",
    "algo=awr env=pendulum buffer.n_step=3": "algo=awr mixes the returns of all numbers of steps itself: drop ",
    "algo=iql env=pendulum trainer=replay": "The replay loop uses no dataset: add dataset=null (algo=iql may name one "
    "by itself), or use trainer=mixed.",
    "algo=crr env=pendulum buffer.capacity=100": "buffer.capacity=100 has no effect in the offline loop, which keeps ",
    "algo=ppo buffer=replay": "The on_policy loop needs buffer=rollout.",
    "algo=ppo dataset=random": "The on_policy loop uses no dataset: add dataset=null (algo=ppo may name one by itself",
    # data
    "algo=crr env=pendulum dataset=null": "algo=crr learns from data in the offline loop, "
    "but dataset is null. Use dataset=",
    "algo=rlpd env=pendulum dataset=null": "algo=rlpd learns from data in the mixed loop, "
    "but dataset is null. Use dataset=",
    "algo=crr env=pendulum dataset=npz dataset.path=no.npz": "The dataset no.npz does not exist. Set dataset.path ",
    "algo=crr env=pendulum dataset=hdf5 dataset.path=no.h5": "The dataset no.h5 does not exist. Set dataset.path ",
    "algo=crr env=pendulum dataset=replay": "dataset=replay: set one of dataset.run=… (a run directory) and ",
    "algo=bc env=pendulum dataset=expert": "dataset=expert: set one of dataset.run=… (a run directory) and ",
    "algo=crr env=pendulum dataset=replay dataset.run=no": "There is no run directory at ",
    "algo=crr env=pendulum dataset=replay dataset.zoo=no": "dataset.zoo='no' is not a preset. There are: ",
    # environments
    "env=gym env.id=CartPol-v1": "Unknown environment id 'CartPol-v1'. Did you mean CartPole-v1? ",
    "env=gym env.id=no_such_module:Env-v0": "env.id=no_such_module:Env-v0: the module 'no_such_module' could ",
    "+env.kwargs.foo=1": "CartPole-v1 cannot be made with env.kwargs={'foo': 1}: ",
    "env.wrappers=[{_target_:no.Wrapper}]": "The wrapper no.Wrapper cannot be imported: ",
    "env.wrappers=[3]": "env.wrappers holds 3; each entry is {_target_: package.Wrapper, argument: value}.",
    "env.workers=2": "env.workers=2 has no effect with env.vectorization=sync, which has no worker processes. Add ",
    # the machine
    "device=cuda:99": "device=cuda:99 cannot be used here: ",
    "buffer.capacity=1_000_000_000_000": "buffer.capacity must be at most 2147483647, not 1000000000000.",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_told_before_anything_runs(typed: str, rlexp: Command, tmp_path: Path) -> None:
    answer = rlexp("train", *typed.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {MISTAKES[typed]}")
    assert answer.err.count("\n") == 1
    assert left_behind(tmp_path) == []


def test_the_fix_that_a_message_proposes_works(rlexp: Command, tmp_path: Path) -> None:
    """Unbounded actions with a bound; a capacity that fits."""
    tiny = ["trainer.total_steps=8", "trainer.learning_starts=7", "trainer.batch_size=8", *QUICK]
    tiny += ["trainer.eval_episodes=0"]
    unbounded = ["env=gym", f"env.id={COUNTING}", "+env.kwargs={action: unbounded}", "env.action_limit=2"]
    assert rlexp("algo=sac", *unbounded, "buffer.capacity=100", *tiny).code == 0


def test_a_memory_larger_than_the_machines_is_refused_with_one_that_fits(
    rlexp: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "available_memory", lambda: 10**9)
    answer = rlexp("algo=dqn", "buffer.capacity=2_000_000_000")
    assert (answer.code, answer.out) == (1, "")
    # 4 floats of observation, an action of 8 bytes, 13 bytes of bookkeeping
    assert answer.err.startswith(
        "error: buffer.capacity=2000000000 needs 74 GB (37 bytes per transition of CartPole-v1)"
    )
    assert "but only 1 GB of memory can be used. A capacity of " in answer.err
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(("kind", "save"), [("npz", save_npz), ("hdf5", save_hdf5)])
def test_data_that_do_not_fit_the_environment_are_refused(
    kind: str, save: object, rlexp: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    flags = np.zeros(10, bool)

    def refused(obs: int, actions: int, scale: float = 1.0) -> str:
        o, n = rng.normal(size=(2, 10, obs)).astype(np.float32)
        data = Transitions(o, scale * np.ones((10, actions), np.float32), np.ones(10, np.float32), n, flags, flags)
        save(tmp_path / f"data.{kind}", data)  # type: ignore[operator]
        answer = rlexp("algo=crr", "env=pendulum", f"dataset={kind}", f"dataset.path=data.{kind}", *QUICK)
        assert (answer.code, answer.out) == (1, "")
        assert left_behind(tmp_path) == [f"data.{kind}"]
        return answer.err

    name = f"error: data.{kind}: "
    assert refused(4, 1).startswith(
        f"{name}observations has shape (10, 4), but 10 transitions of Pendulum-v1 have (10, 3)"
    )
    assert refused(3, 2).startswith(f"{name}actions has shape (10, 2), but 10 transitions of Pendulum-v1 have (10, 1)")
    assert refused(3, 1, 9.0).startswith(f"{name}actions[:, 0] lies in [9, 9], but Pendulum-v1 takes [-2, 2]")


def test_a_dataset_that_is_none_is_refused(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"no archive")
    answer = rlexp("algo=crr", "env=pendulum", "dataset=npz", "dataset.path=data.npz")
    assert answer.code == 1
    assert answer.err.startswith("error: data.npz is damaged or of another format: ")
    assert left_behind(tmp_path) == ["data.npz"]


MISSING_PACKAGES = [
    ("Box2D", "gymnasium.envs.box2d", "env=lunar_lander", "LunarLander-v3", 'pip install "rlexp[box2d]"'),
    ("mujoco", "gymnasium.envs.mujoco", "env=hopper algo=ppo", "Hopper-v5", 'pip install "rlexp[mujoco]"'),
    ("ale_py", "ale_py", "env=gym env.id=ALE/Pong-v5", "ALE/Pong-v5", 'pip install "rlexp[atari]"'),
]


@pytest.mark.parametrize(("package", "users", "typed", "env", "line"), MISSING_PACKAGES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    package: str,
    users: str,
    typed: str,
    env: str,
    line: str,
    rlexp: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith(users):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # importing it now fails as if it were not installed
    answer = rlexp(*typed.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {env} needs the package {package.split('.')[0]}")
    assert answer.err.endswith(f"which is not installed: {line}\n")
    assert left_behind(tmp_path) == []


# ---- directories and checkpoints


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_training_into_a_directory_that_holds_a_run_is_refused_and_touches_nothing(
    rlexp: Command, trained: Path
) -> None:
    before = snapshot(trained)
    answer = rlexp(*PPO, f"hydra.run.dir={trained}")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {trained} already holds a run (")
    assert f"Continue it with `rlexp resume {trained}`" in answer.err
    after = snapshot(trained)
    assert {name for name in after if after[name] != before.get(name)} <= {".lock"}


def test_a_directory_that_cannot_be_made_is_reported(rlexp: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = rlexp(*PPO, "hydra.run.dir=file/run")
    assert (answer.code, answer.err) == (
        1,
        "error: file/run cannot be made: Not a directory. Choose another hydra.run.dir=…\n",
    )


@pytest.mark.parametrize("arguments", [["resume"], ["resume", "trainer.total_steps=320"]])
def test_resuming_a_run_that_is_still_running_is_refused(arguments: list[str], rlexp: Command, trained: Path) -> None:
    with RunDir.open(trained).lock() as running:
        running.set_status("running")
        answer = rlexp(arguments[0], trained, *arguments[1:])
    assert answer.code == 1
    assert answer.err.startswith(f"error: The run {trained} is still running (pid ")
    assert "Wait until it ends, or stop that process." in answer.err


def damage(checkpoint: Path) -> None:
    file = checkpoint / "policy.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["eval", "episodes=1"], "checkpoints/step_000000000128"),
        (["resume", "trainer.total_steps=320"], "at 128 steps"),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_newest_whole_one_used(
    command: list[str], said: str, rlexp: Command, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(trained / "checkpoints" / "step_000000000256")
    answer = rlexp(command[0], trained, *command[1:])
    assert (answer.code, said in answer.out) == (0, True)
    assert "step_000000000256 is damaged: policy.safetensors" in caplog.text  # goes to stderr outside of pytest
    assert "differs from its checksum. Using step_000000000128 instead." in caplog.text  # and no other advice


def test_a_damaged_checkpoint_that_was_asked_for_by_name_is_refused(rlexp: Command, trained: Path) -> None:
    damage(trained / "checkpoints" / "step_000000000256")
    answer = rlexp("predict", trained, "checkpoint=step_000000000256")
    assert (answer.code, answer.out) == (1, "")
    assert "step_000000000256 is damaged: policy.safetensors" in answer.err
    assert answer.err.endswith("Leave out checkpoint=… to use the newest whole one.\n")
    answer = rlexp("predict", trained / "checkpoints" / "step_000000000256")
    assert answer.err.endswith("Use another one: of a run directory, the newest whole one is taken.\n")


@pytest.mark.parametrize("command", ["eval", "predict", "resume"])
def test_a_run_without_a_whole_checkpoint_is_refused(command: str, rlexp: Command, trained: Path) -> None:
    for name in ("step_000000000128", "step_000000000256"):
        damage(trained / "checkpoints" / name)
    before = snapshot(trained)
    answer = rlexp(command, trained, *(["trainer.total_steps=320"] if command == "resume" else []))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert "policy.safetensors" in answer.err
    assert "damaged" in answer.err
    after = snapshot(trained)
    assert {name for name in after if after[name] != before.get(name)} <= {".lock"}


def test_a_checkpoint_of_another_format_is_refused(rlexp: Command, trained: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(trained / "checkpoints" / "step_000000000256", tmp_path / "alone")
    (alone / "checkpoint.json").unlink()
    answer = rlexp("eval", alone)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert "checkpoint.json" in answer.err
