"""The page itself: data, style and script in one file.

Data from runs enter as JSON that cannot end its element, and the script puts them on the page as text, never as HTML.
A content security policy names script and style by their hashes: nothing else would run, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlexp import files
from rlexp.errors import ConfigError, RunError
from rlexp.report.data import report_data
from rlexp.report.videos import Videos

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("base.js", "curves.js", "settings.js", "table.js", "details.js", "main.js")  # in this order
MARK = "<!doctype html>\n<!-- rlexp report -->\n"  # a file that begins so may be replaced


def write_report(
    runs: Sequence[Mapping[str, Any]], path: Path, *, title: str | None = None, videos: str = "auto"
) -> Path:
    """Write a page on ``runs`` (entries of ``find_runs``) and return its absolute path."""
    path = path.absolute()
    if path.is_dir():
        path /= "report.html"
    _check_target(path)
    page = render(report_data(runs, title, Videos(videos, path.parent)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, page.encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def _check_target(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"to={path.name}: the report is a page, so its name ends in .html.")
    if os.path.lexists(path):
        try:
            with files.open_regular(path) as file:
                ours = file.read(len(MARK)) == MARK.encode()
        except OSError:
            ours = False
        if not ours:
            raise ConfigError(f"{path} exists already and is not a report. Choose another name, or delete it.")


def render(data: Mapping[str, Any]) -> str:
    """The whole page."""
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    script = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: 'self' file:; media-src data: 'self' file:; base-uri 'none'; form-action 'none'"
    )
    body = (PARTS / "page.html").read_text(encoding="utf-8")
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(str(data["title"])),
        "HEADLINE": html.escape(str(data["headline"])),
        "STYLE": style,
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    return MARK + re.sub("@@([A-Z]+)@@", lambda found: parts[found[1]], body)  # once: nothing in the parts is replaced


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def safe_json(value: Any) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment or another element there."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
