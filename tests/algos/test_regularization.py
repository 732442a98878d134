"""Dropout, BatchRenorm and weight decay as algorithms use them: on while learning, off while acting, kept on resume."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlexp.algos import PPO, CrossQ, samples
from rlexp.algos.actor_critic import ActorCritic
from rlexp.algos.base import OFFLINE, OnPolicyAlgorithm
from rlexp.algos.edac import edac_similarity
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.models import MLP, Net, Network
from rlexp.models.regularization import NUMBERS, BatchRenorm, Dropout, learning
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam, Optimizer
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.tree import tree_map
from tests.algos.common import (
    ALGOS,
    CPU,
    KIND_CASES,
    algorithm,
    assert_close,
    assert_same_bits,
    data_for,
    flatten,
    home_loop,
    random_batch,
    random_rollout,
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
def test_a_value_function_alone_drops_units_where_it_learns(name: str) -> None:
    algo = small_algo(name, "model.critic_dropout=0.3")
    data = data_for(algo)
    assert "dropped" not in data.extras
    before = counters(algo)
    assert len(before) == 1
    algo.value(data.obs[0])
    assert counters(algo) == before
    algo.update(data)
    assert counters(algo) != before


class Forgetful(PPO):
    """Does not tell its policy what it dropped."""

    def policy_and_value(self, obs: Any, **told: Tensor) -> tuple[Any, Tensor]:
        return super().policy_and_value(obs)


class Simple(ActorCritic):
    """Knows nothing of what was dropped, as most algorithms of one's own."""

    def build(self, spec: Any, model: Any) -> None:
        self.build_networks(spec, model)

    def update(self, batch: Any) -> Any:
        raise NotImplementedError


def test_a_policy_that_is_not_told_what_it_dropped_is_refused() -> None:
    spec = env_spec("continuous")
    Simple().setup(spec, Network(critic_dropout=0.1), device=CPU, seed=0)
    with pytest.raises(ConfigError, match=r"model\.dropout: Simple compares the probabilities.*model\.critic_dropout"):
        Simple().setup(spec, Network(dropout=0.1), device=CPU, seed=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_update_that_does_not_tell_what_was_dropped_is_refused(compiled: bool, tracing: None) -> None:  # noqa: F811
    algo = Forgetful()
    algo.setup(env_spec("continuous"), Network(dropout=0.1), device=CPU, seed=0)
    if compiled:
        algo.compile_phases()
    with pytest.raises(ConfigError, match=r"does not say which units the policy dropped"):
        algo.update(random_rollout(algo))


# ---- dropout in a policy whose probabilities are compared

SPACES = [(name, kind) for name, kind in KIND_CASES if name in ON_POLICY]


@pytest.mark.parametrize(("name", "kind"), SPACES)
def test_a_policy_acts_without_the_units_that_its_transitions_name(name: str, kind: str) -> None:
    algo = small_algo(name, "model.dropout=0.3", "model.critic_dropout=0", kind=kind)
    rollout = random_rollout(algo, steps=6)
    numbers = rollout.extras["dropped"]
    assert numbers.shape == (6, 2)
    assert numbers.dtype == torch.int64
    assert len(numbers.unique()) == numbers.numel()
    obs = tree_map(lambda leaf: leaf[0], rollout.obs)
    plain = algo.actor.encoder if name == "recurrent_ppo" else algo.actor
    layer, (dropout,) = plain.layers[0], modules(algo, Dropout)
    hidden = torch.nn.functional.linear(obs, layer.weight, layer.bias)
    hidden = dropout(hidden, numbers[0]).tanh()
    assert ((hidden == 0).float().mean() > 0.05).all()
    if name == "recurrent_ppo":
        torch.testing.assert_close(plain(obs, dropped=numbers[0]), hidden)
    else:
        head = plain.layers[1]
        generator = torch.Generator().manual_seed(0)
        noise = algo.head.draw_noise(2, generator=generator)
        act = algo.act(obs, None, explore=True, generator=torch.Generator().manual_seed(0))
        drawn = torch.randint(NUMBERS, (2,), generator=generator)
        assert torch.equal(act.extras["dropped"], drawn)
        hidden = dropout(torch.nn.functional.linear(obs, layer.weight, layer.bias), drawn).tanh()
        outputs = torch.nn.functional.linear(hidden, head.weight, head.bias)
        assert torch.equal(act.action, algo.head.dist(outputs, algo.log_std).sample(noise))
    greedy = algo.act(obs, None, explore=False, generator=torch.Generator())
    assert "dropped" not in greedy.extras
    whole = algo.policy(obs).mode()
    assert torch.equal(greedy.action, whole)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("name", "kind"), [case for case in SPACES if case[0] in ("ppo", "recurrent_ppo")])
