"""The environment component: any Gymnasium id, or a Python factory, made, wrapped and vectorised. Free of torch."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import gymnasium as gym

from rlexp.config.component import component
from rlexp.config.fields import Count, Positive
from rlexp.envs.locate import find_registration, locate_wrapper, missing_package, wrapper_parts
from rlexp.envs.masking import MaskInObservation, mask_source
from rlexp.envs.pixels import Images, check_side, rendered
from rlexp.envs.spec import EnvSpec, ObsSpec, spec_of
from rlexp.envs.subproc import SubprocVecEnv
from rlexp.envs.vector import SyncVecEnv, VecEnv
from rlexp.envs.wrappers import ActionRepeat, FrameStack
from rlexp.errors import ConfigError, EnvError, UnknownEnvError
from rlexp.machine import cpu_count

MAX_ENVS = 65_536  # each is an object with a simulator behind it: more is a mistake, or an attack on the memory
MAX_STACK = 256  # frames shown together, for the same reason

_UNKNOWN = "unknown"


class Vectorization(Enum):
    """How several environments are stepped."""

    sync = "sync"  # one after another in this process: fastest for cheap environments
    subprocess = "subprocess"  # in worker processes: for environments that take longer than about 100 µs a step


@component("env", "gym")
@dataclass(eq=False, kw_only=True)
class GymEnv:
    """Any Gymnasium environment."""

    id: str  # Gymnasium id, e.g. CartPole-v1; `module:Id` imports the module that registers it first
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of the environment's constructor
    wrappers: list[Any] = field(default_factory=list)  # {_target_: package.Wrapper, argument: value}, innermost first
    num_envs: Count = 1  # copies stepped together for training
    vectorization: Vectorization = Vectorization.sync  # sync, or subprocess for slow environments
    workers: Count | None = None  # processes of subprocess; null: one per CPU, at most num_envs
    max_episode_steps: Count | None = None  # steps until truncation, repeats counted; null: the id's own limit
    action_repeat: Count = 1  # times each action is played, its rewards summed; the agent's step is all of them
    pixels: bool = False  # the agent sees what is drawn instead of the state; the id must have an rgb_array mode
    resize: Count | None = None  # side of the square that images are scaled to; null: as they are
    grayscale: bool = False  # images in shades of grey instead of colours
    frame_stack: Count = 1  # newest observations shown together, along a new first axis, the oldest first
    show_achieved_goal: bool = False  # goal environments: networks see it too (for those whose observation lacks it)
    action_limit: Positive | None = None  # bound put on the action dimensions that have none
    normalize_obs: bool = False  # scale observations by their running mean and variance (done by the trainer)
    normalize_reward: bool = False  # scale rewards by the running deviation of the return (done by the trainer)
    reference_returns: list[float] | None = None  # [random, expert]: returns that score 0 and 100; null: D4RL's
    factory: Callable[[], gym.Env] | None = field(init=False, default=None)  # makes the environment instead of `id`
    _spec: EnvSpec | None = field(init=False, default=None, repr=False)
    _mask: str | None = field(init=False, default=_UNKNOWN, repr=False)  # where the environment keeps its action mask

    def __post_init__(self) -> None:
        self.vectorization = Vectorization(self.vectorization)  # Python code may give its name
        if self.num_envs > MAX_ENVS:
            raise ConfigError(f"env.num_envs must be at most {MAX_ENVS}, not {self.num_envs}.")
        if self.frame_stack > MAX_STACK:
            raise ConfigError(f"env.frame_stack must be at most {MAX_STACK}, not {self.frame_stack}.")
        if self.resize is not None:
            check_side("env.resize", self.resize)
        if self.workers is not None and self.vectorization is Vectorization.sync:
            raise ConfigError(
                f"env.workers={self.workers} has no effect with env.vectorization=sync, which has no worker processes. "
                "Add env.vectorization=subprocess, or set env.workers=null."
            )

    def make(self, render_mode: str | None = None) -> gym.Env:
        """One environment with its time limit and wrappers, as Gymnasium gives it."""
        env = self._make_base(render_mode)
        if self.action_repeat > 1:  # innermost, so that wrappers see one step for each decision
            env = ActionRepeat(env, self.action_repeat)
        env = self._with_images(env)
        for entry in self.wrappers:
            env = _wrap(env, entry)
        if self._mask is _UNKNOWN:
            self._mask = mask_source(env)
        if self._mask is not None and self.action_repeat > 1:
            raise EnvError(
                f"env.action_repeat={self.action_repeat}: {self.id} has action masks, and an action may be impossible "
                "the second time. Use env.action_repeat=1."
            )
        env = self._with_stack(env)
        return env if self._mask is None else MaskInObservation(env, self._mask)

    def for_evaluation(self) -> GymEnv:
        """The environment whose returns count: itself, where training sees nothing else."""
        return self

    def _make_base(self, render_mode: str | None) -> gym.Env:
        """The environment that everything else is wrapped around."""
        if self.pixels and render_mode not in (None, "rgb_array"):
            raise EnvError(f"{self.id} cannot be shown: env.pixels=true draws it for the agent.")
        mode = "rgb_array" if self.pixels else render_mode
        if mode:  # SDL, with which many environments draw, complains where there is no session of a desktop
            os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        try:
            return self._call_factory(mode) if self.factory else self._make_registered(mode)
        except UnknownEnvError:
            raise
        except EnvError as error:
            if mode == render_mode:
                raise
            raise EnvError(f"env.pixels=true needs an environment that draws images: {error}") from error

    def _with_images(self, env: gym.Env) -> gym.Env:
        """Drawn, scaled and grey, as the settings say."""
        if self.pixels:
            env = rendered(env, self.id)
        if self.resize is not None or self.grayscale:
            env = Images(env, self.resize, self.grayscale, flat=self.frame_stack > 1)
        return env

    def _with_stack(self, env: gym.Env) -> gym.Env:
        """The newest observations together."""
        return FrameStack(env, self.frame_stack) if self.frame_stack > 1 else env

    def spec(self) -> EnvSpec:
        """The spaces and limits, read once from an environment made for it."""
        if self._spec is None:
            env = self.make()
            try:
                spec = spec_of(env, self.action_limit, show_achieved_goal=self.show_achieved_goal)
                spec = replace(spec, obs=_stacks_of(env, spec.obs))
            finally:
                env.close()
            if spec.max_episode_steps is not None:  # in steps of the agent
                spec = replace(spec, max_episode_steps=-(-spec.max_episode_steps // self.action_repeat))
            self._spec = spec if self.factory else replace(spec, id=self.id)
        return self._spec

    def build(self, seed: int, num_envs: int | None = None, render_mode: str | None = None) -> VecEnv:
        """The environments of one purpose, to be ``reset()``; those with a render mode live in this process."""
        count = num_envs or self.num_envs
        if render_mode or self.vectorization is Vectorization.sync:
            return SyncVecEnv(functools.partial(self.make, render_mode), self.spec(), count, seed)
        return SubprocVecEnv(self._recipe(), self.spec(), count, seed, workers=min(count, self.workers or cpu_count()))

    def _make_registered(self, render_mode: str | None) -> gym.Env:
        registration = copy.copy(find_registration(self.id))
        registration.order_enforce = False  # the vector environment resets before it steps
        kwargs = copy.deepcopy(self.kwargs) | ({"render_mode": render_mode} if render_mode else {})
        limit = self.max_episode_steps
        try:
            with _quiet_mujoco() if "mujoco" in str(registration.entry_point) else nullcontext():
                return gym.make(registration, max_episode_steps=limit, disable_env_checker=True, **kwargs)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise EnvError(missing_package(self.id, error)) from error
        except TypeError as error:
            reason = error.__cause__ or error  # Gymnasium repeats all kwargs around the constructor's own message
            if render_mode and "render_mode" in str(reason):
                raise EnvError(f"{self.id} has no render mode {render_mode!r}: it cannot be drawn or shown.") from error
            raise EnvError(f"{self.id} cannot be made with env.kwargs={self.kwargs}: {reason}") from error
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise EnvError(f"{self.id} could not be made (env.kwargs={self.kwargs}): {problem}") from error

    def _call_factory(self, render_mode: str | None) -> gym.Env:
        assert self.factory is not None
        takes_mode = render_mode is not None and _has_parameter(self.factory, "render_mode")
        env = self.factory(render_mode=render_mode) if takes_mode else self.factory()  # type: ignore[call-arg]
        if not isinstance(env, gym.Env):
            raise EnvError(f"The environment factory returned {type(env).__name__}, not a gymnasium.Env.")
        if render_mode is not None and env.render_mode != render_mode:
            raise EnvError(
                f"The environment factory made an environment with render_mode={env.render_mode!r} where "
                f"{render_mode!r} is needed; give the factory a `render_mode` parameter and pass it on."
            )
        limit = self.max_episode_steps
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    def _recipe(self) -> _Recipe:
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        registered = not self.factory and ":" not in self.id
        self.spec()  # finds out where masks are
        registration = find_registration(self.id) if registered else None
        return _Recipe(type(self), settings, self.factory, registration, self._mask)


@dataclass
class _Recipe:
    """What a worker process needs to make the environment."""

    component: type[GymEnv]
    settings: dict[str, Any]
    factory: Callable[[], gym.Env] | None
    registration: Any  # the id's entry in the registry, which this process may have got from an import of the user's
    mask: str | None  # where the environment keeps its action mask

    def __call__(self) -> gym.Env:
        if self.registration is not None:
            gym.registry.setdefault(self.registration.id, self.registration)
        env = self.component(**self.settings)
        env.factory, env._mask = self.factory, self.mask
        return env.make()


def _stacks_of(env: gym.Env, obs: ObsSpec) -> ObsSpec:
    """The leaves that our own FrameStack gives are marked as such: memories store each of their frames once.

    Not below a wrapper that may make something else of a stack than its frames in turn.
    """
    while isinstance(env, MaskInObservation | gym.RewardWrapper | gym.wrappers.TimeLimit) or (
        isinstance(env, gym.Wrapper) and getattr(type(env), "keeps_observations", False)
    ):
        env = env.env
    if not isinstance(env, FrameStack):
        return obs
    names = [name if name in obs.leaves else "obs" for name in env.stacked]  # beside an action mask
    return replace(obs, leaves=obs.leaves | {name: replace(obs.leaves[name], stack=env.size) for name in names})


def _wrap(env: gym.Env, entry: Any) -> gym.Env:
    target, arguments = wrapper_parts(entry)
    wrapper = locate_wrapper(target)
    for name, parameter in inspect.signature(wrapper).parameters.items():
        given = arguments.get(name)
        if given is not None and "Callable" in str(parameter.annotation) and not callable(given):
            raise EnvError(f"The wrapper {target} needs a function as {name}, which a config cannot give: {given!r}.")
    try:
        return wrapper(env, **copy.deepcopy(arguments))
    except EnvError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise EnvError(f"The wrapper {target} could not be applied with {arguments}: {problem}") from error


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Keep MuJoCo from reporting, for each copy made, on stderr and in a file, that Gymnasium's models are dated."""
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError:
        yield  # making the environment will say what to install
        return

    def report(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(report)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
