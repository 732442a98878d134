"""``rlexp collect`` and ``rlexp data info``: making datasets, and looking at them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlexp.config.messages import suggest
from rlexp.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions
    from rlexp.envs import GymEnv
    from rlexp.options import CollectOptions

SUFFIXES = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}
RANDOM = "random"


def collect(arguments: list[str]) -> int:
    """Play a policy and keep the transitions as a dataset."""
    from rlexp.cli import opening, prepare, run_argument
    from rlexp.options import CollectOptions, read_options

    path, rest = run_argument("collect", arguments)
    options, overrides = read_options(CollectOptions, rest)
    _check_collect(options, str(path) == RANDOM)
    kind = _format(options)
    _check_target(options.to, kind)
    prepare(options.trust)
    if str(path) == RANDOM:
        env = _environment(overrides)
        data, algorithm = _play_random(env, options), RANDOM
    else:
        with opening(path):
            env, data, algorithm = _play_run(path, options, overrides)
    where = _write(options.to, kind, data, env, algorithm)
    _tell(data, where, kind, options.to)
    _tell_view(env, options.policy == "replay")
    return 0


def _check_collect(options: CollectOptions, random: bool) -> None:
    if not options.to:
        raise ConfigError(
            "rlexp collect needs a place to write to: to=data.hdf5, to=data.npz or to=NAME/ID-v0 (Minari)"
        )
    manners = ["deterministic", "stochastic", "epsilon", "replay"]
    if options.policy not in manners:
        raise ConfigError(f"policy={options.policy}: no such way to act.{suggest(options.policy, manners)}")
    if options.policy == "replay":
        if random or options.steps is not None or options.episodes is not None or options.checkpoints:
            raise ConfigError("policy=replay writes the whole replay memory of a run: leave out steps=, episodes= and "
                              "checkpoints=.")  # fmt: skip
    elif (options.steps is None) == (options.episodes is None):
        raise ConfigError("rlexp collect needs either steps=… or episodes=…")
    for name in ("steps", "episodes"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}.")
    if options.epsilon is not None and options.policy != "epsilon":
        raise ConfigError(
            f"epsilon={options.epsilon:g} has no effect with policy={options.policy}. Add policy=epsilon."
        )
    if options.epsilon is not None and not 0 <= options.epsilon <= 1:
        raise ConfigError(f"epsilon must be a probability from 0 to 1, not {options.epsilon:g}.")
    if random and options.checkpoints:
        raise ConfigError("A random policy has no checkpoints=.")
    if options.checkpoints and options.checkpoint != "last":
        raise ConfigError("Give checkpoint= or checkpoints=[…], not both.")
    if options.weights and (len(options.weights) != len(options.checkpoints) or min(options.weights) <= 0):
        raise ConfigError("weights=[…] needs one number greater than 0 for each of checkpoints=[…].")


def _format(options: CollectOptions) -> str:
    suffix = Path(options.to).suffix.lower()
    by_name = SUFFIXES.get(suffix, "minari")
    kinds = ["hdf5", "npz", "minari"]
    if options.format is not None and options.format not in kinds:
        raise ConfigError(f"format={options.format}: no such format.{suggest(options.format, kinds)}")
    if options.format is None and suffix not in SUFFIXES and len(suffix) > 1:
        raise ConfigError(
            f"to={options.to}: {suffix} is not a format. Write an HDF5 file (.hdf5 or .h5), a NumPy archive (.npz) or "
            "a Minari dataset (an id like pendulum/random-v0)."
        )
    if suffix in SUFFIXES and options.format not in (None, by_name):
        raise ConfigError(f"to={options.to} is named as {by_name}, but format={options.format}. Leave one of them out.")
    return options.format or by_name


def _check_target(to: str, kind: str) -> None:
    """Before anything is played, because what cannot be kept need not be collected."""
    if kind == "minari":
        from rlexp.datasets.minari import dataset_folder

        if (folder := dataset_folder(to)).exists():
            raise DataError(f"There is a Minari dataset {to} already. Choose another id, or delete {folder}.")
        return
    path = Path(to).expanduser()
    if path.exists():
        raise DataError(f"{path} exists already. Choose another name, or delete it.")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise DataError(f"{path} cannot be written: {folder} is not a folder that can be written to.")


def _environment(overrides: Sequence[str]) -> GymEnv:
    """The environment that ``env=NAME env.key=value`` compose."""
    from rlexp.config.check import build
    from rlexp.config.compose import compose

    for each in overrides:
        if each.lstrip("+").partition("=")[0].split(".")[0] != "env":
            raise ConfigError(f"{each}: only the environment can be chosen here, with env=NAME and env.key=value.")
    if not any(each.startswith("env=") for each in overrides):
        raise ConfigError("Choose the environment: env=NAME (rlexp list env)")
    sys.path.append(os.getcwd())  # a user's own environments
    return build("env", compose(overrides)["env"])  # type: ignore[no-any-return]


def _play_random(env: GymEnv, options: CollectOptions) -> Transitions:
    from rlexp.recording import RandomActor, record

    actor = RandomActor(env.spec(), options.seed)
    return record(env, [actor], steps=options.steps, episodes=options.episodes, seed=options.seed)


def _play_run(path: Path, options: CollectOptions, overrides: Sequence[str]) -> tuple[GymEnv, Transitions, str]:
    from rlexp.config.trust import trusting
    from rlexp.datasets.replay import read_memory
    from rlexp.loading import load
    from rlexp.recording import Actor, Manner, PolicyActor, RandomActor, record

    trust = trusting(options.trust)
    names = options.checkpoints or [options.checkpoint]
    trained = [name for name in names if name != RANDOM]
    if not trained:
        raise ConfigError("checkpoints=[random] alone needs no run: rlexp collect random env=NAME")
    loaded = {
        name: load(path, which=name, overrides=overrides, trust=trust, playing=True) for name in dict.fromkeys(trained)
    }
    runner, env = loaded[trained[0]].runner, loaded[trained[0]].env
    if options.policy == "replay":
        return (
            env,
            read_memory(path, trust=trust, which=options.checkpoint),
            f"{runner.algo_name} (replay memory)",
        )
    actors: list[Actor] = []
    for number, name in enumerate(names):
        if name == RANDOM:
            actors.append(RandomActor(env.spec(), options.seed + number))
            continue
        each = loaded[name]
        policy = each.runner.policy(each.checkpoint.tree["policy"], each.checkpoint.path)
        epsilon = 0.1 if options.epsilon is None else options.epsilon
        actors.append(PolicyActor(policy, Manner(options.policy), epsilon, options.seed + number))
    data = record(
        env,
        actors,
        weights=options.weights or None,
        steps=options.steps,
        episodes=options.episodes,
        seed=options.seed,
    )
    return env, data, runner.algo_name


def _write(to: str, kind: str, data: Transitions, env: GymEnv, algorithm: str) -> Path:
    from rlexp.datasets.files import save_hdf5, save_npz
    from rlexp.datasets.minari import save_minari

    try:
        if kind == "minari":
            return save_minari(to, data, env, algorithm)
        path = Path(to).expanduser()
        (save_npz if kind == "npz" else save_hdf5)(path, data)
        return path
    except OSError as error:
        raise DataError(f"{to} cannot be written: {error.strerror or error}.") from error


def _tell(data: Transitions, where: Path, kind: str, to: str) -> None:
    from rlexp.datasets.describing import describe

    use = f"dataset={kind} dataset.{'id' if kind == 'minari' else 'path'}={to if kind == 'minari' else where}"
    print(describe(data))
    print(f"written to {where} ({use})")


def _tell_view(env: GymEnv, replay: bool) -> None:
    """Where training sees other episodes and rewards than evaluation, the return that was told is no score."""
    other = env.for_evaluation()
    differing = [f for f in fields(env) if f.init and getattr(other, f.name, None) != getattr(env, f.name)]
    if not differing:
        return
    view = " ".join(f"env.{f.name}={_setting(getattr(env, f.name))}" for f in differing)
    scores = " ".join(f"env.{f.name}={_setting(getattr(other, f.name))}" for f in differing)
    print(
        f"These are the episodes and rewards of training ({view}): their return is no score. "
        + (f"Evaluation plays with {scores}." if replay else f"Add {scores} to record what evaluation plays.")
    )


def _setting(value: Any) -> str:
    """As it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- data info


