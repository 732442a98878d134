"""Whether a user's own class is what its group needs, told before anything runs.

The reference of each kind is a class in the code (``REFERENCES``); ``docs/extending.md`` has an example of each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlexp.algos.action_noise import ActionNoise
from rlexp.algos.base import Algorithm, OnPolicyAlgorithm
from rlexp.algos.exploration import DeterministicPolicy
from rlexp.buffers import ReplayBuffer, RolloutBuffer
from rlexp.callbacks import Callback
from rlexp.config.messages import suggest
from rlexp.datasets import Dataset
from rlexp.envs import GymEnv
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.evaluators import EvaluationMethod
from rlexp.loggers import Logger
from rlexp.machine import check_fits
from rlexp.models import Model
from rlexp.trainers.base import Trainer

# Group -> the class that says what its members are, and the methods of it that the framework calls.
REFERENCES: dict[str, tuple[type, tuple[str, ...]]] = {
    "env": (GymEnv, ("make", "spec", "build")),
    "algo": (Algorithm, ("build", "act", "update")),
    "exploration": (ActionNoise, ("__call__",)),
    "model": (Model, ("build",)),
    "trainer": (Trainer, ("prepare", "iterate", "loop_state", "load_loop_state", "planned_updates")),
    "dataset": (Dataset, ("load",)),
    "evaluator": (EvaluationMethod, ("problem", "begin", "take", "__call__", "close")),
    "logger": (Logger, ("rows_held", "open", "log", "video", "close", "where")),
    "callback": (
        Callback,
        ("on_start", "on_step", "on_eval", "on_checkpoint", "on_end", "state_dict", "load_state_dict"),
    ),
}
BY_FORM = (Model, Dataset)  # protocols: whatever has the methods will do; of the others one must be derived
GUIDE = "See docs/extending.md."
ROWS = 3  # environments that a noise is tried in


def check_kinds(
    env: Any,
    algo: Any,
    model: Any,
    buffer: Any,
    trainer: Any,
    dataset: Any,
    evaluator: Any,
    loggers: dict[str, Any],
    callbacks: list[Any],
) -> None:
    """Refuse a user's own target that is something else than its group needs, or takes other arguments."""
    if isinstance(env, gym.Env):
        raise ConfigError(
            f"env: {_name(env)} is an environment itself. Register it with gymnasium.register(…) and choose it by its "
            f"id: env=gym env.id={type(env).__module__}:Id-v0. {GUIDE}"
        )
    if isinstance(model, nn.Module):
        raise ConfigError(f"model: {_name(model)} is one network, but a model makes them: {_method(Model, 'build')}")
    check_kind("env", "env", env)
    check_kind("algo", "algo", algo)
    _check_algorithm(algo)
    check_kind("model", "model", model)
    check_kind("trainer", "trainer", trainer)
    if not isinstance(buffer, (ReplayBuffer, RolloutBuffer)):
        raise ConfigError(f"buffer: {_name(buffer)} must derive from {_path(ReplayBuffer)}. {GUIDE}")
    if isinstance(buffer, ReplayBuffer):
        for name in ("build", "add", "sample", "gather", "state_dict", "load_state_dict"):
            if not _fits(getattr(buffer, name), getattr(ReplayBuffer, name)):
                raise ConfigError(f"buffer: {_name(buffer)}.{name} must be {_method(ReplayBuffer, name)}")
    if dataset is not None:
        check_kind("dataset", "dataset", dataset)
    check_kind("evaluator", "evaluator", evaluator)
    for name, logger in loggers.items():
        check_kind("logger", f"logger.{name}", logger)
    for index, callback in enumerate(callbacks):
        check_kind("callback", f"trainer.callbacks[{index}]", callback)
        _check_hooks(f"trainer.callbacks[{index}]", callback)


def check_kind(kind: str, where: str, value: Any) -> None:
    """Refuse a value that is not of its kind, or whose methods cannot be called as the reference says."""
    base, methods = REFERENCES[kind]
    if base not in BY_FORM and not isinstance(value, base):
        raise ConfigError(f"{where}: {_name(value)} must derive from {_path(base)}. {GUIDE}")
    for name in methods:
        method = getattr(value, name, None)
        if not callable(method):
            raise ConfigError(f"{where}: {_name(value)} lacks a method: {_method(base, name)}")
        if not _fits(method, getattr(base, name)):
            given = f"{_name(value)}.{name}{_signature(getattr(type(value), name, method))}"
            raise ConfigError(f"{where}: {given} takes other arguments than it is given: {_method(base, name)}")


