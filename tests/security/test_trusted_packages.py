"""A package that the user names as trusted works, and opens nothing but itself; what counts is the resolved object."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rlexp import Agent
from rlexp.config.trust import trusting
from rlexp.errors import RlexpError
from rlexp.loading import load
from tests.security.hostile import Scene, alarm, command, content, forge_config, newest, setting

MINE = '''
"""What a user has of their own, and what it happens to import."""
import os, subprocess
from dataclasses import dataclass
from os import system
from pathlib import Path
from subprocess import Popen
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from rlexp.callbacks import Callback
from rlexp.models import Network
from rlexp.run_dir import RunDir
import {other} as other
from {other} import Foreign

@dataclass(eq=False, kw_only=True)
class Model(Network):
    pass

class Wrapper(gym.Wrapper):
    pass

class Hook(Callback):
    pass

class Open:
    """Takes anything."""
    def __init__(self, **anything):
        raise AssertionError("constructed")

class Outer:
    class Inner(Network):
        pass

def function(**anything):
    raise AssertionError("called")

instance = Hook()
gym.register("{name}/Mine-v0", entry_point=CartPoleEnv.__module__ + ":CartPoleEnv", max_episode_steps=20)
gym.register("{name}/Theirs-v0", entry_point="{other}:Env")
'''
OTHER = """
from rlexp.models import Network
class Foreign(Network):
    pass
class Env:
    def __init__(self, **anything):
        raise AssertionError("constructed")
"""


@pytest.fixture
def mine(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package in the working directory. Nothing has imported it."""
    name, other = "users_own_package", "users_other_package"
    for module, text in ((name, MINE), (other, OTHER)):
        Path(f"{module}.py").write_text(text.format(name=name, other=other))
        monkeypatch.delitem(sys.modules, module, raising=False)
    registry = dict(gym.registry)
    monkeypatch.setattr(gym.envs.registration, "registry", registry)
    monkeypatch.setattr(gym, "registry", registry)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield name
    for module in (name, other):
        sys.modules.pop(module, None)


def node(target: str) -> Any:
    """A change: the model becomes ``target``, with the settings it has."""
    return setting("model", "_target_", value=target)


USES: dict[str, Any] = {
    "model": node("users_own_package.Model"),
    "nested class": node("users_own_package.Outer.Inner"),
    "wrapper": setting("env", "wrappers", value=[{"_target_": "users_own_package.Wrapper"}]),
    "environment": setting("env", "id", value="users_own_package:users_own_package/Mine-v0"),
}


@pytest.mark.parametrize("use", USES)
def test_a_package_is_used_if_it_is_named_and_not_even_imported_otherwise(scene: Scene, mine: str, use: str) -> None:
    path = scene.copy("ppo")
    forge_config(path, USES[use])
    message = scene.refused(path, "eval", f"trust=[{mine}]")
    assert mine in message
    assert mine not in sys.modules
    before = content(scene.folder)
    command("eval", str(path), "episodes=1", f"trust=[{mine}]")
    assert mine in sys.modules
    assert content(scene.folder) == before


TRAINING_ONLY: dict[str, Any] = {
    "callback": setting("trainer", "callbacks", value=[{"_target_": "users_own_package.Hook"}]),
    "logger": setting("logger", value={"own": {"_target_": "users_own_package.Metrics"}}),
}


@pytest.mark.parametrize("use", TRAINING_ONLY)
def test_what_only_training_runs_is_asked_for_only_by_a_resume(scene: Scene, mine: str, use: str) -> None:
    path = scene.copy("ppo")
    forge_config(path, TRAINING_ONLY[use])
    command("eval", str(path), "episodes=1")
    assert Agent.load(path).policy
    assert mine not in sys.modules
    scene.refused(path, "resume", f"trust=[{mine}]")
    assert mine not in sys.modules


