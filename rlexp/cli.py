"""The command line: ``rlexp [train] OVERRIDES…`` and the commands that ``dispatch`` lists.

Importing torch takes seconds, so it happens only inside the commands that need it: help and listings answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlexp.errors import ConfigError, RlexpError, UnknownEnvError
from rlexp.train_command import CONFIG_DIR_FLAGS, SignalExit, folders_and_rest, train, until_signal


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
        "collect": collect,
        "data": data,
        "export": export,
        "list": list_choices,
        "metrics": metrics,
        "report": report,
        "bench": bench,
    }
    if arguments[:1] and arguments[0] in ("-sc", "--shell-completion"):
        from rlexp.completion import answer

        print(answer(arguments[1:], list(commands)))
        return 0
    arguments = _command_first(arguments)
    wants_help = arguments[:1] != ["bench"] and not {"-h", "--help"}.isdisjoint(arguments)  # bench has its own
    if not arguments or wants_help or arguments == ["help"]:
        from rlexp.usage import print_usage

        print_usage(arguments[0] if arguments else "")
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


def _command_first(arguments: list[str]) -> list[str]:
    """``--config-dir DIR list zoo`` as ``list zoo --config-dir DIR``: a folder may come before or behind a command."""
    at = 0
    while at < len(arguments) and (parts := arguments[at].partition("="))[0] in CONFIG_DIR_FLAGS:
        at += 1 if parts[1] else 2
    word = next(iter(arguments[at:]), "-")
    if not at or "=" in word or word.startswith("-"):  # an override or a flag: it is for the training
        return arguments
    return [*arguments[at:], *arguments[:at]]


# ---- commands on a run


def resume(arguments: list[str]) -> int:
    """Continue a run in its own directory, or a sweep."""
    from rlexp.config.compose import register
    from rlexp.options import ResumeOptions, SweepResumeOptions, read_options
    from rlexp.sweeps.sweep_dir import SweepDir

    path, rest = run_argument("resume", arguments)
    if SweepDir.is_sweep(path):
        folders, rest = folders_and_rest(rest, ())
        sweep_options, overrides = read_options(SweepResumeOptions, rest)
        prepare(sweep_options.trust)
        register()
        from rlexp.config.trust import trusting
        from rlexp.sweeps.command import resume_sweep

        return resume_sweep(path, overrides, trusting(sweep_options.trust), folders)
    options, overrides = read_options(ResumeOptions, rest)
    prepare(options.trust)
    register()
    from rlexp.config.trust import trusting
    from rlexp.resuming import resume_run

    try:
        with opening(path):
            until_signal(
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

    path, rest = run_argument("eval", arguments)
    options, overrides = read_options(EvalOptions, rest)
    prepare(options.trust)
    from rlexp.config.trust import trusting
    from rlexp.evaluation import Evaluator
    from rlexp.loading import load
    from rlexp.loggers.tables import print_evaluation
    from rlexp.run_dir import VIDEOS
    from rlexp.video import open_video

    with opening(path):
        trust = trusting(options.trust)
        loaded = load(path, which=options.checkpoint, overrides=overrides, trust=trust, playing=True)
    runner = loaded.runner
    film = Path(options.video)
    if options.video and not film.suffix:  # the format alone
        folder = Path() if loaded.run_dir is None else loaded.run_dir.path / VIDEOS
        film = folder / f"{loaded.checkpoint.path.stem}-seed-{options.seed}.{options.video}"
    video = open_video(film) if options.video else None
    evaluator = Evaluator(loaded.env, render_mode="human" if options.render else "rgb_array" if video else None)
    try:
        policy = runner.policy(loaded.checkpoint.tree["policy"], loaded.checkpoint.path)
        with video or contextlib.nullcontext():
            greedy = runner.evaluates_greedily if options.deterministic is None else options.deterministic
            result = evaluator(policy, options.episodes, seed=options.seed, deterministic=greedy, video=video)
    finally:
        evaluator.close()
    how = "greedy" if greedy else "sampled"
    title = f"{runner.algo_name} on {loaded.env.spec().id}, {how} actions, seed {options.seed}"
    outcome = result.summary() | {"returns": result.returns}
    paths = {"checkpoint": loaded.checkpoint.path} | ({} if video is None else {"video": video.path})
    print_evaluation(outcome, title=title, paths=paths)
    return 0


def predict(arguments: list[str]) -> int:
    """Answer every observation on standard input with one line of action; an empty line begins a new episode."""
    from rlexp.options import PredictOptions, read_options

    path, rest = run_argument("predict", arguments)
    options, overrides = read_options(PredictOptions, rest)
    prepare(options.trust)
    from rlexp.config.trust import trusting
    from rlexp.errors import DataError
    from rlexp.loading import load
    from rlexp.prediction import Predictor

    with opening(path):
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


def collect(arguments: list[str]) -> int:
    """Play a policy and keep the transitions as a dataset."""
    from rlexp.data_commands import collect as run

    return run(arguments)


def data(arguments: list[str]) -> int:
    """Look at a dataset."""
    from rlexp.data_commands import data as run

    return run(arguments)


def export(arguments: list[str]) -> int:
    """Write a trained policy as a program that needs no rlexp."""
    from rlexp.run_commands import export as run

    return run(arguments)


def metrics(arguments: list[str]) -> int:
    """Write the metrics of many runs as one table."""
    from rlexp.run_commands import metrics as run

    return run(arguments)


def report(arguments: list[str]) -> int:
    """Write a page on many runs."""
    from rlexp.run_commands import report as run

    return run(arguments)


def _json_action(action: Any) -> Any:
    return [_json_action(each) for each in action] if isinstance(action, list) else action.tolist()


def run_argument(command: str, arguments: list[str]) -> tuple[Path, list[str]]:
    """The run that a command is given first, and its other arguments."""
    if not arguments or "=" in arguments[0]:
        raise ConfigError(f"rlexp {command} needs a run directory or checkpoint first: rlexp {command} outputs/NAME")
    from rlexp.runs import run_path

    return run_path(arguments[0]), arguments[1:]


@contextlib.contextmanager
def opening(path: Path) -> Iterator[None]:
    """Of a run made in Python the shell has all but the function that makes its environment."""
    try:
        yield
    except UnknownEnvError as error:
        raise UnknownEnvError(
            f"{error} If the run was made in Python with a function for its environment, go on there: "
            f"rlexp.Agent.load({str(path)!r}, env=the_function).resume() or .evaluate()."
        ) from error


def prepare(trusted: Sequence[str]) -> None:
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
    from rlexp.config.compose import CHOICE_GROUPS, choices, config_folders
    from rlexp.loggers.tables import print_choices

    if arguments[:1] in (["run"], ["runs"]):
        from rlexp.run_commands import list_runs

        return list_runs(arguments[1:])
    given, names = folders_and_rest(arguments, ())
    folders = config_folders(given)
    if not names:
        for group in CHOICE_GROUPS:
            print_choices(group, choices(group, folders))
        return 0
    name = names[0]
    if name in ("zoo", "zoos"):
        from rlexp.zoo.listing import list_zoo

        return list_zoo(names[1:], folders)
    for group in CHOICE_GROUPS:
        if name in (group, f"{group}s"):
            print_choices(group, choices(group, folders))
            return 0
    raise ConfigError(f"rlexp list {name}: there is no such group.{suggest(name, [*CHOICE_GROUPS, 'runs'])}")


# ---- bench


def bench(arguments: list[str]) -> int:
    """Measure rlexp, alone or against its peers."""
    from rlexp.bench.command import main as run_benchmark

    return run_benchmark(arguments)
