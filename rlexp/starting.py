"""Starting a run with the agent of an earlier one: which checkpoint it is, whether it fits, what is remembered of it.

Of the checkpoint only arrays and numbers are used. Its config is compared, never built: no code that it names runs,
so nothing has to be trusted.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlexp.checkpoint import Checkpoint, identity, load_checkpoint
from rlexp.config.differences import differences
from rlexp.envs.from_dataset import NAME as FROM_DATASET
from rlexp.envs.spec import OBS_FLAGS
from rlexp.errors import CheckpointError, ConfigError, RunError
from rlexp.run_dir import RunDir
from rlexp.runs import run_path

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions
    from rlexp.envs.spec import EnvSpec


@dataclass(frozen=True)
class Origin:
    """Where the agent of a run came from, as run.json keeps it: the run itself needs the source no more."""

    path: str  # of the checkpoint
    sha256: str  # of the checkpoint: of its list of checksums
    run: str | None  # id of the run that wrote it
    step: int  # how far the agent had come: updates without an environment and environment steps, over all runs
    reward_scale: float  # it learned from reward · scale + shift, and goes on so
    reward_shift: float

    @property
    def reward_map(self) -> tuple[float, float]:
        """Factor and summand of rewards."""
        return self.reward_scale, self.reward_shift

    def to_dict(self) -> dict[str, Any]:
        """As written to run.json."""
        return asdict(self)

    @classmethod
    def from_info(cls, run_dir: RunDir) -> Self | None:
        """What run.json, which may be a stranger's, says; None if the run began with an untrained agent."""
        saved = run_dir.info.get("init_from")
        if saved is None:
            return None
        try:
            origin = cls(**saved)
            texts = isinstance(origin.path, str) and isinstance(origin.sha256, str)
            whole = type(origin.step) is int and 0 <= origin.step < 2**62
            if texts and whole and all(map(_finite, origin.reward_map)):
                return origin
        except TypeError:
            pass
        raise RunError(f"init_from in {run_dir.path / 'run.json'} is damaged. Restore it from a copy of the run.")


@dataclass(frozen=True, eq=False)
class Start:
    """An agent to start with."""

    origin: Origin
    policy: dict[str, Any]  # the state of algorithm and normalisers
    config: dict[str, Any]  # of the run it comes from

    def refusal(self, config: dict[str, Any], reason: str) -> CheckpointError:
        """Why the agent does not fit a run with this config, and which settings of it differ."""
        changes = [
            change
            for group in ("model", "algo")
            for change in differences(_settings(self.config, group), _settings(config, group), f"{group}.")
            if not change.startswith("algo.schedules.")
        ]
        listed = f" There and here differ: {', '.join(changes)}." if changes else ""
        return CheckpointError(
            f"init_from={self.origin.path}: its agent does not fit this run ({reason}).{listed} "
            "Networks and normalisers must be the same; see config.yaml of the run that it comes from."
        )


def open_start(config: dict[str, Any], spec: EnvSpec) -> Start:
    """The agent that ``init_from`` of a config names: of the same algorithm, for the same spaces."""
    given = str(config["init_from"])
    path = run_path(given)
    if not path.exists():
        raise RunError(
            f"init_from={given}: there is no such run, neither at {given} nor in outputs/. "
            "`rlexp list runs` shows the runs there are."
        )
    _, checkpoint = find_checkpoint(path, "last")
    policy = checkpoint.tree.get("policy")
    if not isinstance(policy, dict):
        raise CheckpointError(f"The checkpoint {checkpoint.path} holds no policy. Use one that rlexp wrote.")
    theirs, ours = (_settings(each, "algo").get("_target_") for each in (checkpoint.config, config))
    if theirs != ours:
        raise ConfigError(
            f"init_from={given} holds an agent of {_class_name(theirs)}, and this run is one of {_class_name(ours)}. "
            "An agent goes on with its own algorithm only."
        )
    _check_spaces(given, checkpoint, spec)
    where = checkpoint.path.resolve()
    scale, shift = _reward_map(checkpoint)
    origin = Origin(str(where), identity(where), checkpoint.run, _step(checkpoint, policy), scale, shift)
    return Start(origin, policy, checkpoint.config)


