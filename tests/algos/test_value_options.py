"""The options of the DQN family, alone and together, and prioritized replay under every algorithm that replays."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlexp.algos.base import OFFLINE
from rlexp.algos.c51 import C51
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.models import MLP, Network
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.trainers.workspace import Interrupted
from rlexp.types import Update
from tests.algos.common import ALGOS, algorithm, flatten, random_batch, run_cases, small_algo, small_config
from tests.algos.test_runs import assert_same_run, run_config

FAMILY = ("dqn", "c51", "qrdqn", "iqn")
SMALL = {
    "c51": ["algo.n_atoms=5"],
    "qrdqn": ["algo.n_quantiles=4"],
    "iqn": ["algo.n_quantiles=3", "algo.n_target_quantiles=2", "algo.n_action_quantiles=4", "algo.n_cosines=4"],
}
TIED = {name for name in ALGOS if algorithm(name).tied_to_data}
REPLAYING = run_cases(lambda name, loop: loop != "on_policy" and name not in TIED)


def prioritized(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The config with its buffer replaced."""
    kept = {key: config["buffer"][key] for key in ("capacity", "n_step")}
    config["buffer"] = {"_target_": "rlexp.buffers.prioritized.PrioritizedBuffer"} | kept | settings
    return config


# ---- together


@pytest.mark.parametrize("name", FAMILY)
def test_every_combination_of_options_learns(name: str, tmp_path: Path) -> None:
    """All eight of the network's own; priorities and n-step returns so that any two of the five meet in every way."""
    for double, dueling, noisy in itertools.product([False, True], repeat=3):
        priorities, n_step = double ^ dueling ^ noisy, 3 if double ^ dueling else 1
        changes = [f"algo.double={double}", f"algo.dueling={dueling}", f"algo.noisy={noisy}", "env.num_envs=2"]
        changes += [f"buffer.n_step={n_step}", "trainer.total_steps=76", "trainer.learning_starts=40"]
        changes += ["trainer.train_frequency=12", "trainer.gradient_updates_per_step=2", "trainer.eval_episodes=0"]
        config = small_config(name, "replay", changes=(*changes, *SMALL.get(name, [])))
        runner = Runner(prioritized(config) if priorities else config)
        path = tmp_path / f"{double}-{dueling}-{noisy}"
        assert runner.train(path)["updates"] == 6
        assert all(torch.isfinite(p).all() for p in runner.algo.q.parameters())
        assert runner.buffer.adaptive == priorities
        moved = runner.algo.optimizer.exp_avg
        assert all(moment.any() for moment in moved), "a parameter has no part in the loss"


@pytest.mark.parametrize("name", FAMILY)
def test_every_option_changes_what_is_learned(name: str) -> None:
    def after(*changes: str) -> Tensor:
        algo = small_algo(name, "algo.target_interval=3", "algo.learning_rate=0.05", *SMALL.get(name, []), *changes)
        for seed in range(6):
            algo.update(random_batch(algo, seed=seed, rows=32))
        return torch.cat([parameter.flatten() for parameter in algo.q.parameters()])

    plain = after()
    for option in ("double", "dueling", "noisy"):
        changed = after(f"algo.{option}=true")
        assert changed.shape != plain.shape or not torch.allclose(changed, plain)


# ---- each network


def test_noisy_weights_are_means_and_factorised_deviations() -> None:
    torch.manual_seed(0)
    net = MLP(3, 2, hidden=(4,), noisy=0.5)
    assert net.noise_size == (3 + 4) + (4 + 2)
    noise, x = torch.randn(net.noise_size), torch.randn(5, 3)
    scaled = noise.sign() * noise.abs().sqrt()
    parts = [scaled[:3], scaled[3:7], scaled[7:11], scaled[11:]]
    h = x
    for layer, into, out_of in ((net.layers[0], *parts[:2]), (net.layers[1], *parts[2:])):
        fan_in = layer.weight.shape[1]
        assert torch.allclose(layer.weight_sigma, torch.tensor(0.5 / math.sqrt(fan_in)))
        weight = layer.weight + layer.weight_sigma * out_of[:, None] * into[None, :]
        h = h @ weight.T + layer.bias + layer.bias_sigma * out_of
        h = h.relu() if layer is net.layers[0] else h
    torch.testing.assert_close(net(x, noise), h)
    plain = MLP(3, 2, hidden=(4,))
    plain.load_state_dict({key: value for key, value in net.state_dict().items() if "sigma" not in key})
    torch.testing.assert_close(net(x), plain(x), rtol=0, atol=0)


