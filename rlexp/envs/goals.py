"""What a goal environment says about reaching a goal, asked for many goals at once. Free of torch.

Goal environments follow gymnasium-robotics' ``GoalEnv``: their observation is a Dict with the entries ``observation``,
``achieved_goal`` and ``desired_goal``, and ``compute_reward(achieved_goal, desired_goal, info)`` gives the reward of
``step``. Where they have ``compute_terminated``, it says in the same way whether the episode ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.envs.seeded import old_api
from rlexp.envs.spec import ACHIEVED, DESIRED
from rlexp.errors import EnvError

_TRIED_STEPS = 4  # whose rewards are compared with what compute_reward says

_UNEXPLAINED, _UNEXPLAINED_SHARE = 3, 1e-3  # so many, and such a share of rewards, are no matter of rounding

GoalFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]  # native goals [B, …], achieved and desired -> [B]


class GoalRewards:
    """Rewards and ends of an environment (which is reset and stepped here) for other goals than it had.

    Functions that were not written for arrays of goals are noticed, and asked row by row: some would not fail, but give
    one answer for all rows together.
    """

    def __init__(self, env: gym.Env, name: str) -> None:
        self._name, self._env = name, env
        self._space: spaces.Space = env.observation_space[ACHIEVED]  # type: ignore[index]
        self._shape, self._start = self._space.shape or (), getattr(self._space, "start", None)
        _refuse_reward_wrappers(env, name)
        self._wrapped = any(_may_change_rewards(wrapper) for wrapper in _wrappers_around(env))
        steps = play_some(env, name)
        achieved = np.stack([obs[ACHIEVED] for obs, _ in steps])
        desired = np.stack([obs[DESIRED] for obs, _ in steps])
        # Every achieved goal against every goal known: reached and missed ones side by side.
        rows = np.tile(achieved, (2 * len(steps), *[1] * len(self._shape)))
        goals = np.repeat(np.concatenate([achieved, desired]), len(steps), 0)
        reward = self._function("compute_reward", rows, goals, np.float32)
        if reward is None:
            raise EnvError(
                f"{name} has no compute_reward(achieved_goal, desired_goal, info), by which buffer=her finds the "
                "rewards of other goals. Use buffer=replay."
            )
        self._reward = reward
        self._terminated = self._function("compute_terminated", rows, goals, np.bool_)
        tried = range(1, len(steps))  # no step led to the first observation
        computed, given = reward(achieved[tried], desired[tried]), np.array([each for _, each in steps])[tried]
        for i in _differ(computed, given):
            raise self._differing(computed[i], given[i])
        self._checked = self._unexplained = 0  # rewards of steps since, and those that were others

    def close(self) -> None:
        """Close the environment; its functions can still be asked."""
        self._env.close()

    @property
    def terminates(self) -> bool:
        """Whether the environment says which goals end an episode."""
        return self._terminated is not None

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Rewards [B] of having achieved one goal where the other was desired, both canonical arrays [B, …]."""
        return self._reward(self._native(achieved), self._native(desired))

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Whether that ends the episode, bool [B]; never, if the environment does not say."""
        if self._terminated is None:
            return np.zeros(len(achieved), bool)
        return self._terminated(self._native(achieved), self._native(desired))

    def _native(self, goals: np.ndarray) -> np.ndarray:
        """Canonical goals as the environment has them."""
        goals = goals.reshape(len(goals), *self._shape)
        return (
            goals.astype(self._space.dtype) if self._start is None else (goals + self._start).astype(self._space.dtype)
        )

    def _function(self, name: str, achieved: np.ndarray, desired: np.ndarray, dtype: type) -> GoalFunction | None:
        """A function of the environment for many goals at once; None if it has none of this name."""
        if not self._env.has_wrapper_attr(name):
            return None
        function = self._env.get_wrapper_attr(name)

        def by_row(some: np.ndarray, wanted: np.ndarray) -> np.ndarray:
            return np.fromiter((function(a, d, {}) for a, d in zip(some, wanted)), dtype, len(some))

        def at_once(some: np.ndarray, wanted: np.ndarray) -> np.ndarray:
            return np.asarray(function(some, wanted, {})).astype(dtype)

        try:
            expected = by_row(achieved, desired)
        except NotImplementedError:
            return None  # what an abstract class declares
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise EnvError(
                f"{self._name}: {name}(achieved_goal, desired_goal, info={{}}) could not be asked ({problem}). It must "
                "depend on the two goals alone, because buffer=her keeps no infos."
            ) from error
        try:
            found = at_once(achieved, desired)
        except Exception:
            return by_row
        return at_once if found.shape == expected.shape and np.allclose(found, expected) else by_row

    def check(self, achieved: np.ndarray, desired: np.ndarray, rewards: np.ndarray) -> None:
        """Rewards [B] of steps must be what compute_reward says of their goals: a wrapper may have changed them.

        Goals that were stored are rounded to float32, which moves distances, and now and then a goal in or out of
        reach. So these may be off by that rounding, and one that is not explained is no reason to stop.
        """
        computed = self.reward(achieved, desired)
        largest = max(1.0, *(float(np.abs(goals).max(initial=0)) for goals in (achieved, desired)))
        differ = _differ(computed, rewards, atol=1e-6 + 8 * float(np.finfo(np.float32).eps) * largest)
        self._checked += len(rewards)
        self._unexplained += len(differ)
        if len(differ) and self._unexplained >= max(_UNEXPLAINED, _UNEXPLAINED_SHARE * self._checked):
            raise self._differing(computed[differ[0]], rewards[differ[0]])

    def _differing(self, computed: float, given: float) -> EnvError:
        advice = (
            "Remove the wrapper that changes rewards" if self._wrapped else "Let compute_reward give what step gives"
        )
        return EnvError(
            f"{self._name}: step() gave the reward {given:g}, but its compute_reward says {computed + 0.0:g} "
            f"for the same goals. {advice}, or use buffer=replay."
        )


def _differ(computed: np.ndarray, given: np.ndarray, atol: float = 1e-6) -> np.ndarray:
    """Where rewards are not the ones that were computed."""
    return np.flatnonzero(~np.isclose(computed, given, rtol=1e-4, atol=atol))


def play_some(env: gym.Env, name: str) -> list[tuple[dict[str, Any], float]]:
    """Some observations, each with the reward of the step that led there; the first one's is NaN."""
    try:
        env.action_space.seed(0)
        obs, _ = env.reset(seed=0)
        found, ended = [(obs, np.nan)], False
        while len(found) <= _TRIED_STEPS and not ended:
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            found.append((obs, float(reward)))
            ended = bool(terminated or truncated)
    except Exception as error:
        said = old_api(error)
        raise EnvError(f"{name} could not be played: {type(error).__name__}: {error}{said and f'.{said}'}") from error
    return found


