"""With the real library in processes of their own: offline, in temporary folders, with an address nobody answers."""

import json
import os
import struct
import subprocess
import sys

import pytest

from rlexp.errors import RlexpError
from rlexp.loggers import WandbLogger

pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

SESSION = """
import json, pathlib, sys
from rlexp.errors import RlexpError
from rlexp.loggers import LoggerSet, RunInfo, WandbLogger, WandbMode
given = json.loads(sys.argv[1])
info = RunInfo(path=pathlib.Path(given["path"]), name="ppo-cartpole-1", config={"algo": {"gamma": 0.9}}, algo="ppo",
               env="cartpole", seed=1, run_id="k3y", group="sweep-7", **given.get("info", {}))
logger = WandbLogger(mode=WandbMode(given["mode"]), tags=["a"], **given.get("fields", {}))
loggers = LoggerSet({"wandb": logger}, warn=lambda text: sys.exit("warned: " + text))
try:
    loggers.open(info)
except RlexpError as error:
    sys.exit(str(error))
where = loggers.where()
for index, row in given["rows"]:
    gif = row.pop("gif", None)
    loggers.log(index, row) if gif is None else logger.video(index, row, bytes(gif))
loggers.close(given["status"], {"status": given["status"], "eval": {"return_mean": 3.5},
                                "curve": {"area": 2.5, "env_steps_to_threshold": 8, "seconds_to_threshold": None}})
print(json.dumps(where))
"""


@pytest.fixture
def session(tmp_path):
    run, home = tmp_path / "run", tmp_path / "home"
    run.mkdir()
    home.mkdir()
    folders = {f"WANDB_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "CACHE", "DATA", "ARTIFACT")}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    env = clean | folders | {"HOME": str(home), "NETRC": str(home / "netrc"), "WANDB_BASE_URL": "http://127.0.0.1:9"}

    def start(rows=(), status="completed", mode="offline", env_mode=None, **more):
        given = {"path": str(run), "rows": list(rows), "status": status, "mode": mode} | more
        extra = {"WANDB_MODE": env_mode} if env_mode else {}
        command = [sys.executable, "-c", SESSION, json.dumps(given)]
        return subprocess.run(
            command,
            env=env | extra,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    return start, run


def records(run):
    """The records of all sessions, oldest first: wandb's log is LevelDB's (blocks of 32 KiB, pieces with a header)."""
    found = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        data, position, record = file.read_bytes(), 7, b""
        while position + 7 <= len(data):
            if 32768 - position % 32768 < 7:  # no header fits: padding
                position += 32768 - position % 32768
                continue
            length, kind = struct.unpack_from("<HB", data, position + 4)
            record += data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):  # whole, or the last piece
                found.append(pb.Record.FromString(record))
                record = b""
    return found


def of_kind(run, kind):
    return [getattr(record, kind) for record in records(run) if record.WhichOneof("record_type") == kind]


def history(run):
    rows = [{item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in of_kind(run, "history")]
    return [{key: value for key, value in row.items() if key not in ("_timestamp", "_runtime")} for row in rows]


def test_a_run_resumed_and_failed_keeps_its_id_and_gets_each_row_once(session):
    start, run = session
    rows = [(index, {"env_steps": 100 * index, "updates": index, "loss/x": index / 4}) for index in range(4)]
    first = start(rows[:3], "interrupted")
    assert (first.returncode, first.stderr) == (0, "")
    second = start(rows[1:], "failed", info={"resumed": True, "skip_rows": 3})
    assert (second.returncode, second.stderr) == (0, "")
    assert len(list(run.glob("wandb/offline-run-*-k3y"))) == 2
    assert [header.run_id for header in of_kind(run, "run")] == ["k3y", "k3y"]
    assert history(run) == [row | {"_step": index} for index, row in rows]
    assert [end.exit_code for end in of_kind(run, "exit")] == [0, 1]
    assert json.loads(first.stdout)["wandb"].startswith("wandb sync run/wandb/offline-run-")
    assert json.loads(second.stdout)["wandb"] == "wandb sync run/wandb"


def test_a_run_carries_its_config_axis_group_and_summary(session):
    start, run = session
    rows = [(0, {"env_steps": 0, "updates": 0}), (1, {"env_steps": 8, "updates": 1, "eval/return_mean": 3.5})]
    rows += [(2, {"env_steps": 9, "updates": 1, "video/return": 4.5, "gif": list(b"GIF89a, moving")})]
    assert start(rows, fields={"notes": "why"}).returncode == 0
    (header,) = of_kind(run, "run")
    assert (header.project, header.display_name, header.run_group, list(header.tags)) == (
        "rlexp",
        "ppo-cartpole-1",
        "sweep-7",
        ["a"],
    )
    assert header.notes == "why"
    config = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert config["algo"] == {"gamma": 0.9}
    assert (config["algo_name"], config["env_name"]) == ("ppo", "cartpole")
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in of_kind(run, "metric")}
    assert axes["*"] == "env_steps"
    assert {metric.name for metric in of_kind(run, "metric") if metric.options.hidden} >= {"env_steps", "updates"}
    assert header.job_type == "ppo"
    updates = [item for summary in of_kind(run, "summary") for item in summary.update]
    summary = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in updates}
    assert summary["eval/return_mean"] == {"last": 3.5, "max": 3.5}
    assert (summary["status"], summary["final/eval/return_mean"]) == ("completed", 3.5)
    last = of_kind(run, "history")[2].item
    media = {item.nested_key[1]: json.loads(item.value_json) for item in last if item.nested_key[0] == "video"}
    assert media["_type"] == "video-file"
    (video,) = run.glob(f"wandb/offline-run-*/files/{media['path']}")
    assert (video.suffix, video.read_bytes()) == (".gif", b"GIF89a, moving")
    assert (summary["final/curve/area"], summary["final/curve/env_steps_to_threshold"]) == (2.5, 8)


def test_an_offline_algorithm_is_drawn_over_updates(session):
    start, run = session
    start([(0, {"env_steps": 0, "updates": 10, "loss/x": 1.0})])
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in of_kind(run, "metric")}
    assert axes["*"] == "updates"


def test_wandb_joining_at_a_resume_is_given_the_earlier_rows(session):
    start, run = session
    (run / "metrics.jsonl").write_text('{"env_steps": 5, "updates": 1}\n')
    start([(1, {"env_steps": 9, "updates": 2})], info={"resumed": True, "skip_rows": 1})
    assert [row["env_steps"] for row in history(run)] == [5, 9]


def test_without_a_login_the_error_says_how_to_go_on(session):
    start, run = session
    done = start(mode="online")
    assert done.returncode == 1
    assert "wandb login" in done.stderr
    assert "logger.wandb.mode=offline" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(run.glob("wandb/*run-*"))


def test_the_variable_wandb_mode_is_obeyed(session):
    start, run = session
    assert start([(0, {"env_steps": 1, "updates": 1})], mode="online", env_mode="offline").returncode == 0
    assert len(history(run)) == 1


def test_disabled_writes_nothing_and_promises_nothing(session):
    start, run = session
    done = start([(0, {"env_steps": 1, "updates": 1})], mode="disabled")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{}", "")
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("present", [False, True], ids=["absent", "only a folder named wandb"])
def test_a_missing_package_is_an_error_with_the_command_that_installs_it(make_info, monkeypatch, present):
    import types

    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb") if present else None)
    with pytest.raises(RlexpError, match=r'pip install "rlexp\[wandb\]"'):
        WandbLogger().open(make_info())
