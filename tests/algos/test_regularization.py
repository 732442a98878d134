"""Dropout, BatchRenorm and weight decay as algorithms use them: on while learning, off while acting, kept on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlexp.algos import CrossQ
from rlexp.algos.base import OnPolicyAlgorithm
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.models import MLP, Net, Network
from rlexp.models.regularization import BatchRenorm, Dropout
from rlexp.optim import Adam, Optimizer
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from tests.algos.common import (
    ALGOS,
    CPU,
    algorithm,
    assert_close,
    assert_same_bits,
    data_for,
    flatten,
    random_batch,
    small_algo,
    small_config,
    some_of,
)
from tests.algos.oracles import crossq
from tests.algos.test_compiling import needs_compiler, phases, traces, tracing, update_both  # noqa: F401 (a fixture)
from tests.algos.test_oracles import (
    GAMMA,
    OBS,
    ROWS,
    WIDTH,
    as_batch,
    assert_equal_metrics,
    clone,
    env_spec,
    transitions,
)

OFF_POLICY = [name for name in ALGOS if not issubclass(algorithm(name), OnPolicyAlgorithm)]
ON_POLICY = [name for name in ALGOS if issubclass(algorithm(name), OnPolicyAlgorithm)]


def modules(algo: Any, kind: type) -> list[Any]:
    parts = [part for part in algo.parts().values() if isinstance(part, nn.Module)]
    return [module for part in parts for module in part.modules() if isinstance(module, kind)]


def counters(algo: Any) -> list[int]:
    return [int(dropout.calls) for dropout in modules(algo, Dropout)]


# ---- dropout


@pytest.mark.parametrize("name", OFF_POLICY)
def test_units_are_dropped_while_learning_and_never_while_acting(name: str) -> None:
    dropping, whole = small_algo(name, "model.dropout=0.3"), small_algo(name)
    assert modules(dropping, Dropout)
    with torch.no_grad():  # the same weights: dropout has parameters of its own nowhere
        for part, other in whole.parts().items():
            if isinstance(other, nn.Module):
                own = dict(dropping.parts()[part].named_parameters())
                for key, parameter in other.named_parameters():
                    own[key].copy_(parameter)
            elif isinstance(other, torch.Tensor):
                dropping.parts()[part].copy_(other)
    batch, before = random_batch(dropping), counters(dropping)
    for explore in (False, True):
        acts = [
            algo.act(batch.obs, None, explore=explore, generator=torch.Generator().manual_seed(0)).action
            for algo in (dropping, whole)
        ]
        assert torch.equal(*acts)
    assert counters(dropping) == before
    left, right = dropping.update(batch).metrics, whole.update(batch).metrics
    assert any(not torch.allclose(left[metric], right[metric]) for metric in left)
    unused = [
        module for module, was in zip(modules(dropping, Dropout), before, strict=True) if int(module.calls) == was
    ]
    assert not unused
    assert not any(module.on for module in modules(dropping, Dropout))


@pytest.mark.parametrize("name", some_of(OFF_POLICY))
def test_a_restored_agent_drops_the_same_units(name: str) -> None:
    algo, other = small_algo(name, "model.dropout=0.3"), small_algo(name, "model.dropout=0.3", seed=1)
    algo.update(data_for(algo))
    other.load_state_dict(algo.state_dict())
    data = data_for(algo, seed=1)
    assert_same_bits(other.update(data).metrics, algo.update(data).metrics)
    assert_same_bits(flatten(other.state_dict()), flatten(algo.state_dict()))


def test_an_update_that_fails_leaves_no_unit_dropped() -> None:
    algo = small_algo("sac", "model.dropout=0.3")
    with pytest.raises(AttributeError):
        algo.update(None)
    assert not any(module.on for module in modules(algo, Dropout))


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_policy_whose_probabilities_are_compared_drops_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.dropout: .* compares the probabilities.*model\.critic_dropout"):
        small_algo(name, "model.dropout=0.1")
    algo = small_algo(name, "model.critic_dropout=0.3")
    data = data_for(algo)
    before = counters(algo)
    assert len(before) == 1
    algo.value(data.obs[0])
    assert counters(algo) == before
    algo.update(data)
    assert counters(algo) != before


# ---- weight decay


@pytest.mark.parametrize("name", ALGOS)
def test_weights_that_the_model_built_decay_and_nothing_else(name: str) -> None:
    algo = small_algo(name, "model.weight_decay=0.5")
    plain = small_algo(name)
    for agent in (algo, plain):
        agent.update(data_for(agent))
    built = {id(net.layers[0].weight) for net in modules(algo, Net) if net.layers[0].weight.requires_grad}
    decaying: set[int] = set()
    for optimizer in (part for part in algo.parts().values() if isinstance(part, Optimizer)):
        for parameter, rate, label in zip(optimizer.params, optimizer._decays, optimizer.names, strict=True):
            if rate:
                assert label.endswith("weight")
                decaying.add(id(parameter))
    by_hand = {id(algo.actor.layers[0].weight)} if name == "trpo" else set()  # along the natural gradient
    assert built - by_hand <= decaying
    assert all(not any(optimizer._decays) for optimizer in plain.parts().values() if isinstance(optimizer, Optimizer))


def test_weight_decay_takes_off_its_share_at_every_step() -> None:
    algo, plain = small_algo("sac", "model.weight_decay=0.5"), small_algo("sac")
    before = {key: p.detach().clone() for key, p in algo.critic.named_parameters()}
    for agent in (algo, plain):
        agent.update(random_batch(agent))
    others = dict(plain.critic.named_parameters())
    for key, parameter in algo.critic.named_parameters():
        taken = 3e-4 * 0.5 * before[key] if key.endswith(".weight") else torch.zeros_like(parameter)
        torch.testing.assert_close(others[key] - parameter, taken, rtol=1e-3, atol=1e-7)


# ---- what is refused


@pytest.mark.parametrize("name", [name for name in ALGOS if name != "crossq"])
def test_batch_renorm_is_refused_by_all_who_have_targets_or_compare_policies(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.norm=batch_renorm needs .*algo=crossq.*model\.norm=layer"):
        small_algo(name, "model.norm=batch_renorm")


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.critic_dropout has no effect: DQN has no critics.*model\.dropout"):
        small_algo("dqn", "model.critic_dropout=0.1")
    with pytest.raises(ConfigError, match=r"model\.renorm_warmup has no effect: no network of SAC has BatchRenorm"):
        small_algo("sac", "model.renorm_warmup=10")


# ---- compiled


VARIANTS = {
    "droq": ("sac", "model.critic_norm=layer", "model.critic_dropout=0.3", "model.weight_decay=0.1"),
    "simba": ("dqn", "model.residual=true", "model.dropout=0.2", "model.hidden=[8,8]"),
    "crossq": ("crossq", "model.renorm_warmup=2", "model.dropout=0.2"),
}


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name == "simba" else pytest.mark.learning) for name in VARIANTS]
)
def test_regularised_updates_are_one_graph_each_with_the_eager_numbers(variant: str) -> None:
    name, *changes = VARIANTS[variant]
    eager, compiled = small_algo(name, *changes), small_algo(name, *changes, compiled=True)
    for seed in range(5):  # beyond the warm-up
        update_both(eager, compiled, seed)
    assert traces() == len(phases(compiled))
    obs = random_batch(eager).obs
    with torch.no_grad():
        acts = [a.act(obs, None, explore=True, generator=torch.Generator().manual_seed(0)) for a in (eager, compiled)]
    torch.testing.assert_close(acts[1].action, acts[0].action)
    assert_close(flatten(compiled.state_dict()), flatten(eager.state_dict()))  # and nothing was counted


@needs_compiler
@pytest.mark.learning  # ten seconds of compiling
def test_machine_code_drops_and_normalises_as_eager_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    torch._dynamo.reset()

    def stack() -> tuple[Dropout, BatchRenorm]:
        torch.manual_seed(0)
        dropout, norm = Dropout(0.3), BatchRenorm(40, 2, warmup=1)
        dropout.on = True
        return dropout, norm

    eager, compiled = stack(), stack()

    def forward(parts: tuple[Dropout, BatchRenorm], x: Tensor) -> Tensor:
        return parts[1](parts[0](x), train=True)

    options = {"cpp_wrapper": True, "cpp.vec_isa_ok": True}  # as updates are compiled
    run = torch.compile(lambda x: forward(compiled, x), fullgraph=True, dynamic=False, options=options)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 33, 40)
            torch.testing.assert_close(run(x), forward(eager, x), rtol=1e-4, atol=1e-5)
    for left, right in zip(compiled, eager, strict=True):
        assert_close(flatten(dict(left.state_dict())), flatten(dict(right.state_dict())))
    torch._dynamo.reset()


# ---- whole runs


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_cut_short_goes_on_to_the_same_numbers(variant: str, tmp_path: Path) -> None:
    name, *changes = VARIANTS[variant]
    changes += [f"algo.schedules.{field}=null" for field in ("epsilon",) if name == "dqn"]
    Runner(small_config(name, changes=tuple(changes))).train(tmp_path / "whole")
    Runner(small_config(name, changes=(*changes, "trainer.total_steps=80"))).train(tmp_path / "cut")
    resume_run(tmp_path / "cut", ["trainer.total_steps=120"], trust=EVERYTHING)
    last = [(tmp_path / run / "checkpoints/last/policy.safetensors").read_bytes() for run in ("whole", "cut")]
    assert last[0] == last[1]


# ---- CrossQ


def layers(net: MLP, member: int | None = None) -> list[Tensor]:
    """The parameters of a network (of an ensemble) in the order of the oracle's."""
    found: list[Tensor] = []
    for depth, (norm, layer) in enumerate(zip(net.renorms, net.layers, strict=True)):  # type: ignore[arg-type]
        values = [norm.weight, norm.bias, layer.weight, layer.bias]
        if member is not None:
            head = depth == len(net.layers) - 1
            weight = layer.weight[member] if head else layer.weight[member].T
            values = [norm.weight[member, 0], norm.bias[member, 0], weight, layer.bias[member, 0]]
        found += [value.detach().clone() for value in values]
    return found


