"""The replay memory of a run as a dataset: what a learning agent went through, from random to good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlexp.config.component import component
from rlexp.datasets.files import read_npz, save_npz
from rlexp.datasets.trained import preset_folder, trained_preset
from rlexp.datasets.transitions import Transitions
from rlexp.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv


@component("dataset", "replay")
@dataclass(eq=False, kw_only=True)
class ReplayDataset:
    """All transitions that the replay memory of a run holds: of an existing run, or of a preset trained for it."""

    run: str | None = None  # run directory whose newest checkpoint holds the memory
    zoo: str | None = None  # preset that is trained once, on first use, and kept in the cache
    seed: int = 0  # of that training
    report: Callable[[str], None] = field(init=False, default=print)  # told what takes long

    def __post_init__(self) -> None:
        if (self.run is None) == (self.zoo is None):
            raise ConfigError(
                "dataset=replay: set one of dataset.run=… (a run directory) and dataset.zoo=… (a preset)."
            )

    def load(self, env: GymEnv) -> Transitions:
        """The memory's content in environment units, in time order."""
        if self.run is not None:
            return read_memory(Path(self.run)).check(env.spec(), f"the replay memory of {self.run}")
        folder = preset_folder(self.zoo, self.seed)
        path = folder.with_name(f"{folder.name}.npz")
        if not path.exists():
            save_npz(path, read_memory(trained_preset(self.zoo, self.seed, "the replay memory", self.report)))
            self.report(f"The dataset is kept as {path}.")
        return Transitions.from_d4rl(read_npz(path), str(path)).check(env.spec(), str(path))


def read_memory(path: Path) -> Transitions:
    """The replay memory in a run's newest checkpoint, actions in environment units."""
    from rlexp.buffers import ReplayBuffer
    from rlexp.config.trust import trusting
    from rlexp.loading import load
    from rlexp.trainers.replay import Replay

    loaded = load(path, trust=trusting())
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
    return replace(data, action=policy.env_action(data.action))
