"""Ending a trial of a search early: a callback that reports every evaluation to Optuna and asks whether to go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlexp.callbacks import Callback
from rlexp.config.check import build
from rlexp.config.trust import trusting
from rlexp.sweeps.kinds import OptunaSearch
from rlexp.sweeps.sweep_dir import SweepDir

if TYPE_CHECKING:
    from rlexp.evaluation import Evaluation
    from rlexp.evaluators.base import Estimate
    from rlexp.trainers.base import Trainer

PRUNED = "pruned"  # the reason to stop, and what the status is shown as


class PruneTrial(Callback):
    """Added to every run of a search. The search is the one in the folder above the run: no path is configured."""

    def __init__(self, trial: int) -> None:
        self.trial = trial
        self._trial: Any = None

    def on_start(self, trainer: Trainer) -> None:
        """Find the study; a run that was moved out of its sweep goes on without."""
        folder = trainer.work.run_dir.path.parent
        if not SweepDir.is_sweep(folder):
            trainer.work.recorder.warn(f"There is no sweep in {folder}, so this trial is not pruned.")
            return
        search = build("sweep", SweepDir.open(folder).info["sweep"], trusting())
        if isinstance(search, OptunaSearch):
            self._trial = _trial(folder, search, self.trial, trainer.budget)

    def on_eval(self, trainer: Trainer, evaluation: Evaluation | Estimate) -> None:
        """Report, and stop where others were better at this point."""
        if self._trial is None:
            return
        step = trainer.clock
        reported = self._trial.storage.get_trial(self._trial._trial_id)
        if reported.state.is_finished():  # the run is extended after its search
            return
        if step not in reported.intermediate_values:  # a resumed run evaluates again what it has reported already
            self._trial.report(evaluation.score, step)
        if trainer.stop_reason is None and step < trainer.budget and self._trial.should_prune():
            trainer.stop(PRUNED)


def _trial(folder: Path, search: OptunaSearch, number: int, budget: int) -> Any:
    from rlexp.sweeps.search import import_optuna, open_study

    optuna = import_optuna()
    study = open_study(folder, search, budget)
    found = [each for each in study.get_trials(deepcopy=False) if each.number == number]
    return optuna.trial.Trial(study, found[0]._trial_id) if found else None
