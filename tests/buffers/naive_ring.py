"""A replay buffer as one would write it first: Python lists, one transition at a time. And steps to feed it with."""

from __future__ import annotations

import numpy as np

from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.envs.vector import VecStep
from rlexp.tree import tree_map

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
ACTION = ActionSpec("continuous", (2,), low=(-1.0, -1.0), high=(1.0, 1.0))
VECTOR = EnvSpec("Vector-v0", ObsSpec({"": Leaf("box", (3,), "float32")}, single=True), ACTION)
LEAVES = {
    "a/b": Leaf("box", (2,), "float32"),
    "image": Leaf("box", (2, 2), "uint8"),
    "n": Leaf("discrete", (), "int64", (99,)),
}
DICT = EnvSpec("Dict-v0", ObsSpec(LEAVES, single=False), ActionSpec("discrete", (), nvec=(5,)))
EXTRAS = {"log_prob": ((), "float32"), "mean": ((2,), "float32")}


class World:
    """N environments whose every observation, action and reward is drawn anew, so that no two can be confused."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int = 0) -> None:
        self.spec, self.num_envs, self.rng = spec, num_envs, np.random.default_rng(seed)

    def obs(self):
        """Observations [N, …]."""
        leaves = {}
        for name, leaf in self.spec.obs.leaves.items():
            shape = (self.num_envs, *leaf.shape)
            leaves[name] = (self.rng.random(shape) * (99 if leaf.dtype != "float32" else 1)).astype(leaf.dtype)
        return leaves[""] if self.spec.obs.single else leaves

    def action(self):
        """Actions [N, …]."""
        if self.spec.action.kind == "discrete":
            return self.rng.integers(0, self.spec.action.n, self.num_envs)
        return self.rng.uniform(-1, 1, (self.num_envs, *self.spec.action.shape)).astype(np.float32)

    def extras(self):
        """Extra columns [N, …]."""
        return {name: self.rng.random((self.num_envs, *shape)).astype(dtype) for name, (shape, dtype) in EXTRAS.items()}

    def step(self, ends) -> VecStep:
        """A step at which environment i ends as ``ends[i]`` says."""
        obs, ends = self.obs(), np.asarray(ends)
        next_obs, ended = obs, np.flatnonzero(ends)
        if ended.size:
            final = self.obs()
            next_obs = tree_map(np.copy, obs)
            tree_map(lambda leaf, last: leaf.__setitem__(ended, last[ended]), next_obs, final)
        reward = self.rng.normal(size=self.num_envs).astype(np.float32)
        return VecStep(obs, next_obs, reward, ends == TERMINATED, ends == TRUNCATED, [])


class NaiveBuffer:
    """The rows of all time in a list; the newest ``max_rows`` can be sampled."""

    def __init__(self, max_rows: int, num_envs: int, n_step: int, gamma: float) -> None:
        self.max_rows, self.num_envs, self.n_step, self.gamma = max_rows, num_envs, n_step, gamma
        self.rows: list[list[dict]] = []

    def start(self, obs) -> None:
        """First observations."""
        self.obs = obs

    def add(self, action, step, extras=None) -> None:
        """One row."""
        row = []
        for env in range(self.num_envs):
            pick = lambda leaf, env=env: np.copy(leaf[env])  # noqa: E731
            end = TERMINATED if step.terminated[env] else TRUNCATED if step.truncated[env] else RUNNING
            row.append(
                {
                    "obs": tree_map(pick, self.obs),
                    "action": pick(action),
                    "reward": float(step.reward[env]),
                    "next_obs": tree_map(pick, step.next_obs),
                    "end": end,
                    "extras": {name: pick(value) for name, value in (extras or {}).items()},
                }
            )
        self.rows.append(row)
        self.obs = tree_map(np.copy, step.obs)

    def cut(self, env: int, obs) -> None:
        """The episode of one environment is abandoned."""
        if self.rows and self.rows[-1][env]["end"] == RUNNING:
            self.rows[-1][env]["end"] = TRUNCATED
        self.obs = tree_map(np.copy, self.obs)
        tree_map(lambda leaf, new: leaf.__setitem__(env, new), self.obs, obs)

    def stored(self) -> list[int]:
        """The numbers of the rows that can be sampled."""
        return list(range(max(len(self.rows) - self.max_rows, 0), len(self.rows)))

    def sample_at(self, row: int, env: int) -> dict:
        """The n-step transition that begins at a row."""
        first = self.rows[row][env]
        reward, steps = 0.0, 0
        while True:
            last = self.rows[row + steps][env]
            reward += self.gamma**steps * last["reward"]
            steps += 1
            if last["end"] != RUNNING or steps == self.n_step or row + steps == len(self.rows):
                break
        discount = 0.0 if last["end"] == TERMINATED else self.gamma**steps
        picked = {key: first[key] for key in ("obs", "action", "extras")}
        return picked | {"reward": reward, "discount": discount, "next_obs": last["next_obs"]}
