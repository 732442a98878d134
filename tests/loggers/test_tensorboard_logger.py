import io
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from rlexp.loggers import LoggerSet, TensorBoardLogger


def read(path):
    """All summary values in the order TensorBoard reads them: (tag, step, value)."""
    return [
        (value, event.step)
        for file in sorted((path / "tensorboard").iterdir(), key=lambda file: file.name)
        for event in LegacyEventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]


def scalars(path):
    return [(value.tag, step, value.simple_value) for value, step in read(path) if value.HasField("simple_value")]


def session(info, rows, status="completed"):
    loggers = LoggerSet({"tensorboard": TensorBoardLogger()}, warn=pytest.fail)
    loggers.open(info)
    for index, row in rows:
        loggers.log(index, row)
    loggers.close(status, {})


def test_events_read_back_equal_the_rows(make_info, tmp_path):
    session(
        make_info(),
        [
            (0, {"env_steps": 0, "updates": 0, "time_s": 0.5, "eval/return_mean": 9.5}),
            (1, {"env_steps": 2000, "updates": 7, "time_s": 1.5, "loss/critic": np.float32(0.25), "loss/actor": None}),
        ],
    )
    assert scalars(tmp_path) == [
        ("updates", 0, 0.0),
        ("time_s", 0, 0.5),
        ("eval/return_mean", 0, 9.5),
        ("updates", 2000, 7.0),
        ("time_s", 2000, 1.5),
        ("loss/critic", 2000, 0.25),
    ]


def test_a_video_is_a_moving_picture_at_its_step(make_info, tmp_path):
    logger = TensorBoardLogger()
    logger.open(make_info())
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=100)
    logger.video(0, {"env_steps": 50, "updates": 9, "video/return": 2.5}, file.getvalue())
    logger.close("completed", {})
    assert ("video/return", 50, 2.5) in scalars(tmp_path)
    ((image, step),) = [(value.image, step) for value, step in read(tmp_path) if value.tag == "video"]
    assert (image.width, image.height, step) == (20, 10, 50)
    assert Image.open(io.BytesIO(image.encoded_image_string)).n_frames == 2


def test_offline_runs_count_updates(make_info, tmp_path):
    session(make_info(), [(0, {"env_steps": 0, "updates": 500, "loss/actor": 1.0})])
    assert scalars(tmp_path) == [("env_steps", 500, 0.0), ("loss/actor", 500, 1.0)]


def test_a_resume_adds_only_new_rows_and_the_config_is_written_once(make_info, tmp_path):
    rows = [(index, {"env_steps": 10 * (index + 1), "loss/x": float(index)}) for index in range(4)]
    session(make_info(), rows[:3], "interrupted")
    session(make_info(resumed=True, skip_rows=3), rows[1:])
    assert scalars(tmp_path) == [("loss/x", 10, 0.0), ("loss/x", 20, 1.0), ("loss/x", 30, 2.0), ("loss/x", 40, 3.0)]
    assert [value.tag for value, _ in read(tmp_path)].count("config") == 1


def test_the_config_is_shown_as_text_and_as_hyperparameters(make_info, tmp_path):
    session(make_info(), [])
    values = {value.tag: value for value, _ in read(tmp_path)}
    assert values["config"].metadata.plugin_data.plugin_name == "text"
    assert "    algo:\n      _target_: rlexp.algos.PPO\n" in values["config"].tensor.string_val[0].decode()
    content = values["_hparams_/session_start_info"].metadata.plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert set(hparams) == {"algo", "env", "seed", "algo.gamma"}
    assert hparams["algo.gamma"].number_value == 0.99


def test_a_row_is_on_disk_when_log_returns(make_info, tmp_path):
    logger = TensorBoardLogger()
    logger.open(make_info())
    logger.log(0, {"env_steps": 10, "loss/x": 2.0})
    assert scalars(tmp_path) == [("loss/x", 10, 2.0)]


def test_a_full_disk_switches_the_logger_off(make_info):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    warnings = []
    logger = TensorBoardLogger()
    loggers = LoggerSet({"tensorboard": logger}, warnings.append)
    loggers.open(make_info())
    with open("/dev/full", "wb", buffering=0) as full:
        logger._records._writer = full
        for index in range(3):
            loggers.log(index, {"env_steps": 10, "loss/x": 2.0})
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]


def test_writing_needs_neither_torch_nor_tensorflow(tmp_path):
    code = f"""
import sys, pathlib
sys.modules["tensorflow"] = None  # importing it would fail
from rlexp.loggers import RunInfo, TensorBoardLogger
info = RunInfo(path=pathlib.Path({str(tmp_path)!r}), name="n", config={{}}, algo="a", env="e", seed=0, run_id="r")
logger = TensorBoardLogger(); logger.open(info); logger.log(0, {{"env_steps": 1, "loss/x": 1.0}})
logger.close("completed", None)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
    assert scalars(tmp_path) == [("loss/x", 1, 1.0)]
