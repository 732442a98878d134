"""Hydra's loader of configs, which does not do again what it has done before in the same process. For tests alone.

Tests compose hundreds of configs where a user composes one; with this, each takes a third of the time. Users have
Hydra's own loader, and so have `tests/config/test_precedence.py` and the tests that call the command line.

To compose, Hydra copies its store with all schemas, parses every file and merges the choices of all groups one by one,
though most compositions of a process choose the same and differ in a few values. Here, what the choices alone decide is
kept, and Hydra applies the values to a copy of it. Whatever is kept belongs to the very text of the files and the very
schemas that it was made from: a file that was edited is read anew. Values that resolvers gave are not kept.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import hydra._internal.hydra as hydra_module
import omegaconf
import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, ListConfig, OmegaConf, grammar_parser, nodes
from omegaconf.base import ContainerMetadata, Metadata

from rlexp.config import trust

KEPT = 64  # compositions, about a megabyte each
HYDRA = "hydra/config"  # the last of Hydra's own settings, which come first in every composition
VALUES = (nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode, nodes.IntegerNode, nodes.StringNode)


_PATCHED = pytest.MonkeyPatch()


@contextmanager
def hydra_alone() -> Iterator[None]:
    """Configs are composed as for users, by Hydra's own loader."""
    _PATCHED.undo()
    try:
        yield
    finally:
        install()


def install() -> None:
    """Let Hydra load with :class:`RememberingLoader`, whoever starts it."""
    patch = _PATCHED
    patch.setattr(hydra_module, "ConfigLoaderImpl", RememberingLoader)
    patch.setattr(defaults_list, "_create_interpolation_map", _interpolation_map_if_used)
    # Hydra copies the store only because it changes another attribute of its owner; what it reads it copies once more.
    patch.setattr(ConfigStore, "__deepcopy__", lambda self, memo: self, raising=False)
    # Hydra and OmegaConf copy at every turn; their way of copying a value takes a dozen calls of Python's general one.
    for kind in (Metadata, ContainerMetadata):
        patch.setattr(kind, "__deepcopy__", _copied_metadata, raising=False)
    for kind in VALUES:
        patch.setattr(kind, "__deepcopy__", _copied_value)
    for kind in (DictConfig, ListConfig):
        patch.setattr(kind, "__deepcopy__", _copied_container)
    for module in (omegaconf.base, omegaconf._utils):
        patch.setattr(module, "parse", _parsed_interpolation)
    patch.setattr(OverridesParser, "parse_rule", _parsed_rule)
    patch.setattr(trust, "entry_points", functools.cache(entry_points))  # reads the metadata of every installed package


class RememberingLoader(ConfigLoaderImpl):
    """Hydra's loader, which keeps what choices compose to."""

    _kept: ClassVar[dict[Any, tuple[DictConfig, list[ConfigResult | None]]]] = {}  # with the parts, whose ids are keys

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = OverridesParser.create().parse_overrides(overrides=overrides)
        repository = RememberingRepository(self.repository)
        self._process_config_searchpath(config_name, parsed, repository)
        return parsed, repository

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        assert isinstance(repo, RememberingRepository)
        parts = [repo.load_config(str(each.config_path)) for each in defaults]
        key = tuple((each.config_path, each.package, each.primary, id(part)) for each, part in zip(defaults, parts))
        if key in self._kept:
            return copy.deepcopy(self._kept[key][0])
        composed = self._compose(defaults, repo)
        if repo.lasting:
            if len(self._kept) == KEPT:
                self._kept.pop(next(iter(self._kept)))
            kept = copy.deepcopy(composed)
            OmegaConf.clear_cache(kept)  # of resolvers such as ${now:…}
            self._kept[key] = kept, parts
        return composed

    def _compose(self, defaults: list[ResultDefault], repo: RememberingRepository) -> DictConfig:
        """As Hydra does it; but its own settings, which are half of all, are one part that was composed before."""
        own = list(itertools.takewhile(lambda each: str(each.config_path).startswith("hydra/"), defaults))
        if not own or own == defaults:
            return super()._compose_config_from_defaults_list(defaults=defaults, repo=repo.unshared(defaults))
        others = defaults[len(own) :]
        repository = repo.unshared(others)
        settings = self._compose_config_from_defaults_list(own, repo)
        repository.cache[_key(HYDRA)] = ConfigResult("hydra", HYDRA, settings, {"package": ""}, is_schema_source=True)
        defaults = [ResultDefault(config_path=HYDRA, package=""), *others]
        return super()._compose_config_from_defaults_list(defaults=defaults, repo=repository)


