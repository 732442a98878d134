"""What reaches an algorithm's update, in every loop, against the closed form of the counting environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.algos.ppo import PPO
from rlexp.seeding import derive_seed
from rlexp.types import Batch
from tests.trainers.recording import (
    Learned,
    Watch,
    World,
    composed,
    counting_config,
    rows_of,
    train,
    value_of,
    watch,
)

GAMMA = 0.5
EPISODES = {"length": 3, "stagger": 4, "end": "mixed"}  # 3 to 7 steps, terminated or truncated as the seed says
VECTORIZATIONS = ["sync", "subprocess"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return watch(monkeypatch)


def envs(num_envs: int, vectorization: str = "sync", kwargs: dict[str, Any] = EPISODES) -> dict[str, Any]:
    workers = 2 if vectorization == "subprocess" else None
    return {
        "env__num_envs": num_envs,
        "env__vectorization": vectorization,
        "env__workers": workers,
        "env__kwargs": kwargs,
    }


def online_world(actions: Any, kwargs: dict[str, Any] = EPISODES, seed: int = 0, discrete: bool = True) -> World:
    return World(derive_seed(seed, "train"), actions, **kwargs, discrete=discrete)


def data_world(actions: np.ndarray, kwargs: dict[str, Any] = EPISODES) -> World:
    """What ``dataset=random`` with seed 0 must have collected."""
    return World(derive_seed(0, "dataset", "env"), actions[:, None], **kwargs)


def place(index: int, num_envs: int, ring: int, rows: int) -> tuple[int, int]:
    """(absolute row, environment) of a flat place in a ring to which ``rows`` rows were added."""
    at, env = divmod(index, num_envs)
    return rows - 1 - (rows - 1 - at) % ring, env


def check_batch(batch: Batch, world: World, rows: int, n_step: int, ring: int) -> Counter[str]:
    """Every row of a batch is the window that its place stands for; counts the kinds of windows there were."""
    kinds: Counter[str] = Counter()
    num_envs = world.obs.shape[1]
    windows = []
    for index in batch.index.tolist():
        row, env = place(index, num_envs, ring, rows)
        assert rows - ring < row < rows  # stored, and not the observation after the newest step
        true = world.window(row, env, n_step, GAMMA, rows)
        windows.append(true)
        ended = "terminated" if true["terminated"] else "truncated" if true["truncated"] else "open"
        kinds[ended] += 1
        kinds[f"{ended} inside"] += true["steps"] < n_step and row + true["steps"] < rows
        kinds["newest"] += ended == "open" and true["steps"] < n_step
        kinds["oldest"] += row == rows - ring + 1
        kinds["wraps"] += row // ring != (row + true["steps"]) // ring
    for name in ("obs", "next_obs", "reward", "discount") if windows else ():
        np.testing.assert_array_equal(getattr(batch, name), np.array([true[name] for true in windows]), name)
    return kinds


def check_learned(learned: list[Learned], world: World, n_step: int, ring: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for rows, batch, _ in learned:
        kinds += check_batch(batch, world, rows, n_step, ring)
    return kinds


# ---- replay


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_replay_learns_from_the_true_next_observations(
    vectorization: str, num_envs: int, n_step: int, seen: Watch, tmp_path: Path
) -> None:
    ring_rows = 20
    config = counting_config(
        "replay",
        **envs(num_envs, vectorization),
        trainer__total_steps=50 * num_envs,  # the ring wraps twice
        trainer__learning_starts=num_envs,
        trainer__batch_size=20,
        buffer__capacity=ring_rows * num_envs,
        buffer__n_step=n_step,
    )
    train(config, tmp_path / "run")
    world = online_world(seen.actions)
    assert len(seen.actions) == 50
    kinds = check_learned(seen.learned, world, n_step, ring_rows + 1)
    wanted = {"terminated", "truncated", "open", "oldest", "wraps"}
    if n_step > 1:
        wanted |= {"terminated inside", "truncated inside", "newest"}
    assert wanted <= {kind for kind, count in kinds.items() if count}


def test_a_time_limit_truncates_and_does_not_terminate(seen: Watch, tmp_path: Path) -> None:
    config = counting_config(
        "replay",
        **envs(2, kwargs={"end": "never"}),
        env__max_episode_steps=4,
        trainer__total_steps=60,
        trainer__learning_starts=20,
        trainer__batch_size=16,
    )
    train(config, tmp_path / "run")
    world = online_world(seen.actions, {"length": 4, "end": "truncated"})
    kinds = check_learned(seen.learned, world, 1, config["buffer"]["capacity"] // 2 + 1)
    assert kinds["truncated"] > 0
    assert kinds["terminated"] == 0


def test_replay_stores_actions_in_agent_units_and_plays_them_in_environment_units(seen: Watch, tmp_path: Path) -> None:
    config = counting_config(
        "replay",
        **envs(2, kwargs=EPISODES | {"action": "continuous"}),
        trainer__total_steps=60,
        trainer__learning_starts=20,
        trainer__batch_size=16,
    )
    config["algo"]["_target_"] = "tests.trainers.recording.UnitRecording"
    train(config, tmp_path / "run")
    taken = np.array(seen.actions)  # [T, N, 2] within [-1, 1] and [-2, 4]
    assert taken[..., 1].max() > 1.5  # also those of the policy use the whole range
    world = online_world(taken, discrete=False)
    check_learned(seen.learned, world, 1, config["buffer"]["capacity"] // 2 + 1)
    ring = config["buffer"]["capacity"] // 2 + 1
    for rows, batch, _ in seen.learned:
        for i, index in enumerate(batch.index.tolist()):
            row, env = place(index, 2, ring, rows)
            unit = (taken[row, env] - [-1, -2]) / [1, 3] - 1
            np.testing.assert_allclose(batch.action[i], unit, atol=1e-6)


def test_the_actions_in_a_batch_are_those_that_were_taken(seen: Watch, tmp_path: Path) -> None:
    config = counting_config(
        "replay", **envs(3), trainer__total_steps=90, trainer__learning_starts=30, buffer__capacity=60
    )
    train(config, tmp_path / "run")
    for rows, batch, _ in seen.learned:
        places = [place(index, 3, 21, rows) for index in batch.index.tolist()]
        assert batch.action.tolist() == [seen.actions[row][env] for row, env in places]


# ---- on-policy


def naive_gae(world: World, value: np.ndarray, next_value: np.ndarray, first: int, steps: int, lam: float) -> Any:
    """One environment after the other, each episode's part of the rollout by the definition A = Σ (γλ)^k δ."""
    num_envs = world.obs.shape[1]
    advantage = np.zeros((steps, num_envs))
    for env in range(num_envs):
        for t in range(steps):
            for k in range(t, steps):
                row = first + k
                bootstrap = 0.0 if world.terminated[row, env] else next_value[row, env]
                delta = world.reward[row, env] + GAMMA * bootstrap - value[row, env]
                advantage[t, env] += (GAMMA * lam) ** (k - t) * delta
                if world.done[row, env]:
                    break
    return advantage


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_on_policy_values_the_final_observation_at_truncation(
    vectorization: str, num_envs: int, seen: Watch, tmp_path: Path
) -> None:
    steps = 8
    config = counting_config(
        "on_policy", **envs(num_envs, vectorization), trainer__rollout_steps=steps, trainer__total_steps=64 * num_envs
    )
    train(config, tmp_path / "run")
    world = online_world(seen.actions)
    value = value_of(torch.from_numpy(world.obs))
    next_value = value_of(torch.from_numpy(world.next_obs)).masked_fill(torch.from_numpy(world.terminated), 0)
    assert [learned.rows for learned in seen.learned] == list(range(8, 65, 8))
    for index, rollout in enumerate(seen.batches):
        part = slice(index * steps, (index + 1) * steps)
        np.testing.assert_array_equal(rollout.obs, world.obs[part])
        np.testing.assert_array_equal(rollout.action, np.array(seen.actions[part]))
        np.testing.assert_array_equal(rollout.reward, world.reward[part])
        np.testing.assert_array_equal(rollout.terminated, world.terminated[part])
        np.testing.assert_array_equal(rollout.done, world.done[part])
        torch.testing.assert_close(rollout.value, value[part])
        torch.testing.assert_close(rollout.next_value, next_value[part])
        torch.testing.assert_close(rollout.extras["log_prob"], -value[part])
    ends = np.flatnonzero(world.truncated.any(1)) % steps
    assert len(set(ends)) > 3  # at different places of a rollout


