"""Videos that runs have recorded: small ones inside of the page, large ones beside it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlexp import files
from rlexp.config.messages import suggest
from rlexp.errors import ConfigError

KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
WAYS = ("auto", "embed", "link", "none")
FOLDER, DEPTH = "videos", 2
SMALL, ALL_SMALL = 4 * 2**20, 24 * 2**20  # bytes: of one that is embedded, and of all of them together
MOST = 12  # of one run, the newest


class Videos:
    """How videos get into a page that will lie in ``folder``."""

    def __init__(self, way: str, folder: Path) -> None:
        if way not in WAYS:
            raise ConfigError(f"videos={way}: no such way.{suggest(way, WAYS)}")
        self.way, self.folder, self.embedded = way, folder, 0

    def of(self, run: Path) -> list[dict[str, Any]]:
        """The videos of a run: name, kind, and where the page finds them."""
        if self.way == "none":
            return []
        found = sorted(_files(run / FOLDER, DEPTH), key=lambda path: path.lstat().st_mtime)[-MOST:]
        return [video for path in found if (video := self._video(path)) is not None]

    def _video(self, path: Path) -> dict[str, Any] | None:
        kind = KINDS[path.suffix.lower()]
        size = path.lstat().st_size
        small = size <= SMALL and self.embedded + size <= ALL_SMALL
        if self.way == "embed" or (self.way == "auto" and small):
            try:
                content = files.read_bounded(path, max(size, 1))
            except OSError:  # a pipe or a link, or it is being written
                return None
            self.embedded += size
            source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        else:
            source = quote(os.path.relpath(path.absolute(), self.folder.absolute()))
        return {"name": path.name, "kind": kind.partition("/")[0], "source": source}


def _files(folder: Path, depth: int) -> Iterator[Path]:
    if not depth or folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files(path, depth - 1)
        elif path.suffix.lower() in KINDS and path.is_file() and not path.is_symlink():
            yield path