def averages(net: MLP, member: int | None = None) -> list[Tensor]:
    pick = (lambda tensor: tensor) if member is None else (lambda tensor: tensor[member, 0])
    return [pick(value).clone() for norm in net.renorms for value in (norm.mean, norm.var)]  # type: ignore[union-attr]


@pytest.mark.parametrize("warmup", [4, 100_000])
def test_crossq_equals_the_oracle(warmup: int) -> None:
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"), 3e-3)
    ours = CrossQ(gamma=GAMMA, **rates)
    ours.setup(env_spec("continuous"), Network(hidden=(WIDTH, WIDTH), renorm_warmup=warmup), device=CPU, seed=3)
    oracle = crossq.CrossQ(
        crossq.network(OBS, 4, WIDTH, warmup),
        [crossq.network(OBS + 2, 1, WIDTH, warmup) for _ in range(2)],
        lr=3e-3,
        target_entropy=-2.0,
        delay=3,
    )
    pairs = [(ours.actor, None, oracle.actor), *((ours.critic, i, oracle.critics[i]) for i in range(2))]
    for net, member, theirs in pairs:
        with torch.no_grad():
            for parameter, value in zip(theirs.parameters(), layers(net, member), strict=True):
                parameter.copy_(value)
    for step in range(15):
        data = transitions("continuous", step)
        noise, next_noise = torch.randn(2, ROWS, 2, generator=clone(ours.generator))
        found = ours.update(as_batch(data)).metrics
        expected = oracle.update(**data, gamma=GAMMA, noise=noise, next_noise=next_noise)
        assert found.keys() == expected.keys()
        assert_equal_metrics(found, expected)
        for net, member, theirs in pairs:
            for mine, other in zip(layers(net, member), theirs.parameters(), strict=True):
                torch.testing.assert_close(mine, other.detach(), rtol=1e-3, atol=1e-5)
            for mine, other in zip(averages(net, member), theirs.buffers(), strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert [norm.passes.item() for norm in (*ours.actor.renorms, *ours.critic.renorms)] == [5] * 3 + [15] * 3


def test_crossq_learns_of_a_batch_only_by_training_on_it() -> None:
    algo = small_algo("crossq", "algo.actor_interval=2")
    for seed in range(4):
        algo.update(random_batch(algo, seed=seed))
    batch = random_batch(algo, seed=9)
    before = flatten(algo.state_dict())
    for explore in (False, True):
        algo.act(batch.obs, None, explore=explore, generator=torch.Generator().manual_seed(0))
    assert_same_bits(before, flatten(algo.state_dict()))
    algo.update(batch)  # the fifth: critics only
    after = flatten(algo.state_dict())
    moved = {key.split("/")[0] for key in before if key.endswith(".mean") and not torch.equal(before[key], after[key])}
    assert moved == {"critic"}
    algo.update(batch)
    once_more = flatten(algo.state_dict())
    for key in (key for key in before if key.endswith("passes")):
        assert int(once_more[key]) == (3 if key.startswith("actor") else 6)


def test_crossq_is_the_papers_without_settings() -> None:
    algo = CrossQ()
    algo.setup(env_spec("continuous"), Network(), device=CPU, seed=0)
    assert [layer.weight.shape for layer in algo.critic.layers] == [(2, OBS + 2, 2048), (2, 2048, 2048), (2, 1, 2048)]
    assert [layer.weight.shape for layer in algo.actor.layers] == [(256, OBS), (256, 256), (4, 256)]
    assert all((norm.momentum, norm.warmup) == (0.99, 100_000) for norm in modules(algo, BatchRenorm))
    assert algo.actor_optimizer.betas == algo.critic_optimizer.betas == (0.5, 0.999)
    assert (algo.actor_interval, float(algo.critic_optimizer.lr)) == (3, pytest.approx(1e-3))
    assert isinstance(algo.alpha_optimizer, Adam)
    assert not hasattr(algo, "target_critic")


class PlainModel:
    """A user's own model, whose networks know nothing of training."""

    def build(self, spec: Any, out: Any, *, defaults: Any, action_dim: int = 0, ensemble: Any = None, **_: Any) -> Any:
        return nn.Linear(3, 4)


def test_crossq_refuses_networks_that_cannot_be_told_what_trains_them() -> None:
    with pytest.raises(ConfigError, match=r"algo=crossq says train=True.*model=auto"):
        CrossQ().setup(env_spec("continuous"), PlainModel(), device=CPU, seed=0)