def check_rewards(origin: Origin, data: Transitions) -> None:
    """Refuse a choice of rewards (``dataset.reward``) other than the one that the agent's values were learned by."""
    chosen = data.reward_scale, data.reward_shift
    if chosen not in ((1.0, 0.0), origin.reward_map):
        here, there = (f"r · {scale:g} + {shift:g}" for scale, shift in (chosen, origin.reward_map))
        raise ConfigError(
            f"dataset.reward makes {here} of a reward, but the agent of init_from={origin.path} learned its values "
            f"from {there}, and goes on so. Leave dataset.reward out."
        )


def find_checkpoint(path: Path, which: str) -> tuple[RunDir | None, Checkpoint]:
    """The checkpoint that a path stands for: a run's ``which`` one, or the one that lies there."""
    if os.path.isfile(path / "checkpoint.json") or os.path.isfile(path / "checksums.json"):
        try:
            return None, load_checkpoint(path)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} Use another one: of a run directory, the newest whole one is taken."
            ) from error
    run_dir = RunDir.open(path)
    checkpoint = run_dir.load(which)
    if checkpoint is None:
        if run_dir.state() == "completed":
            raise CheckpointError(f"{path} is completed, but its checkpoints are gone. Restore them, or train it anew.")
        raise CheckpointError(f"{path} has no {which} checkpoint yet. Train it first: rlexp resume {path}")
    return run_dir, checkpoint


def _check_spaces(given: str, checkpoint: Checkpoint, spec: EnvSpec) -> None:
    """Observations may have other limits, which data do not tell and networks do not use; actions may not."""
    saved, now = _settings(checkpoint.tree, "spec"), spec.to_dict()
    obs, action = _settings(saved, "obs"), _settings(saved, "action")
    expected = {key: value for key, value in now["obs"].items() if key in obs or key not in OBS_FLAGS}
    if _without_bounds(obs) != _without_bounds(expected):
        raise ConfigError(
            f"init_from={given}: {spec.id} has other observations than what its agent was trained in. "
            "Choose the same environment, with the same settings."
        )
    if action == now["action"]:
        return
    if _without_limits(action) != _without_limits(now["action"]):
        raise ConfigError(
            f"init_from={given}: {spec.id} has other actions than what its agent was trained in. "
            "Choose the same environment, with the same settings."
        )
    advice = "Choose the same environment, with the same settings."
    if saved.get("id") == FROM_DATASET:
        advice = "Train it again on the data, within the limits of the environment: env.action_limit=…"
    theirs, ours = (f"{each.get('low')} to {each.get('high')}" for each in (action, now["action"]))
    raise ConfigError(f"init_from={given}: its agent acts in {theirs}, but {spec.id} takes {ours}. {advice}")


def _without_bounds(obs: dict[str, Any]) -> dict[str, Any]:
    """An observation space without the limits of its leaves."""
    leaves = obs.get("leaves")
    if not isinstance(leaves, list):
        return obs
    return obs | {"leaves": [_without_limits(leaf) if isinstance(leaf, dict) else leaf for leaf in leaves]}


def _without_limits(space: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in space.items() if key not in ("low", "high")}


def _step(checkpoint: Checkpoint, policy: dict[str, Any]) -> int:
    """How far its agent had come; the first checkpoints of this format tell by their counters."""
    progress = _settings(checkpoint.tree, "progress")
    algo = _settings(policy, "algo")
    for value in (progress.get("step"), progress.get("env_steps"), progress.get("updates"), algo.get("updates")):
        if type(value) is int and 0 < value < 2**62:
            return value
    return 0


def _reward_map(checkpoint: Checkpoint) -> tuple[float, float]:
    for part in ("progress", "loop"):
        saved = _settings(checkpoint.tree, part).get("reward_map")
        if isinstance(saved, dict):
            numbers = saved.get("scale"), saved.get("shift")
            if not all(map(_finite, numbers)):
                raise CheckpointError(f"The checkpoint {checkpoint.path} has damaged rewards. Use another one.")
            return float(numbers[0]), float(numbers[1])  # type: ignore[arg-type]
    return 1.0, 0.0


def _finite(number: Any) -> bool:
    """Whether it is a number, of those that nobody has checked yet; whole ones may be too large for a float."""
    return isinstance(number, int | float) and abs(number) <= sys.float_info.max


def _settings(config: Any, group: str) -> dict[str, Any]:
    """A part of what nobody has checked yet."""
    part = config.get(group)
    return part if isinstance(part, dict) else {}


def _class_name(target: Any) -> str:
    return str(target).rpartition(".")[2]