def test_the_ratio_is_1_in_the_first_minibatch(
    name: str, kind: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, obs = ["model.dropout=0.3", "algo.minibatch_size=20", "algo.epochs=2"], "vector"
    if shared:
        if name == "recurrent_ppo":
            pytest.skip("it shares no CNN")
        changes, obs = [*changes, "model.shared_encoder=true"], "image"
    algo = small_algo(name, *changes, kind=kind, obs=obs)
    seen = []
    module = importlib.import_module(algo.__module__)
    loss = getattr(module, f"{name}_loss")
    monkeypatch.setattr(module, f"{name}_loss", lambda *args: (seen.append(args[0] - args[1]), loss(*args))[1])
    rollout = random_rollout(algo)
    assert ("log_prob" in rollout.extras) == (shared or name == "recurrent_ppo")
    before = counters(algo)
    algo.update(rollout)
    exact = not shared and name != "recurrent_ppo"  # else a product of two rows may differ from one of twenty
    assert seen[0].abs().max().item() <= (0 if exact else 1e-5)
    assert seen[-1].abs().max().item() > 1e-4
    actors = modules(algo, Dropout)[: len(before) // 2]
    assert [int(dropout.calls) for dropout in actors] == before[: len(before) // 2]  # nothing is counted for it


def test_a_trust_region_is_kept_under_the_units_that_were_dropped() -> None:
    algo = small_algo("trpo", "model.dropout=0.3", "model.critic_dropout=0")
    rollout = random_rollout(algo, steps=20)
    obs, action, numbers = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), rollout.extras["dropped"].flatten()
    with torch.no_grad():
        old = algo.policy(obs, dropped=numbers)
    metrics = algo.update(rollout).metrics
    with torch.no_grad():
        new = algo.policy(obs, dropped=numbers)
    assert metrics["policy/kl"].item() == pytest.approx(old.kl(new).mean().item(), rel=1e-3)
    assert 0.2 * algo.target_kl < metrics["policy/kl"].item() <= algo.target_kl
    advantage = algo.advantages(rollout)[0].flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = ((new.log_prob(action) - old.log_prob(action)).exp() * advantage).mean()
    assert metrics["loss/policy"].item() == pytest.approx(-surrogate.item(), rel=1e-3)


def test_a_gradient_of_a_policy_is_that_of_the_units_that_acted() -> None:
    algo = small_algo("a2c", "model.dropout=0.3", "model.critic_dropout=0", "algo.value_coef=0")
    rollout = random_rollout(algo)
    obs, action, numbers = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), rollout.extras["dropped"].flatten()
    advantage = algo.advantages(rollout)[0].flatten()
    loss = -(algo.policy(obs, dropped=numbers).log_prob(action) * advantage).mean()
    assert algo.update(rollout).metrics["loss/policy"].item() == pytest.approx(loss.item(), rel=1e-6)


# ---- which passes train BatchRenorm

RENORM = ("model.norm=batch_renorm", "model.hidden=[16]")
OWN_INPUTS = ("crossq", "cql", "cal_ql", "drq_v2", "iqn")  # whose critics see something else than s and a of the batch


@pytest.mark.parametrize("name", OFF_POLICY)
def test_every_network_is_trained_by_one_pass_of_an_update_and_targets_by_none(name: str) -> None:
    algo = small_algo(name, *RENORM)
    batch = random_batch(algo)
    with torch.no_grad():
        for explore in (False, True):
            algo.act(batch.obs, None, explore=explore, generator=torch.Generator().manual_seed(0))
    assert not any(int(norm.passes) for norm in modules(algo, BatchRenorm))
    algo.update(batch)
    frozen = [norm for net in modules(algo, TargetNetwork) for norm in net.modules() if isinstance(norm, BatchRenorm)]
    assert all(int(norm.passes) == 0 for norm in frozen)
    trained = [norm for norm in modules(algo, BatchRenorm) if all(norm is not other for other in frozen)]
    assert trained
    assert [int(norm.passes) for norm in trained] == [1] * len(trained)
    assert not any(norm.on for norm in modules(algo, BatchRenorm))
    if name in OWN_INPUTS:
        return
    both = torch.cat((batch.obs, batch.action), -1) if algo.spec.action.kind == "continuous" else None
    for net in modules(algo, Net):
        if not net.layers[0].weight.requires_grad or (name in ("bcq", "bear") and net is algo.vae.decoder):
            continue  # a target; the decoder sees a latent
        seen = both if net.action_dim else batch.obs
        if name == "bcq" and net is algo.actor:
            continue  # actions of the model of the data
        found = net.renorms[0].mean
        wanted = (0.01 * seen.mean(0)).expand_as(found)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


PASSES = {"ppo": (4, 4), "a2c": (1, 1), "trpo": (1, 20), "recurrent_ppo": (6, 6)}  # of actor and critic, 20 rows


@pytest.mark.parametrize("name", ON_POLICY)
def test_an_on_policy_network_is_trained_once_a_step_of_its_own(name: str) -> None:
    algo = small_algo(name, *RENORM)
    rollout = random_rollout(algo)
    assert not any(int(norm.passes) for norm in modules(algo, BatchRenorm))  # nor by valuing the rollout
    algo.update(rollout)
    for net, count in zip((algo.actor, algo.critic), PASSES[name], strict=True):
        assert [int(norm.passes) for norm in net.modules() if isinstance(norm, BatchRenorm)] == [count] * 2


def settle(algo: Any, obs: Any) -> None:
    """Let the averages be those of the observations, as after a while."""
    with torch.no_grad():
        for net in modules(algo, Net):
            norms = list(net.renorms)
            for depth, norm in enumerate(norms):
                x = obs
                for layer, before in zip(list(net.layers)[:depth], norms):
                    x = torch.nn.functional.linear(before(x), layer.weight, layer.bias).tanh()
                norm.mean.copy_(x.mean(0))
                norm.var.copy_(x.var(0, correction=0))


def test_with_settled_averages_batch_renorm_begins_with_a_ratio_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = small_algo("ppo", *RENORM, "algo.minibatch_size=20")
    settle(algo, torch.randn(500, algo.spec.obs.leaves[""].shape[0]))
    rollout = random_rollout(algo)
    seen = []
    module = importlib.import_module(algo.__module__)
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *args: (seen.append(args[0] - args[1]), loss(*args))[1])
    algo.update(rollout)
    assert seen[0].abs().max().item() < 1e-5
    assert seen[1].abs().max().item() > 1e-4


