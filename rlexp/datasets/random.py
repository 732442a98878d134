"""Transitions of a uniformly random policy, collected once and kept in the user's cache directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rlexp.config.component import component, target_of
from rlexp.config.fields import Count
from rlexp.datasets.files import read_npz, save_npz
from rlexp.datasets.settings import DatasetSettings
from rlexp.datasets.transitions import Transitions
from rlexp.errors import DataError
from rlexp.seeding import derive_seed, numpy_generator
from rlexp.tree import ArrayTree, tree_leaves

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv

_FORMAT = 1  # raise when the same settings would give other data
_RUNTIME_FIELDS = {
    "num_envs",
    "vectorization",
    "workers",
    "normalize_obs",
    "normalize_reward",
    "reference_returns",
}  # do not change the data
_log = logging.getLogger(__name__)


@component("dataset", "random")
@dataclass(eq=False, kw_only=True)
class RandomDataset(DatasetSettings):
    """The first ``size`` transitions of a policy that draws every action uniformly."""

    size: Count = 50_000  # transitions
    seed: int = 0  # of the policy and the environment

    def load(self, env: GymEnv) -> Transitions:
        """From the cache, or collected now and put there."""
        path = self._cache_path(env)
        source = f"random actions in {env.spec().id}"
        if path is not None and (data := self._read(path, env)) is not None:
            return replace(self.prepared(data, env.spec(), str(path)), source=source)
        data = self._collect(env).check(env.spec(), source)
        if path is not None:
            try:
                save_npz(path, data)
            except OSError as error:
                _log.warning("The random dataset is not cached (%s). Set RLEXP_CACHE to a writable directory.", error)
        return replace(self.prepared(data, env.spec(), source), source=source)

    def _read(self, path: Path, env: GymEnv) -> Transitions | None:
        if not path.exists():
            return None
        try:
            data = Transitions.from_d4rl(read_npz(path), str(path)).check(env.spec(), str(path))
            if len(data) != self.size:
                raise DataError(f"{path} holds {len(data)} transitions instead of {self.size}.")
        except DataError as error:
            _log.warning("The cached dataset is collected again: %s", error)
            return None
        return data

    def _collect(self, env: GymEnv) -> Transitions:
        from rlexp.buffers import ReplayBuffer  # here, because buffers bring torch
        from rlexp.buffers.frames import whole_stacks
        from rlexp.machine import check_fits

        spec = env.spec()
        check_fits(2 * self.size * ReplayBuffer().bytes_per_transition(whole_stacks(spec)), f"dataset.size={self.size}")
        rng = numpy_generator(self.seed, "dataset", "action")
        action = spec.action.sample(self.size, rng)
        leaves = spec.obs.leaves
        obs = {name: np.empty((self.size, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
        next_obs = {name: np.empty_like(leaf) for name, leaf in obs.items()}
        reward = np.empty(self.size, np.float32)
        terminated, truncated = np.zeros(self.size, bool), np.zeros(self.size, bool)
        envs = env.build(derive_seed(self.seed, "dataset", "env"), num_envs=1)
        try:
            now = envs.reset()
            for i in range(self.size):
                if spec.obs.masked:
                    action[i : i + 1] = spec.action.sample(1, rng, spec.obs.mask_in(now))
                step = envs.step(action[i : i + 1])
                _write(obs, i, now)
                _write(next_obs, i, step.next_obs)
                reward[i], terminated[i], truncated[i] = step.reward[0], step.terminated[0], step.truncated[0]
                now = step.obs
        finally:
            envs.close()
        if spec.obs.single:
            return Transitions(obs[""], action, reward, next_obs[""], terminated, truncated)
        return Transitions(obs, action, reward, next_obs, terminated, truncated)

    def _cache_path(self, env: GymEnv) -> Path | None:
        """Named by everything the data depends on; None for an environment given as a function, which has no name."""
        if getattr(env, "factory", None) is not None:
            return None
        config = {f.name: getattr(env, f.name) for f in dataclasses.fields(env) if f.init}
        identity = {
            "format": _FORMAT,
            "seed": self.seed,
            "size": self.size,
            "env": {name: value for name, value in config.items() if name not in _RUNTIME_FIELDS},
            "target": target_of(type(env)),
            "spec": env.spec().to_dict(),
            "gymnasium": gymnasium.__version__,
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=repr).encode()).hexdigest()
        return cache_directory() / "datasets" / f"random-{digest[:32]}.npz"


def cache_directory() -> Path:
    """``$RLEXP_CACHE``, else ``$XDG_CACHE_HOME/rlexp``, else ``~/.cache/rlexp``."""
    if own := os.environ.get("RLEXP_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "rlexp"


def _write(columns: dict[str, np.ndarray], row: int, obs: ArrayTree) -> None:
    leaf: Any
    for name, leaf in tree_leaves(obs):
        columns[name][row] = leaf[0]
