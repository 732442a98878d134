"""A hostile config, with every hash forged to agree, is refused: nothing it names is run, read or resolved."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rlexp import Agent
from rlexp.config.component import REGISTRY, target_of
from tests.security.hostile import (
    SECRET,
    SURFACES,
    Scene,
    alarm,
    command,
    content,
    forge_config,
    in_turn,
    names_of,
    newest,
    setting,
)

Change = Callable[[dict[str, Any]], Any]
CODE = [
    "os.system", "posix.system", "subprocess.Popen", "builtins.eval", "builtins.exec", "builtins.open", "pathlib.Path",
    "functools.partial", "torch.load", "torch.hub.load", "numpy.load", "pickle.Unpickler", "gymnasium.make",
    "hydra.utils.instantiate", "evil_module.Env", "evil_package.Env", "evil_module", "importlib.import_module",
]  # fmt: skip
THROUGH_RLEXP = [
    "rlexp.cli.os.system", "rlexp.cli.Path", "rlexp.cli.json.JSONDecoder", "rlexp.runner.signal.raise_signal",
    "rlexp.runner.threading.Thread", "rlexp.runner.torch.load", "rlexp.runner.torch.nn.Module",
    "rlexp.runner.torch.classes.foo.bar", "rlexp.envs.gym_env.gym.make", "rlexp.config.check.instantiate",
    "rlexp.config.trust.importlib.import_module", "rlexp.provenance.subprocess.Popen", "rlexp.cli.__builtins__.eval",
    "rlexp.algos.ppo.PPO.__class__", "rlexp.algos.ppo.PPO.__init__.__globals__", "rlexp.algos.ppo.PPO.__mro__",
    "rlexp.algos.ppo.PPO.__subclasses__", "rlexp.evil_module.Env", "rlexp.nothing",
]  # fmt: skip
NOT_COMPONENTS = [
    "rlexp", "rlexp.cli", "rlexp.cli.main", "rlexp.run_dir.RunDir", "rlexp.agent.Agent", "rlexp.PPO",
    "rlexp.checkpoint.Checkpoint", "rlexp.config.trust.Trust", "rlexp.models.network.Net", "rlexp.errors.ConfigError",
    "rlexp.envs.subproc.SubprocVecEnv", "rlexp.loggers.console.Console", "rlexp.algos.base.Algorithm",
]  # fmt: skip
NO_PATHS = [
    5, 1.5, True, None, ["os.system"], {"_target_": "os.system"}, "", ".", "..os.system", "os..system", "rlexp.",
    "rlexp.cli:os.system", "os/system", "os.system('x')", "lambda: 0", "rlexp.cli\x00.os", "os\u200b.system",
    "\uff4f\uff53.system", "rlexp.\uff43li.os.system", "rlexp.cli .os", "a." * 5000 + "b",
]  # fmt: skip
NODES = [("algo",), ("model",), ("buffer",), ("env",), ("dataset",), ("trainer",), ("trainer", "callbacks", 0),
         ("logger", "x"), ("env", "wrappers", 0)]  # fmt: skip


def name_of(node: tuple[Any, ...]) -> str:
    """``("env", "wrappers", 0)`` -> ``env.wrappers[0]``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in node)[1:]


def put(node: tuple[Any, ...], value: Any) -> Change:
    """Set a node of the config, an element of a list too."""

    def change(config: dict[str, Any]) -> None:
        *parents, last = node
        if isinstance(last, int):
            setting(*parents, value=[value])(config)
        else:
            setting(*node, value=value)(config)

    return change


def forged(scene: Scene, change: Change, name: str = "ppo") -> Path:
    """A checkpoint whose config was changed."""
    path = scene.folder / "checkpoint"
    shutil.copytree(newest(scene.originals / name), path)
    forge_config(path, change)
    return path


# -- targets


TARGETS = [
    (target, NODES[(index + shift) % len(NODES)])
    for index, target in enumerate([*CODE, *THROUGH_RLEXP, *NOT_COMPONENTS, *NO_PATHS])
    for shift in (0, 4)  # two nodes for each, every node for some
]