def test_a_trust_region_counts_what_moving_averages_do_to_the_policy() -> None:
    algo = small_algo("trpo", *RENORM, "model.renorm_momentum=0.9", kind="discrete")
    rollout = random_rollout(algo, steps=20)
    settle(algo, torch.cat((rollout.obs.flatten(0, 1), torch.randn(40, rollout.obs.shape[-1]))))
    obs = rollout.obs.flatten(0, 1)
    with torch.no_grad():
        old = algo.policy(obs)
    metrics = algo.update(rollout).metrics
    with torch.no_grad():
        new = algo.policy(obs)
    assert metrics["policy/step"].item() > 0
    assert metrics["policy/kl"].item() == pytest.approx(old.kl(new).mean().item(), rel=1e-3)
    assert metrics["policy/kl"].item() <= algo.target_kl


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_deep_copy_learns_by_itself(compiled: bool, tracing: None) -> None:  # noqa: F811
    algo = small_algo("crossq")
    batch = random_batch(algo)
    if compiled:
        algo.compile_phases()
        copy.deepcopy(algo).update(batch)  # the graphs of one are not those of the other
        algo.update(batch)
    twin = copy.deepcopy(algo)
    before = flatten(copy.deepcopy(algo.state_dict()))
    twin.update(batch)
    assert_same_bits(flatten(algo.state_dict()), before)
    assert twin.critic.renorms[0].passes == algo.critic.renorms[0].passes + 1
    after = flatten(twin.state_dict())
    assert any(isinstance(value, Tensor) and not torch.equal(value, before[name]) for name, value in after.items())


