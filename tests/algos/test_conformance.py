"""What every algorithm owes the framework, checked for all of them: nothing here names one that exists today."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlexp.algos import TRPO as TRPOAlgorithm
from rlexp.algos.base import Algorithm, OnPolicyAlgorithm
from rlexp.checkpoint import load_checkpoint, save_checkpoint
from rlexp.config.component import REGISTRY, schedulable
from rlexp.config.compose import compose
from rlexp.errors import ConfigError
from rlexp.models.target import TargetNetwork
from rlexp.optim import Optimizer
from rlexp.runner import Runner
from rlexp.schedules import Schedule, Shape
from tests.algos.common import (
    ALGOS,
    KIND_CASES,
    KINDS,
    LOOP_CASES,
    LOOPS,
    algorithm,
    assert_same_bits,
    data_for,
    flatten,
    kinds_of,
    other_value,
    small_algo,
    small_config,
    small_runner,
)

OWN_ENVS = {"discrete": "cartpole", "continuous": "pendulum"}  # a real environment for a first try


# ---- composing


def test_every_config_is_an_algorithm_and_every_algorithm_has_a_config() -> None:
    assert set(ALGOS) == {name for name, cls in REGISTRY["algo"].items() if cls.__module__.startswith("rlexp.")}


@pytest.mark.parametrize(("name", "kind"), [case for case in KIND_CASES if case[1] in OWN_ENVS])
def test_composes_with_nothing_but_its_name_and_an_environment(name: str, kind: str) -> None:
    runner = Runner(compose([f"algo={name}", f"env={OWN_ENVS[kind]}"]))
    assert runner.algo_name == name
    assert type(runner.algo) is algorithm(name)
    assert runner.trainer.loop in runner.algo.loops


@pytest.mark.parametrize(("name", "loop"), LOOP_CASES)
def test_composes_in_each_of_its_loops(name: str, loop: str) -> None:
    for kind in kinds_of(name):
        runner = Runner(small_config(name, loop, kind))
        assert (runner.trainer.loop, runner.spec.action.kind) == (loop, kind)


@pytest.mark.parametrize(("name", "loop"), [(n, p) for n in ALGOS for p in LOOPS if (n, p) not in LOOP_CASES])
def test_refuses_a_loop_it_cannot_learn_in_and_names_those_it_can(name: str, loop: str) -> None:
    lender = next(other for other, known in LOOP_CASES if known == loop)
    with pytest.raises(ConfigError, match=f"algo={name} cannot learn in the {loop} loop") as refused:
        Runner(small_config(name) | {"trainer": small_config(lender, loop)["trainer"]})
    for fitting in algorithm(name).loops:
        assert f"trainer={fitting}" in str(refused.value)


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in ALGOS for k in KINDS if (n, k) not in KIND_CASES])
def test_refuses_actions_it_cannot_take_and_names_algorithms_that_can(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"algo={name}") as refused:
        Runner(small_config(name, kind=kind))
    able = {other for other in ALGOS if kind in algorithm(other).actions}
    alike = {other for other in able if algorithm(other).loops == algorithm(name).loops}
    named = set(re.findall(r"algo=(\w+)", str(refused.value))) - {name}
    assert named
    assert named <= able
    assert not alike or named == alike
    assert "rlexp list algo" in str(refused.value)


@pytest.mark.parametrize("name", [name for name in ALGOS if "continuous" in algorithm(name).actions])
def test_actions_without_bounds_need_a_limit_where_they_are_squashed(name: str) -> None:
    if algorithm(name).unit_actions:
        with pytest.raises(ConfigError, match=r"env\.action_limit"):
            small_runner(name, kind="unbounded")
    else:
        small_runner(name, kind="unbounded")
    assert small_runner(name, "env.action_limit=2", kind="unbounded").spec.action.high == (2.0, 2.0)


# ---- one update


def tensors_of(part: nn.Module | Optimizer | Tensor) -> dict[str, Tensor]:
    state = part if isinstance(part, Tensor) else dict(part.state_dict())
    return flatten({"": state})


def trained_tensors(algo: Algorithm) -> set[int]:
    optimizers = [part for part in algo.parts().values() if isinstance(part, Optimizer)]
    by_hand = algo.policy_parameters() if isinstance(algo, TRPOAlgorithm) else []  # along the natural gradient
    return {id(parameter) for parameter in by_hand} | {id(each) for part in optimizers for each in part.params}


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_an_update_changes_what_is_trained_and_nothing_else(name: str, kind: str) -> None:
    algo = small_algo(name, kind=kind)
    trained = trained_tensors(algo)
    before = {part: tensors_of(value) for part, value in algo.parts().items()}
    weights = {
        (part, key): p
        for part, m in algo.parts().items()
        if isinstance(m, nn.Module)
        for key, p in m.named_parameters()
    }
    values = {where: parameter.detach().clone() for where, parameter in weights.items()}
    data = data_for(algo)
    given = flatten({"data": list(data)})
    algo.update(data)
    assert_same_bits(given, flatten({"data": list(data)}))  # the batch belongs to the caller
    assert algo.parts().keys() == before.keys()
    for (part, key), parameter in weights.items():
        if isinstance(algo.parts()[part], TargetNetwork):
            assert not parameter.requires_grad
            continue
        assert id(parameter) in trained, f"{part}.{key} is a weight that nobody trains"
        assert not torch.equal(parameter, values[part, key]), f"{part}.{key} did not change"
    for part, value in algo.parts().items():
        after = tensors_of(value)
        if isinstance(value, Optimizer):
            assert any(not torch.equal(after[key], before[part][key]) for key in after), f"{part} did not step"
        elif isinstance(value, Tensor):
            assert torch.equal(after[""], before[part][""]) == (id(value) not in trained), part


@pytest.mark.parametrize("name", ALGOS)
def test_targets_move_only_when_and_as_far_as_their_rule_says(name: str) -> None:
    algo = small_algo(name)
    targets = {part: value for part, value in algo.parts().items() if isinstance(value, TargetNetwork)}
    settings = {field.name for field in dataclasses.fields(algo) if field.init}
    assert bool(targets) == ("tau" in settings)
    interval = getattr(algo, "target_interval", 1)
    for step in range(1, 5):
        before = {part: [p.clone() for p in target._own] for part, target in targets.items()}
        algo.update(data_for(algo, seed=step))
        for part, target in targets.items():
            moved = step % interval == 0
            for own, source, old in zip(target._own, target._source, before[part], strict=True):
                assert not torch.equal(own, source) or algo.tau == 1
                expected = old + algo.tau * (source.detach() - old) if moved else old
                torch.testing.assert_close(own, expected, rtol=0, atol=1e-7 if moved else 0)
                assert torch.equal(own, old) != moved


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_metrics_are_finite_detached_scalars_with_the_same_names_every_time(name: str, kind: str) -> None:
    algo = small_algo(name, kind=kind)
    names = set()
    for step in range(3):
        update = algo.update(data_for(algo, seed=step))
        names.add(tuple(update.metrics))
        for metric, value in update.metrics.items():
            assert isinstance(value, Tensor), metric
            assert value.shape == (), metric
            assert not value.requires_grad, metric
            assert torch.isfinite(value), metric
        if update.priority is not None:
            assert torch.isfinite(update.priority).all()
    assert len(names) == 1
    assert any(metric.startswith("loss/") for metric in update.metrics)


@pytest.mark.parametrize("name", ALGOS)
def test_the_counter_counts_optimizer_steps(name: str) -> None:
    algo = small_algo(name)
    for step in range(2):
        algo.update(data_for(algo, seed=step))
    if isinstance(algo, OnPolicyAlgorithm):
        assert algo.updates == 2 * algo.updates_per_rollout(*data_for(algo).reward.shape)
    else:
        assert algo.updates == 2


@pytest.mark.parametrize("name", [name for name in ALGOS if not issubclass(algorithm(name), OnPolicyAlgorithm)])
def test_importance_weights_of_one_change_nothing_and_others_do(name: str) -> None:
    def after(weight: Tensor | None) -> dict[str, Tensor]:
        algo = small_algo(name)
        algo.update(data_for(algo)._replace(weight=weight))
        return flatten(algo.state_dict())

    plain = after(None)
    assert_same_bits(plain, after(torch.ones(8)))
    other = after(torch.linspace(0.1, 2.0, 8))
    assert any(not torch.equal(plain[key], other[key]) for key in plain if isinstance(plain[key], Tensor))


@pytest.mark.parametrize("name", [name for name in ALGOS if not issubclass(algorithm(name), OnPolicyAlgorithm)])
def test_gradients_are_scaled_down_to_the_norm_that_is_set(name: str) -> None:
    def moved(norm: str) -> float:
        algo = small_algo(name, f"algo.max_grad_norm={norm}")
        before = flatten(algo.state_dict())
        algo.update(data_for(algo))
        after = flatten(algo.state_dict())
        online = [key for key in before if "weight" in key and not key.startswith("target")]
        return max((after[key] - before[key]).abs().max().item() for key in online)

    # Adam divides by |g| + 1e-8, so a gradient of norm 1e-12 moves nothing by more than 1e-4 of its step size
    assert moved("1e-12") < 1e-3 * moved("1e6")


def scheduled_fields() -> list[Any]:
    """Every field of every algorithm; those that it inherits from another one only in `make test-learning`."""
    return [
        pytest.param(name, field, marks=() if declares(name, field) else pytest.mark.learning)
        for name in ALGOS
        for field in schedulable(algorithm(name))
    ]


def declares(name: str, field: str) -> bool:
    """Whether no other algorithm of ours is the one to test a field with."""
    parents = [each for each in ALGOS if each != name and issubclass(algorithm(name), algorithm(each))]
    return not any(field in schedulable(algorithm(each)) for each in parents)


@pytest.mark.parametrize(("name", "field"), scheduled_fields())
def test_a_scheduled_field_acts_like_the_field_set_to_that_value(name: str, field: str) -> None:
    value = other_value(name, field)
    fixed, scheduled = small_runner(name), small_runner(name)
    schedule = Schedule(shape=Shape.step, end=value, until=0.5)
    setattr(fixed.algo, field, value)
    fixed.algo.schedules = {}
    scheduled.algo.schedules = {field: schedule}
    for runner in (fixed, scheduled):
        runner.algo.setup(runner.spec, runner.model, device=runner.device, seed=0)
    state = fixed.algo.state_dict()
    scheduled.algo.load_state_dict(state | {field: torch.zeros(())})  # same start, whatever the field initialises
    scheduled.algo.apply_schedules(0.9)
    assert scheduled.algo.scheduled_values() == {field: pytest.approx(value)}
    for step in range(3):
        data = data_for(fixed.algo, seed=step)
        expected, found = fixed.algo.update(data).metrics, scheduled.algo.update(data).metrics
        for metric in expected:
            torch.testing.assert_close(found[metric], expected[metric], rtol=1e-4, atol=1e-6)
    left, right = flatten(fixed.algo.state_dict()), flatten(scheduled.algo.state_dict())
    for key, each in left.items():
        if isinstance(each, Tensor) and each.is_floating_point():
            torch.testing.assert_close(right[key], each, rtol=1e-4, atol=1e-6)


# ---- acting


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_actions_have_the_shape_type_and_bounds_of_the_space(name: str, kind: str, explore: bool, count: int) -> None:
    runner = small_runner(name, kind=kind)
    policy, spec = runner.policy(), runner.spec.action
    envs = runner.env.build(0, num_envs=count)
    obs, carry = envs.reset(), None
    for _ in range(5):
        act = policy.act(policy.tensor(obs), carry, explore=explore)
        assert act.action.shape == (count, *spec.shape)
        assert act.action.dtype == getattr(torch, spec.dtype)
        assert torch.isfinite(act.action).all()
        assert not act.action.requires_grad
        for extra in act.extras.values():
            assert extra.shape[0] == count
        if kind != "continuous":
            assert (act.action >= 0).all()
            assert (act.action < torch.tensor(spec.nvec)).all()
        elif policy.algo.unit_actions:
            assert (act.action.abs() <= 1).all()
            native = policy.env_action(act.action)
            assert (native >= spec.low).all()
            assert (native <= spec.high).all()
        step = envs.step(policy.env_action(act.action))  # the environment checks its own action space
        obs, carry = step.obs, act.carry


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_greedy_actions_are_deterministic_and_draw_no_random_numbers(name: str, kind: str) -> None:
    policy = small_runner(name, kind=kind).policy()
    obs = data_for(policy.algo).obs
    obs = obs.flatten(0, 1) if isinstance(policy.algo, OnPolicyAlgorithm) else obs
    first, second = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    state = first.get_state()
    one = policy.act(obs, None, explore=False, generator=first).action
    two = policy.act(obs, None, explore=False, generator=second).action
    alone = [policy.act(obs[i : i + 1], None, explore=False, generator=first).action for i in range(len(obs))]
    assert torch.equal(one, two)
    assert torch.equal(first.get_state(), state)
    torch.testing.assert_close(torch.cat(alone), one)  # nor does it matter who else is in the batch


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_exploring_follows_the_given_generator(name: str, kind: str) -> None:
    changes = ["algo.epsilon=1.0"] if hasattr(algorithm(name), "epsilon") else []
    policy = small_runner(name, *changes, kind=kind).policy()
    obs = policy.tensor(np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32))

    def explored(seed: int) -> Tensor:
        return policy.act(obs, None, explore=True, generator=torch.Generator().manual_seed(seed)).action

    own = policy.algo.generator.get_state()
    assert torch.equal(explored(0), explored(0))
    assert not torch.equal(explored(0), explored(1))
    assert torch.equal(policy.algo.generator.get_state(), own)


# ---- state


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_a_checkpoint_on_disk_restores_every_bit_and_the_next_update(name: str, kind: str, tmp_path) -> None:
    runner, other = (small_runner(name, kind=kind) for _ in range(2))
    algo = runner.policy().algo
    other.seed = 7
    restored = other.policy().algo
    for step in range(3):
        algo.update(data_for(algo, seed=step))
    saved = flatten(algo.state_dict())
    differing = [key for key, value in flatten(restored.state_dict()).items() if not _equal(value, saved[key])]
    assert any("weight" in key for key in differing)  # another seed is another agent
    tree = {"policy": runner.policy().state_dict()}
    save_checkpoint(tmp_path / "checkpoint", tree, runner.config)
    other.policy().load_state_dict(load_checkpoint(tmp_path / "checkpoint").tree["policy"])
    assert_same_bits(flatten(restored.state_dict()), saved)
    data = data_for(algo, seed=9)
    assert_same_bits(restored.update(data).metrics, algo.update(data).metrics)
    assert_same_bits(flatten(restored.state_dict()), flatten(algo.state_dict()))


def _equal(left: object, right: object) -> bool:
    return torch.equal(left, right) if isinstance(left, Tensor) else left == right


@pytest.mark.parametrize("name", ALGOS)
def test_saving_hands_out_no_tensor_that_requires_a_gradient(name: str) -> None:
    assert not any(t.requires_grad for t in flatten(small_algo(name).state_dict()).values() if isinstance(t, Tensor))


@pytest.mark.parametrize("name", ALGOS)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = flatten(small_algo(name, seed=5).state_dict())
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = flatten(small_algo(name, seed=5).state_dict())
    assert_same_bits(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)  # and building draws nothing from torch's own generator


@pytest.mark.parametrize("name", ALGOS)
def test_agents_in_one_process_share_nothing(name: str) -> None:
    alone, beside = small_algo(name), small_algo(name)
    setting = next(iter(schedulable(algorithm(name))))  # γ, where there is one
    other = small_algo(name, f"algo.{setting}={other_value(name, setting)}", seed=1)
    for step in range(3):
        data = data_for(alone, seed=step)
        alone.update(data)
    for step in range(3):
        other.update(data_for(other, seed=step + 10))
        data = data_for(beside, seed=step)
        beside.update(data)
    assert_same_bits(flatten(alone.state_dict()), flatten(beside.state_dict()))