@pytest.mark.parametrize(("target", "node"), TARGETS, ids=[f"{name_of(n)}={str(t)[:40]!r}" for t, n in TARGETS])
def test_a_target_that_is_no_component_is_refused(scene: Scene, target: Any, node: tuple[Any, ...]) -> None:
    change = put(node, {"_target_": target, "command": f"mkdir {scene.marker}"})
    where = name_of(node), ".".join(str(key) for key in node[:2])
    if node[0] == "logger" or "callbacks" in node:  # only a resume runs these; to act, a stranger's are left out
        run = scene.copy("ppo")
        forge_config(run, change)
        scene.refused(run, "resume", *where)
    else:
        scene.refused(forged(scene, change), "Agent.load", *where)


@pytest.mark.parametrize(("node", "surface"), in_turn(NODES), ids=names_of(in_turn(NODES)))
def test_os_system_is_refused_at_every_node_and_surface(scene: Scene, node: tuple[Any, ...], surface: str) -> None:
    run = scene.copy("ppo")
    forge_config(run, put(node, {"_target_": "os.system", "command": f"mkdir {scene.marker}"}))
    assert "'os', which is not trusted" in scene.refused(run, surface, name_of(node), "env.id")


OTHERS = [
    (group, other) for group in ("algo", "model", "buffer", "env", "dataset", "trainer", "logger.x")
    for other in ("algo", "model", "env", "dataset") if other != group
]  # fmt: skip


@pytest.mark.parametrize(("group", "other"), OTHERS, ids=["-".join(each) for each in OTHERS])
def test_a_component_of_another_group_is_refused(scene: Scene, group: str, other: str) -> None:
    target = target_of(next(iter(REGISTRY[other].values())))
    path = forged(scene, put(tuple(group.split(".")), {"_target_": target}))
    assert "can stand there" in scene.refused(path, "Agent.load", f"{group}._target_={target}")


PARTS = [*CODE, *THROUGH_RLEXP, "rlexp.algos.ppo.PPO", "rlexp.algos.ddpg.DDPG", "evil_module.Env"]


@pytest.mark.parametrize("target", PARTS, ids=[str(target)[:40] for target in PARTS])
def test_a_part_of_an_algorithm_is_its_name_or_a_component_for_it(scene: Scene, target: Any) -> None:
    algo = {"_target_": "rlexp.algos.ddpg.DDPG"}
    for part in ({"_target_": target, "command": f"mkdir {scene.marker}"}, str(target)):
        path = forged(scene, put(("algo",), algo | {"exploration": part}))
        scene.refused(path, "Agent.load", "algo.exploration")
        shutil.rmtree(path)


def test_a_component_that_is_no_callback_is_refused(scene: Scene) -> None:
    for target in ("rlexp.algos.ppo.PPO", "rlexp.loggers.tensorboard.TensorBoardLogger", "rlexp.run_dir.RunDir"):
        path = forged(scene, put(("trainer", "callbacks", 0), {"_target_": target}))
        scene.refused(path, "Agent.load", "trainer.callbacks[0]")
        shutil.rmtree(path)


def test_rlexps_own_callback_is_no_stranger(scene: Scene) -> None:
    path = forged(scene, put(("trainer", "callbacks", 0), {"_target_": "rlexp.callbacks.Callback"}))
    assert Agent.load(path).policy


# -- keys that change what a node means


