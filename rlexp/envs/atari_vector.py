"""ale-py's vector environment behind our contract: own resets, true final observations, exact restore. Free of torch.

It is used in its default mode, in which an ended game would begin anew with the next step. That never happens: ended
games are reset at once, with the seed of their next episode, which the vector environment can do for some of its games.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.envs.atari import clipped, fire_button, import_ale
from rlexp.envs.seeded import Episode, EpisodeRecord
from rlexp.envs.spec import EnvSpec
from rlexp.envs.vector import VecEnv, VecStep
from rlexp.machine import cpu_count
from rlexp.tree import ArrayTree

if TYPE_CHECKING:
    from rlexp.envs.atari import AtariEnv

_ENDLESS = 2**30  # frames: the time limit is kept here, in actions


class AtariVecEnv(VecEnv):
    """N copies of a game, stepped by ale-py's threads."""

    def __init__(self, config: AtariEnv, spec: EnvSpec, num_envs: int, seed: int) -> None:
        super().__init__(spec, num_envs, seed)
        self._limit = config.max_episode_steps or _ENDLESS
        self._episodic_life, self._clip = config.episodic_life, config.clip_rewards
        self._games = import_ale(config.game).vector_env.AtariVectorEnv(
            config.game,
            num_envs,
            num_threads=min(num_envs, cpu_count()),
            max_num_frames_per_episode=_ENDLESS,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            img_height=config.size,
            img_width=config.size,
            grayscale=config.grayscale,
            stack_num=config.frame_stack,
            frameskip=config.frame_skip,
            maxpool=config.frame_skip > 1,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_reset,
            episodic_life=False,
            reward_clipping=False,
        )
        meanings = [action.name for action in self._games.ale.get_action_set()]
        self._fire = fire_button(meanings) if config.fire_reset else None
        self._press = np.zeros(num_envs, bool)  # where fire is played next
        self._records = [EpisodeRecord(spec, seed, index) for index in range(num_envs)]
        self._lives = np.zeros(num_envs, np.int32)
        self._obs: np.ndarray | None = None

    def reset(self, seed: int | None = None) -> ArrayTree:  # noqa: D102
        self.seed = self.seed if seed is None else seed
        for record in self._records:
            record.seed = self.seed
        return self._begin([(record, 0) for record in self._records])

    def _begin(self, episodes: list[tuple[EpisodeRecord, int]]) -> np.ndarray:
        """New games in some of the environments; the observations of all."""
        mask = np.zeros(self.num_envs, bool)
        mask[[record.index for record, _ in episodes]] = True
        seeds = np.array([record.episode_seed(episode) for record, episode in episodes])
        if self._obs is None and not mask.all():  # the first reset must be one of all
            self._games.reset(seed=0)
        obs, info = self._games.reset(seed=seeds, options=None if mask.all() else {"reset_mask": mask})
        for record, episode in episodes:
            record.begin(episode)
        self._lives[mask] = info["lives"][mask]
        self._press[mask] = False
        self._obs = obs
        return obs

    def step(self, action: np.ndarray) -> VecStep:  # noqa: D102
        self._check_action(action)
        played = action if self._fire is None else np.where(self._press, self._fire, action)
        obs, score, over, _, info = self._games.step(played)
        lives = info["lives"]
        reward = score.astype(np.float32)
        if self._clip:
            reward = clipped(reward)
        for record, taken, earned in zip(self._records, action.tolist(), reward.tolist()):
            record.note(taken, earned)
        late = np.array([record.taken >= self._limit for record in self._records])
        fresh = over | late  # a new game begins
        # With no lives left some games still show their end: that is for the game to tell.
        self._press = (lives > 0) & (lives < self._lives) & ~fresh
        lost = self._press.copy() if self._episodic_life else np.zeros_like(over)
        self._lives = lives.copy()
        self._obs = obs
        terminated = over | lost
        truncated = late & ~over
        ended = np.flatnonzero(fresh | lost)
        if not ended.size:
            return VecStep(obs, obs, reward, terminated, truncated, [])
        records = [self._records[i] for i in ended]
        episodes = [Episode(record.index, record.ret, record.length) for record in records]
        for record in records:
            if lost[record.index]:
                record.begin(record.episode + 1, continued=True)
        if fresh.any():
            self._begin([(record, record.episode + 1) for record in records if fresh[record.index]])
        following = obs.copy()
        following[fresh] = self._obs[fresh]
        return VecStep(following, obs, reward, terminated, truncated, episodes)

    def snapshot(self) -> dict[str, Any]:  # noqa: D102
        if self._obs is None:
            raise RuntimeError("reset() the environment before taking a snapshot of it")
        return {"envs": [record.to_state([self._obs[record.index].copy()]) for record in self._records]}

    def restore(self, state: dict[str, Any]) -> tuple[ArrayTree, list[int]]:
        """Play all games again, side by side, each begun so that all are where they were at the same moment."""
        states = self._env_states(state)
        for record, saved in zip(self._records, states):
            record.check_state(saved)
            record.seed = saved["seed"]
        self.seed = states[0]["seed"]
        lengths = np.array([len(saved["actions"]) for saved in states])
        wait = lengths.max() - lengths
        broken: set[int] = set()
        for t in range(int(lengths.max()) + 1):
            beginning = np.flatnonzero(wait == t)
            if beginning.size:
                began = [(self._records[i], states[i].get("began", states[i]["episode"])) for i in beginning]
                self._begin(began)
            if t == lengths.max():
                break
            action = [saved["actions"][t - first] if t >= first else 0 for saved, first in zip(states, wait)]
            numbers = [record.began for record in self._records]
            step = self.step(np.array(action, np.int64))
            renewed = {r.index for r, number in zip(self._records, numbers) if r.began != number and wait[r.index] <= t}
            broken |= renewed  # the game ended on the way
            assert isinstance(step.obs, np.ndarray)
            self._obs = step.obs
        assert self._obs is not None
        for record, saved in zip(self._records, states):
            if record.index not in broken and not record.matches(saved, [self._obs[record.index]]):
                broken.add(record.index)
        if broken:
            self._begin([(self._records[i], states[i]["episode"] + 1) for i in sorted(broken)])
        return self._obs.copy(), sorted(broken)

    def close(self) -> None:  # noqa: D102
        self._games.close()
