"""Atari games with the usual preprocessing, on either of two backends. Free of torch.

``vector`` is ale-py's own vector environment, several times as fast; ``gym`` is one Gymnasium environment per copy with
Gymnasium's wrappers, for wrappers of your own, worker processes and rendering. Without random no-ops and sticky
actions, whose random numbers differ, both give the same frames, rewards and ends. Both are restored exactly.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Natural
from rlexp.envs.gym_env import GymEnv, Vectorization
from rlexp.envs.locate import missing_package
from rlexp.envs.pixels import check_side
from rlexp.envs.vector import VecEnv
from rlexp.envs.wrappers import FrameStack
from rlexp.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec


class Backend(Enum):
    """Who steps the games."""

    vector = "vector"  # ale-py's vector environment
    gym = "gym"  # Gymnasium's environments and wrappers


@component("env", "atari")
@dataclass(eq=False, kw_only=True)
class AtariEnv(GymEnv):
    """Atari games as in Mnih et al. (2015): 84×84 grey, four frames per action and per observation.

    Training sees one life as one episode and rewards clipped to [−1, 1]; evaluation always plays whole games and
    reports their true scores.
    """

    id: str = field(init=False, default="")  # follows from the game
    kwargs: dict[str, Any] = field(init=False, default_factory=dict)
    action_repeat: int = field(init=False, default=1)
    pixels: bool = field(init=False, default=False)
    resize: int | None = field(init=False, default=None)
    action_limit: float | None = field(init=False, default=None)
    show_achieved_goal: bool = field(init=False, default=False)

    game: str = "pong"  # the name of its ROM: pong, breakout, space_invaders, …
    backend: Backend = Backend.vector  # vector (ale-py's own, fast) or gym (Gymnasium's wrappers)
    frame_skip: Count = 4  # frames that an action lasts; of the last two each pixel's maximum is seen
    size: Count = 84  # side of the square that the screen is scaled to
    grayscale: bool = True  # shades of grey instead of colours
    frame_stack: Count = 4  # newest frames shown together; an episode begins with zeros before its first
    noop_max: Natural = 30  # a game begins with a random number of idle frames, at most so many
    fire_reset: bool = True  # press fire after that, and as the first action of each further life, where there is fire
    sticky_actions: Fraction = 0.0  # chance that the last action goes on for a frame; 0.25 in Machado et al. (2018)
    full_action_space: bool = False  # all 18 actions of the joystick instead of those that the game knows
    episodic_life: bool = True  # in training a lost life ends the episode; the game goes on
    clip_rewards: bool = True  # in training rewards are clipped to [−1, 1]
    max_episode_steps: Count | None = 27_000  # actions until a game is truncated: half an hour of playing

    def __post_init__(self) -> None:
        self.backend = Backend(self.backend)
        if self.workers is not None and self.backend is Backend.vector:
            raise ConfigError(
                f"env.workers={self.workers} has no effect with env.backend=vector, which has threads. "
                "Add env.backend=gym env.vectorization=subprocess, or set env.workers=null."
            )
        super().__post_init__()
        check_side("env.size", self.size)
        if self.wrappers and self.backend is Backend.vector:
            raise ConfigError("env.wrappers need single environments: add env.backend=gym.")
        if self.vectorization is Vectorization.subprocess and self.backend is Backend.vector:
            raise ConfigError("env.vectorization=subprocess is for env.backend=gym; the vector backend has threads.")
        self.id = f"ALE/{''.join(part.capitalize() for part in self.game.split('_'))}-v5"

    def for_evaluation(self) -> AtariEnv:
        """Whole games with their true scores."""
        if not (self.episodic_life or self.clip_rewards):
            return self
        other = replace(self, episodic_life=False, clip_rewards=False)
        other._spec = self._spec
        return other

    def build(self, seed: int, num_envs: int | None = None, render_mode: str | None = None) -> VecEnv:
        """The games of one purpose."""
        if self.backend is Backend.gym or render_mode:
            return super().build(seed, num_envs, render_mode)
        from rlexp.envs.atari_vector import AtariVecEnv

        return AtariVecEnv(self, self.spec(), num_envs or self.num_envs, seed)

    def make(self, render_mode: str | None = None) -> gym.Env:
        """One game."""
        env = super().make(render_mode)
        if self.clip_rewards:
            env = gym.wrappers.ClipReward(env, -1.0, 1.0)
        return EpisodicLife(env) if self.episodic_life else env

    def spec(self) -> EnvSpec:
        """The spaces and limits; the same for both backends."""
        return replace(super().spec(), max_episode_steps=self.max_episode_steps)

    def _make_base(self, render_mode: str | None) -> gym.Env:
        ale = import_ale(self.game)
        env: gym.Env = ale.env.AtariEnv(
            self.game,
            obs_type="grayscale" if self.grayscale else "rgb",  # the preprocessing reads screens of this form
            frameskip=1,
            repeat_action_probability=self.sticky_actions,
            full_action_space=self.full_action_space,
            max_num_frames_per_episode=0,
            render_mode=render_mode,
        )
        fire = fire_button(env.get_action_meanings()) if self.fire_reset else None  # type: ignore[attr-defined]
        env = gym.wrappers.AtariPreprocessing(
            RandomStart(env, self.noop_max, fire),
            noop_max=0,
            frame_skip=self.frame_skip,
            screen_size=self.size,
            grayscale_obs=self.grayscale,
        )
        env = env if fire is None else FireLives(env, fire)
        limit = self.max_episode_steps
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    def _with_images(self, env: gym.Env) -> gym.Env:
        return env  # scaled and grey already

    def _with_stack(self, env: gym.Env) -> gym.Env:
        return FrameStack(env, self.frame_stack, zeros=True)


def fire_button(meanings: Sequence[str]) -> int | None:
    """Which action is fire, if one is."""
    return meanings.index("FIRE") if "FIRE" in meanings else None


class RandomStart(gym.Wrapper):
    """Begins a game with 0 to ``noop_max`` idle frames, and with the action ``fire``."""

    def __init__(self, env: gym.Env, noop_max: int, fire: int | None) -> None:
        super().__init__(env)
        self._noop_max, self._fire = noop_max, fire

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The game after its idle frames."""
        obs, info = self.env.reset(seed=seed, options=options)
        idle = [0] * int(self.unwrapped.np_random.integers(0, self._noop_max + 1))
        for action in [*idle, *([] if self._fire is None else [self._fire])]:
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class FireLives(gym.Wrapper):
    """The first action of each further life is ``fire``, whatever was chosen: games wait for it, maybe for ever."""

    def __init__(self, env: gym.Env, fire: int) -> None:
        super().__init__(env)
        self._fire, self._lives, self._press = fire, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new game."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._press = info["lives"], False
        return obs, info

    def step(self, action: Any) -> Any:
        """A step of the game."""
        obs, reward, terminated, truncated, info = self.env.step(self._fire if self._press else action)
        self._press, self._lives = 0 < info["lives"] < self._lives, info["lives"]
        return obs, reward, terminated, truncated, info