KEYS: dict[str, Any] = {"_args_": [["id"]], "_partial_": True, "_recursive_": True, "_convert_": "none"}
TIME_LIMIT: dict[str, Any] = {"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 5}
MEANINGS: dict[str, tuple[str, Change]] = {
    **{f"{group}.{key}": (f"{group}.{key}", setting(group, key, value=value))
       for group in ("algo", "model", "env", "trainer") for key, value in KEYS.items()},
    **{f"callback {key}": ("trainer.callbacks[0]", put(("trainer", "callbacks", 0),
                                                         {"_target_": "rlexp.callbacks.Callback", key: value}))
       for key, value in KEYS.items()},
    **{f"wrapper {key}": ("TimeLimit", put(("env", "wrappers", 0), TIME_LIMIT | {key: value}))
       for key, value in KEYS.items()},
    "target in env.kwargs": ("env.kwargs", setting("env", "kwargs", value={"_target_": "evil_module.Env"})),
    "target in a keyword": ("env.kwargs", setting("env", "kwargs", value={"x": {"_target_": "evil_module.Env"}})),
    "target in model.hidden": ("model.hidden", setting("model", "hidden", value=[{"_target_": "evil_module.Env"}])),
    "target as a number": ("algo.gamma", setting("algo", "gamma", value={"_target_": "evil_module.Env"})),
    "target as a schedule": ("algo.schedules", setting("algo", "schedules", "gamma", value={"_target_": "os.system"})),
    "target in a schedule": ("algo.schedules", setting("algo", "schedules", "gamma", "end",
                                                       value={"_target_": "os.system"})),
    "schedule of nothing": ("algo.schedules", setting("algo", "schedules", "evil", value={"end": 0})),
    "target as the seed": ("seed", setting("seed", value={"_target_": "evil_module.Env"})),
    "target at the top": ("_target_", setting("_target_", value="os.system")),
    "defaults": ("defaults", setting("defaults", value=["/evil"])),
    "hydra": ("hydra", setting("hydra", value={"searchpath": ["file:///tmp"]})),
}  # fmt: skip


@pytest.mark.parametrize("what", MEANINGS)
def test_a_key_that_would_change_how_a_node_is_made_is_refused(scene: Scene, what: str) -> None:
    needle, change = MEANINGS[what]
    scene.refused(forged(scene, lambda config: change(scheduled(config))), "Agent.load", needle)


def scheduled(config: dict[str, Any]) -> dict[str, Any]:
    config["algo"]["schedules"]["gamma"] = {"end": 0.9}
    return config


# -- environments


WRAPPERS: dict[str, dict[str, Any]] = {
    "a stranger's module": {"_target_": "evil_module.Env"},
    "a stranger's package": {"_target_": "evil_package.Env"},
    "os.system": {"_target_": "os.system"},
    "video": {"_target_": "gymnasium.wrappers.RecordVideo", "video_folder": "videos"},
    "video by its module": {"_target_": "gymnasium.wrappers.rendering.RecordVideo", "video_folder": "videos"},
    "video of many": {"_target_": "gymnasium.wrappers.vector.RecordVideo", "video_folder": "videos"},
    "a function of text": {"_target_": "gymnasium.wrappers.TransformReward", "func": "lambda r: __import__('os')"},
    "a function by name": {"_target_": "gymnasium.wrappers.TransformObservation", "func": "os.system",
                           "observation_space": None},
    "a function as a target": {"_target_": "gymnasium.wrappers.TransformAction", "func": {"_target_": "os.system"},
                               "action_space": None},
    "a module by name": {"_target_": "gymnasium.wrappers.ArrayConversion", "env_xp": "evil_module", "target_xp": "os"},
    "a function": {"_target_": "gymnasium.make", "id": "CartPole-v1"},
    "a class that is no wrapper": {"_target_": "gymnasium.spaces.Box"},
    "an environment": {"_target_": "gymnasium.envs.classic_control.CartPoleEnv"},
    "a library of Gymnasium's": {"_target_": "gymnasium.wrappers.rendering.os.system"},
    "a module": {"_target_": "gymnasium.wrappers"},
    "what is not there": {"_target_": "gymnasium.wrappers.Evil"},
    "wrong arguments": {"_target_": "gymnasium.wrappers.TimeLimit", "evil": 1},
    "no target": {"max_episode_steps": 5},
}  # fmt: skip


@pytest.mark.parametrize("what", WRAPPERS)
def test_a_hostile_wrapper_is_refused(scene: Scene, what: str) -> None:
    path = forged(scene, put(("env", "wrappers", 0), WRAPPERS[what]))
    scene.refused(path, "Agent.load", "env.wrappers", "The wrapper", "wrappers")


@pytest.mark.parametrize("value", [5, "gymnasium.wrappers.TimeLimit", [5], ["x"], [None], [[]], TIME_LIMIT])
def test_wrappers_of_another_form_are_refused(scene: Scene, value: Any) -> None:
    scene.refused(forged(scene, setting("env", "wrappers", value=value)), "Agent.load", "env.wrappers")


IDS = [
    "evil_module:Env-v0", "evil_package:Env-v0", "evil_package.sub:Env-v0", "os:CartPole-v1", "evil_module:CartPole-v1",
    "rlexp.cli.os:CartPole-v1", "..evil_module:Env-v0", ":CartPole-v1", "CartPole-v1:", "a:b:c", "Evil-v0", "",
    "GymV21Environment-v0", "GymV26Environment-v0", "Foreign-v0", "Foreign", "ForeignFunction-v0", "ForeignWrapper-v0",
    "gymnasium:Foreign-v0", "CartPole-v99", "evil_module", "../../evil", "\uff23artPole-v1",
]  # fmt: skip


@pytest.fixture
def foreign_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that some package of the user's has registered, whose code is not trusted."""
    registry = dict(gym.registry)
    monkeypatch.setattr(gym.envs.registration, "registry", registry)
    monkeypatch.setattr(gym, "registry", registry)
    wrapper = gym.envs.registration.WrapperSpec("Evil", "evil_module:Env", {})
    gym.register("Foreign-v0", entry_point="evil_module:Env")
    gym.register("ForeignFunction-v0", entry_point=os.system)
    gym.register(
        "ForeignWrapper-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", additional_wrappers=(wrapper,)
    )


@pytest.mark.parametrize("env_id", IDS)
def test_a_hostile_environment_id_is_refused(scene: Scene, foreign_ids: None, env_id: str) -> None:
    path = forged(scene, setting("env", "id", value=env_id))
    scene.refused(path, "Agent.load", f"env.id={env_id}", "environment id", env_id or "''")


SHIM = {"id": "GymV21Environment-v0", "kwargs": {"env_id": "evil_module:Env-v0"}}
FILE = {"id": "HalfCheetah-v5", "kwargs": {"xml_file": "secret.xml"}}


@pytest.mark.parametrize("env", [SHIM, FILE, {"kwargs": {"render_mode": "evil"}}, {"kwargs": {"evil": 1}}], ids=str)
def test_hostile_arguments_of_an_environment_are_refused(scene: Scene, env: dict[str, Any]) -> None:
    Path("secret.xml").write_text(f"{SECRET}\n<mujoco>{SECRET}</mujoco>\n")
    path = forged(scene, lambda config: config["env"].update(env))
    if "id" not in env and env["kwargs"].get("render_mode"):  # Gymnasium takes it, and warns
        assert Agent.load(path)
    else:
        scene.refused(path, "Agent.load", "env.kwargs", "GymV21Environment-v0")


# -- interpolations


INTERPOLATIONS = [
    "${oc.env:RLEXP_SECRET}", "${oc.env:HOME}", "${oc.env:NOTHING,x}", "${hydra:runtime.cwd}", "${now:%Y}", "${seed}",
    "${rlexp.token:}", "${oc.decode:${oc.env:RLEXP_SECRET}}", "${oc.create:{a: 1}}", "${oc.select:seed}", "x ${seed} y",
    "\\${seed}", "$${seed}", "${", "${}", "${evil:x}", "${algo._target_}", "${oc.dict.keys:algo}",
]  # fmt: skip
PLACES = [("name",), ("device",), ("algo", "gamma"), ("env", "id"), ("env", "kwargs", "x"), ("env", "_target_"),
          ("model", "hidden"), ("trainer", "callbacks"), ("logger", "x")]  # fmt: skip
RESOLVED = [(text, PLACES[index % len(PLACES)]) for index, text in enumerate(INTERPOLATIONS)]


@pytest.mark.parametrize(("text", "place"), RESOLVED, ids=[f"{name_of(place)}={text}" for text, place in RESOLVED])
def test_an_interpolation_is_never_resolved(scene: Scene, text: str, place: tuple[str, ...]) -> None:
    message = scene.refused(forged(scene, setting(*place, value=text)), "Agent.load", ".".join(place))
    assert "interpolation" in message


@pytest.mark.parametrize("place", [(), ("algo",), ("env", "kwargs"), ("logger",)])
def test_an_interpolation_in_a_key_is_never_resolved(scene: Scene, place: tuple[str, ...]) -> None:
    path = forged(scene, setting(*place, "${oc.env:RLEXP_SECRET}", value=1))
    assert "interpolation" in scene.refused(path, "Agent.load", ".".join(place) or "oc.env")


# -- YAML


def raw(text: bytes) -> Change:
    """Bytes in front of a good config."""

    def change(config: dict[str, Any]) -> bytes:
        import yaml

        return text + yaml.safe_dump(config).encode()

    return change


LAUGHS = b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (i + 1, i + 1, i, i) for i in range(97, 121))
YAML: dict[str, Change] = {
    "a call": raw(b"extra: !!python/object/apply:os.system ['mkdir executed']\n"),
    "an object": raw(b"extra: !!python/object/new:evil_module.Env []\n"),
    "a module": raw(b"extra: !!python/module:evil_module ''\n"),
    "a name": raw(b"extra: !!python/name:os.system ''\n"),
    "a tuple": raw(b"extra: !!python/tuple [1]\n"),
    "an unknown tag": raw(b"extra: !evil 1\n"),
    "a tag by its address": raw(b"%TAG ! tag:yaml.org,2002:python/\n---\nextra: !object/apply:os.getcwd []\n"),
    "a billion laughs": raw(LAUGHS),
    "an alias": raw(b"extra: &x 1\nmore: *x\n"),
    "a merge of an alias": raw(b"x: &x {a: 1}\ny: {<<: *x}\n"),
    "itself": raw(b"x: &x [*x]\n"),
    "a truth value that is none": raw(b"extra: !!bool x\n"),
    "an integer without digits": raw(b"extra: !!int ''\n"),
    "a number without digits": raw(b"extra: !!float ''\n"),
    "a time that is none": raw(b"extra: !!timestamp x\n"),
    "a date": raw(b"extra: 2020-01-01\n"),
    "bytes": raw(b"extra: !!binary aGVsbG8=\n"),
    "a set": raw(b"extra: !!set {a, b}\n"),
    "deep lists": raw(b"extra: " + b"[" * 3_000 + b"]" * 3_000 + b"\n"),
    "deep settings": raw(b"extra: " + b"{a: " * 5_000 + b"1" + b"}" * 5_000 + b"\n"),
    "lists just too deep": raw(b"extra: " + b"[" * 100 + b"]" * 100 + b"\n"),
    "no UTF-8": raw(b"extra: \xff\xfe\xfa\n"),
    "a zero byte": raw(b"extra: 'a\0b'\n"),
    "a tab": raw(b"\textra: 1\n"),
    "two documents": raw(b"a: 1\n---\n"),
    "an integer of 9000 hex digits": raw(b"seed: 0x" + b"f" * 9000 + b"\n---\n"),
    "a number of 5000 digits": raw(b"extra: " + b"9" * 5000 + b"\n"),
    "a key that is a list": raw(b"? [1, 2]\n: 3\n"),
    "a key that is a mapping": raw(b"? {a: 1}\n: 3\n"),
    "more than a megabyte": raw(b"#" * 2**20 + b"\n"),
    "empty": lambda config: b"",
    "a list": lambda config: b"- 1\n",
    "a number": lambda config: b"5\n",
    "a pickle": lambda config: b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93",
}


