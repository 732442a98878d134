"""TensorBoard event files in ``<run>/tensorboard``.

Records are written synchronously with tensorboard's record writer, not with its EventFileWriter: that one imports
TensorFlow where it is installed, and meets a full disk in a thread of its own. A row is on disk when ``log`` returns.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from rlexp.config.component import component
from rlexp.errors import RlexpError
from rlexp.loggers.base import Logger, Row, RunInfo, flatten
from rlexp.loggers.format import short_path

_file_number = itertools.count()


@component("logger", "tensorboard")
@dataclass(eq=False, kw_only=True)
class TensorBoardLogger(Logger):
    """Scalars and videos over environment steps (offline: updates), the config as text and as hyperparameters."""

    hparams: bool = True  # fill the HPARAMS tab, which compares the settings of runs

    _info: Any = field(init=False, default=None, repr=False)
    _records: Any = field(init=False, default=None, repr=False)

    def rows_held(self, info: RunInfo) -> int:
        """None, if this run had no TensorBoard before it was resumed."""
        return info.skip_rows if _event_files(info.path) else 0

    def open(self, info: RunInfo) -> None:
        """Begin an event file; the config is written once, not again at a resume."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise RlexpError("logger=tensorboard needs the tensorboard package: pip install tensorboard") from error
        continued = bool(_event_files(info.path))
        folder = info.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}.{next(_file_number)}"
        self._info = info
        self._records = RecordWriter((folder / name).open("xb"))
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if not continued:
            self._write_config(info)

    def log(self, index: int, row: Row) -> None:
        """All scalars of a row as one event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        axis = self._info.axis(row) or "env_steps"
        scalars = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if key != axis and isinstance(value, Real)
        ]
        self._write(
            Event(
                wall_time=time.time(), step=int(row.get(axis, row.get("env_steps", 0))), summary=Summary(value=scalars)
            )
        )

    def video(self, index: int, row: Row, gif: bytes) -> None:
        """The row, and the video as an image, which TensorBoard shows moving."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self.log(index, row)
        width, height = (int.from_bytes(gif[at : at + 2], "little") for at in (6, 8))  # as its header says
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
        step = int(row.get(self._info.axis(row) or "env_steps", 0))
        summary = Summary(value=[Summary.Value(tag="video", image=image)])
        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._records.close()

    def where(self) -> str | None:
        """The command that shows the run."""
        return f"tensorboard --logdir {short_path(self._info.path, quoted=True)}"

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def _write_config(self, info: RunInfo) -> None:
        import yaml  # type: ignore[import-untyped]
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # its module `api` imports TensorFlow
        from tensorboard.plugins.text.metadata import create_summary_metadata

        lines = yaml.safe_dump(info.config, sort_keys=False, allow_unicode=True).splitlines()
        markdown = "\n".join(f"    {line}" for line in lines)  # indented: a code block
        text = Summary.Value(
            tag="config",
            metadata=create_summary_metadata(display_name="", description=""),
            tensor=TensorProto(dtype=DT_STRING, string_val=[markdown.encode()]),
        )
        self._write(Event(wall_time=time.time(), summary=Summary(value=[text])))
        if self.hparams:
            hparams = hparams_pb(_hyperparameters(info), trial_id=info.run_id)
            self._write(Event(wall_time=time.time(), summary=hparams))


def _event_files(run: Path) -> list[Path]:
    return list((run / "tensorboard").glob("events.out.tfevents.*"))


def _hyperparameters(info: RunInfo) -> dict[str, bool | int | float | str]:
    """The config as flat plain values; targets and the loggers' own settings say nothing about the result."""
    settings = flatten({key: value for key, value in info.config.items() if key != "logger"}, ".")
    chosen = {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in settings.items()
        if not key.endswith("_target_")
    }
    return {**chosen, "algo": info.algo, "env": info.env, "seed": info.seed}
