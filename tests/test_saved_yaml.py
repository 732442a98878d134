"""Configs of loaded runs are read alike with and without libyaml, and what it must not see never reaches it."""

import pytest
import yaml

from rlexp import files
from rlexp.config.compose import compose
from rlexp.files import config_bytes, parse_config

DEEP = b"a: " + b"[" * (files.MAX_CONFIG_DEPTH + 1) + b"]" * (files.MAX_CONFIG_DEPTH + 1)


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    files._parsed.cache_clear()


@pytest.mark.parametrize(
    "overrides", [["zoo=ppo_pong"], ["zoo=cql_pendulum"], ["env=gym", "env.id='Ünï-v0'", "name=x"]]
)
def test_a_config_reads_the_same_without_libyaml(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(overrides)
    data = config_bytes(config)
    fast = parse_config(data)
    files._parsed.cache_clear()
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert parse_config(data) == fast == config


@pytest.mark.parametrize(("data", "problem"), [(b"a: &x 1\nb: *x\n", "aliases"), (DEEP, "nested too deeply")])
def test_aliases_and_depth_do_not_reach_libyaml(data: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    original = yaml.load

    def load(data: bytes, Loader: type) -> object:
        used.append(Loader)
        return original(data, Loader=Loader)

    monkeypatch.setattr(yaml, "load", load)
    with pytest.raises(ValueError, match=problem):
        parse_config(data)
    assert used == [files._PlainLoader]