class RememberingRepository(CachingConfigRepository):
    """The configs of one composition; those that were read before are the same objects again, and not to be changed."""

    delegate: ConfigRepository
    lasting = True  # whether all that was read so far can be recognised when it is read again
    _kept: ClassVar[dict[Any, tuple[str | ConfigNode, ConfigResult]]] = {}  # what was read, and what became of it

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A config by its path, such as algo/sac; None if there is none."""
        name = _key(config_path)
        if name not in self.cache:
            self.cache[name] = self._load(config_path)
        return self.cache[name]

    def unshared(self, defaults: list[ResultDefault]) -> CachingConfigRepository:
        """The configs of a list, which may be changed."""
        repository = CachingConfigRepository(self.delegate)
        names = {_key(str(each.config_path)) for each in defaults}
        repository.cache = copy.deepcopy({name: self.cache[name] for name in names})
        return repository

    def _load(self, config_path: str) -> ConfigResult | None:
        source = self.delegate._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        written = self._written(source, config_path)
        if written is None:
            self.lasting = False
            return self.delegate.load_config(config_path)
        key = source.provider, source.full_path(), config_path
        before, result = self._kept.get(key, (None, None))
        if result is None or not (written is before or (isinstance(written, str) and written == before)):
            result = self.delegate.load_config(config_path)
            assert result is not None
            self._kept[key] = written, result
        return result

    def _written(self, source: ConfigSource, config_path: str) -> str | ConfigNode | None:
        """What a config is made from: the text of a file or a schema; None if that is not all."""
        name = source._normalize_file_name(config_path)
        if source.scheme() == "structured":
            return ConfigStore.instance()._load(name)
        if self.delegate.get_schema_source().is_config(config_path):  # is merged into the schema of the same name
            return None
        try:
            if source.scheme() == "pkg":
                return resources.files(source.path).joinpath(name).read_text(encoding="utf-8")
            if source.scheme() == "file":
                return Path(source.path, name).read_text(encoding="utf-8")
        except (OSError, ValueError):  # told when it is loaded
            pass
        return None


def _key(config_path: str) -> str:
    """Under which the parent keeps a config."""
    return f"config_path={config_path}"


_interpolation_map = defaults_list._create_interpolation_map


def _interpolation_map_if_used(overrides: Any, defaults: list[InputDefault], self_added: bool) -> DictConfig | None:
    """Hydra makes a map of all choices for each file, though only an interpolation in its defaults list reads it."""
    used = any(each.is_interpolation() for each in defaults)
    return _interpolation_map(overrides, defaults, self_added) if used else None


def _copied_metadata(metadata: Metadata, memo: dict[int, Any]) -> Metadata:
    """What is said of a node: all of it types and words, but for two dictionaries."""
    copied = object.__new__(type(metadata))
    vars(copied).update(vars(metadata))
    copied.flags = None if metadata.flags is None else dict(metadata.flags)
    found = metadata.resolver_cache
    copied.resolver_cache = copy.deepcopy(found, memo) if found else defaultdict(dict)
    return copied


def _copied_container(node: DictConfig | ListConfig, memo: dict[int, Any]) -> DictConfig | ListConfig:
    """As OmegaConf copies it, but not by making an empty one first, which is checked like any other."""
    copied = object.__new__(type(node))
    state = vars(node)
    content = copy.deepcopy(state["_content"], memo)  # settings, a list, or the text of an interpolation
    if isinstance(content, (dict, list)):
        for child in content.values() if isinstance(content, dict) else content:
            vars(child)["_parent"] = copied
    metadata, flags = copy.deepcopy(state["_metadata"], memo), copy.copy(state["_flags_cache"])
    vars(copied).update(_metadata=metadata, _parent=state["_parent"], _flags_cache=flags, _content=content)
    return copied


def _copied_value(node: nodes.ValueNode, memo: dict[int, Any]) -> nodes.ValueNode:
    """As OmegaConf copies it: with the same value and the same parent."""
    copied = object.__new__(type(node))
    vars(copied).update(vars(node), _metadata=copy.deepcopy(node._metadata, memo), _flags_cache=None)
    return copied


_parsed_interpolation = functools.lru_cache(maxsize=1_000)(grammar_parser.parse)  # a tree, which nobody changes
_parse_rule = OverridesParser.parse_rule


@functools.lru_cache(maxsize=4_000)
def _rule(text: str, rule_name: str) -> Any:
    return _parse_rule(OverridesParser.create(), text, rule_name)


def _parsed_rule(parser: OverridesParser, s: str, rule_name: str) -> Any:
    """An override is parsed once; but a function in it, such as shuffle(…), is called each time."""
    return _parse_rule(parser, s, rule_name) if "(" in s else copy.deepcopy(_rule(s, rule_name))
