"""What README and docs tell a reader to type, found in their Markdown; and how it is run at a tiny size.

A page is read from top to bottom, in one folder, as a reader would:

- a block below a line that is just a name (`my_package/env.py`) is that file;
- a `rlexp`, `make` or `python` line of any other block, and such words in backquotes, are commands;
- a Python block is run;
- a block marked ``text`` below a command is what that prints, with ``…`` for anything.

What is not run says why, in a comment above its block: ``<!-- not run: needs a cluster -->``, or of single lines
``<!-- not run (rlexp bench): takes minutes -->``. ``<!-- not compared: … -->`` is the same for what is printed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"(?P<above>(?:^<!--.*?-->\n+)*(?:^`[\w./-]+`\n+)?)^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
NOT_RUN = re.compile(r"<!-- not run(?: \((?P<only>[^)]+)\))?: (?P<why>\S.*?) -->", re.S)
NOT_COMPARED = re.compile(r"<!-- not compared: (?P<why>\S.*?) -->", re.S)
FILE = re.compile(r"^`([\w./-]+\.\w+)`$", re.M)
INLINE = re.compile(r"`((?:rlexp|make|python) [^`]+)`")
ROOT = Path(__file__).parents[1]
# Pages of many trainings are run by `make test-learning`; of their commands tests/test_docs.py composes what trains.
# What a newcomer reads first is run by `make test`.
LONG = (
    "docs/algorithms/",
    "docs/datasets.md",
    "docs/export.md",
    "docs/models.md",
    "docs/offline_to_online.md",
    "docs/pixels.md",
    "docs/start/atari.md",
)
PROGRAMS = ("rlexp", "make", "python")


def name_of(path: Path) -> str:
    """A page as it is called from the root of the project."""
    return str(path.relative_to(ROOT))


@dataclass
class Step:
    """One thing on a page: a file to write, a command to type, or Python to run."""

    kind: str  # file, command, python
    text: str
    name: str = ""  # of a file
    why_not: str = ""  # the reason not to run it
    prints: str = ""  # what it shows, if the page says so


@dataclass
class Page:
    """The steps of one page, in order."""

    path: Path
    steps: list[Step] = field(default_factory=list)


def read_page(path: Path) -> Page:
    """All steps of a page."""
    page, text, end = Page(path), path.read_text(), 0
    for block in BLOCK.finditer(text):
        page.steps += _inline(text[end : block.start()])
        end = block.end()
        _add_block(page, block["above"], block["kind"], block["text"])
    page.steps += _inline(text[end:])
    return page


def _add_block(page: Page, above: str, kind: str, text: str) -> None:
    reasons = [(each["only"] or "", each["why"]) for each in NOT_RUN.finditer(above)]
    if name := FILE.search(above):
        page.steps.append(Step("file", text, name=name[1]))
    elif kind == "text":
        if page.steps and page.steps[-1].kind == "command" and not NOT_COMPARED.search(above):
            page.steps[-1].prints = text
    elif kind == "python":
        page.steps.append(Step("python", text, why_not=reasons[0][1] if reasons else ""))
    elif kind in ("", "console", "sh", "bash"):
        for command in _commands(text):
            why = next((why for only, why in reasons if command.startswith(only)), "")
            page.steps.append(Step("command", command, why_not=why))


def _commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        inner = re.search(r"\$\((rlexp [^)]*)\)", line)
        line = inner[1] if inner else line.strip()
        line = " ".join(line.split(" | source")[0].split())
        if line.split(" | ")[-1].startswith(tuple(f"{program} " for program in PROGRAMS)):
            yield line


def _inline(text: str) -> Iterator[Step]:
    """Commands within sentences. One without arguments only names the command; one with … or KEY=VALUE is a form."""
    reasons = [(each["only"] or "", each["why"]) for each in NOT_RUN.finditer(text)]
    for command in INLINE.findall(text):
        command = " ".join(command.split())
        a_form = "…" in command or re.search(r"=[A-Z]+\b", command)
        a_name = command == "rlexp data info" or (
            len(command.split()) < 3 and "=" not in command and command[:4] != "make"
        )
        if not a_form and not a_name:
            why = next((why for only, why in reasons if only and command.startswith(only)), "")
            yield Step("command", command, why_not=why)


def words(command: str) -> list[str]:
    """The arguments of a command, without the comment behind it."""
    return shlex.split(command, comments=True)[1:]


# ---- a tiny size


def fewer(number: int) -> int:
    """A budget of a hundred or so; a larger one stays larger, and a small one what it is."""
    return number if number <= 200 else int(25 * math.log10(number))


SMALL: dict[str, dict[str, int]] = {  # at most so much of each
    "trainer": {"learning_starts": 20, "rollout_steps": 4, "batch_size": 8, "eval_episodes": 1,
                "offline_pretrain_updates": 2, "gradient_updates_per_step": 1, "train_frequency": 8},
    "algo": {"minibatch_size": 4, "epochs": 1, "n_critics": 10},
    "env": {"num_envs": 4},
    "dataset": {"size": 200, "episodes": 2},
}  # fmt: skip


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """A checked config with everything that only takes time made small. Doing it twice changes nothing more."""
    config["compile"], config["threads"], config["progress"], config["device"] = False, 1, "none", "cpu"
    config["logger"].pop("wandb", None)  # it was checked; starting it takes seconds and an account
    for group, limits in SMALL.items():
        for node in [config[group] or {}, *((config[group] or {}).get("sources") or [])]:
            for name, most in limits.items():
                if isinstance(node.get(name), int) and not isinstance(node[name], bool):
                    node[name] = min(node[name], most)
    trainer, env = config["trainer"], config["env"]
    if trainer.get("total_steps"):
        trainer["total_steps"] = fewer(trainer["total_steps"])
    if trainer.get("total_updates"):
        trainer["total_updates"] = min(trainer["total_updates"], 20)
    if trainer.get("total_epochs"):
        trainer["total_epochs"] = 1
    for name in ("eval_interval", "checkpoint_interval"):
        trainer[name] = min(trainer[name], 10_000) if trainer[name] <= 100 else 10_000  # that is, at the end
    if trainer.get("video_interval"):
        trainer["video_interval"] = 32
    if config["model"].get("hidden", "none") != "none":
        config["model"]["hidden"] = [8] * min(len(config["model"]["hidden"] or [8]), 2)
    if config["model"].get("critic_hidden"):
        config["model"]["critic_hidden"] = [8]
    if config["buffer"].get("capacity", 0) and "total_updates" not in trainer:
        config["buffer"]["capacity"] = min(config["buffer"]["capacity"], 1_000)
    if env.get("max_episode_steps", "none") != "none":
        env["max_episode_steps"] = min(env["max_episode_steps"] or 30, 30)
    if config["evaluator"] and "updates" in config["evaluator"]:
        config["evaluator"]["updates"] = 5
    return config


OPTIONS = {"episodes": 2, "steps": 60}  # of `rlexp eval` and `rlexp collect`


def with_fewer(arguments: list[str]) -> list[str]:
    """The options of a command that only take time, made small."""
    small = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        most = OPTIONS.get(key)
        small.append(f"{key}={min(int(value.replace('_', '')), most)}" if most else argument)
    return small
