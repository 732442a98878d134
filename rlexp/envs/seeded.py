"""One environment whose every episode can be played again.

Episode k of environment i is reset with a seed derived from (run seed, i, k), and the actions since that reset are
kept. So a running episode is saved as a few integers and its actions, and restored by playing it again, which works
for any environment that is deterministic given its seed; whether it did is checked, not assumed. An episode may also
continue where the last one ended (``continued`` in the info of its reset: the next life of a game); then the record
reaches back to the episode that really began anew. Free of torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.envs.spaces import ActionCodec, ObsCodec
from rlexp.envs.spec import EnvSpec
from rlexp.errors import CheckpointError, EnvError
from rlexp.seeding import derive_seed
from rlexp.tree import tree_leaves

_COUNTERS = ("index", "seed", "episode", "length")
_STATE_KEYS = {*_COUNTERS, "ret", "actions", "obs"}


@dataclass(slots=True)
class Episode:
    """An episode that ended."""

    env: int  # index of the environment
    ret: float  # undiscounted return
    length: int
    info: dict[str, float] = field(default_factory=dict)  # "is_success" where the environment says so


class EpisodeRecord:
    """What it takes to play a running episode again: its seed and number, and the actions taken since the reset."""

    def __init__(self, spec: EnvSpec, seed: int, index: int) -> None:
        self.spec, self.seed, self.index = spec, seed, index
        self.episode = -1  # number of the running episode; -1 before the first reset
        self.ret = 0.0  # of the running episode
        self.began = -1  # number of the episode with which the record begins
        self.taken = 0  # actions in the record
        self._first = 0  # those of them that were taken before the running episode
        self._capacity = 0
        self._actions = np.empty((0, *spec.action.shape), spec.action.dtype)

    @property
    def length(self) -> int:
        """Steps of the running episode."""
        return self.taken - self._first

    def episode_seed(self, episode: int) -> int:
        """What an episode is reset with."""
        return derive_seed(self.seed, "episode", self.index, episode)

    def begin(self, episode: int, *, continued: bool = False) -> None:
        """An episode begins, anew or where the last one ended."""
        self.episode, self.ret = episode, 0.0
        if not continued:
            self.began, self.taken = episode, 0
        self._first = self.taken

    def note(self, action: Any, reward: float) -> None:
        """One step was taken."""
        if self.taken == self._capacity:
            self._grow()
        self._actions[self.taken] = action
        self.taken += 1
        self.ret += reward

    def _grow(self) -> None:
        self._capacity = max(64, 2 * self._capacity)
        actions = np.empty((self._capacity, *self.spec.action.shape), self.spec.action.dtype)
        actions[: self.taken] = self._actions[: self.taken]
        self._actions = actions

    def to_state(self, obs: list[np.ndarray]) -> dict[str, Any]:
        """The record as a state tree, with the leaves of the latest observation to compare with."""
        if self.episode < 0:
            raise RuntimeError("reset() the environment before taking a snapshot of it")
        state = {
            "index": self.index,
            "seed": self.seed,
            "episode": self.episode,
            "length": self.length,
            "ret": self.ret,
            "actions": self._actions[: self.taken].copy(),
            "obs": obs,  # a list, because leaf names may contain "/", which keys of a state tree may not
        }
        return state if self.began == self.episode else state | {"began": self.began}

    def matches(self, state: dict[str, Any], obs: list[np.ndarray]) -> bool:
        """Whether an episode that was played again is where it was."""
        same_return = self.ret == state["ret"] or (self.ret != self.ret and state["ret"] != state["ret"])
        same_place = (self.episode, self.length) == (state["episode"], state["length"])
        return (
            same_return
            and same_place
            and all(
                np.array_equal(now, np.asarray(then), equal_nan=now.dtype.kind == "f")
                for now, then in zip(obs, state["obs"], strict=True)
            )
        )

    def check_state(self, state: dict[str, Any]) -> None:
        """Snapshots come out of files: one that this environment cannot have written is refused."""
        problem = None
        if not isinstance(state, dict) or set(state) - {"began"} != _STATE_KEYS:
            problem = "has other entries than a snapshot"
        elif any(type(state[key]) is not int for key in {*_COUNTERS, *state} & {*_COUNTERS, "began"}) or not isinstance(
            state["ret"], (int, float)
        ):
            problem = "holds values of the wrong type"
        elif state["index"] != self.index or state["episode"] < 0:
            problem = f"is of environment {state['index']}, episode {state['episode']}"
        elif not 0 <= state.get("began", 0) <= state["episode"]:
            problem = f"begins with episode {state['began']} after its own"
        elif np.shape(state["actions"])[1:] != self.spec.action.shape or not self._long_enough(state):
            problem = f"has actions of shape {np.shape(state['actions'])}"
        elif np.asarray(state["actions"]).dtype != self.spec.action.dtype:
            problem = f"has actions of type {np.asarray(state['actions']).dtype}"
        elif not isinstance(state["obs"], list) or len(state["obs"]) != len(self.spec.obs.leaves):
            problem = "has an observation of another structure"
        if problem:
            raise CheckpointError(f"The saved state of environment {self.index} ({self.spec.id}) {problem}.")

    @staticmethod
    def _long_enough(state: dict[str, Any]) -> bool:
        """Whether there is one action for each step; of a continued episode, those before it come on top."""
        shape = np.shape(state["actions"])
        return len(shape) > 0 and (shape[0] == state["length"] or ("began" in state and shape[0] > state["length"]))


class SeededEnv(EpisodeRecord):
    """A Gymnasium environment with per-episode seeds, an action record, and return and length counters.

    Observations stay native here: the vector environment writes them into its arrays, without a copy in between.
    """

    def __init__(self, env: gym.Env, spec: EnvSpec, seed: int, index: int, obs_codec: ObsCodec | None = None) -> None:
        super().__init__(spec, seed, index)
        self.env = env
        self.obs: Any = None  # the latest native observation
        self.obs_codec = obs_codec or ObsCodec(env.observation_space)
        self.action_codec = ActionCodec(env.action_space, spec.action)
        self._info: dict[str, Any] = {}
        self._step = env.step  # one attribute lookup less on every step
        self._checked = False

    def reset(self, seed: int | None = None) -> Any:
        """Begin episode 0 (of ``seed``, if given); returns its first native observation."""
        self.seed = self.seed if seed is None else seed
        return self._begin(0)

    def next_episode(self) -> Any:
        """Begin the next episode; returns its first native observation."""
        return self._begin(self.episode + 1)

    def _begin(self, episode: int) -> Any:
        try:
            result = self.env.reset(seed=self.episode_seed(episode))
        except TypeError as error:
            self._explain(error)
            raise
        if not self._checked:
            self._check(result)
        self.obs, self._info = result
        self.begin(episode, continued=bool(self._info.get("continued")))
        return self.obs

    def _check(self, result: Any) -> None:
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise EnvError(f"{self.spec.id}: reset() must return (observation, info dict), as Gymnasium asks.")
        self.obs_codec.check(result[0], self.spec.id)
        self._checked = True

    def step(self, action: Any, native: Any) -> tuple[Any, float, bool, bool]:
        """Play ``native`` (canonically ``action``): native observation, reward, terminated, truncated."""
        taken = self.taken  # note(), written out: this is the innermost loop
        if taken == self._capacity:
            self._grow()
        self._actions[taken] = action
        try:  # costs nothing where nothing is raised
            self.obs, reward, terminated, truncated, self._info = self._step(native)
        except ValueError as error:
            self._explain(error)
            raise
        reward = float(reward)
        self.taken = taken + 1
        self.ret += reward
        return self.obs, reward, terminated, truncated

    def _explain(self, error: Exception) -> None:
        """Say of an environment of the old Gym API what it lacks; other errors are the environment's own."""
        if hint := old_api(error):
            raise EnvError(f"{self.spec.id} could not be played: {type(error).__name__}: {error}.{hint}") from error

    def summary(self) -> Episode:
        """The episode as it stands; asked for when it has ended."""
        success = _success(self._info)
        return Episode(self.index, self.ret, self.length, {} if success is None else {"is_success": success})

    def snapshot(self) -> dict[str, Any]:
        """The running episode as a state tree."""
        return self.to_state(self._leaves())

    def restore(self, state: dict[str, Any]) -> bool:
        """Play the episode of a snapshot again. If it comes out differently, begin the next one and return False."""
        self.check_state(state)
        self.seed = state["seed"]
        self._begin(state.get("began", state["episode"]))
        if self._replay(state["actions"]) and self.matches(state, self._leaves()):
            return True
        self.begin(state["episode"])  # forget what was played
        self.next_episode()
        return False

    def _replay(self, actions: np.ndarray) -> bool:
        """Whether the record goes on after ``actions``."""
        for action, native in zip(*self.action_codec.decode(actions)):
            _, _, terminated, truncated = self.step(action, native)
            if terminated or truncated:
                self.next_episode()
                if self.began == self.episode:  # not the continuation of the one that ended
                    return False
        return True

    def _leaves(self) -> list[np.ndarray]:
        return [array for _, array in tree_leaves(self.obs_codec.encode(self.obs))]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def old_api(error: Exception) -> str:
    """What to change, as the end of a message, where an error comes of an environment written for the old Gym API."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    caller = str(frame.tb_frame.f_globals.get("__name__", "")) if frame else ""
    if caller.partition(".")[0] not in ("gymnasium", "rlexp"):
        return ""  # a mistake within the environment
    if isinstance(error, ValueError) and re.search(r"values to unpack \(expected 5\b", str(error)):
        return " Gymnasium's step gives five values: observation, reward, terminated, truncated, info."
    if isinstance(error, ValueError) and re.search(r"values to unpack \(expected 2\b", str(error)):
        return " Gymnasium's reset gives two values: observation and info."
    if isinstance(error, TypeError) and re.search(r"reset\(\) .*keyword argument '(seed|options)'", str(error)):
        return " Gymnasium's reset takes a seed and options: def reset(self, *, seed=None, options=None)."
    return ""


def _success(info: dict[str, Any]) -> float | None:
    """Whether the last step says that the episode succeeded, by either of the names in use; None if it does not say."""
    for name in ("is_success", "success"):
        value = np.asarray(info.get(name))
        if value.size == 1 and value.dtype.kind in "biuf":
            return float(value.item())
    return None
