"""What a stranger can do to a run, and how to see afterwards that nobody obeyed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlexp import Agent, cli
from rlexp.datasets.replay import read_memory
from rlexp.errors import RlexpError
from rlexp.files import parse_config
from tests.damage import forge_sums

SECRET = "canary-7f3a9c"  # in the environment and in files that no message may repeat
EVIL_MODULES = ("evil_module", "evil_package")  # lie in the working directory and sound the alarm when imported
# What a message says to do about it, in the words of rlexp's errors.
ADVICE = re.compile(
    r"\b([Aa]dd|[Cc]heck|[Cc]hoose|Download|Give|[Ll]eave|Link|Name|Open|[Pp]ass|[Pp]ut|[Rr]emove|Rescale|Restore"
    r"|Resume|Save|[Ss]et|Start|Store|Train|[Uu]pgrade|Use|[Ww]rite|must|There are|Did you mean|rlexp list|pip install"
    r"|may stand|cannot be imported|would fit|Invalid type|is written|not a class|are never|plain values|each entry is"
    r"|has no)\b"
)


# -- the alarm: audit events of the interpreter that opening data never causes

_FORBIDDEN = {
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.startfile", "subprocess.Popen",
    "pickle.find_class", "marshal.loads", "socket.connect", "socket.getaddrinfo", "ctypes.dlopen", "webbrowser.open",
}  # fmt: skip
_heard: list[str] | None = None  # None: nobody listens


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is None:
        return
    if event in _FORBIDDEN and not (event == "marshal.loads" and _importing()):
        _heard.append(f"{event} {arguments!r}"[:200])
    elif event == "import" and str(arguments[0]).split(".")[0] in EVIL_MODULES:
        _heard.append(f"import {arguments[0]}")


def _importing() -> bool:
    """marshal.loads is also how Python reads compiled modules."""
    frame: Any = sys._getframe(2)
    return "importlib" in frame.f_code.co_filename


sys.addaudithook(_listen)  # cannot be removed; costs nothing to speak of while nobody listens


@contextlib.contextmanager
def alarm() -> Iterator[list[str]]:
    """Everything forbidden that happens inside."""
    global _heard
    _heard = heard = []
    try:
        yield heard
    finally:
        _heard = None


def content(folder: Path) -> dict[str, Any]:
    """Everything below a folder, byte for byte; of a file too large to read its size and time. Locks do not count."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        if stat.S_ISLNK(kind):
            found[str(path)] = ("link", os.readlink(path))
        elif stat.S_ISREG(kind) and path.name != ".lock":
            small = status.st_size < 2**27
            found[str(path)] = path.read_bytes() if small else (status.st_size, status.st_mtime_ns)
        else:
            found[str(path)] = kind
    return found


# -- changing a run and making every hash agree


def forge_config(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the config of a run (or of one checkpoint) and all the hashes over it; ``change`` may return raw bytes."""
    config = parse_config((run / "config.yaml").read_bytes())
    changed = change(config)
    data = changed if isinstance(changed, bytes) else json.dumps(config).encode()  # JSON is YAML
    checkpoints = [run] if (run / "checkpoint.json").exists() else [*run.glob("checkpoints/step_*")]
    for folder in {run, *checkpoints}:
        replace(folder / "config.yaml", data)
    if (run / "run.json").exists():
        edit_json(run / "run.json", lambda info: info.update(config_sha256=hashlib.sha256(data).hexdigest()))
    for folder in checkpoints:
        forge_sums(folder)


def forge_state(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change checkpoint.json of the newest checkpoint, and its checksum."""
    folder = newest(run)
    edit_json(folder / "checkpoint.json", change)
    forge_sums(folder)


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    replace(path, json.dumps(value).encode())


def replace(path: Path, data: bytes) -> None:
    """New content under a name, without writing into a file that other names may share."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def newest(run: Path) -> Path:
    """The newest checkpoint of a run."""
    return max(run.glob("checkpoints/step_*"))


def setting(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets ``a.b.c`` to a value."""

    def change(tree: dict[str, Any]) -> None:
        node: Any = tree
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value

    return change


def without(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """A change that removes ``a.b.c``."""

    def change(tree: dict[str, Any]) -> None:
        node: Any = tree
        for key in keys[:-1]:
            node = node[key]
        del node[keys[-1]]

    return change


# -- the surfaces


def command(*arguments: str) -> None:
    """Run a command of the shell in this process; a refusal becomes a RlexpError with what it printed."""
    errors, output = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.StringIO("")
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            cli.main(list(arguments))
    except SystemExit as end:
        code, text = end.code, errors.getvalue()
    finally:
        sys.stdin = stdin
    assert "Traceback" not in text
    assert code in (0, 1)
    if code:
        assert text.startswith("error: ")
        raise RlexpError(text)


SURFACES: dict[str, Callable[[Path], Any]] = {
    "eval": lambda path: command("eval", str(path), "episodes=1"),
    "predict": lambda path: command("predict", str(path)),
    "resume": lambda path: command("resume", str(path), "trainer.max_seconds=1000"),  # a change: it is completed
    "Agent.load": lambda path: Agent.load(path).policy,
    "read_memory": read_memory,
}
RUN_SURFACES = ("eval", "predict", "resume", "Agent.load")


def in_turn(variants: Iterable[Any], surfaces: tuple[str, ...] = RUN_SURFACES) -> list[tuple[Any, str]]:
    """Each variant with one surface, all of them in turn: opening everything everywhere would take minutes."""
    return list(zip(variants, itertools.cycle(surfaces)))


def names_of(variants: list[tuple[Any, str]]) -> list[str]:
    """Names of such parameters for pytest."""
    return [f"{variant if isinstance(variant, str) else '-'.join(map(str, variant))}-{s}" for variant, s in variants]


@dataclass
class Scene:
    """Copies of trained runs in a folder, a working directory with modules that nobody imports, and a marker."""

    folder: Path
    originals: Path
    marker: Path = field(init=False)

    def __post_init__(self) -> None:
        self.marker = self.folder / "executed"

    def copy(self, name: str) -> Path:
        """A copy of one of the trained runs."""
        return Path(shutil.copytree(self.originals / name, self.folder / name, symlinks=True))

    def clear(self) -> None:
        """Remove the copies, for the next ones."""
        for path in self.originals.iterdir():
            shutil.rmtree(self.folder / path.name, ignore_errors=True)

    def refused(self, path: Path, surface: str, *needles: str) -> str:
        """Open ``path`` through a surface: refused, with a message that says where and what to do, and nothing else."""
        before = content(self.folder)
        with alarm() as heard, pytest.raises(RlexpError) as caught:
            SURFACES[surface](path)
        message = str(caught.value)
        assert any(needle in message for needle in needles), message
        assert ADVICE.search(message), message
        assert SECRET not in message
        assert not heard
        assert content(self.folder) == before
        assert not self.marker.exists()
        assert not {name for name in EVIL_MODULES if name in sys.modules}
        return message