def _check_algorithm(algo: Algorithm) -> None:
    for name, example in (("loops", '{"replay"}'), ("actions", '{"continuous"}')):
        if not isinstance(getattr(algo, name, None), frozenset):
            raise ConfigError(f"algo: {_name(algo)} must say its {name}, e.g. {name} = frozenset({example}). {GUIDE}")
    if "on_policy" in algo.loops and not isinstance(algo, OnPolicyAlgorithm):
        raise ConfigError(f"algo: {_name(algo)} learns on-policy, so it must derive from {_path(OnPolicyAlgorithm)}.")
    if isinstance(algo, DeterministicPolicy):
        check_kind("exploration", "algo.exploration", algo.action_noise)


def check_noise(algo: Algorithm, spec: EnvSpec) -> None:
    """Refuse noise on actions that is none: it is tried for two steps, each of them twice."""
    if not isinstance(algo, DeterministicPolicy):
        return
    noise, dim = algo.action_noise, spec.action.dim
    who = f"algo.exploration: {_name(noise)}"
    for name in ("draws", "memory"):
        number = getattr(noise, name)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(f"{who}.{name} must be a whole number from 0, not {number!r}. {GUIDE}")
    check_fits(4 * ROWS * dim * (noise.draws + noise.memory), who)
    generator = torch.Generator().manual_seed(0)
    memory = torch.zeros(ROWS, dim, noise.memory)
    for scale in (0.5, torch.tensor(0.5)):  # which is what a schedule makes of it
        draw = torch.randn(ROWS, dim, noise.draws, generator=generator)
        given = draw.clone(), memory.clone()
        form = f"a draw {list(draw.shape)}, a memory {list(memory.shape)} and a scale"
        try:
            first = noise(draw, memory, scale)
            before = {name: each.clone() if isinstance(each, Tensor) else each for name, each in vars(noise).items()}
            answers = [first, noise(draw, memory, scale)]
        except Exception as error:
            raise ConfigError(f"{who} fails on {form}: {type(error).__name__}: {error}. {GUIDE}") from error
        if not all(_like(answer, (torch.zeros(ROWS, dim), memory)) for answer in answers):
            wanted = f"(noise {[ROWS, dim]}, memory {list(memory.shape)}), both float32"
            raise ConfigError(f"{who} must answer {form} with {wanted}. {GUIDE}")
        same = all(map(torch.equal, (draw, memory, *answers[0]), (*given, *answers[1])))
        if not same or not _same_state(before, vars(noise)):
            raise ConfigError(
                f"{who} answers the same draw and memory with other numbers, or changes them or itself. All its chance "
                f"must be the draw, and all it remembers the memory that it returns. {GUIDE}"
            )
        memory = answers[0][1]


def _same_state(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether nothing was added or changed; what was only kept by the first call is no change."""
    if before.keys() != now.keys():
        return False
    pairs = [(old, now[name]) for name, old in before.items()]
    return all(torch.equal(old, new) if isinstance(old, Tensor) else old is new or old == new for old, new in pairs)


def _like(answer: Any, wanted: tuple[Tensor, ...]) -> bool:
    """Whether there is a tensor of the same shape and type for each that is wanted."""
    return (
        isinstance(answer, tuple)
        and len(answer) == len(wanted)
        and all(isinstance(each, Tensor) for each in answer)
        and all(each.shape == like.shape and each.dtype == like.dtype for each, like in zip(answer, wanted))
    )


def _check_hooks(where: str, callback: Callback) -> None:
    """A mistyped hook would never be called."""
    hooks = [name for name in REFERENCES["callback"][1] if name.startswith("on_")]
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in hooks and callable(getattr(callback, name)):
            raise ConfigError(f"{where}: {_name(callback)} has {name}, which is not a hook.{suggest(name, hooks)}")


def _fits(method: Callable[..., Any], reference: Callable[..., Any]) -> bool:
    """Whether a method can be called in every way that its reference can."""
    parameters = list(inspect.signature(reference).parameters.values())[1:]  # without self
    required = [p for p in parameters if p.default is p.empty]
    try:
        signature = inspect.signature(method)
        for given in (parameters, required):
            positional = [p.name for p in given if p.kind is not p.KEYWORD_ONLY]
            signature.bind(*positional, **{p.name: None for p in given if p.kind is p.KEYWORD_ONLY})
    except TypeError:
        return False
    return True


def _method(base: type, name: str) -> str:
    return f"{name}{_signature(getattr(base, name))}. {GUIDE}"


def _signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _name(value: Any) -> str:
    return type(value).__qualname__


def _path(base: type) -> str:
    return f"{base.__module__}.{base.__name__}"
