"""The replay memory of a run as a dataset: what a learning agent went through, from random to good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlexp.config.component import component
from rlexp.datasets.files import read_npz, save_npz
from rlexp.datasets.settings import DatasetSettings
from rlexp.datasets.spaces import limited
from rlexp.datasets.trained import preset_folder, trained_preset
from rlexp.datasets.transitions import Transitions, joined
from rlexp.envs.from_dataset import spec_from
from rlexp.errors import CheckpointError, ConfigError, DataError
from rlexp.runs import find_runs, run_path

if TYPE_CHECKING:
    from rlexp.config.trust import Trust
    from rlexp.envs.gym_env import GymEnv
    from rlexp.envs.spec import EnvSpec


@component("dataset", "replay")
@dataclass(eq=False, kw_only=True)
class ReplayDataset(DatasetSettings):
    """All transitions that the replay memory of a run holds: of an existing run, or of a preset trained for it."""

    run: str | None = None  # run directory, or name of a run below outputs/, whose newest checkpoint holds the memory
    zoo: str | None = None  # preset that is trained once, on first use, and kept in the cache
    seed: int = 0  # of that training

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.run is None) == (self.zoo is None):
            raise ConfigError(
                "dataset=replay: set one of dataset.run=… (a run directory) and dataset.zoo=… (a preset)."
            )

    def load(self, env: GymEnv) -> Transitions:
        """The memory's content in environment units, in time order."""
        if self.run is not None:
            return self.prepared(read_memory(run_path(self.run)), env.spec(), f"the replay memory of {self.run}")
        folder = preset_folder(self.zoo, self.seed)
        path = folder.with_name(f"{folder.name}.npz")
        if not path.exists():
            save_npz(path, read_memory(trained_preset(self.zoo, self.seed, "the replay memory", self.report)))
            self.report(f"The dataset is kept as {path}.")
        return self.prepared(Transitions.from_d4rl(read_npz(path), str(path)), env.spec(), str(path))


@component("dataset", "run")
@dataclass(eq=False, kw_only=True)
class RunDataset(DatasetSettings):
    """The replay memories of rlexp's own runs: of one run, or of all below a folder that have one."""

    path: str  # run directory, name of a run below outputs/, or folder of runs

    def load(self, env: GymEnv) -> Transitions:
        """The memories one after another, each in time order."""
        found = list(read_memories(run_path(self.path), self.report))
        return self.prepared(joined(found), env.spec(), f"the replay memory of {self.path}")

    def spaces(self, limit: float | None = None) -> EnvSpec:
        """Those that the first run's checkpoint was made for."""
        from rlexp.starting import find_checkpoint

        runs = run_folders(run_path(self.path))
        if not runs:
            raise DataError(f"dataset.path={self.path}: there is no run. Give the folder of one.")
        return limited(spec_from(find_checkpoint(runs[0], "last")[1].tree.get("spec")), limit)


def run_folders(folder: Path) -> list[Path]:
    """The run directories at or below a folder."""
    return [Path(entry["name"]) for entry in find_runs([folder])]


def read_memories(folder: Path, report: Callable[[str], None]) -> Iterator[Transitions]:
    """The replay memories of the runs at or below a folder; runs below it without one are reported and left out."""
    count = 0
    for run in run_folders(folder):
        try:
            data = read_memory(run)
        except (DataError, CheckpointError) as error:
            if run == folder:
                raise
            report(f"Left out: {error}")
            continue
        count += 1
        yield data
    if not count:
        raise DataError(f"{folder}: there is no run with a replay memory. Give the folder of one.")


def read_memory(path: Path, *, trust: Trust | None = None, which: str = "last") -> Transitions:
    """The replay memory in a run's newest checkpoint, or another, actions in environment units."""
    from rlexp.buffers import ReplayBuffer
    from rlexp.config.trust import trusting
    from rlexp.loading import load
    from rlexp.trainers.replay import Replay

    loaded = load(path, which=which, trust=trusting() if trust is None else trust)
    runner = loaded.runner
    if not isinstance(runner.trainer, Replay) or not isinstance(runner.buffer, ReplayBuffer):
        raise DataError(f"{path} has no replay memory: it was trained in the {runner.trainer.loop} loop.")
    policy = runner.policy()
    runner.buffer.build(runner.spec, runner.env.num_envs, float(runner.algo.gamma), runner.seed)
    loop = loaded.checkpoint.tree.get("loop")
    state = loop.get("buffer") if isinstance(loop, dict) else None
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {loaded.checkpoint.path} holds no replay memory. Use that of a run.")
    try:
        runner.buffer.load_state_dict(state)
        for name, rows in loaded.checkpoint.segments.items():
            runner.buffer.load_rows(int(name.split("-")[1]), rows())
        data = runner.buffer.transitions()
    except CheckpointError as error:
        raise CheckpointError(f"{error} Use another checkpoint than {loaded.checkpoint.path}.") from error
    gaps = data.gaps
    assert gaps is not None
    if runner.buffer.oldest_sampled:  # it has wrapped: what came before its oldest rows is overwritten
        gaps = gaps | (np.arange(len(data)) % (len(data) // runner.env.num_envs) == 0)
    return replace(data, action=policy.env_action(data.action), gaps=gaps, source=f"the replay memory of {path}")
