"""Values of runs as text for the page; a run may be a stranger's, so none is endless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_TEXT = 4_000  # characters of one value


def text_of(value: Any) -> str:
    """A setting: null, true, [16, 16], 0.0003."""
    if value is None or isinstance(value, bool):
        return str({None: "null", True: "true", False: "false"}[value])
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def clip(text: Any) -> str:
    """The beginning of a text that goes on for too long."""
    text = str(text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def listed(names: Sequence[str], limit: int = 4) -> str:
    """a, b and c; of many the first ones."""
    names = [clip(name) for name in names]
    if len(names) > limit + 1:  # one more has room where “and 1 more” has
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
