"""Putting a run's state in place before it trains: nothing, the agent of an earlier run, or its own checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlexp.errors import CheckpointError, RunError
from rlexp.loggers import RunInfo
from rlexp.policy import Policy
from rlexp.run_dir import RunDir
from rlexp.starting import Origin, Start, open_start
from rlexp.trainers.base import STOPPING_FIELDS, Trainer

# What restoring a state of other networks, spaces or environments (or a stranger's state of anything) can raise.
MISFITS = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError, AssertionError,
           MemoryError)  # fmt: skip


def load_to_act(policy: Policy, state: dict[str, Any], source: Path | str) -> None:
    """Give a policy the ``policy`` of the checkpoint at ``source``."""
    try:
        policy.load_state_dict(state, acting=True)
    except (CheckpointError, *MISFITS) as error:
        raise CheckpointError(
            f"The checkpoint {source} does not fit the config ({_short(error)}). "
            "Leave out the overrides that change networks or spaces."
        ) from error


def take_over(start: Start, policy: Policy, config: dict[str, Any]) -> None:
    """Give a policy the agent of an earlier run."""
    try:
        policy.start_from(start.policy)
    except (CheckpointError, *MISFITS) as error:
        raise start.refusal(config, _short(error)) from error


def begin(trainer: Trainer, config: dict[str, Any], start: Start | None) -> None:
    """A run without a checkpoint, with the agent of an earlier one if it has one."""
    if trainer.work.origin is not None:
        take_over(start or _same_start(trainer.work.origin, trainer.policy, config), trainer.policy, config)
    trainer.start_fresh()


def go_on(trainer: Trainer, run_dir: RunDir, config: dict[str, Any], info: RunInfo, which: str) -> None:
    """A resumed run, where its checkpoint left it; rows that were written after that are taken back."""
    checkpoint = run_dir.go_on_from(which)
    info.skip_rows = run_dir.high_water
    if checkpoint is None:
        if run_dir.state() in ("completed", "interrupted"):
            raise RunError(
                f"{run_dir.path} was {run_dir.state()}, but its checkpoints are gone, so there is nothing to go on "
                "from. Put the folder checkpoints back."
            )
        run_dir.truncate(0)
        return begin(trainer, config, None)
    try:
        trainer.load_state_dict(checkpoint.tree, checkpoint.segments)
    except (CheckpointError, *MISFITS) as error:
        kind = CheckpointError if isinstance(error, CheckpointError) else RunError
        raise kind(
            f"The checkpoint {checkpoint.path} does not fit the config of the run ({_short(error)}). "
            "Resume without the overrides that change networks, spaces or the loop."
        ) from error
    before = checkpoint.config.get("trainer")
    if not isinstance(before, dict):
        raise CheckpointError(f"The config of the checkpoint {checkpoint.path} has no trainer. Use another one.")
    _refuse_spent_budget(trainer, config["trainer"], before)
    if trainer.at_best:
        run_dir.mark_best(checkpoint.path)  # a kill may have come before the link moved
    if any(config["trainer"].get(name) != before.get(name) for name in STOPPING_FIELDS):
        trainer.stop_reason = None  # a larger budget or another threshold decides anew
    run_dir.truncate(checkpoint.tree["progress"]["rows"])
    return None


def _same_start(origin: Origin, policy: Policy, config: dict[str, Any]) -> Start:
    """The agent of a run that was killed before it had saved it."""
    start = open_start(config, policy.spec)
    if start.origin.sha256 != origin.sha256:
        raise RunError(f"The checkpoint {origin.path}, which the run began with, has changed. Start a new run.")
    return start


def _refuse_spent_budget(trainer: Trainer, now: dict[str, Any], before: dict[str, Any]) -> None:
    """A new budget that is not beyond what is done would end the run without a word."""
    name = "total_updates" if trainer.unit == "updates" else "total_steps"
    if now.get("total_epochs") is not None:
        name = "total_epochs"
    if now.get(name) != before.get(name) and trainer.clock >= trainer.budget:
        raise RunError(
            f"{trainer.clock:,} {trainer.unit} are done, so the budget of trainer.{name}={now.get(name)} is already "
            "spent. Give a larger one."
        )


def _short(error: Exception) -> str:
    """The telling line of an error; torch puts a heading and every other tensor around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__).rstrip(".")
