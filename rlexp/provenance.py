"""Where a run comes from: versions, commits, machine. Reads only; needs neither torch nor an installed git."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from rlexp.machine import cpu_model

_PACKAGES = ("rlexp", "torch", "numpy", "gymnasium", "hydra-core", "safetensors")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def provenance() -> dict[str, Any]:
    """What run.json says about the software: versions, and the state of the checkouts the code came from."""
    project, working = Path(__file__).resolve().parent.parent, Path.cwd()
    checkouts = {"rlexp": git_state(project)}
    if _checkout_of(working) != _checkout_of(project):
        checkouts["working_directory"] = git_state(working)
    machine = {"cpu": cpu_model() or None, "cores": os.cpu_count()}
    return {"versions": versions(), "platform": platform.platform(), "machine": machine, "git": checkouts}


def versions() -> dict[str, str | None]:
    """The versions that results can depend on; None for what is not installed. Read without importing anything."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout ``folder`` lies in, or None outside of one.

    The commit is read from git's own files; only the dirty flag needs git, and is None (unknown) without it.
    """
    root = _checkout_of(folder)
    if root is None:
        return None
    changes = _git(root, "status", "--porcelain")
    return {
        "commit": _commit(root) or _git(root, "rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }


def _checkout_of(folder: Path) -> Path | None:
    return next((place for place in (folder, *folder.parents) if os.path.exists(place / ".git")), None)


def _commit(root: Path) -> str | None:
    try:
        git = root / ".git"
        if git.is_file():  # a worktree or submodule: a file that names the real folder
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return _checked(head)
        ref = head.removeprefix("ref:").strip()
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        for place in (git, common):
            if (place / ref).is_file():
                return _checked((place / ref).read_text().strip())
        packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((_checked(words[0]) for words in packed if words[1:] == [ref]), None)
    except (OSError, ValueError):
        return None


def _checked(commit: str) -> str | None:
    return commit if _COMMIT.fullmatch(commit) else None


def _git(root: Path, *arguments: str) -> str | None:
    """The output of a git command that changes nothing, or None if it could not be asked."""
    program = shutil.which("git")
    if program is None:
        return None
    # No lock on the index, and no program that a checkout's own settings would start.
    command = [program, "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
