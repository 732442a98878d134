"""Writes docs/reference.md from the schemas: every group, choice and field. Run it after changing one."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import yaml

from rlexp.config.check import GROUPS, Root
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, register
from rlexp.config.fields import Part, Range
from rlexp.loggers.base import flatten

HEAD = """\
# Every setting

Written by `python docs/reference.py` from the schemas. `rlexp algo=… env=… --cfg job` shows the values of one run.
Numbers of an algorithm can also follow a [schedule](configuration.md#schedules):
`algo.schedules.FIELD={shape: linear, end: 0}`.
"""
INTRODUCTIONS = {
    "algo": "The algorithm; its file also chooses loop, buffer and data.",
    "exploration": "Noise on the actions of a deterministic policy, by name (`algo.exploration=pink`), with settings\n"
    "(`algo.exploration._target_=rlexp.algos.action_noise.PinkNoise algo.exploration.octaves=8`) or "
    "[of your own](extending.md#noise).",
    "model": "The networks. What is null is the algorithm's own.",
    "buffer": "The memory.",
    "env": "The environment.",
    "dataset": "What the offline and mixed loops learn from.",
    "trainer": "The loop, its budget and its intervals.",
    "evaluator": "How policies are judged.",
    "logger": "Where metrics go, beside the terminal and metrics.jsonl; several stand side by side.",
    "sweep": "How the runs of `--multirun` are made ([sweeps.md](sweeps.md)); no part of a run.",
    "launcher": "Where they run.",
}
CONF = Path(__file__).parents[1] / "conf"


def page() -> str:
    """The text of docs/reference.md."""
    register()
    parts = [
        HEAD,
        "## Top level\n",
        table("", Root, [f for f in dataclasses.fields(Root) if f.name not in (*GROUPS, "logger")]),
    ]
    for group, introduction in INTRODUCTIONS.items():
        parts.append(f"## {group}\n\n{introduction}\n")
        if listed := choices(group):
            parts.append("\n".join(f"- `{group}={name}`: {line}" for name, line in listed.items()) + "\n")
        own = {name: cls for name, cls in REGISTRY[group].items() if cls.__module__.startswith("rlexp.")}
        for name, cls in sorted(own.items()):
            shown = [f for f in dataclasses.fields(cls) if f.init and f.name != "schedules"]
            said = f"`algo.exploration={name}`" if group == "exploration" else f"`schema/{group}/{name}`"
            parts.append(f"### {cls.__name__} ({said})\n\n{inspect.getdoc(cls).splitlines()[0]}\n")
            if shown:
                where = {"logger": f"logger.{name}", "exploration": "algo.exploration"}.get(group, group)
                parts.append(table(where, cls, shown))
            if changes := set_by_file(group, name):
                parts.append(f"`{group}={name}` sets {', '.join(changes)}.\n")
    return "\n".join(parts)


def table(where: str, cls: type, fields: list[dataclasses.Field]) -> str:
    """One row per field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    rows = ["| setting | type | default | |", "|---|---|---|---|"]
    for each in fields:
        name = f"{where}.{each.name}".strip(".")
        cells = [f"`{name}`", kind(hints[each.name]), default(each), comment(cls, each.name)]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def kind(hint: Any) -> str:
    """A type in words, with its range."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if groups := [note.group for note in args[1:] if isinstance(note, Part)]:
            return f"{', '.join(sorted(REGISTRY[groups[0]]))} or settings"
        limits = [limit(note) for note in args[1:] if isinstance(note, Range)]
        return " ".join([kind(args[0]), *limits])
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if arm is type(None) else kind(arm) for arm in args)
    if origin in (list, tuple):
        return f"list of {kind(args[0])}" if args and args[0] is not Any else "list"
    if origin is dict:
        return "settings"
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return ", ".join(member.name for member in hint)
    return {int: "whole number", float: "number", bool: "true, false", str: "text"}.get(hint, "any")


def limit(bounds: Range) -> str:
    """The range of a number, as mathematics."""
    if bounds.high < float("inf") and bounds.high < 2**31 - 1:
        return f"in [{bounds.low:g}, {bounds.high:g}]"
    return f"{'>' if bounds.open_low else '≥'} {bounds.low:g}"


def default(each: dataclasses.Field) -> str:
    """What holds if nothing is said."""
    value = each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default  # type: ignore[misc]
    if value is dataclasses.MISSING:
        return "must be given"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    if isinstance(value, bool) or value is None:
        return f"`{'null' if value is None else str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def comment(cls: type, name: str) -> str:
    """The comment behind a field, in the class nearest to ``cls`` that declares it."""
    for base in cls.__mro__:
        if base is not object and name in (found := comments(base)):
            return found[name]
    return ""


@functools.cache
def comments(cls: type) -> dict[str, str]:
    """Field name -> the comment on its lines, for the fields that a class declares itself."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (tree,) = ast.parse(source).body
    found = {}
    for node in tree.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = " ".join(by_line[line] for line in lines if line in by_line)
    return found


def set_by_file(group: str, name: str) -> list[str]:
    """What the YAML file of a choice sets beyond the schema."""
    path = CONF / group / f"{name}.yaml"
    if not path.exists():
        return []
    values = {key: value for key, value in (yaml.safe_load(path.read_text()) or {}).items() if key != "defaults"}
    return [
        f"`{key}={str(value).lower() if isinstance(value, bool) else value}`"
        for key, value in flatten(values, ".").items()
        if value != "???"
    ]


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
