"""Where a run came from is known without git, and without importing what is asked about."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp import provenance


def test_versions_are_read_without_importing() -> None:
    code = (
        "import sys; from rlexp.provenance import versions; v = versions(); assert v['torch'] and v['rlexp'], v\n"
        "assert not {'torch', 'gymnasium', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_folder(root: Path, kind: str) -> Path:
    git = root / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(f"{COMMIT}\n" if kind == "detached" else "ref: refs/heads/main\n")
    if kind == "loose":
        (git / "refs" / "heads").mkdir(parents=True)
        (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    if kind == "packed":
        lines = ["# pack-refs with: peeled fully-peeled sorted", f"{'f' * 40} refs/heads/other"]
        (git / "packed-refs").write_text("\n".join([*lines, f"{COMMIT} refs/heads/main", f"^{'e' * 40}"]))
    return root


@pytest.mark.parametrize("kind", ["detached", "loose", "packed"])
def test_the_commit_is_known_without_git(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.shutil, "which", lambda _: None)
    inside = git_folder(tmp_path, kind) / "a" / "b"
    inside.mkdir(parents=True)
    assert provenance.git_state(inside) == {"commit": COMMIT, "dirty": None}


def test_the_commit_of_a_worktree_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.shutil, "which", lambda _: None)
    main = git_folder(tmp_path / "main", "loose") / ".git"
    private = main / "worktrees" / "wt"
    private.mkdir(parents=True)
    (private / "HEAD").write_text("ref: refs/heads/main\n")
    (private / "commondir").write_text("../..\n")
    (tmp_path / "wt").mkdir()
    (tmp_path / "wt" / ".git").write_text(f"gitdir: {private}\n")
    assert provenance.git_state(tmp_path / "wt") == {"commit": COMMIT, "dirty": None}


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert provenance.git_state(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert provenance.git_state(tmp_path) == {"commit": None, "dirty": None}


@pytest.mark.skipif(provenance.shutil.which("git") is None, reason="needs git")
def test_a_changed_checkout_is_called_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    clean = provenance.git_state(tmp_path)
    assert clean is not None
    assert clean["dirty"] is False
    assert len(clean["commit"]) == 40
    (tmp_path / "file").write_text("2")
    assert provenance.git_state(tmp_path) == {**clean, "dirty": True}


def test_provenance_is_plain_json() -> None:
    found = provenance.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