@pytest.mark.parametrize(("what", "surface"), in_turn(YAML), ids=names_of(in_turn(YAML)))
def test_a_hostile_config_file_is_refused(scene: Scene, what: str, surface: str) -> None:
    run = scene.copy("ppo")
    forge_config(run, YAML[what])
    scene.refused(run, surface, "config.yaml")


# -- values


def huge(*keys: str, value: Any) -> tuple[str, Change]:
    return ".".join(keys), setting(*keys, value=value)


VALUES: list[tuple[str, Change]] = [
    *[huge("seed", value=value) for value in (-1, 1.5, "x", [], None, 2**2000)],
    *[huge("name", value=value) for value in ("", ".", "..", "a/b", "../../x", "/tmp/x", None, [])],
    *[huge("device", value=value) for value in ("evil", "meta", "hpu", "privateuseone", "xla", "", 5, None)],
    *[huge("compile", value=value) for value in ("yes", 5, None, {})],
    *[huge("threads", value=value) for value in (0, -1, "x", 1.5, True, None, [])],
    *[huge("progress", value=value) for value in ("evil", None, 5)],
    *[huge("precision", value=value) for value in ("float8", None)],
    *[huge("logger", value=value) for value in ([1], "wandb", 5, {"x": 5}, {"x": None}, {"x": []}, {1: {}})],
    *[huge("trainer", "callbacks", value=value) for value in ("x", {"a": 1}, [5], [None], ["???"])],
    *[huge(group, value=value) for group in ("algo", "env", "trainer") for value in (None, 5, "ppo", [], {}, "???")],
    *[huge("algo", "gamma", value=value) for value in (2, -1, "x", None, float("nan"), [1])],
    *[huge("algo", "evil", value=value) for value in (1, None, {})],
    *[huge("env", "num_envs", value=value) for value in (0, -1, 1.5, "x", None, 10**9, 10**30)],
    *[huge("env", "vectorization", value=value) for value in ("evil", None, 5)],
    *[huge("env", "kwargs", value=value) for value in (5, "x", [1], {1: 2})],
    *[huge("evil", value=value) for value in (1, None, {"_target_": "os.system"})],
    *[huge("\x1b]0;evil\x07", value=value) for value in (1,)],
    *[huge("model", "hidden", value=value) for value in ("x", [0], [-5], [1.5], [None], [10**30], [10**6, 10**6],
                                                         [2**31 - 1, 2**31 - 1, 2**31 - 1], {"a": 1})],
    *[huge("trainer", "rollout_steps", value=value) for value in (0, -1, 10**30, "x")],
]  # fmt: skip
VALUE_IDS = [f"{index} {key.encode('unicode_escape').decode()}" for index, (key, _) in enumerate(VALUES)]