def achieved_is_hidden(env: gym.Env, name: str) -> bool:
    """Whether numbers of the achieved goal are missing in the entry ``observation``; judged by some steps."""

    def numbers(obs: dict[str, Any], entry: str) -> np.ndarray:
        return np.asarray(spaces.flatten(env.observation_space[entry], obs[entry]), np.float32)  # type: ignore[index]

    played = play_some(env, name)
    return any(not np.isin(numbers(obs, ACHIEVED), numbers(obs, "observation")).all() for obs, _ in played)


def _refuse_reward_wrappers(env: gym.Env, name: str) -> None:
    """What lies between the agent and compute_reward must leave rewards alone: few steps may all have the reward 0."""
    for wrapper in _wrappers_around(env):
        if isinstance(wrapper, (gym.RewardWrapper, gym.wrappers.NormalizeReward)):
            raise EnvError(
                f"{name}: the wrapper {type(wrapper).__name__} changes rewards, but compute_reward, by which "
                "buffer=her finds those of other goals, does not know of it. Remove the wrapper that changes rewards, "
                "or use buffer=replay."
            )


def _wrappers_around(env: gym.Env) -> Iterator[gym.Wrapper]:
    """The wrappers between the agent and whatever has compute_reward, from without."""
    while isinstance(env, gym.Wrapper) and not hasattr(env, "compute_reward"):
        yield env
        env = env.env


def _may_change_rewards(wrapper: gym.Wrapper) -> bool:
    """Whether it is one of the user's that does more than observations and actions."""
    known = type(wrapper).__module__.partition(".")[0] in ("gymnasium", "rlexp")
    return not known and not isinstance(wrapper, (gym.ObservationWrapper, gym.ActionWrapper))
