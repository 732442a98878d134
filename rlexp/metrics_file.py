"""metrics.jsonl: one JSON object per line, appended while the run goes on, cut back when it resumes. Free of torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from pathlib import Path
from typing import Any

from rlexp import files

_CHUNK = 2**20
_MAX_ROW = 2**24  # bytes of a row; a stranger's file may be one endless line


class MetricsFile:
    """Counts, appends and cuts rows. A row torn by a crash is no row. Failures are OSErrors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BufferedWriter | None = None
        self._rows = 0  # while the file is open

    @property
    def rows(self) -> int:
        """The number of complete rows."""
        return self._rows if self._file is not None else self._scan()[0]

    def latest(self) -> list[dict[str, Any]]:
        """The complete rows in the last part of the file, oldest first."""
        if not os.path.lexists(self.path):
            return []
        with files.open_regular(self.path) as file:
            start = max(0, os.fstat(file.fileno()).st_size - _CHUNK)
            file.seek(start)
            lines = file.read(_CHUNK).split(b"\n")[1 if start else 0 : -1]  # a cut one first, a torn one last
        try:
            rows = [files.parse_json(line) for line in lines]
        except ValueError as error:
            raise OSError(f"has a row that {error}") from None
        if not all(isinstance(row, dict) for row in rows):
            raise OSError("has a row that is not a JSON object")
        return rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All complete rows, one at a time."""
        if not os.path.lexists(self.path):
            return
        with files.open_regular(self.path) as file:
            while (line := file.readline(_MAX_ROW)).endswith(b"\n"):
                try:
                    row = files.parse_json(line)
                except ValueError as error:
                    raise OSError(f"has a row that {error}") from None
                if not isinstance(row, dict):
                    raise OSError("has a row that is not a JSON object")
                yield row
            if len(line) == _MAX_ROW:
                raise OSError(f"has a row of more than {_MAX_ROW} bytes")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row and hand it to the system. Floats keep every bit."""
        line = json.dumps(dict(row), default=_item) + "\n"
        file = self._file or self._open()
        file.write(line.encode())
        file.flush()
        self._rows += 1

    def sync(self) -> None:
        """Wait until every row is on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def truncate(self, rows: int) -> None:
        """Keep the first ``rows`` rows; a crash meanwhile leaves all of them or just these."""
        self.close()
        if not os.path.lexists(self.path):
            return
        _, end = self._scan(rows)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with files.open_regular(self.path) as old, open(descriptor, "wb") as new:
            while end > 0 and (chunk := old.read(min(end, _CHUNK))):
                end -= new.write(chunk)
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, self.path)
        files.sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file; the next row opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BufferedWriter:
        rows, end = self._scan()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        file = os.fdopen(os.open(self.path, flags, 0o666), "ab")
        file.truncate(end)  # or the next row would be glued to a torn one
        self._file, self._rows = file, rows
        return file

    def _scan(self, limit: int | None = None) -> tuple[int, int]:
        """(complete rows, the byte they end at), looking at no more than ``limit`` rows."""
        rows = end = 0
        if not os.path.lexists(self.path):
            return rows, end
        with files.open_regular(self.path) as file:
            while rows != limit and (line := file.readline(_MAX_ROW)).endswith(b"\n"):
                rows, end = rows + 1, end + len(line)
            if rows != limit and len(line) == _MAX_ROW:
                raise OSError(f"has a row of more than {_MAX_ROW} bytes")
        return rows, end


def _item(value: Any) -> Any:
    """NumPy scalars and 0-dim tensors as the number they are."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"A {type(value).__name__} cannot be a metric.")
