"""Presets that are trained to make a dataset: once for each config, kept in the user's cache directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlexp.datasets.random import cache_directory
from rlexp.errors import ConfigError

UNTRAINED = ("progress", "logger", "evaluator", "init_from")  # settings of a preset that change nothing it learns


def preset_config(zoo: str | None, seed: int) -> dict[str, Any]:
    """The config that a preset is trained with."""
    from rlexp.config.compose import choices, compose
    from rlexp.config.messages import suggest

    # A name only: Hydra would follow a path to a file anywhere, and this may come out of a stranger's config.
    if zoo not in (presets := choices("zoo")):
        raise ConfigError(f"dataset.zoo={zoo!r} is not a preset.{suggest(str(zoo), presets)}")
    # One thread and no compiler: everyone gets the same data, whatever the machine.
    return compose([f"zoo={zoo}", f"seed={seed}", "name=dataset", "threads=1", "compile=false", "device=cpu"])


def preset_folder(zoo: str | None, seed: int) -> Path:
    """Where the run lies, or will: named by the whole config of the training."""
    config = {key: value for key, value in preset_config(zoo, seed).items() if key not in UNTRAINED}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return cache_directory() / "datasets" / f"replay-{zoo}-{digest[:16]}"


def trained_preset(zoo: str | None, seed: int, what: str, report: Callable[[str], None]) -> Path:
    """The run of a preset, trained now (or to its end) if it is not there yet; ``what`` the dataset takes of it."""
    from rlexp.run_dir import RunDir
    from rlexp.runner import Runner

    folder = preset_folder(zoo, seed)
    begun = (folder / "run.json").exists()
    if begun and RunDir.open(folder).state() == "completed":
        return folder
    report(f"The dataset is {what} of zoo={zoo}, which is now trained once (seed {seed}).")
    if begun:
        from rlexp.config.trust import trusting
        from rlexp.resuming import resume_run

        resume_run(folder, trust=trusting())  # presets name only rlexp's own: anything else was put there by others
    else:
        Runner(preset_config(zoo, seed)).train(folder, ["dataset"])
    return folder