def test_a_policy_that_takes_no_step_stays_where_it_was() -> None:
    algo = small_algo("trpo", *RENORM, "model.renorm_momentum=0.9", kind="discrete")
    rollout = random_rollout(algo, steps=20)
    settle(algo, torch.cat((rollout.obs.flatten(0, 1), torch.randn(40, rollout.obs.shape[-1]))))
    before = {name: value.clone() for name, value in algo.actor.state_dict().items()}
    algo.line_search_steps = 0
    metrics = algo.update(rollout).metrics
    assert metrics["policy/step"].item() == metrics["policy/kl"].item() == 0
    for name, value in before.items():
        assert torch.equal(algo.actor.state_dict()[name], value), name


def test_padding_is_no_part_of_the_batch_that_a_recurrent_policy_normalises_by() -> None:
    algo = small_algo("recurrent_ppo", *RENORM, "algo.epochs=1", "algo.minibatch_size=100")
    rollout = random_rollout(algo)  # ten steps in sequences of four: the last ones are padded
    algo.update(rollout)
    for net in (algo.actor, algo.critic):
        torch.testing.assert_close(net.encoder.renorms[0].mean, 0.01 * rollout.obs.flatten(0, 1).mean(0))


@pytest.mark.parametrize("name", ["cql", "cal_ql"])
def test_conservative_values_of_all_actions_are_of_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "CPU_ROWS", 1)  # other networks value as few actions at once as there are
    algo = small_algo(name, *RENORM, "algo.n_action_samples=2")
    batch = random_batch(algo)
    noise = algo.randomness(batch)
    actions, _ = algo.sampled_actions(batch, noise)
    assert actions.shape[0] == 6
    algo.update(batch)
    assert algo.critic.renorms[0].passes == 1
    every = torch.cat((batch.action[None], actions))
    rows = torch.cat((batch.obs.expand(7, -1, -1), every), -1)
    # The generator moved on by our draw; observations and the batch's own actions are the same, uniform ones in mean.
    found = algo.critic.renorms[0].mean[0, 0]
    width = batch.obs.shape[-1]
    torch.testing.assert_close(found[:width], 0.01 * rows[..., :width].mean((0, 1)))
    assert found[width:].abs().max() < 0.01