@pytest.mark.parametrize(("key", "change"), VALUES, ids=VALUE_IDS)
def test_a_value_that_cannot_be_is_refused(scene: Scene, key: str, change: Change) -> None:
    path = forged(scene, change)
    message = scene.refused(path, "Agent.load", key, key.split(".")[0])
    assert len(message) < 5000


@pytest.mark.parametrize("value", [None, 5, "x", [], {}])
def test_a_resume_reads_nothing_from_a_trainer_that_is_none(scene: Scene, value: Any) -> None:
    run = scene.copy("ppo")
    forge_config(run, setting("trainer", value=value))
    scene.refused(run, "resume", "trainer")
    scene.clear()
    run = scene.copy("ppo")  # only the checkpoint's own copy
    forge_config(newest(run), setting("trainer", value=value))
    if value == {}:
        command("resume", str(run), "trainer.total_steps=320")
    else:
        scene.refused(run, "resume", "has no trainer")


def test_no_message_commands_the_terminal(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that is an escape sequence is shown, not obeyed."""
    path = forged(scene, setting("algo", "\x1b]0;evil\x07\x1b[2J\r", value=1))
    message = scene.refused(path, "eval", "evil")
    assert not {"\x1b", "\x07", "\r"} & set(message)


# -- what would take all the memory


BOMBS: list[tuple[str, str, tuple[str, ...], Any]] = [
    ("ppo", "Agent.load", ("model", "hidden"), [200_000, 200_000]),
    ("ppo", "resume", ("model", "hidden"), [10**9]),
    ("dqn", "resume", ("buffer", "capacity"), 2**31 - 1),
    ("dqn", "resume", ("buffer", "n_step"), 10**9),
    ("dqn", "read_memory", ("buffer", "capacity"), 2**31 - 1),
    ("dqn", "read_memory", ("buffer", "n_step"), 10**8),
    ("dqn", "resume", ("trainer", "batch_size"), 2**31 - 1),
    ("ppo", "resume", ("trainer", "rollout_steps"), 2**31 - 1),
    ("crr", "Agent.load", ("algo", "n_critics"), 2**31 - 1),
    ("crr", "resume", ("dataset", "size"), 10**12),
    ("crr", "resume", ("trainer", "batch_size"), 2**31 - 1),
]


@pytest.mark.parametrize(
    ("name", "surface", "key", "value"), BOMBS, ids=[f"{'.'.join(each[2])}-{each[1]}-{each[3]}" for each in BOMBS]
)
def test_what_would_not_fit_into_memory_is_refused_before_it_is_allocated(
    scene: Scene, name: str, surface: str, key: tuple[str, ...], value: Any
) -> None:
    run = scene.copy(name)
    forge_config(run, setting(*key, value=value))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scene.refused(run, surface, ".".join(key), "network")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


# -- loggers and data that a config names


def test_a_strangers_wandb_logger_is_not_even_imported_to_evaluate(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would fail
    run = scene.copy("ppo")
    node = {"_target_": target_of(REGISTRY["logger"]["wandb"]), "entity": "evil"}
    forge_config(run, setting("logger", "wandb", value=node))
    before = content(scene.folder)
    with alarm() as heard:
        for surface in ("eval", "predict", "Agent.load"):
            SURFACES[surface](run)
    assert not heard
    assert content(scene.folder) == before


def test_tensorboard_writes_into_the_run_that_is_resumed_and_nowhere_else(scene: Scene) -> None:
    run = scene.copy("ppo")
    node = {"_target_": target_of(REGISTRY["logger"]["tensorboard"])}
    forge_config(run, setting("logger", "tensorboard", value=node))
    before = content(scene.folder)
    command("eval", str(run), "episodes=1")
    assert content(scene.folder) == before
    command("resume", str(run), "trainer.total_steps=320")
    changed = {path for path, found in content(scene.folder).items() if before.get(path) != found}
    assert any("tensorboard/events" in path for path in changed)
    assert all(Path(path).is_relative_to(run) for path in changed)


def data_node(kind: str, **settings: Any) -> Change:
    target = target_of(REGISTRY["dataset"][kind])
    return setting("dataset", value={"_target_": target, **settings})


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.parametrize("path", ["secret.txt", "missing", ".", "pipe", "/dev/zero", "", "~", "link", "\0"])
def test_a_path_to_something_that_is_no_dataset_tells_nothing_about_it(scene: Scene, kind: str, path: str) -> None:
    Path("secret.txt").write_text(f"root:x:0:0:{SECRET}:/root\n")
    os.mkfifo("pipe")
    os.symlink("secret.txt", "link")
    run = scene.copy("crr")
    forge_config(run, data_node(kind, path=path))
    scene.refused(run, "resume", path or "dataset.path", "The dataset")


def test_a_preset_named_by_a_strangers_config_is_a_name_and_not_a_path(scene: Scene) -> None:
    """Hydra follows a path, and what it finds there could name any target."""
    import rlexp.conf

    evil = scene.folder / "evil.yaml"
    evil.write_text("# @package _global_\nenv: {wrappers: [{_target_: evil_module.Env}]}\n")
    (conf,) = rlexp.conf.__path__
    way = os.path.relpath(evil.with_suffix(""), Path(conf) / "zoo")
    assert (Path(conf) / "zoo" / f"{way}.yaml").exists()
    run = scene.copy("crr")
    for zoo in (way, str(evil.with_suffix("")), "evil", "", "null", "sac_pendulum seed=1", "a,b", "[sac_pendulum]"):
        forge_config(run, data_node("replay", zoo=zoo))
        scene.refused(run, "resume", "dataset.zoo", "dataset")


def test_the_memory_of_a_run_named_by_a_strangers_config_is_opened_with_the_same_care(scene: Scene) -> None:
    other, run = scene.copy("dqn"), scene.copy("crr")
    for named in (run, scene.folder, Path("missing"), Path("/")):
        forge_config(run, data_node("replay", run=str(named)))
        scene.refused(run, "resume", str(named))
    forge_config(other, put(("model",), {"_target_": "evil_module.Env"}))
    forge_config(run, data_node("replay", run=str(other)))
    scene.refused(run, "resume", "model._target_")
    forge_config(run, data_node("replay", run=str(other), zoo="sac_pendulum"))
    scene.refused(run, "resume", "dataset")
    forge_config(run, data_node("replay"))
    scene.refused(run, "resume", "dataset")


def test_there_are_enough_hostile_configs() -> None:
    assert sum(map(len, (TARGETS, OTHERS, MEANINGS, WRAPPERS, IDS, RESOLVED, YAML, VALUES, BOMBS))) >= 300
