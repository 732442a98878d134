"""Every YAML file in conf/ composes, alone and where it matters together with the others."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlexp.config.check import GROUPS, build, check_config
from rlexp.config.component import REGISTRY, target_of
from rlexp.config.compose import CHOICE_GROUPS, SWEEP_GROUPS, choices, compose, compose_group, register
from rlexp.errors import RlexpError
from rlexp.runner import Runner

register()

CONF = Path(__file__).parents[2] / "conf"
FILES = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml"))]
COMPONENTS = [(group, name) for group, name in FILES if group not in ("zoo", *SWEEP_GROUPS)]
PRESETS = [name for group, name in FILES if group == "zoo"]
# A choice that does not go with the default algorithm (Discrete SAC on CartPole) is composed with one it goes with.
WITH: dict[tuple[str, str], list[str]] = {
    ("env", "gym"): ["env.id=Acrobot-v1"],
    ("dataset", "npz"): ["dataset.path=data.npz"],
    ("dataset", "hdf5"): ["dataset.path=data.hdf5"],
    ("dataset", "run"): ["dataset.path=outputs/run"],
    ("dataset", "minari"): ["dataset.id=pendulum/random-v0"],
}


def test_the_folders_of_conf_are_the_groups_that_can_be_chosen_from() -> None:
    assert {group for group, _ in FILES} == set(CHOICE_GROUPS)


@pytest.mark.parametrize(("group", "name"), COMPONENTS, ids=["=".join(each) for each in COMPONENTS])
def test_every_choice_of_every_group_composes(group: str, name: str) -> None:
    config = compose([f"{group}={name}", *WITH.get((group, name), [])])
    assert check_config(config) == config  # what a run saves composes to itself when it is loaded
    node = config["logger"][name] if group == "logger" else config[group]
    assert any(target_of(cls) == node["_target_"] for cls in REGISTRY[group].values())
    written = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    for key, value in ((written.get("algo") or {}) if group == "algo" else written).items():
        if key != "defaults" and value != "???":
            assert contains(node[key], value)


@pytest.mark.parametrize("name", choices("launcher"))
def test_every_launcher_is_a_component(name: str) -> None:
    launcher = build("launcher", compose_group("launcher", [f"launcher={name}"]))
    assert type(launcher) is REGISTRY["launcher"][name]


def contains(found: Any, wanted: Any) -> bool:
    """Whether what a file says is what was composed; nested settings may be joined by defaults."""
    if isinstance(wanted, dict):
        return all(contains(found[key], value) for key, value in wanted.items())
    return bool(found == wanted)


@pytest.mark.parametrize("group", CHOICE_GROUPS)
def test_every_choice_is_described_in_one_line(group: str) -> None:
    lines = choices(group)
    assert set(lines) == {name for each, name in FILES if each == group}
    assert all(len(line) > 10 for line in lines.values()), lines


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_and_can_be_run_as_it_is(preset: str) -> None:
    config = compose([f"zoo={preset}"])
    assert check_config(config) == config
    Runner(config)  # builds and checks everything; trains nothing


def test_the_defaults_are_complete() -> None:
    config = compose()
    assert all(config[group]["_target_"] for group in GROUPS if group != "dataset")
    assert config["dataset"] is None
    assert config["logger"] == {}
    assert config["name"].startswith("discrete_sac-cartpole-0-")


def test_loggers_stand_side_by_side() -> None:
    assert sorted(compose(["logger=[tensorboard,wandb]"])["logger"]) == ["tensorboard", "wandb"]


def test_any_gymnasium_id_works_without_a_file() -> None:
    runner = Runner(compose(["algo=ppo", "env=gym", "env.id=FrozenLake-v1"]))
    assert runner.spec.action.n == 4


def test_two_runs_started_in_the_same_second_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaa", "bbbb"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(tokens))
    assert [compose(["seed=3"])["name"][-5:] for _ in range(2)] == ["-aaaa", "-bbbb"]


@pytest.mark.parametrize(
    ("overrides", "begin"),
    [
        (["algo=sac", "env=pendulum", "seed=3"], "sac-pendulum-3-"),
        (["algo=ppo", "env=atari", "env.game=breakout"], "ppo-atari_breakout-0-"),
        (["algo=ppo", "env=gym", "env.id=ALE/Pong-v5"], "ppo-ALE_Pong_v5-0-"),
        (["algo=ppo", "env=gym", "env.id=my.package:Own-v0"], "ppo-my.package_Own_v0-0-"),
        (["algo=ppo", "env=gym", "env.id=" + 300 * "a"], "ppo-" + 80 * "a" + "-0-"),
    ],
)
def test_a_run_is_named_after_what_it_learns(overrides: list[str], begin: str) -> None:
    assert compose(overrides)["name"].startswith(begin)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=atari", "env.game=ms/pacman"], "Did you mean ms_pacman"),
        (["~env"], "env must be a component"),
    ],
)
def test_a_mistake_in_the_environment_is_not_blamed_on_the_name(overrides: list[str], message: str) -> None:
    with pytest.raises(RlexpError, match=message):
        Runner(compose(["algo=ppo", *overrides]))
