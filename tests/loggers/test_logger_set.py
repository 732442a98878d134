import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.errors import RlexpError
from rlexp.loggers import Logger, LoggerSet


class Recording(Logger):
    def __init__(self, fail_at=(), error=None, held=None):
        self.calls, self.rows = [], []
        self.fail_at, self.held = fail_at, held
        self.error = error or OSError("No space left on device")

    def rows_held(self, info):
        return info.skip_rows if self.held is None else self.held

    def _call(self, what):
        self.calls.append(what)
        if what in self.fail_at:
            raise self.error

    def open(self, info):
        self._call("open")

    def log(self, index, row):
        self._call(index)
        self.rows.append((index, row["updates"]))

    def video(self, index, row, gif):
        self._call((index, gif))

    def close(self, status, summary):
        self._call(status)

    def where(self):
        return "here"


def row(index):
    return {"env_steps": 100 * index, "updates": index, "time_s": 0.5}


def test_a_logger_that_fails_is_switched_off_with_one_warning_and_the_others_go_on(make_info):
    broken, healthy, warnings = Recording(fail_at=[1]), Recording(), []
    loggers = LoggerSet({"broken": broken, "healthy": healthy}, warnings.append)
    loggers.open(make_info())
    for index in range(4):
        loggers.log(index, row(index))
    loggers.close("completed", {})
    assert broken.calls == ["open", 0, 1]
    assert healthy.calls == ["open", 0, 1, 2, 3, "completed"]
    assert len(warnings) == 1
    assert "broken" in warnings[0]
    assert "No space left" in warnings[0]


def test_a_video_goes_to_the_loggers_that_have_not_got_it_yet(make_info, monkeypatch):
    monkeypatch.setattr("rlexp.video.gif_of", lambda path: path.name.encode())
    old, new = Recording(), Recording(held=0)
    loggers = LoggerSet({"old": old, "new": new}, pytest.fail)
    loggers.open(make_info(skip_rows=2))
    loggers.video(1, row(1), Path("a.mp4"))
    loggers.video(2, row(2), Path("b.mp4"))
    assert old.calls == ["open", (2, b"b.mp4")]
    assert new.calls == ["open", (1, b"a.mp4"), (2, b"b.mp4")]


def test_a_logger_that_cannot_be_closed_only_warns(make_info):
    broken, healthy, warnings = Recording(fail_at=["completed"]), Recording(), []
    loggers = LoggerSet({"broken": broken, "healthy": healthy}, warnings.append)
    loggers.open(make_info())
    loggers.close("completed", {})
    assert healthy.calls == ["open", "completed"]
    assert len(warnings) == 1


def test_a_logger_that_cannot_open_stops_the_run_and_closes_those_already_open(make_info):
    first, second = Recording(), Recording(fail_at=["open"], error=RlexpError("log in first"))
    with pytest.raises(RlexpError, match="log in first"):
        LoggerSet({"first": first, "second": second}, print).open(make_info())
    assert first.calls == ["open", "failed"]
    assert second.calls == ["open"]


def test_an_unforeseen_error_at_open_names_the_logger(make_info):
    logger = Recording(fail_at=["open"], error=PermissionError("read-only"))
    with pytest.raises(RlexpError, match="disk logger could not start: read-only"):
        LoggerSet({"disk": logger}, print).open(make_info())


def test_ctrl_c_is_never_taken_for_a_failed_logger(make_info):
    loggers = LoggerSet({"slow": Recording(fail_at=[0], error=KeyboardInterrupt())}, print)
    loggers.open(make_info())
    with pytest.raises(KeyboardInterrupt):
        loggers.log(0, row(0))


def test_rows_sent_before_a_resume_are_not_sent_again(make_info):
    logger = Recording()
    loggers = LoggerSet({"it": logger}, print)
    loggers.open(make_info(resumed=True, skip_rows=3))
    for index in range(1, 5):  # the run was resumed from a checkpoint taken after row 0
        loggers.log(index, row(index))
    assert logger.rows == [(3, 3), (4, 4)]


def test_a_logger_that_joins_at_a_resume_is_given_the_earlier_rows_once(make_info, tmp_path):
    lines = [json.dumps(row(index)) for index in range(3)] + ['{"env_steps": 4']  # the last one torn by a crash
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    old, new = Recording(), Recording(held=0)
    loggers = LoggerSet({"old": old, "new": new}, print)
    loggers.open(make_info(resumed=True, skip_rows=3))
    for index in range(1, 4):
        loggers.log(index, row(index))
    assert new.rows == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert old.rows == [(3, 3)]


def test_a_joining_logger_also_gets_rows_that_are_replayed_after_metrics_were_cut_back(make_info, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row(0)) + "\n")  # rows 1 and 2 come again from training
    new = Recording(held=0)
    loggers = LoggerSet({"new": new}, print)
    loggers.open(make_info(resumed=True, skip_rows=3))
    for index in range(1, 4):
        loggers.log(index, row(index))
    assert new.rows == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_the_x_axis_is_updates_only_where_no_environment_is_stepped(make_info):
    online, offline, chosen = make_info(), make_info(), make_info(step_key="updates")
    assert online.axis({"env_steps": 0, "updates": 0}) is None
    assert online.axis({"env_steps": 8, "updates": 0}) == "env_steps"
    assert offline.axis({"env_steps": 0, "updates": 5}) == "updates"
    assert chosen.axis({"env_steps": 8, "updates": 5}) == "updates"


def test_where_names_only_active_loggers(make_info):
    loggers = LoggerSet({"a": Recording(), "b": Recording(fail_at=[0])}, lambda text: None)
    loggers.open(make_info())
    loggers.log(0, row(0))
    assert loggers.where() == {"a": "here"}


def test_importing_the_loggers_imports_none_of_the_heavy_packages():
    code = (
        "import sys, rlexp.loggers; print([m for m in ('torch', 'wandb', 'tensorboard', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
