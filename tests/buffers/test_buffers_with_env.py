"""The counting environment through both buffers: every number is known from the observation alone."""

import numpy as np
import pytest
import torch

from rlexp.buffers.returns import gae
from rlexp.buffers.ring import ReplayBuffer
from rlexp.buffers.rollout import RolloutBuffer
from rlexp.datasets.random import RandomDataset
from rlexp.envs.gym_env import GymEnv
from rlexp.types import Act
from tests.counting import COUNTING

LENGTH, GAMMA, N_STEP = 6, 0.5, 3


def check_windows(batch, end):
    """Reward of step t is t; observation [mark of the episode, t, …]; an episode lasts 6 steps."""
    for i in range(len(batch.reward)):
        (mark, start, _), (next_mark, stop, _) = batch.obs[i].tolist(), batch.next_obs[i].tolist()
        assert next_mark == mark  # the final observation, never that of the next episode
        steps = int(stop - start)
        assert 1 <= steps <= N_STEP
        assert batch.reward[i] == sum(GAMMA**k * (start + 1 + k) for k in range(steps))
        assert batch.discount[i] == (0 if end == "terminated" and stop == LENGTH else GAMMA**steps)
        yield steps == min(N_STEP, LENGTH - start)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_replayed_windows_are_those_of_the_environment(end):
    env = GymEnv(id=COUNTING, kwargs={"length": LENGTH, "end": end})
    envs, buffer = env.build(seed=3, num_envs=2), ReplayBuffer(capacity=40, n_step=N_STEP)
    buffer.build(env.spec(), 2, GAMMA, 0)
    buffer.start(envs.reset())
    for _ in range(50):
        action = np.zeros(2, np.int64)
        buffer.add(action, envs.step(action))
    envs.close()
    whole = list(check_windows(buffer.sample(500), end))
    assert np.mean(whole) > 0.85  # all but the windows that reach the newest of the 20 rows
    assert len(buffer) == 40


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_dataset_of_the_environment_gives_the_same_windows(end, tmp_path, monkeypatch):
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path))
    env = GymEnv(id=COUNTING, kwargs={"length": LENGTH, "end": end})
    data = RandomDataset(size=60).load(env)
    assert (data.terminated | data.truncated).sum() == 10
    assert data.reward.sum() == 10 * LENGTH * (LENGTH + 1) / 2
    buffer = ReplayBuffer(n_step=N_STEP)
    buffer.build(env.spec(), 1, GAMMA, 0, capacity=len(data))
    buffer.extend(data)
    assert all(check_windows(buffer.sample(300), end))  # 60 steps are ten whole episodes


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_returns_of_a_rollout_in_closed_form(end):
    steps = 15  # two episodes and a half
    env = GymEnv(id=COUNTING, kwargs={"length": LENGTH, "end": end})
    envs, buffer = env.build(seed=0, num_envs=3), RolloutBuffer()
    buffer.build(env.spec(), 3, steps)
    value = lambda obs: 10 * obs[:, 1]  # noqa: E731
    obs = envs.reset()
    for t in range(steps):
        now = torch.from_numpy(obs)
        step = envs.step(np.zeros(3, np.int64))
        buffer.add(t, now, Act(torch.zeros(3, dtype=torch.int64), None, {"value": value(now)}), step)
        obs = step.obs
    envs.close()
    rollout = buffer.finish(value, obs)
    _, returns = gae(rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.done, 1.0, 1.0)
    expected = []
    for t in range(steps):
        begin, stop = t - t % LENGTH, min(t - t % LENGTH + LENGTH, steps)
        rewards = sum(k - begin + 1 for k in range(t, stop))
        bootstraps = end == "truncated" or stop - begin < LENGTH
        expected.append(rewards + (10 * (stop - begin) if bootstraps else 0))
    assert returns[:, 0].tolist() == expected
    assert torch.equal(returns[:, 0], returns[:, 2])