def test_a_network_is_not_noisy_and_an_ensemble() -> None:
    with pytest.raises(ValueError, match="neither an ensemble nor residual"):
        MLP(3, 2, noisy=0.5, ensemble=2)


@pytest.mark.parametrize("name", [*FAMILY, "rainbow"])
def test_noisy_agents_explore_by_their_weights_alone(name: str) -> None:
    algo = small_algo(name, "algo.noisy=true", "algo.epsilon=1", "algo.noisy_sigma=1e-9", "algo.schedules.epsilon=null")
    obs = torch.randn(200, 3)

    def act(explore: bool) -> Tensor:
        return algo.act(obs, None, explore=explore, generator=algo.generator).action

    assert torch.equal(act(True), act(False))  # no noise to speak of, and ε does not count
    with torch.no_grad():
        for key, parameter in algo.q.named_parameters():
            if "sigma" in key:
                parameter.fill_(1.0)
    assert len({tuple(act(True).tolist()) for _ in range(10)}) > 5  # drawn anew at every step
    assert torch.equal(act(False), act(False))


def test_each_forward_pass_of_a_noisy_update_has_noise_of_its_own() -> None:
    algo = small_algo("dqn", "algo.noisy=true", "algo.double=true")
    draws = algo.randomness(random_batch(algo))
    numbers = torch.stack([draw["weights"] for draw in draws.values()])
    assert numbers.shape == (3, algo.q.noise_size)
    assert len({tuple(row.tolist()) for row in numbers}) == 3


def test_a_models_build_needs_no_argument_for_noise_unless_it_is_asked_for() -> None:
    class Own(Network):
        def build(self, spec: Any, out: Any, *, defaults: Any, **keywords: Any) -> Any:
            assert not keywords
            return super().build(spec, out, defaults=defaults)

    for name in FAMILY:
        algo = small_algo(name)
        algo.setup(algo.spec, Own(hidden=(8,)), device=algo.device, seed=0)
        algo.update(random_batch(algo))


def test_c51_acts_by_the_mean_of_its_distribution() -> None:
    algo = small_algo("c51", "algo.n_atoms=3", "algo.v_min=-1", "algo.v_max=3")
    assert algo.support.tolist() == [-1, 1, 3]
    logits = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1.0, 0.0, 0.0]]]).clamp(min=1e-9).log()
    torch.testing.assert_close(algo.q_values(logits), torch.tensor([[0.5, 1.0, -1.0]]))


def test_c51_refuses_a_support_without_extent() -> None:
    with pytest.raises(ConfigError, match="v_min=1 must be less than v_max=1"):
        C51(v_min=1.0, v_max=1.0)
    with pytest.raises(ConfigError, match="n_atoms must be at least 2, not 1"):
        C51(n_atoms=1)


def test_iqn_predicts_each_fraction_by_itself() -> None:
    algo = small_algo("iqn", "algo.dueling=true")
    obs, tau = torch.randn(4, 3), torch.rand(4, 6)
    together = algo.head(algo.q, obs, {"tau": tau})
    assert together.shape == (4, 3, 6)
    for b, i in ((0, 0), (3, 5)):
        alone = algo.head(algo.q, obs[b : b + 1], {"tau": tau[b : b + 1, i : i + 1]})
        torch.testing.assert_close(together[b, :, i], alone[0, :, 0])
    chosen = algo.q_values(algo.head(algo.q, obs, {}))
    midpoints = (torch.arange(32) + 0.5) / 32
    torch.testing.assert_close(chosen, algo.head(algo.q, obs, {"tau": midpoints.expand(4, 32)}).mean(-1))


# ---- prioritized replay under every algorithm


@pytest.mark.parametrize("name", sorted(TIED))
def test_an_algorithm_that_learns_what_data_do_is_shown_no_others(name: str) -> None:
    with pytest.raises(ConfigError, match=f"algo={name} learns what the data do.* Use buffer=replay"):
        Runner(prioritized(run_config(name, "offline")))


def test_these_learn_what_data_do() -> None:
    cloning = {"bc", "awr", "marwil", "awac", "crr", "iql", "xql"}
    near = {"cql", "cal_ql", "bcq", "bear", "td3_bc", "rebrac", "discrete_bcq", "discrete_cql"}
    assert cloning | near == TIED


def test_an_algorithm_without_td_errors_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm("bc"), "tied_to_data", False)
    with pytest.raises(ConfigError, match="reports no TD errors to set priorities by"):
        Runner(prioritized(run_config("bc", "offline"))).train(tmp_path / "run")


