"""What two configs differ in. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def differences(before: dict[str, Any], after: dict[str, Any], where: str = "") -> Iterator[str]:
    """``algo.gamma 0.99 → 0.9`` for every setting that differs between two configs."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{where}{key}.")
        elif old != new and where == "logger.":
            yield f"logger.{key} {'added' if old is None else 'removed'}"
        elif old != new:
            yield f"{where}{key} {_text(old)} → {_text(new)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
