"""Hydra composes with what is remembered as it does without."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import Node, OmegaConf, ValueNode

from rlexp.config.compose import compose, register, typed
from rlexp.errors import ConfigError
from tests.remembering import RememberingLoader, RememberingRepository, hydra_alone

register()


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RememberingLoader, "_kept", {})
    monkeypatch.setattr(RememberingRepository, "_kept", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own configs."""
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "zoo").mkdir()
    return tmp_path


def write_preset(folder: Path, text: str) -> None:
    (folder / "zoo" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")


CASES = [
    [],
    ["algo=sac", "env=pendulum", "algo.gamma=0.9", "name=x", "+env.kwargs.g=9.81"],
    ["zoo=discrete_sac_cartpole", "logger=[tensorboard,wandb]", "~dataset"],
]


@pytest.mark.parametrize("overrides", CASES)
def test_what_is_remembered_is_what_hydra_composes_anew(overrides: list[str]) -> None:
    first, again = typed(overrides), typed(overrides)
    assert len(RememberingLoader._kept) == 2  # this one, and Hydra's own settings
    hydra = HydraConfig.instance().cfg
    with hydra_alone():
        anew = typed(overrides)
        for config in (first, again):
            assert OmegaConf.to_container(config) == OmegaConf.to_container(anew)
            assert {key: OmegaConf.get_type(config, key) for key in anew} == {
                key: OmegaConf.get_type(anew, key) for key in anew
            }
        assert OmegaConf.to_container(hydra) == OmegaConf.to_container(HydraConfig.instance().cfg)


def nodes_of(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    content = getattr(node, "_content", None)
    below = content.values() if isinstance(content, dict) else content if isinstance(content, list) else [content]
    for child in below:
        if isinstance(child, Node):
            yield from nodes_of(child)


def test_a_copy_says_the_same_and_shares_nothing_that_can_be_changed() -> None:
    config = typed(CASES[1])
    str(config)  # asks for flags, which are kept
    copied = copy.deepcopy(config)
    before, after = list(nodes_of(config)), list(nodes_of(copied))
    assert len(before) == len(after) > 100
    for one, other in zip(before, after):
        assert one is not other
        assert type(one) is type(other)
        assert one._metadata is not other._metadata
        assert one._metadata == other._metadata
        assert one._metadata.flags is not other._metadata.flags
        assert one._metadata.resolver_cache is not other._metadata.resolver_cache
        assert one._value() == other._value() or not isinstance(one, ValueNode)
        assert vars(one).keys() == vars(other).keys()
    parents = {id(node) for node in after}
    assert all(id(node._get_parent()) in parents for node in after[1:])
    copied.algo.gamma = 0.5
    assert config.algo.gamma == 0.9


def test_values_of_one_composition_are_not_found_in_the_next() -> None:
    assert compose(["algo=ppo", "algo.gamma=0.5", "+env.kwargs.a=1"])["algo"]["gamma"] == 0.5
    config = compose(["algo=ppo"])
    assert config["algo"]["gamma"] == 0.99
    assert config["env"]["kwargs"] == {}
    assert len(RememberingLoader._kept) == 2


def test_a_file_that_was_edited_is_read_anew(folder: Path) -> None:
    for gamma in (0.5, 0.6):
        write_preset(folder, f"algo: {{gamma: {gamma}}}")
        assert compose(["zoo=mine"])["algo"]["gamma"] == gamma
    write_preset(folder, "defaults: [override /algo: ppo]")
    assert compose(["zoo=mine"])["algo"]["_target_"].endswith(".PPO")
    write_preset(folder, "algo: {gama: 0.5}")
    with pytest.raises(ConfigError, match="gama"):
        compose(["zoo=mine"])
    (folder / "zoo" / "mine.yaml").unlink()
    with pytest.raises(ConfigError, match="mine"):
        compose(["zoo=mine"])


def test_what_a_resolver_gave_is_not_remembered(folder: Path) -> None:
    write_preset(folder, "name: mine-${rlexp.token:}")
    compose(["algo=ppo"])  # whatever comes first
    assert len({compose(["zoo=mine"])["name"] for _ in range(4)}) > 1


@pytest.fixture
def stored() -> Iterator[str]:
    yield "thing"
    ConfigStore.instance().repo["schema"].pop("thing.yaml", None)


def test_a_schema_that_was_stored_anew_takes_the_place_of_the_old_one(folder: Path, stored: str) -> None:
    write_preset(folder, f"defaults: [/schema/{stored}@logger.mine]")
    for default in (1, 1.0):  # equal, and of another type
        schema = make_dataclass("Thing", [("size", type(default), default)])
        ConfigStore.instance().store(group="schema", name=stored, node=schema)
        size = typed(["zoo=mine"]).logger.mine.size
        assert (size, type(size)) == (default, type(default))


def test_no_more_compositions_are_kept_than_was_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.remembering.KEPT", 2)
    for gamma in (0.5, 0.6, 0.7):
        write_preset(folder, f"algo: {{gamma: {gamma}}}")
        assert compose(["zoo=mine"])["algo"]["gamma"] == gamma
    assert len(RememberingLoader._kept) == 2


def test_an_override_that_was_parsed_before_can_be_changed_and_random_ones_stay_random() -> None:
    parser = OverridesParser.create()
    first, again = (parser.parse_override("a=[1,{b: 'c'}]") for _ in range(2))
    assert first == again
    assert first.value() is not again.value()
    shuffles = {str(parser.parse_override("a=shuffle([1,2,3,4,5,6,7,8,9])").value()) for _ in range(5)}
    assert len(shuffles) > 1