def test_critics_are_told_apart_by_the_gradients_that_the_actor_follows() -> None:
    algo = small_algo("edac", *RENORM)
    for seed in range(3):
        algo.update(random_batch(algo, seed=seed))
    batch = random_batch(algo, seed=7)
    action = batch.action.repeat(algo.n_critics, 1, 1).requires_grad_()
    moved = copy.deepcopy(algo.critic)
    with learning(list(moved.renorms)):
        moved(batch.obs, batch.action)
    (gradient,) = torch.autograd.grad(moved(batch.obs, action).sum(), action)  # by the running averages
    wanted = edac_similarity(gradient)
    assert algo.update(batch).metrics["q/similarity"].item() == pytest.approx(wanted.item(), rel=1e-4)


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
    "ppo": ("ppo", "model.norm=batch_renorm", "model.dropout=0.2"),
    "a2c": ("a2c", "model.norm=batch_renorm", "model.dropout=0.2"),
    "trpo": ("trpo", "model.norm=batch_renorm", "model.dropout=0.2"),
    "recurrent_ppo": ("recurrent_ppo", "model.norm=batch_renorm", "model.dropout=0.2"),
    "td3": ("td3", "model.critic_norm=batch_renorm", "model.renorm_warmup=2"),
    "edac": ("edac", "model.norm=batch_renorm"),
    "cql": ("cql", "model.norm=batch_renorm"),
    "bcq": ("bcq", "model.norm=batch_renorm"),
    "iql": ("iql", "model.norm=batch_renorm"),
}
IN_EVERY_TEST_RUN = ("simba", "ppo")


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=() if name in IN_EVERY_TEST_RUN else pytest.mark.learning) for name in VARIANTS],
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
        dropout.on = norm.on = True
        return dropout, norm

    eager, compiled = stack(), stack()

    def forward(parts: tuple[Dropout, BatchRenorm], x: Tensor) -> Tensor:
        return parts[1](parts[0](x))

    options = {"cpp_wrapper": True, "cpp.vec_isa_ok": True}  # as updates are compiled
    run = torch.compile(lambda x: forward(compiled, x), fullgraph=True, dynamic=False, options=options)
    for _ in range(3):
        x = torch.randn(2, 33, 40)
        torch.testing.assert_close(run(x), forward(eager, x), rtol=1e-4, atol=1e-5)
    for left, right in zip(compiled, eager, strict=True):
        assert_close(flatten(dict(left.state_dict())), flatten(dict(right.state_dict())))
    torch._dynamo.reset()


# ---- whole runs


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=() if name in ("droq", "simba", "crossq", "ppo") else pytest.mark.learning)
        for name in VARIANTS
    ],
)
def test_a_run_that_was_cut_short_goes_on_to_the_same_numbers(variant: str, tmp_path: Path) -> None:
    name, *changes = VARIANTS[variant]
    scheduled = {"dqn": "epsilon", "iql": "actor_learning_rate"}.get(name)  # over the budget, which is about to change
    changes += [f"algo.schedules.{scheduled}=null"] if scheduled else []
    Runner(small_config(name, changes=tuple(changes))).train(tmp_path / "whole")
    budget = "trainer.total_updates" if home_loop(name) == OFFLINE else "trainer.total_steps"
    Runner(small_config(name, changes=(*changes, f"{budget}=80"))).train(tmp_path / "cut")
    resume_run(tmp_path / "cut", [f"{budget}=120"], trust=EVERYTHING)
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
        return PlainNet(action_dim, out, ensemble)


class PlainNet(nn.Module):
    def __init__(self, action_dim: int, out: int, ensemble: int | None) -> None:
        super().__init__()
        self.linear, self.ensemble = nn.Linear(OBS + action_dim, out), ensemble

    def forward(self, *parts: Tensor) -> Tensor:
        values = self.linear(torch.cat(parts, -1))
        return values if self.ensemble is None else values.expand(self.ensemble, -1, -1)


def test_crossq_needs_nothing_of_networks_but_to_be_called() -> None:
    algo = CrossQ(actor_interval=1)
    algo.setup(env_spec("continuous"), PlainModel(), device=CPU, seed=0)
    before = flatten(algo.state_dict())
    algo.update(random_batch(algo))
    after = flatten(algo.state_dict())
    assert not torch.equal(before["actor/linear.weight"], after["actor/linear.weight"])
