"""What the TAB key offers: commands, runs, choices, settings. Free of torch until the settings of components are asked.

``rlexp -sc install=bash`` prints what a shell has to be told; that calls ``rlexp -sc query=bash`` with the line so far
in COMP_LINE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, EnumNode, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.check import GROUPS, Root
from rlexp.config.component import REGISTRY
from rlexp.config.compose import CHOICE_GROUPS, choices, config_folders, typed
from rlexp.config.messages import setting_names
from rlexp.config.overrides import part_group
from rlexp.errors import ConfigError, RlexpError
from rlexp.options import (
    CollectOptions,
    EvalOptions,
    ExportOptions,
    InfoOptions,
    ListRunsOptions,
    MetricsOptions,
    PredictOptions,
    ReportOptions,
    ResumeOptions,
)

OPTIONS = {
    "resume": ResumeOptions,
    "eval": EvalOptions,
    "predict": PredictOptions,
    "export": ExportOptions,
    "collect": CollectOptions,
}
OF_MANY = {"report": ReportOptions, "metrics": MetricsOptions}  # commands on any number of runs
BENCHMARKS = ("speed", "startup", "solve", "scaling", "profile")
TOP = tuple(field.name for field in fields(Root) if field.name not in (*GROUPS, "logger"))
WORDS = {  # what a setting at the top can be, where that is a word
    "device": ("auto", "cpu", "cuda", "mps"),
    "compile": ("auto", "true", "false"),
    "threads": ("auto",),
    "precision": ("float32", "bfloat16"),
    "progress": ("auto", "rich", "plain", "none"),
    "checkpoint": ("last", "best"),
}

# Bash breaks words at "=" and replaces only what stands behind it. A space ends what is complete: bash is given it, zsh
# and fish add it themselves.
BASH = r"""_rlexp_completion() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}"
    COMPREPLY=($(COMP_LINE="$line" "$1" -sc query=bash 2>/dev/null))
    if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
}
complete -o nospace -o default -F _rlexp_completion rlexp"""
ZSH = r"""_rlexp_completion() {
    local -a found begun
    found=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" "${words[1]}" -sc query=zsh 2>/dev/null)}")
    begun=(${(M)found:#*[=.]})
    found=(${found:#*[=.]})
    (( $#begun )) && compadd -S '' -- "${begun[@]}"
    (( $#found )) && compadd -- "${found[@]}"
    (( $#begun + $#found )) || _files
}
compdef _rlexp_completion rlexp"""
FISH = r"""function _rlexp_completion
    set -lx COMP_LINE (commandline -cp)
    set -l words (commandline -cpo)
    command $words[1] -sc query=fish 2>/dev/null
end
complete -c rlexp -a '(_rlexp_completion)'"""
INSTALL = {"bash": BASH, "zsh": ZSH, "fish": FISH}
UNINSTALL = {
    "bash": "complete -r rlexp; unset -f _rlexp_completion",
    "zsh": "compdef -d rlexp; unfunction _rlexp_completion",
    "fish": "complete -e -c rlexp; functions -e _rlexp_completion",
}


def answer(arguments: Sequence[str], commands: Sequence[str]) -> str:
    """What ``rlexp -sc ARGUMENT`` prints."""
    asked, _, shell = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    if asked not in ("install", "uninstall", "query") or shell not in INSTALL:
        raise ConfigError("-sc needs what to do and for which shell: rlexp -sc install=bash (or zsh, or fish).")
    if asked == "query":
        ending = " " if shell == "bash" else ""
        found = completions(os.environ.get("COMP_LINE", ""), commands)
        return "\n".join(each if each.endswith(("=", ".")) else each + ending for each in found)
    return (INSTALL if asked == "install" else UNINSTALL)[shell]


def completions(line: str, commands: Sequence[str]) -> list[str]:
    """What the last word of a command line can become, in order; nothing where it is anything."""
    words = line.split()
    if not words or line[-1].isspace():
        words.append("")
    before, word = words[1:-1], words[-1]
    try:
        found = _offers(before, word, commands)
        return sorted({each for each in found if each.startswith(word)})
    except (RlexpError, OmegaConfBaseException):  # the line so far cannot be composed
        return []


def _offers(before: list[str], word: str, commands: Sequence[str]) -> Iterator[str]:
    command = before[0] if before and before[0] in commands else "train"
    if not before:
        yield from commands
    if command in OPTIONS:
        yield from _of_run(command, before[1:], word)
    elif command in OF_MANY:
        yield from _of_runs(OF_MANY[command], word)
    elif command == "list":
        yield from (*CHOICE_GROUPS, "runs") if len(before) == 1 else _of_runs(ListRunsOptions, word)
    elif command == "bench":
        yield from BENCHMARKS
    elif command == "data":
        yield from ["info"] if len(before) == 1 else [f"{each.name}=" for each in fields(InfoOptions)]
        yield from _choices("env", word, [])
    else:
        yield from _overrides([each for each in before if each not in commands], word)


def _of_run(command: str, before: list[str], word: str) -> Iterator[str]:
    """A run first; then the options of the command, and the settings of the run."""
    if not before:
        yield from _runs(word)
        yield from ["random"] if command == "collect" else []
        return
    yield from (f"{each.name}=" for each in fields(OPTIONS[command]))
    yield from _words(word)
    if "." in word:
        from rlexp.cli import run_argument
        from rlexp.run_dir import RunDir

        yield from _settings(OmegaConf.create(RunDir.open(run_argument(command, before)[0]).config), word)
    else:
        yield from (f"{group}." for group in GROUPS)


def _overrides(before: list[str], word: str) -> Iterator[str]:
    folders = [each for flag, each in pairwise(before) if flag in ("--config-dir", "-cd")]
    key = word.partition("=")[0]
    if "." in key:
        given = [each for each in before if "=" in each and not each.startswith("-")]
        yield from _settings(typed(given, folders), word)
    elif "=" not in word:
        yield from (f"{group}=" for group in CHOICE_GROUPS)
        yield from (f"{group}." for group in GROUPS)
        yield from (f"{name}=" for name in TOP)
        yield from ("--multirun", "--cfg", "--config-dir", "--help") if word.startswith("-") else ()
    else:
        yield from _choices(key, word, folders)
        yield from _words(word)
        yield from (f"init_from={run}" for run in _runs(word.partition("=")[2]))


def _of_runs(options: type, word: str) -> Iterator[str]:
    """Runs and the folders above them, the options of the command, and what the runs are chosen by."""
    runs = list(_runs(word))
    yield from runs
    yield from {str(Path(run).parent) for run in runs} - {"."}
    yield from (f"{each.name}=" for each in fields(options))
    yield from _choices("algo", word, []) if word.startswith("algo=") else ("algo=",)
    yield from _choices("env", word, []) if word.startswith("env=") else ("env=",)


def _choices(group: str, word: str, folders: Sequence[str]) -> Iterator[str]:
    """``algo=ppo``; behind a comma one more of a sweep: ``algo=ppo,dqn``."""
    if group in CHOICE_GROUPS:
        start = word[: max(word.rfind(","), word.rfind("="), word.rfind("[")) + 1] or f"{group}="
        yield from (start + choice for choice in choices(group, config_folders(folders)))


def _words(word: str) -> Iterator[str]:
    key = word.partition("=")[0]
    return (f"{key}={value}" for value in WORDS.get(key, ()))


def _runs(word: str) -> Iterator[str]:
    """Runs below outputs/, by their name alone unless the folder was begun with."""
    from rlexp.runs import run_folders

    outputs = Path("outputs")
    for path in run_folders([outputs]):
        yield str(path) if word.startswith(outputs.name) else str(path.relative_to(outputs))


def _settings(config: DictConfig, word: str) -> Iterator[str]:
    """``algo.gamma=`` for every setting of the node that a word is in; behind the ``=``, the values it can have."""
    key, equals, _ = word.partition("=")
    parent, _, name = key.rpartition(".")
    node: Any = OmegaConf.select(config, parent)
    if not isinstance(node, DictConfig):
        return
    if not equals:
        for each in setting_names(node):
            below = isinstance(node._get_node(each), DictConfig)
            yield f"{parent}.{each}{'.' if below else '='}"
        return
    setting = node._get_node(name)
    if group := part_group(key):
        yield from (f"{key}={each}" for each in REGISTRY[group])
    elif isinstance(setting, EnumNode):
        yield from (f"{key}={each}" for each in setting.enum_type.__members__)
    elif isinstance(value := OmegaConf.select(node, name), bool):
        yield from (f"{key}=true", f"{key}=false")
    elif isinstance(value, int | float | str):
        yield f"{key}={value}"