@pytest.mark.parametrize(("name", "loop"), REPLAYING)
def test_every_replaying_algorithm_learns_by_priority_and_resumes_exactly(
    name: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prioritized(run_config(name, loop))
    runner = Runner(config)
    runner.train(tmp_path / "whole")
    for buffer in (runner.trainer.buffer, getattr(runner.trainer, "prior", runner.trainer.buffer)):
        buffer.sample(1)
        stored = buffer._priorities[buffer._stored_places()]
        assert len(np.unique(stored)) > 10  # they were told errors
    save, saved = Trainer.save_checkpoint, []

    def save_and_stop(trainer: Trainer) -> Path:
        path = save(trainer)
        saved.append(path)
        if len(saved) == 2:
            raise Interrupted(15)
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_checkpoint", save_and_stop)
        with pytest.raises(Interrupted):
            Runner(config).train(tmp_path / "cut")
    resume_run(tmp_path / "cut", [], trust=EVERYTHING)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("name", "loop"), [("sac_n", OFFLINE), ("sac", "mixed"), ("dqn", "replay")])
def test_intervals_do_not_change_what_is_learned_by_priority(name: str, loop: str, tmp_path: Path) -> None:
    changes = ["trainer.eval_interval=0", "trainer.eval_episodes=0"]
    changes += ["trainer.offline_pretrain_updates=40"] if loop == "mixed" else []
    states = []
    for i, (log, checkpoint) in enumerate(((1000, 0), (7, 31))):
        intervals = [f"trainer.log_interval={log}", f"trainer.checkpoint_interval={checkpoint}"]
        runner = Runner(prioritized(small_config(name, loop, changes=(*changes, *intervals))))
        runner.train(tmp_path / str(i))
        states.append(flatten(runner.algo.state_dict()))
    for key, value in states[0].items():
        same = torch.equal(value, states[1][key]) if isinstance(value, Tensor) else value == states[1][key]
        assert same, key


@pytest.mark.parametrize("name", [*FAMILY, "rainbow", "sac", "discrete_sac"])
def test_priorities_are_the_errors_of_each_row(name: str) -> None:
    """A row's priority does not depend on who else is in the batch, and the best predicted row has the smallest."""
    algo = small_algo(name, *(["algo.noisy=false"] if name == "rainbow" else []))
    batch = random_batch(algo, rows=6, weighted=True)
    draws = algo.randomness(batch)
    algo.randomness = lambda given: rows_of(draws, len(given.reward))  # type: ignore[method-assign]
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in flat(algo).items()}
    together = algo.update(batch).priority
    assert together.shape == (6,)
    assert (together >= 0).all()
    assert not together.requires_grad
    restore(algo, state)
    half = type(batch)(*(None if part is None else part[:3] if isinstance(part, Tensor) else part for part in batch))
    torch.testing.assert_close(algo.update(half).priority, together[:3], rtol=1e-4, atol=1e-5)


def rows_of(draw: Any, rows: int) -> Any:
    """The first rows of nested random numbers."""
    return {key: rows_of(value, rows) if isinstance(value, dict) else value[:rows] for key, value in draw.items()}


def flat(algo: Any) -> dict[str, Tensor]:
    parts = {name: part for name, part in algo.parts().items() if isinstance(part, (nn.Module, Tensor))}
    own = {name: part.state_dict() if isinstance(part, nn.Module) else {"": part} for name, part in parts.items()}
    return {f"{name}/{key}": value for name, tensors in own.items() for key, value in tensors.items()}


@torch.no_grad()
def restore(algo: Any, state: dict[str, Tensor]) -> None:
    for key, value in flat(algo).items():
        value.copy_(state[key])


def test_an_algorithm_that_reports_no_errors_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(prioritized(small_config("dqn", "replay")))
    update = runner.algo.update
    monkeypatch.setattr(runner.algo, "update", lambda batch: Update(update(batch).metrics))
    with pytest.raises(ConfigError, match=r"DQN reports no TD errors .*buffer=replay"):
        runner.train(tmp_path / "run")


def test_beta_follows_the_run(tmp_path: Path) -> None:
    twice = small_config("dqn", "replay", changes=("trainer.train_frequency=53",))
    runner = Runner(prioritized(twice, beta=0.2, final_beta=0.8))
    runner.train(tmp_path / "run")
    assert runner.buffer._beta == pytest.approx(0.2 + 0.6 * 106 / 120)  # the last training was at 106 of 120 steps