class EpisodicLife(gym.Wrapper):
    """A lost life ends the episode; the next one goes on with the same game, and says so in the info of its reset."""

    keeps_observations = True  # see GymEnv: stacks below it are still those of the frames in turn

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._lives, self._lost = 0, False
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new game, or the next life of this one."""
        if self._lost:
            self._lost = False
            return self._last, {"continued": True}
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> Any:
        """A step of the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives, before = info["lives"], self._lives
        self._lives, self._last = lives, obs
        # With no lives left some games still show their end: that is for the game to tell.
        self._lost = 0 < lives < before and not (terminated or truncated)
        return obs, reward, terminated or self._lost, truncated, info


def clipped(reward: np.ndarray) -> np.ndarray:
    """Rewards in [−1, 1]."""
    return np.clip(reward, -1.0, 1.0)


def import_ale(game: str) -> Any:
    """The package ale_py, if it is installed and knows the game."""
    try:
        ale = importlib.import_module("ale_py")
        for part in ("env", "roms", "vector_env"):
            importlib.import_module(f"ale_py.{part}")
        importlib.import_module("cv2")
    except ImportError as error:
        raise EnvError(missing_package("env=atari", error)) from error
    games = ale.roms.get_all_rom_ids()
    if game not in games:
        near = difflib.get_close_matches(game.lower(), games, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise EnvError(f"env.game={game} is no Atari game.{hint}")
    try:
        ale.roms.get_rom_path(game)
    except OSError as error:  # a folder of the user's own (ALE_ROMS_DIR) without it, or a damaged file
        raise EnvError(f"env.game={game}: its ROM cannot be read ({' '.join(str(error).split())}).") from error
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    return ale
