"""What the components of a config are called: by the names they are chosen by (``algo=drq_v2`` for ``DrQv2``).

Reads sources and YAML and imports no component, so that lists and reports answer at once. Free of torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlexp.config.component import snake_case
from rlexp.config.compose import COMPONENT_PACKAGES, choice_files

PACKAGE = Path(__file__).parents[1]
REGISTRATION = re.compile(r'^@component\("(\w+)"(?:, (?:"(\w+)"|(\w+)))?\)\n(?:@.*\n)*class (\w+)', re.MULTILINE)


def component_name(node: Mapping[str, Any]) -> str:
    """The name that the component in a node of a config is chosen by; of a user's own class one made from its name."""
    package, _, path = str(node.get("_target_", "")).partition(".")
    cls = path.rpartition(".")[2] or package
    found = _registered().get(cls) if package == "rlexp" else None
    if found is None:
        return snake_case(cls)
    group, name = found
    choices = _settings_of_choices(group, name)
    if name in choices:
        return name
    # One class behind several choices (model=mlp, model=impala): the one whose settings these are.
    return next((choice for choice, own in choices.items() if own.items() <= node.items()), name)


@functools.cache
def one_of_a_class(group: str, choice: str) -> bool:
    """Whether a choice is one of several of the same class, told apart by their settings: model=mlp by its encoder."""
    names = [name for known, name in _registered().values() if known == group]
    return choice not in names and any(choice in _settings_of_choices(group, name) for name in names)


@functools.cache
def _registered() -> dict[str, tuple[str, str]]:
    """Of rlexp's own classes the group and name that they are registered with."""
    found: dict[str, tuple[str, str]] = {}
    for package in COMPONENT_PACKAGES:
        for path in sorted((PACKAGE / package).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            for group, name, constant, cls in REGISTRATION.findall(source):
                if constant:
                    name = re.findall(rf'^{constant} = "(\w+)"', source, re.MULTILINE)[0]
                found[cls] = group, name or snake_case(cls)
    return found


@functools.cache
def _settings_of_choices(group: str, name: str) -> dict[str, dict[str, Any]]:
    """The choices of a group that begin with the schema ``name``, and what plain settings each has beside it."""
    found = {}
    for choice, path in choice_files(group, []).items():
        text = path.read_text(encoding="utf-8")
        if choice == name or f"/schema/{group}/{name}," in text:
            content = yaml.safe_load(text)
            found[choice] = {key: value for key, value in content.items() if isinstance(value, str | int | float)}
    return found