def test_every_surface_takes_the_packages_to_trust(scene: Scene, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scene.copy("ppo")
    forge_config(path, USES["model"])
    command("predict", str(path), f"trust={mine}")
    command("resume", str(path), "trainer.total_steps=320", f"trust=[{mine}]")
    with pytest.raises(RlexpError, match="not trusted"):
        Agent.load(path)
    assert type(Agent.load(path, trust=[mine])._runner.model).__name__ == "Model"
    monkeypatch.setenv("RLEXP_PLUGINS", mine)
    command("eval", str(path), "episodes=1")
    assert Agent.load(path).policy


NOT_OPENED = {
    "a function of os": "users_own_package.system",
    "a library": "users_own_package.os.system",
    "a class of a library": "users_own_package.Popen",
    "a class of a library by its module": "users_own_package.subprocess.Popen",
    "pathlib": "users_own_package.Path",
    "another package": "users_other_package.Foreign",
    "another package's class": "users_own_package.Foreign",
    "another package through it": "users_own_package.other.Foreign",
    "a function": "users_own_package.function",
    "an object": "users_own_package.instance",
    "the package": "users_own_package",
    "rlexp's, but no component": "users_own_package.RunDir",
    "a stranger's": "evil_module.Env",
}


@pytest.mark.parametrize("what", NOT_OPENED)
def test_naming_a_package_opens_nothing_that_it_merely_imports(scene: Scene, mine: str, what: str) -> None:
    path = newest(scene.copy("ppo"))
    forge_config(path, node(NOT_OPENED[what]))
    before = content(scene.folder)
    sys.path.append(os.getcwd())
    with alarm() as heard, pytest.raises(RlexpError, match="model"):
        Agent.load(path, trust=[mine])
    assert not heard
    assert content(scene.folder) == before


def test_an_environment_that_a_trusted_package_registers_for_another_is_refused(scene: Scene, mine: str) -> None:
    path = newest(scene.copy("ppo"))
    forge_config(path, setting("env", "id", value=f"{mine}:{mine}/Theirs-v0"))
    sys.path.append(os.getcwd())
    with pytest.raises(RlexpError, match=r"users_other_package.*not trusted"):
        Agent.load(path, trust=[mine])


def test_keys_of_hydra_do_not_reach_a_class_that_takes_anything(scene: Scene, mine: str) -> None:
    sys.path.append(os.getcwd())
    for key, value in {"_args_": [1], "_partial_": True, "_recursive_": True, "_convert_": "none"}.items():
        path = newest(scene.copy("ppo"))
        forge_config(path, setting("model", value={"_target_": f"{mine}.Open", key: value}))
        with pytest.raises(RlexpError, match=f"model.{key}"):
            Agent.load(path, trust=[mine])
        scene.clear()


@pytest.mark.parametrize("trusted", ["", "os", "evil", "users", "users_own_package2", "users_own_package.Model", "*"])
def test_a_name_that_is_only_similar_trusts_nothing(scene: Scene, mine: str, trusted: str) -> None:
    path = newest(scene.copy("ppo"))
    forge_config(path, USES["model"])
    sys.path.append(os.getcwd())
    with pytest.raises(RlexpError, match="not trusted"):
        Agent.load(path, trust=[trusted])
    assert mine not in sys.modules


def test_trust_in_the_standard_library_is_never_advised(scene: Scene) -> None:
    path = newest(scene.copy("ppo"))
    forge_config(path, node("subprocess.Popen"))
    with pytest.raises(RlexpError) as caught:
        Agent.load(path)
    assert "trust=[subprocess]" not in str(caught.value)


# -- the working directory


def test_the_working_directory_is_searched_only_for_packages_that_were_named(scene: Scene) -> None:
    here, run = os.getcwd(), scene.copy("ppo")
    command("eval", str(run), "episodes=1")
    command("predict", str(run))
    command("resume", str(run))
    assert here not in sys.path
    command("eval", str(run), "episodes=1", "trust=[nothing]")
    assert sys.path[-1] == here  # behind everything that is installed


@pytest.mark.parametrize("start", [["-m", "rlexp"], ["-c", "import sys; from rlexp.cli import main; main()"]])
def test_a_run_is_opened_from_within_its_folder_without_importing_what_lies_there(
    scene: Scene, start: list[str]
) -> None:
    """A stranger's torch.py in the folder that the user has gone to must not become torch."""
    run = scene.copy("ppo")
    for name in ("torch", "numpy", "hydra", "yaml", "h5py", "rich", "pygame", "typing_extensions"):
        (run / f"{name}.py").write_text((Path.cwd() / "evil_module.py").read_text())
    isolated = (
        ["-P"] if start[0] == "-c" else []
    )  # python -c puts the working directory first, the rlexp script does not
    ended = subprocess.run(
        [sys.executable, *isolated, *start, "eval", ".", "episodes=1"],
        cwd=run,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert not scene.marker.exists()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "return" in ended.stdout


def test_a_checkpoint_may_be_loaded_with_an_environment_made_in_python(scene: Scene) -> None:
    """The id in the config is then only a name, and whatever it says is not made."""
    path = newest(scene.copy("ppo"))
    forge_config(path, setting("env", "id", value="make_mine"))
    loaded = load(path, trust=trusting(), env_factory=lambda: gym.make("CartPole-v1"))
    assert loaded.runner.spec.action.n == 2
