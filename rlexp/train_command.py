"""``rlexp [train] OVERRIDES…``: a run composed and trained, or a sweep of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlexp.errors import ConfigError, RlexpError, RunError

HYDRA_FLAGS = ("--multirun", "-m", "--cfg", "-c", "--resolve", "--package", "-p", "--info", "-i", "--run", "-r",
               "--hydra-help", "--config-name", "-cn", "--config-path", "-cp")  # fmt: skip
CONFIG_DIR_FLAGS = ("--config-dir", "-cd")
MULTIRUN = ("--multirun", "-m", "hydra.mode=MULTIRUN")


def train(arguments: list[str]) -> int:
    """Compose with Hydra and train; with --multirun, once for every combination."""
    import hydra
    from omegaconf import DictConfig

    from rlexp.config.compose import COMPOSITION_ERRORS, explain, for_hydra, register, search_path_overrides

    sys.path.append(os.getcwd())  # a user's own targets are importable from here, behind everything that is installed
    register()
    folders, rest = folders_and_rest(arguments)
    if _show_job(rest, folders):
        return 0
    given = [*search_path_overrides(folders), *for_hydra(rest)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors of composing reach us instead of being printed by Hydra
    if _asks_for_sweep(rest):
        from rlexp.sweeps.command import run_sweep

        return run_sweep([each for each in given if each not in MULTIRUN], ["rlexp", *arguments], folders)
    began = False  # whatever is raised from then on is no error of composing
    problem: RlexpError | None = None

    def job(config: DictConfig) -> None:
        """The run. An error is kept, not raised: Hydra would add noise."""
        nonlocal began, problem
        began = True
        try:
            _train_one(config, arguments)
        except RlexpError as error:
            problem = error

    sys.argv = ["rlexp", *given]
    try:
        hydra.main(version_base="1.3", config_path="pkg://rlexp.conf", config_name="config")(job)()
    except COMPOSITION_ERRORS as error:
        if began:
            raise
        overrides = [each for each in given if "=" in each and not each.startswith("-")]
        raise explain(error, overrides) from error
    except OSError as error:
        if began:
            raise
        raise RunError(f"{error.filename} cannot be made: {error.strerror}. Choose another hydra.run.dir=…") from error
    except SignalExit as stop:
        return stop.code
    except SystemExit as stop:  # Hydra's own flags, used wrongly
        return 1 if stop.code else 0
    if problem is not None:
        raise problem
    return 0


def _show_job(arguments: Sequence[str], folders: Sequence[str]) -> bool:
    """``--cfg job``: show the config as a run would keep it. Hydra would show every schedule that nobody has begun."""
    from omegaconf import OmegaConf

    from rlexp.config.compose import compose

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c", nargs="?")  # Hydra says what is wrong with a flag that lacks its value
    parser.add_argument("--package", "-p", nargs="?")
    parser.add_argument("--resolve", action="store_true")  # it is in any case
    flags, overrides = parser.parse_known_args(arguments)
    if flags.cfg != "job" or any(each.startswith("-") for each in overrides):
        return False
    config = OmegaConf.create(compose(overrides, folders))
    if flags.package and OmegaConf.select(config, flags.package) is None:
        raise ConfigError(f"--package {flags.package}: there is no such part of the config.")
    shown = OmegaConf.select(config, flags.package) if flags.package else config
    print(OmegaConf.to_yaml(shown).rstrip() if OmegaConf.is_config(shown) else shown)
    return True


def _asks_for_sweep(arguments: Sequence[str]) -> bool:
    """Whether jobs are to be run, not only shown (--multirun --cfg job)."""
    others = [each for each in arguments if each.startswith("-") and each not in MULTIRUN]
    return not others and not set(MULTIRUN).isdisjoint(arguments)


def folders_and_rest(arguments: Sequence[str], allowed: Sequence[str] = HYDRA_FLAGS) -> tuple[list[str], list[str]]:
    """The folders of --config-dir, and the other arguments; Hydra would answer an unknown flag with its own usage."""
    from rlexp.config.compose import TOP_KEYS
    from rlexp.config.messages import as_override, suggest

    folders, rest = [], []
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        if flag in CONFIG_DIR_FLAGS:
            folder = value if equals else next(waiting, "")
            if not folder:
                raise ConfigError(f"{flag} needs a folder: {flag} DIR")
            folders.append(folder)
        elif flag.startswith("-") and flag not in allowed:
            known = [each for each in (*allowed, *CONFIG_DIR_FLAGS) if each.startswith("--")]
            hint = as_override(flag, value if equals else next(waiting, ""), TOP_KEYS if allowed else ())
            raise ConfigError(f"{flag}: no such option.{hint or suggest(flag, known)}")
        else:
            rest.append(argument)
    return folders, rest


class SignalExit(BaseException):
    """A signal ended the run; not an Exception, so that nobody recovers from it."""

    def __init__(self, signal_number: int) -> None:
        self.code = 128 + signal_number


def _train_one(config: Any, arguments: Sequence[str]) -> None:
    from hydra.core.hydra_config import HydraConfig

    from rlexp.config.compose import plain_config

    if said := _foreign_preset(arguments):
        print(f"warning: {said}", file=sys.stderr)
    _train_in(plain_config(config), Path(HydraConfig.get().runtime.output_dir), ["rlexp", *arguments])


def _foreign_preset(arguments: Sequence[str]) -> str:
    """What to say of a preset that was typed with another algorithm than its own; nothing of others."""
    from rlexp.zoo.presets import read_presets

    typed = dict(each.partition("=")[::2] for each in arguments)
    if not {"zoo", "algo"} <= typed.keys():
        return ""
    try:
        preset = read_presets().get(typed["zoo"])
    except ConfigError:  # of a file that nobody asked for
        return ""
    if preset is None or not preset.algo or preset.algo == typed["algo"]:
        return ""
    return f"{preset.name} is tuned for algo={preset.algo}; algo={typed['algo']} gets the same settings."


def _train_in(config: dict[str, Any], path: Path, command: Sequence[str]) -> dict[str, Any]:
    """Train in a directory."""
    from rlexp.runner import Runner

    try:
        runner = Runner(config)
        return until_signal(lambda: runner.train(path, command))  # type: ignore[no-any-return]
    except BaseException:
        _remove_if_empty(path)
        raise


def until_signal(run: Callable[[], Any]) -> Any:
    """What ``run`` gives; a signal that ended it as :class:`SignalExit`."""
    from rlexp.trainers.workspace import Interrupted

    try:
        return run()
    except Interrupted as stop:
        raise SignalExit(stop.signal_number) from stop


def _remove_if_empty(path: Path) -> None:
    """Hydra makes the directory before the job starts; a run that never began leaves nothing behind."""
    path, outputs = Path(os.path.normpath(path)), Path("outputs").absolute()
    with contextlib.suppress(OSError):
        path.rmdir()
        while path.parent != outputs and outputs in path.parents:
            path = path.parent
            path.rmdir()
