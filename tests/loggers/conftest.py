from collections.abc import Callable
from pathlib import Path

import pytest

from rlexp.loggers import RunInfo


@pytest.fixture
def make_info(tmp_path: Path) -> Callable[..., RunInfo]:
    def make(**changes) -> RunInfo:
        values = {
            "path": tmp_path,
            "name": "ppo-cartpole-1",
            "config": {"seed": 1, "algo": {"_target_": "rlexp.algos.PPO", "gamma": 0.99}, "logger": {"x": {"y": 1}}},
            "algo": "ppo",
            "env": "cartpole",
            "seed": 1,
            "run_id": "k3y",
        }
        return RunInfo(**(values | changes))

    return make