def data(arguments: list[str]) -> int:
    """Look at a dataset: ``rlexp data info PATH``."""
    if arguments[:1] != ["info"]:
        found = f", not {arguments[0]!r}" if arguments else ""
        raise ConfigError(f"rlexp data takes info{found}: rlexp data info PATH [env=NAME] [plot=returns.png]")
    if len(arguments) < 2 or "=" in arguments[1]:
        raise ConfigError("rlexp data info needs a dataset: rlexp data info data.hdf5 [env=NAME] [plot=returns.png]")
    from rlexp.options import InfoOptions, read_options

    options, overrides = read_options(InfoOptions, arguments[2:])
    from rlexp.datasets.inspection import draw, inspect
    from rlexp.datasets.streams import open_stream

    spec = _environment(overrides).spec() if overrides else None
    try:
        report = inspect(open_stream(arguments[1]), spec)
    except DataError as error:
        text = str(error)
        raise DataError(text if arguments[1] in text else f"{arguments[1]}: {text}") from error
    if options.plot is not None:
        draw(report, Path(options.plot).expanduser(), arguments[1])
    print_report(arguments[1], report, options.plot)
    return 1 if report.problems else 0


def print_report(name: str, report: Any, plot: str | None) -> None:
    """What was found, for people: columns, episodes, returns as a histogram, problems last."""
    from rlexp.datasets.inspection import histogram
    from rlexp.loggers.tables import print_table

    print(f"{name}: {report.kind}, {report.rows:,} transitions, {len(report.ends):,} episodes")
    print()
    rows = []
    for key, column in report.columns.items():
        low, high = float(column.low.min()), float(column.high.max())
        rows.append([key, column.dtype, "×".join(map(str, column.shape)) or "1", f"{low:.5g} … {high:.5g}"])
    print_table(["column", "type", "shape", "range"], rows)
    reward = {key: f"{value:.5g}" for key, value in report.reward.items()}
    print(f"\nreward    {reward['mean']} ± {reward['std']}, from {reward['min']} to {reward['max']}")
    lengths, returns = report.lengths[report.whole], report.returns[report.whole]
    print(f"length    {lengths.mean():.5g} ± {lengths.std():.5g}, from {lengths.min():,} to {lengths.max():,}")
    ends = {end: report.count(end) for end in dict.fromkeys(report.ends)}
    print("ends      " + ", ".join(f"{count:,} {end}" for end, count in ends.items()))
    print(f"return    {returns.mean():.6g} ± {returns.std():.6g}, from {returns.min():.6g} to {returns.max():.6g}\n")
    bars = histogram(returns)
    width = max(len(label) for label, _, _ in bars)
    for label, bar, count in bars:
        print(f"  {label:>{width}}  {bar:<40}  {count:,}")
    print()
    if plot is not None:
        print(f"picture   {plot}")
    for note in report.notes:
        print(note)
    if not report.problems:
        print("No problems found.")
        return
    print(f"{len(report.problems)} problem{'s' if len(report.problems) > 1 else ''} found:")
    for problem in report.problems:
        print(f"  - {problem}")