@pytest.mark.parametrize("num_envs", [1, 3])
def test_ppo_computes_the_advantages_of_each_environment_by_itself(
    num_envs: int, seen: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def keep(self: PPO, obs: Any, data: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        given.append({name: column.clone() for name, column in data.items()})
        return torch.zeros(6)

    monkeypatch.setattr(PPO, "value", lambda self, obs: value_of(obs))
    monkeypatch.setattr(PPO, "minibatch_phase", keep)
    steps, lam = 16, 0.9
    config = composed(
        "algo=ppo",
        "env=gym",
        "env.id=tests.counting:Counting-v0",
        **envs(num_envs),
        algo__gamma=GAMMA,
        algo__gae_lambda=lam,
        algo__epochs=1,
        algo__minibatch_size=1000,
        trainer__rollout_steps=steps,
        trainer__total_steps=4 * steps * num_envs,
        trainer__eval_episodes=0,
        model__hidden=[4],
    )
    train(config, tmp_path / "run")
    world = online_world(seen.actions)
    value, next_value = (value_of(torch.from_numpy(obs)).numpy() for obs in (world.obs, world.next_obs))
    assert len(given) == 4
    for index, data in enumerate(given):
        first = index * steps
        advantage = naive_gae(world, value, next_value, first, steps, lam)
        np.testing.assert_allclose(data["advantage"], advantage.reshape(-1), rtol=1e-4, atol=1e-4)
        returns = advantage + value[first : first + steps]
        np.testing.assert_allclose(data["returns"], returns.reshape(-1), rtol=1e-4, atol=1e-4)


# ---- offline


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_offline_learns_from_the_transitions_that_were_collected(
    vectorization: str, n_step: int, seen: Watch, tmp_path: Path
) -> None:
    config = counting_config(
        "offline",
        **envs(3, vectorization),
        trainer__total_updates=20,
        trainer__batch_size=32,
        trainer__eval_episodes=2 if n_step == 1 else 0,  # the environments serve for nothing else
        buffer__n_step=n_step,
    )
    runner = train(config, tmp_path / "run")
    actions = runner.trainer.buffer.transitions().action
    assert seen.actions == []
    kinds: Counter[str] = Counter()
    world = data_world(actions)
    for batch in seen.batches:
        kinds += check_batch(batch, world, 60, n_step, 61)
        np.testing.assert_array_equal(batch.action, actions[batch.index])
    assert min(kinds["terminated"], kinds["truncated"], kinds["oldest"]) > 0
    assert len(seen.batches) == 20


def write_npz(path: Path, world: World, actions: np.ndarray, *, timeouts: bool, next_observations: bool) -> None:
    arrays = {
        "observations": world.obs[:-1, 0],
        "actions": actions,
        "rewards": world.reward[:, 0],
        "terminals": world.terminated[:, 0],
    }
    if timeouts:
        arrays["timeouts"] = world.truncated[:, 0]
    if next_observations:
        arrays["next_observations"] = world.next_obs[:, 0]
    np.savez(path, **arrays)


def offline_batches(path: Path, n_step: int, folder: Path, seen: Watch) -> list[Batch]:
    config = counting_config(
        "offline", **envs(1), trainer__total_updates=20, trainer__batch_size=32, buffer__n_step=n_step
    )
    config["dataset"] = {"_target_": "rlexp.datasets.files.NpzDataset", "path": str(path)}
    train(config, folder)
    return seen.batches


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("timeouts", [True, False])
def test_a_file_with_next_observations_gives_every_transition(
    timeouts: bool, n_step: int, seen: Watch, tmp_path: Path
) -> None:
    actions = np.random.default_rng(0).integers(0, 3, 60)
    world = data_world(actions)
    write_npz(tmp_path / "data.npz", world, actions, timeouts=timeouts, next_observations=True)
    kinds: Counter[str] = Counter()
    for batch in offline_batches(tmp_path / "data.npz", n_step, tmp_path / "run", seen):
        kinds += check_batch(batch, world, 60, n_step, 61)
    assert min(kinds["terminated"], kinds["truncated"]) > 0  # told by the broken chain where timeouts are missing


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_file_with_timeouts_alone_bootstraps_from_the_last_observation_it_has(
    n_step: int, seen: Watch, tmp_path: Path
) -> None:
    """Without next observations the one after a timeout is unknown: that row is dropped, the one before is the end."""
    actions = np.random.default_rng(0).integers(0, 3, 60)
    world = data_world(actions)
    write_npz(tmp_path / "data.npz", world, actions, timeouts=True, next_observations=False)
    marks = world.obs[:, 0, 0]
    timeouts = np.flatnonzero(world.truncated[:, 0])
    kinds: Counter[str] = Counter()
    for batch in offline_batches(tmp_path / "data.npz", n_step, tmp_path / "run", seen):
        for i in range(len(batch.reward)):
            (mark, start, _), (next_mark, stop, _) = batch.obs[i].tolist(), batch.next_obs[i].tolist()
            row = int(np.flatnonzero((marks == mark) & (world.obs[:, 0, 1] == start))[0])
            assert row not in timeouts
            assert next_mark == mark
            if batch.discount[i] == 0:
                last = np.flatnonzero(world.terminated[row:, 0])[0] + row
                assert last - row < n_step
                assert batch.reward[i] == sum(GAMMA**k * (start + 1 + k) for k in range(last - row + 1))
                kinds["terminated"] += 1
            else:
                steps = int(stop - start)
                assert 1 <= steps <= n_step
                assert batch.discount[i] == GAMMA**steps
                assert batch.reward[i] == sum(GAMMA**k * (start + 1 + k) for k in range(steps))
                known = row + steps in timeouts or row + steps == 59  # the observation acted on at the dropped row
                assert steps == n_step or known
                kinds["truncated"] += row + steps in timeouts
    assert min(kinds.values()) > 0
    assert len(kinds) == 2


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_file_with_neither_still_ends_episodes_where_they_terminate(n_step: int, seen: Watch, tmp_path: Path) -> None:
    kwargs = EPISODES | {"end": "terminated"}
    actions = np.random.default_rng(0).integers(0, 3, 60)
    world = data_world(actions, kwargs)
    write_npz(tmp_path / "data.npz", world, actions, timeouts=False, next_observations=False)
    stored = 60 if world.terminated[-1, 0] else 59  # what follows an open last row is not in the file
    for batch in offline_batches(tmp_path / "data.npz", n_step, tmp_path / "run", seen):
        for i, index in enumerate(batch.index.tolist()):
            true = world.window(index, 0, n_step, GAMMA, stored)
            np.testing.assert_array_equal(batch.obs[i], true["obs"])
            assert (batch.reward[i], batch.discount[i]) == (true["reward"], true["discount"])
            if true["discount"]:
                np.testing.assert_array_equal(batch.next_obs[i], true["next_obs"])


# ---- mixed


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_mixed_learns_from_prior_and_own_transitions_alike(
    vectorization: str, num_envs: int, n_step: int, seen: Watch, tmp_path: Path
) -> None:
    ring_rows, batch_size, prior_rows = 16, 16, 4
    config = counting_config(
        "mixed",
        **envs(num_envs, vectorization),
        trainer__total_steps=40 * num_envs,
        trainer__learning_starts=num_envs,
        trainer__batch_size=batch_size,
        trainer__offline_batch_ratio=prior_rows / batch_size,
        trainer__offline_pretrain_updates=7,
        buffer__capacity=ring_rows * num_envs,
        buffer__n_step=n_step,
    )
    runner = train(config, tmp_path / "run")
    prior, own = data_world(runner.trainer.prior.transitions().action), online_world(seen.actions)
    kinds: Counter[str] = Counter()
    for number, (rows, batch, _) in enumerate(seen.learned):
        share = batch_size if number < 7 else prior_rows
        first = Batch(*[None if part is None else part[:share] for part in batch[:-1]])
        rest = Batch(*[None if part is None else part[share:] for part in batch[:-1]])
        check_batch(first, prior, 60, n_step, 61)
        kinds += check_batch(rest, own, rows, n_step, ring_rows + 1)
    wanted = {"terminated", "truncated", "oldest", "wraps"} | ({"truncated inside", "newest"} if n_step > 1 else set())
    assert wanted <= {kind for kind, count in kinds.items() if count}


# ---- normalisation


class NaiveNorm:
    """Mean and variance over everything seen, computed anew each time."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def see(self, obs: np.ndarray) -> None:
        self.rows += list(obs.astype(np.float64))

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        data = np.array(self.rows)
        spread = data.std(0)
        scale = np.where(spread > 0, 1 / np.sqrt(spread**2 + 1e-8), 1.0)
        return np.clip((obs - data.mean(0)) * scale, -10, 10)


def reward_scales(world: World) -> np.ndarray:
    """[T] 1 / deviation of the discounted returns that were known after each row."""
    running, known, scales = np.zeros(world.reward.shape[1]), [], []
    for reward, done in zip(world.reward, world.done):
        running = running * GAMMA + reward
        known += list(running)
        running[done] = 0
        spread = float(np.std(known))
        scales.append(1 / np.sqrt(spread**2 + 1e-8) if spread > 0 else 1.0)
    return np.array(scales)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_on_policy_stores_observations_and_rewards_as_normalised_when_collected(
    num_envs: int, seen: Watch, tmp_path: Path
) -> None:
    steps = 8
    config = counting_config(
        "on_policy",
        **envs(num_envs),
        env__normalize_obs=True,
        env__normalize_reward=True,
        trainer__rollout_steps=steps,
        trainer__total_steps=32 * num_envs,
    )
    train(config, tmp_path / "run")
    world, norm = online_world(seen.actions), NaiveNorm()
    scaled = np.clip(world.reward * reward_scales(world)[:, None], -10, 10)
    norm.see(world.obs[0])
    for index, rollout in enumerate(seen.batches):
        values = []
        for t in range(steps):
            now = norm(world.obs[index * steps + t])
            np.testing.assert_allclose(rollout.obs[t], now, atol=2e-4)
            values.append(value_of(torch.tensor(now, dtype=torch.float32)))
            norm.see(world.obs[index * steps + t + 1])  # what is acted on next, not what an episode ended with
        part = slice(index * steps, (index + 1) * steps)
        np.testing.assert_allclose(rollout.reward, scaled[part], rtol=1e-4)
        np.testing.assert_allclose(rollout.value, torch.stack(values), atol=2e-4)
        final = value_of(torch.tensor(norm(world.next_obs[part]), dtype=torch.float32))  # the statistics of now
        cut = torch.from_numpy(world.truncated[part])
        np.testing.assert_allclose(rollout.next_value[cut], final[cut], atol=2e-4)


@pytest.mark.parametrize("loop", ["replay", "mixed"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_replay_stores_what_happened_and_normalises_when_it_samples(
    num_envs: int, loop: str, seen: Watch, tmp_path: Path
) -> None:
    config = counting_config(
        loop,
        **envs(num_envs),
        env__normalize_obs=True,
        env__normalize_reward=True,
        trainer__total_steps=40 * num_envs,
        trainer__learning_starts=10 * num_envs,
        trainer__batch_size=16,
        buffer__capacity=20 * num_envs,
    )
    runner = train(config, tmp_path / "run")
    world, norm = online_world(seen.actions), NaiveNorm()
    share = 8 if loop == "mixed" else 0
    if loop == "mixed":  # the prior data belong to what the networks see
        prior = data_world(runner.trainer.prior.transitions().action)
        norm.see(prior.obs[:-1, 0])
    scales = reward_scales(world)
    observed = 0
    for rows, batch, _ in seen.learned:
        while observed <= rows:
            norm.see(world.obs[observed])
            observed += 1
        true = []
        for i, index in enumerate(batch.index.tolist()):
            source, row, env = (prior, index, 0) if i < share else (world, *place(index, num_envs, 21, rows))
            true.append((source.obs[row, env], source.next_obs[row, env], source.reward[row, env]))
        obs, next_obs, reward = map(np.array, zip(*true))
        np.testing.assert_allclose(batch.obs, norm(obs), atol=2e-4)
        np.testing.assert_allclose(batch.next_obs, norm(next_obs), atol=2e-4)
        np.testing.assert_allclose(batch.reward, np.clip(reward * scales[rows - 1], -10, 10), rtol=1e-4)
    stored = runner.buffer.transitions()
    np.testing.assert_array_equal(stored.obs.reshape(num_envs, 20, 3), world.obs[20:40].swapaxes(0, 1))
    np.testing.assert_array_equal(stored.next_obs.reshape(num_envs, 20, 3), world.next_obs[20:].swapaxes(0, 1))
    np.testing.assert_array_equal(stored.reward.reshape(num_envs, 20), world.reward[20:].T)


def test_offline_normalises_with_the_statistics_of_its_data(seen: Watch, tmp_path: Path) -> None:
    config = counting_config("offline", **envs(1), env__normalize_obs=True, trainer__total_updates=5)
    runner = train(config, tmp_path / "run")
    world, norm = data_world(runner.trainer.buffer.transitions().action), NaiveNorm()
    norm.see(world.obs[:-1, 0])
    for batch in seen.batches:
        np.testing.assert_allclose(batch.obs, norm(world.obs[batch.index, 0]), atol=2e-4)
        np.testing.assert_allclose(batch.next_obs, norm(world.next_obs[batch.index, 0]), atol=2e-4)


# ---- episodes


@pytest.mark.parametrize("loop", ["on_policy", "replay", "mixed"])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_the_returns_and_lengths_of_training_episodes_are_reported(
    vectorization: str, loop: str, seen: Watch, tmp_path: Path
) -> None:
    steps = {"trainer__rollout_steps": 10} if loop == "on_policy" else {"trainer__learning_starts": 899}
    config = counting_config(
        loop,
        **envs(3, vectorization),
        **steps,
        trainer__total_steps=900,
        trainer__log_interval=30,
        env__normalize_reward=True,  # reported are the returns of the environment
    )
    train(config, tmp_path / "run")
    world = online_world(seen.actions)
    assert len(world.episodes) > 110  # more than are averaged over
    rows = rows_of(tmp_path / "run")
    assert [row["env_steps"] for row in rows] == list(range(30, 901, 30))
    for row in rows:
        ended = [episode for episode in world.episodes if episode[0] < row["env_steps"] // 3][-100:]
        assert row["rollout/return_mean"] == pytest.approx(np.mean([ret for _, ret, _ in ended]))
        assert row["rollout/length_mean"] == pytest.approx(np.mean([length for _, _, length in ended]))
        past = slice(row["env_steps"] // 3)
        succeeded = world.terminated[past][world.done[past]][-100:]  # what the counting environment calls a success
        assert row["rollout/success_rate"] == pytest.approx(succeeded.mean())
