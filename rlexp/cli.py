"""The command line: ``rlexp [train] OVERRIDES…``, ``eval``, ``resume``, ``predict``, ``list``, ``bench``.

Importing torch takes seconds, so it happens only inside the commands that need it: help and listings answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlexp.errors import ConfigError, RlexpError, RunError

HELP = """\
rlexp: reinforcement-learning experiments composed from configs

  rlexp [train] algo=NAME env=NAME KEY=VALUE…     train; every field can be overridden
  rlexp --multirun algo=ppo,dqn seed=1,2,3        one run for every combination
  rlexp resume RUN [checkpoint=last|best] [KEY=VALUE…]
                                                  continue a run exactly where it stopped
  rlexp eval RUN [episodes=20 deterministic=true checkpoint=last|best seed=0 render=false]
  rlexp predict RUN [deterministic=true checkpoint=last|best]
                                                  observations as JSON lines in, actions out
  rlexp list [algo|env|model|buffer|trainer|dataset|logger|zoo|runs]
  rlexp bench speed|startup|solve|scaling|profile [--against sb3,d3rlpy]
                                                  measure this machine; rlexp bench --help

RUN is a run directory or one of its checkpoints. A first run:  rlexp algo=ppo env=cartpole
Show a composed config without running it:                      rlexp algo=ppo env=cartpole --cfg job
A folder of your own configs beside rlexp's:                    rlexp --config-dir DIR algo=MINE
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 it worked, 1 a message says why not, 130 and 143 after a signal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(arguments)
    except RlexpError as error:
        from rlexp.loggers.format import printable

        print(f"error: {printable(str(error))}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def dispatch(arguments: list[str]) -> int:
    """Find the command; without one, train."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "eval": evaluate,
        "resume": resume,
        "predict": predict,
        "list": list_choices,
        "bench": bench,
    }
    wants_help = arguments[:1] != ["bench"] and not {"-h", "--help"}.isdisjoint(arguments)  # bench has its own
    if not arguments or wants_help or arguments == ["help"]:
        print(HELP)
        _print_groups()
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"rlexp {version('rlexp')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name in commands:
        return commands[name](rest)
    if "=" not in name and not name.startswith("-"):
        from rlexp.config.check import suggest

        raise ConfigError(f"There is no command {name!r}.{suggest(name, commands)} Overrides are written KEY=VALUE.")
    return train(arguments)


# ---- train


def train(arguments: list[str]) -> int:
    """Compose with Hydra and train; with --multirun, once for every combination."""
    import hydra
    from omegaconf import DictConfig

    from rlexp.config.compose import COMPOSITION_ERRORS, explain, register, search_path_overrides, without_null

    sys.path.append(os.getcwd())  # a user's own targets are importable from here, behind everything that is installed
    register()
    folders, rest = _hydra_flags(arguments)
    began = False  # whatever is raised from then on is no error of composing
    problems: list[str] = []

    def job(config: DictConfig) -> float | None:
        """One run. Errors are kept, not raised: the other jobs of a sweep go on, and Hydra adds no noise."""
        nonlocal began
        began = True
        try:
            return _train_one(config, arguments)
        except RlexpError as error:
            problems.append(f"{_sweep_label()}{error}")
            return None

    given = [*search_path_overrides(folders), *without_null(rest)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors of composing reach us instead of being printed by Hydra
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
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


HYDRA_FLAGS = ("--multirun", "-m", "--cfg", "-c", "--resolve", "--package", "-p", "--info", "-i", "--run", "-r",
               "--hydra-help", "--shell-completion", "-sc", "--config-name", "-cn", "--config-path", "-cp")  # fmt: skip
CONFIG_DIR_FLAGS = ("--config-dir", "-cd")


def _hydra_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders of --config-dir, and the other arguments; Hydra would answer an unknown flag with its own usage."""
    from rlexp.config.messages import suggest

    folders, rest = [], []
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        if flag in CONFIG_DIR_FLAGS:
            folders.append(value if equals else next(waiting, ""))
        elif flag.startswith("-") and flag not in HYDRA_FLAGS:
            known = [each for each in (*HYDRA_FLAGS, *CONFIG_DIR_FLAGS) if each.startswith("--")]
            raise ConfigError(f"{flag}: no such option.{suggest(flag, known)}")
        else:
            rest.append(argument)
    return folders, rest


def _sweep_label() -> str:
    """Which job of a sweep a message is about."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    job = HydraConfig.get()
    return f"{' '.join(job.overrides.task)}: " if job.mode == RunMode.MULTIRUN else ""


class SignalExit(BaseException):
    """A signal ended the run; not an Exception, so that it also ends a sweep."""

    def __init__(self, signal_number: int) -> None:
        self.code = 128 + signal_number


def _train_one(config: Any, arguments: Sequence[str]) -> float | None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from rlexp.config.compose import plain_config
    from rlexp.runner import Runner

    job = HydraConfig.get()
    path = Path(job.runtime.output_dir)
    sweeping = job.mode == RunMode.MULTIRUN
    try:
        runner = Runner(plain_config(config))
        command = ["rlexp", *(job.overrides.task if sweeping else arguments)]
        summary = _until_signal(lambda: runner.train(path, command, group=path.parent.name if sweeping else None))
    except BaseException:
        _remove_if_empty(path)
        raise
    return summary["eval"]["return_mean"] if summary["eval"] else None


def _until_signal(run: Callable[[], Any]) -> Any:
    from rlexp.trainers.base import Interrupted

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


# ---- commands on a run


def resume(arguments: list[str]) -> int:
    """Continue a run in its own directory."""
    from rlexp.config.compose import register
    from rlexp.options import ResumeOptions, read_options

    path, rest = _run_argument("resume", arguments)
    options, overrides = read_options(ResumeOptions, rest)
    _prepare(options.trust)
    register()
    from rlexp.config.trust import trusting
    from rlexp.resuming import resume_run

    try:
        _until_signal(
            lambda: resume_run(
                path,
                overrides,
                trust=trusting(options.trust),
                checkpoint=options.checkpoint,
                command=["rlexp", "resume", *arguments],
            )
        )
    except SignalExit as stop:
        return stop.code
    return 0


def evaluate(arguments: list[str]) -> int:
    """Play episodes with a trained policy and print the returns."""
    from rlexp.options import EvalOptions, read_options

    path, rest = _run_argument("eval", arguments)
    options, overrides = read_options(EvalOptions, rest)
    _prepare(options.trust)
    from rlexp.config.trust import trusting
    from rlexp.evaluation import Evaluator
    from rlexp.loading import load
    from rlexp.loggers.tables import print_evaluation

    loaded = load(path, which=options.checkpoint, overrides=overrides, trust=trusting(options.trust))
    runner = loaded.runner
    evaluator = Evaluator(runner.env, render_mode="human" if options.render else None)
    try:
        policy = runner.policy(loaded.checkpoint.tree["policy"], loaded.checkpoint.path)
        result = evaluator(policy, options.episodes, seed=options.seed, deterministic=options.deterministic)
    finally:
        evaluator.close()
    how = "greedy" if options.deterministic else "sampled"
    title = f"{runner.algo_name} on {runner.spec.id}, {how} actions, seed {options.seed}"
    outcome = result.summary() | {"returns": result.returns}
    print_evaluation(outcome, title=title, paths={"checkpoint": loaded.checkpoint.path})
    return 0


def predict(arguments: list[str]) -> int:
    """Answer every observation on standard input with one line of action; an empty line begins a new episode."""
    from rlexp.options import PredictOptions, read_options

    path, rest = _run_argument("predict", arguments)
    options, overrides = read_options(PredictOptions, rest)
    _prepare(options.trust)
    from rlexp.config.trust import trusting
    from rlexp.errors import DataError
    from rlexp.loading import load
    from rlexp.prediction import Predictor

    loaded = load(path, which=options.checkpoint, overrides=overrides, trust=trusting(options.trust))
    policy = loaded.runner.policy(loaded.checkpoint.tree["policy"], loaded.checkpoint.path)
    predictor = Predictor(loaded.runner.env, policy, options.seed)
    for number, line in enumerate(getattr(sys.stdin, "buffer", sys.stdin), start=1):
        if not line.strip():  # a new episode
            predictor.reset()
            continue
        try:
            observation = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"line {number} is not JSON: {reason}.") from error
        try:
            action = predictor(observation, deterministic=options.deterministic)
        except DataError as error:
            raise DataError(f"line {number}: {error}") from error
        print(json.dumps(_json_action(action)), flush=True)
    return 0


def _json_action(action: Any) -> Any:
    return [_json_action(each) for each in action] if isinstance(action, list) else action.tolist()


def _run_argument(command: str, arguments: list[str]) -> tuple[Path, list[str]]:
    if not arguments or "=" in arguments[0]:
        raise ConfigError(f"rlexp {command} needs a run directory or checkpoint first: rlexp {command} outputs/NAME")
    return Path(arguments[0]), arguments[1:]


def _prepare(trusted: Sequence[str]) -> None:
    """Make the packages that the user has named importable from the working directory.

    Without any, it stays out of the search path: it may be the stranger's run itself, with a torch.py in it.
    """
    from rlexp.config.trust import PLUGIN_VARIABLE, import_plugins

    if trusted or os.environ.get(PLUGIN_VARIABLE):
        sys.path.append(os.getcwd())
    import_plugins()


# ---- list


def list_choices(arguments: list[str]) -> int:
    """Show what can be composed, or the runs there are."""
    from rlexp.config.check import suggest
    from rlexp.config.compose import CHOICE_GROUPS, choices
    from rlexp.loggers.tables import print_choices, print_runs

    if not arguments:
        for group in CHOICE_GROUPS:
            print_choices(group, choices(group))
        return 0
    name = arguments[0]
    if name in ("run", "runs"):
        from rlexp.runs import find_runs

        folders = [Path(each) for each in arguments[1:]] or [Path("outputs")]
        if runs := find_runs(folders):
            print_runs(runs)
        else:
            print(f"No runs below {', '.join(map(str, folders))}.")
        return 0
    for group in CHOICE_GROUPS:
        if name in (group, f"{group}s"):
            print_choices(group, choices(group))
            return 0
    raise ConfigError(f"rlexp list {name}: there is no such group.{suggest(name, [*CHOICE_GROUPS, 'runs'])}")


def _print_groups() -> None:
    from rlexp.config.compose import CHOICE_GROUPS, choices

    print("What can be composed (rlexp list shows a line on each):")
    for group in CHOICE_GROUPS:
        print(f"  {group:<8} {', '.join(choices(group))}")


# ---- bench


def bench(arguments: list[str]) -> int:
    """Measure rlexp, alone or against its peers."""
    from rlexp.bench.command import main as run_benchmark

    return run_benchmark(arguments)
