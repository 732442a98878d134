"""Noise on the actions of deterministic policies: its numbers, its memory, and that it goes on exactly when resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlexp.compiling
from rlexp.algos.td3 import TD3
from rlexp.checkpoint import load_checkpoint
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.collecting import Collector
from rlexp.trainers.workspace import Interrupted
from tests.algos.common import ALGOS, algorithm, random_batch, small_algo, small_runner
from tests.algos.test_runs import assert_same_run, run_config, stop

NOISY = [name for name in ALGOS if "exploration_noise" in algorithm(name).__dataclass_fields__]


def explored(algo: Any, obs: Tensor, carry: Any = None, seed: int = 0) -> Any:
    with torch.no_grad():
        return algo.act(obs, carry, explore=True, generator=torch.Generator().manual_seed(seed))


def greedy(algo: Any, obs: Tensor) -> Tensor:
    with torch.no_grad():
        return algo.act(obs, None, explore=False, generator=torch.Generator()).action


def observations(algo: Any, rows: int) -> Tensor:
    obs = random_batch(algo, rows).obs
    assert isinstance(obs, Tensor)
    return obs


@pytest.mark.parametrize("name", NOISY)
def test_gaussian_noise_has_the_scale_that_is_set_and_stays_within_the_bounds(name: str) -> None:
    algo = small_algo(name, "algo.exploration=gaussian", "algo.exploration_noise=0.3")
    obs = observations(algo, 64)
    act = explored(algo, obs, seed=5)
    draw = torch.randn(64, algo.spec.action.dim, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(act.action, (greedy(algo, obs) + 0.3 * draw).clip(-1, 1))
    assert act.carry is None
    wild = small_algo(name, "algo.exploration_noise=50")
    assert (explored(wild, obs).action.abs() == 1).float().mean() > 0.9


def test_an_ornstein_uhlenbeck_process_correlates_as_its_closed_form_says() -> None:
    theta, sigma, rows, steps = 0.2, 0.05, 400, 160
    settings = ("algo.exploration=ou", f"algo.ou_theta={theta}", f"algo.exploration_noise={sigma}")
    algo = small_algo("ddpg", *settings)
    obs, carry, generator = observations(algo, rows), None, torch.Generator().manual_seed(0)
    still, path = greedy(algo, obs), []
    for _ in range(steps):
        with torch.no_grad():
            act = algo.act(obs, carry, explore=True, generator=generator)
        carry = act.carry
        torch.testing.assert_close(act.action, (still + carry).clip(-1, 1))
        path.append(carry)
    x = torch.stack(path)[40:]  # [T, N, A], in its long run: 0.8⁴⁰ of the start is left
    variance = x.square().mean().item()
    assert variance == pytest.approx(sigma**2 / (1 - (1 - theta) ** 2), rel=0.05)
    for lag in (1, 3, 8):
        correlation = (x[lag:] * x[:-lag]).mean().item() / variance
        assert correlation == pytest.approx((1 - theta) ** lag, abs=0.03)
    assert path[0].square().mean().item() == pytest.approx(sigma**2, rel=0.15)  # it started at zero


@pytest.mark.parametrize("kind", ["gaussian", "ou", "pink"])
@pytest.mark.parametrize("name", NOISY)
def test_noise_of_no_scale_is_no_noise(name: str, kind: str) -> None:
    silent = small_algo(name, f"algo.exploration={kind}", "algo.exploration_noise=0")
    none = small_algo(name, "algo.exploration=none")
    obs = observations(silent, 16)
    expected = greedy(none, obs)
    act = explored(silent, obs)
    assert torch.equal(explored(silent, obs, act.carry).action, expected)
    assert torch.equal(act.action, expected)


@pytest.mark.parametrize("name", NOISY)
def test_without_noise_exploring_is_the_policy_and_draws_nothing(name: str) -> None:
    algo = small_algo(name, "algo.exploration=none")
    obs, generator = observations(algo, 16), torch.Generator().manual_seed(1)
    before = generator.get_state()
    with torch.no_grad():
        act = algo.act(obs, None, explore=True, generator=generator)
    assert torch.equal(act.action, greedy(algo, obs))
    assert torch.equal(generator.get_state(), before)


def test_a_scheduled_scale_is_the_scale_of_the_noise(tmp_path: Path) -> None:
    schedule = "algo.schedules.exploration_noise={shape: linear, start: 1.0, end: 0.1}"
    runner = small_runner("td3", schedule)
    policy = runner.policy()
    obs, draw = observations(policy.algo, 8), torch.randn(8, 2, generator=torch.Generator().manual_seed(3))
    for progress, scale in ((0.0, 1.0), (0.5, 0.55), (1.0, 0.1)):
        policy.algo.apply_schedules(progress)
        expected = (greedy(policy.algo, obs) + scale * draw).clip(-1, 1)
        torch.testing.assert_close(explored(policy.algo, obs, seed=3).action, expected)
    Runner(run_config("td3", "replay", schedule)).train(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seen = {row["env_steps"]: row["schedule/exploration_noise"] for row in rows if "schedule/exploration_noise" in row}
    # as set before the last iteration of two steps, out of 120
    assert seen[60] == pytest.approx(1.0 - 0.9 * 58 / 120)
    assert seen[120] == pytest.approx(1.0 - 0.9 * 118 / 120)


def test_the_process_starts_anew_with_the_episode_of_each_environment() -> None:
    runner = small_runner("ddpg", "algo.exploration=ou")
    policy = runner.policy()
    collector = Collector(runner.env, policy, seed=0)
    collector.start()
    ends = 0
    for _ in range(14):
        act = policy.act(collector.obs_tensor(), collector.carry, explore=True)
        step = collector.step(policy.env_action(act.action), act.carry)
        ended = torch.from_numpy(step.terminated | step.truncated)
        assert (collector.carry[ended] == 0).all()
        assert torch.equal(collector.carry[~ended], act.carry[~ended])
        assert (act.carry != 0).all()
        ends += int(ended.sum())
    collector.close()
    assert ends > 2


@pytest.mark.parametrize(("name", "kind"), [*((name, "ou") for name in NOISY), ("td3", "pink")])
def test_a_run_with_a_process_resumes_to_the_numbers_of_an_uninterrupted_one(
    name: str, kind: str, tmp_path: Path
) -> None:
    loop = "replay" if "replay" in algorithm(name).loops else sorted(algorithm(name).loops)[0]
    if loop == "offline":
        pytest.skip("it does not explore")
    config = run_config(name, loop, f"algo.exploration={kind}", "algo.exploration_noise=0.5")
    Runner(config).train(tmp_path / "whole")
    runner = Runner(config)
    stop(runner.trainer, 90, "signal")
    with pytest.raises(Interrupted):
        runner.train(tmp_path / "run")
    carry = load_checkpoint(tmp_path / "run" / "checkpoints" / "last").tree["loop"]["collector"]["carry"]
    assert carry.shape == (2, runner.spec.action.dim * runner.algo.action_noise.memory)  # type: ignore[attr-defined]
    assert (torch.as_tensor(carry) != 0).any()  # amid an episode
    resume_run(tmp_path / "run", trust=EVERYTHING)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_can_go_on_with_another_noise(tmp_path: Path) -> None:
    Runner(run_config("ddpg", "replay", "algo.exploration=ou", "trainer.total_steps=80")).train(tmp_path / "run")
    for kind, total in (("gaussian", 100), ("ou", 120), ("pink", 140), ("ou", 160)):
        given = [f"algo.exploration={kind}", f"trainer.total_steps={total}"]
        assert resume_run(tmp_path / "run", given, trust=EVERYTHING)["env_steps"] == total


@pytest.mark.parametrize("kind", ["ou", "pink"])
def test_a_process_is_compiled_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlexp.compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    eager, compiled = (small_algo("ddpg", f"algo.exploration={kind}", compiled=flag) for flag in (False, True))
    obs = observations(eager, 4)
    left = right = None
    for seed in range(3):
        one, two = explored(eager, obs, left, seed), explored(compiled, obs, right, seed)
        torch.testing.assert_close(two.action, one.action)
        torch.testing.assert_close(two.carry, one.carry)
        left, right = one.carry, two.carry
    assert len(compiled.explore.graphs) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ou_theta": 0.3}, "ou_theta has no effect with exploration=gaussian"),
        ({"schedules": {"ou_theta": {"end": 0.3}}}, "schedule of ou_theta has no effect with exploration=gaussian"),
        (
            {"exploration": "none", "exploration_noise": 0.2},
            "exploration_noise has no effect with exploration=none. Use gaussian, ou or pink.",
        ),
        (
            {"exploration": "none", "schedules": {"exploration_noise": {"end": 0.1}}},
            "schedule of exploration_noise has no effect with exploration=none",
        ),
    ],
)
def test_settings_of_noise_that_is_not_there_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TD3(**settings)


def test_a_theta_that_changes_is_that_of_the_process() -> None:
    """x ← (1 − θ) x + σ ε with the θ of the moment, scheduled or set; σ is 0.1."""
    schedule = "algo.schedules.ou_theta={shape: linear, start: 0.5, end: 0.25}"
    algo = small_algo("ddpg", "algo.exploration=ou", schedule)
    obs, carry = observations(algo, 4), torch.full((4, 2), 0.8)
    draw = torch.randn(4, 2, generator=torch.Generator().manual_seed(7))
    for progress, kept in ((0.0, 0.5), (1.0, 0.75)):
        algo.apply_schedules(progress)
        torch.testing.assert_close(explored(algo, obs, carry, seed=7).carry, kept * carry + 0.1 * draw)
    algo = small_algo("ddpg", "algo.exploration=ou")
    algo.ou_theta = 1.0  # type: ignore[attr-defined]
    torch.testing.assert_close(explored(algo, obs, carry, seed=7).carry, 0.1 * draw)
