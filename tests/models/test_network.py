from __future__ import annotations

import copy
import math

import hydra
import pytest
import torch
from torch import nn
from torch.nn import functional

from rlexp.config.check import build, to_plain
from rlexp.errors import ConfigError
from rlexp.models import Activation, EncoderKind, Model, Net, NetDefaults, Network, Norm
from rlexp.models.description import described
from rlexp.models.target import TargetNetwork
from tests.models.specs import box, env_spec, image

SMALL = NetDefaults(hidden=(16, 8), activation=Activation.tanh)
ORTHOGONAL = NetDefaults(hidden=(16, 8), activation=Activation.tanh, init="orthogonal")


def make(out: int | None = 3, model: Network | None = None, defaults: NetDefaults = SMALL, **kwargs) -> Net:
    return (model or Network()).build(env_spec(box(4)), out, defaults=defaults, **kwargs)


def scramble(net: nn.Module) -> None:
    """Random values everywhere, so that no parameter can be left out unnoticed."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()


@pytest.mark.parametrize("activation", list(Activation))
def test_a_network_is_linear_layers_with_activations_between(activation: Activation) -> None:
    modules = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
    net = make(model=Network(activation=activation))
    act = modules[activation.value]
    naive = nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 8), act(), nn.Linear(8, 3))
    for own, other in zip(net.parameters(), naive.parameters(), strict=True):
        other.data.copy_(own)
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), naive(x))


@pytest.mark.parametrize(("norm", "normalized_first"), [(Norm.layer, True), (Norm.layer_after, False)])
def test_layer_norm_stands_before_or_after_the_activation(norm: Norm, normalized_first: bool) -> None:
    net = make(model=Network(norm=norm, hidden=(6,)))
    scramble(net)
    layer = net.layers[0]
    x = torch.randn(5, 4)
    h = functional.linear(x, layer.weight, layer.bias)
    h = h if normalized_first else h.tanh()
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    h = h * layer.norm_weight + layer.norm_bias
    h = h.tanh() if normalized_first else h
    torch.testing.assert_close(net(x), functional.linear(h, net.layers[1].weight, net.layers[1].bias))


@pytest.mark.parametrize("out", [1, 2, None])
@pytest.mark.parametrize("norm", [Norm.none, Norm.layer, Norm.layer_after])
def test_an_ensemble_equals_its_members_one_by_one(norm: Norm, out: int | None) -> None:
    ensemble = make(out, Network(norm=norm), action_dim=2, ensemble=3)
    scramble(ensemble)
    obs, action = torch.randn(5, 4), torch.randn(5, 2)
    together = ensemble(obs, action)
    assert together.shape == (3, 5, out or 8)
    for i in range(3):
        member = make(out, Network(norm=norm), action_dim=2)
        for place, (own, other) in enumerate(zip(member.layers, ensemble.layers, strict=True)):
            own.weight.data.copy_(other.weight[i].T if place < 2 else other.weight[i])
            own.bias.data.copy_(other.bias[i, 0])
            if own.norm_weight is not None:
                own.norm_weight.data.copy_(other.norm_weight[i, 0])
                own.norm_bias.data.copy_(other.norm_bias[i, 0])
        torch.testing.assert_close(together[i], member(obs, action))


def test_each_member_can_have_its_own_actions() -> None:
    ensemble = make(1, action_dim=2, ensemble=3)
    obs, actions = torch.randn(5, 4), torch.randn(3, 5, 2)
    together = ensemble(obs, actions)
    for i in range(3):
        torch.testing.assert_close(together[i], ensemble(obs, actions[i])[i])


def test_members_are_initialised_independently_and_each_as_a_single_network() -> None:
    torch.manual_seed(0)
    weight = make(defaults=ORTHOGONAL, ensemble=3).layers[0].weight  # [3, 4, 16]
    assert not torch.equal(weight[0], weight[1])
    for member in weight:
        torch.testing.assert_close(member @ member.T, 2 * torch.eye(4), rtol=1e-4, atol=1e-4)  # gain √2
    torch.manual_seed(1)
    ensemble = make(ensemble=2)
    bound = 1 / math.sqrt(4)
    assert not torch.equal(ensemble.layers[0].weight[0], ensemble.layers[0].weight[1])
    for parameter in (ensemble.layers[0].weight, ensemble.layers[0].bias):
        assert 0.8 * bound < parameter.abs().max() <= bound


def test_torch_initialisation_has_the_spread_of_nn_linear() -> None:
    torch.manual_seed(0)
    net, reference = make(64, Network(hidden=(256,))), nn.Linear(256, 64)
    for own, other in ((net.layers[1].weight, reference.weight), (net.layers[1].bias, reference.bias)):
        assert own.abs().max() <= 1 / 16
        assert own.std().item() == pytest.approx(other.std().item(), rel=0.3 if own.dim() == 1 else 0.03)


def test_the_output_layer_has_a_gain_of_its_own() -> None:
    head = make(2, defaults=ORTHOGONAL, out_gain=0.01).layers[-1]
    torch.testing.assert_close(head.weight @ head.weight.T, 1e-4 * torch.eye(2), rtol=1e-3, atol=1e-8)
    assert head.bias.abs().max() == 0
    assert make(2, out_gain=0.01).layers[-1].weight.abs().max() <= 0.01 / math.sqrt(8)


def test_null_settings_are_the_algorithms_own_and_others_replace_them() -> None:
    own = make(defaults=NetDefaults(hidden=(7,), activation=Activation.elu, norm=Norm.layer))
    assert [tuple(layer.weight.shape) for layer in own.layers] == [(7, 4), (3, 7)]
    assert own.layers[0].norm_weight is not None
    given = make(model=Network(hidden=(5, 5), norm=Norm.none), defaults=NetDefaults(hidden=(7,), norm=Norm.layer))
    assert [tuple(layer.weight.shape) for layer in given.layers] == [(5, 4), (5, 5), (3, 5)]
    assert given.layers[0].norm_weight is None
    assert [tuple(layer.weight.shape) for layer in make(model=Network(hidden=())).layers] == [(3, 4)]


def test_behind_a_lone_cnn_there_are_hidden_layers_only_on_demand_or_to_mix_in_an_action() -> None:
    spec = env_spec(image(3, 36, 36))
    widths = lambda net: [layer.weight.shape[-2:] for layer in net.layers]  # noqa: E731
    assert widths(Network().build(spec, 2, defaults=SMALL)) == [(2, 512)]
    assert widths(Network(hidden=(9,)).build(spec, 2, defaults=SMALL)) == [(9, 512), (2, 9)]
    assert widths(Network().build(spec, 2, defaults=SMALL, action_dim=1)) == [(16, 513), (8, 16), (2, 8)]
    mixed = env_spec(camera=image(3, 36, 36), speed=box(2))
    assert widths(Network().build(mixed, 2, defaults=SMALL)) == [(16, 514), (8, 16), (2, 8)]


def test_leading_axes_are_kept() -> None:
    net = make()
    x = torch.randn(6, 5, 4)
    torch.testing.assert_close(net(x), net(x.flatten(0, 1)).view(6, 5, 3))


def test_without_an_output_layer_a_network_gives_its_features() -> None:
    net = make(None)
    assert net.out == 8
    assert net(torch.randn(5, 4)).shape == (5, 8)
    assert net(torch.randn(5, 4)).abs().max() <= 1  # tanh


def test_a_float_vector_needs_no_encoder() -> None:
    assert make().encoder is None


def test_a_copy_has_parameters_of_its_own() -> None:
    net = make(ensemble=2)
    target = copy.deepcopy(net)
    x = torch.randn(5, 4)
    before = net(x)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    assert target(x).abs().max() == 0
    torch.testing.assert_close(net(x), before)


def test_loading_and_moving_change_what_forward_uses() -> None:
    net, other = make(), make()
    net.load_state_dict(other.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), other(x))
    assert net.double()(x.double()).dtype == torch.float64


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.hidden.*\[64, 0\]"):
        Network(hidden=(64, 0))


@pytest.mark.parametrize(("name", "encoder"), [("auto", "auto"), ("mlp", "flat"), ("nature_cnn", "nature_cnn")])
def test_the_shipped_settings_compose(name: str, encoder: str) -> None:
    with hydra.initialize_config_module("rlexp.conf", version_base="1.3"):
        config = hydra.compose(overrides=[f"+model={name}", "model.hidden=[32]", "model.activation=silu"])
    model: Model = build("model", to_plain(config.model))
    assert isinstance(model, Network)
    assert (model.encoder, list(model.hidden or ())) == (EncoderKind(encoder), [32])
    assert model.activation is Activation.silu
    if name != "nature_cnn":
        assert model.build(env_spec(box(4)), 2, defaults=SMALL)(torch.randn(1, 4)).shape == (1, 2)


@pytest.mark.parametrize("norm", [Norm.none, Norm.layer, Norm.layer_after])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_first_of_an_ensemble_alone_says_what_it_says_among_the_others(norm: Norm, dropout: float) -> None:
    model = Network(norm=norm, dropout=dropout)
    for out in (1, 3):
        net = make(out, model, action_dim=2, ensemble=3)
        scramble(net)
        obs, action = torch.randn(5, 4), torch.randn(5, 2)
        torch.testing.assert_close(net.first_of(obs, action), net(obs, action)[0])


@pytest.mark.parametrize("model", [Network(dropout=0.5), Network(norm=Norm.layer)])
def test_settings_of_hidden_layers_are_refused_where_there_are_none(model: Network) -> None:
    with pytest.raises(ConfigError, match=r"no effect on a network without hidden layers"):
        model.build(env_spec(image(4, 84, 84)), 3, defaults=SMALL)


def test_networks_are_described_as_they_are_built() -> None:
    actor = make(2)
    critic = make(1, Network(hidden=(5,), norm=Norm.layer), SMALL.of_critic(), action_dim=1, ensemble=2)
    layers = 4 * 16 + 16 + 16 * 8 + 8 + 8 * 2 + 2
    members = 2 * ((5 * 5 + 5) + 2 * 5 + (5 + 1))  # LayerNorm has a weight and a bias for each unit
    parts = {"actor": actor, "target_critic": TargetNetwork(critic), "critic": critic}
    assert described(parts) == f"actor 16-8 tanh, 2 critics 5 tanh LayerNorm, {layers + members} parameters"
    assert described({"critic": make(1, Network(hidden=(5,), dropout=0.1))}).startswith("critic 5 tanh dropout 0.1, ")
    seeing = Network(shared_encoder=True)
    first, second = (seeing.build(env_spec(image(84, 84, 3)), 1, defaults=SMALL) for _ in range(2))
    alone = sum(parameter.numel() for parameter in first.parameters())
    seeing.share_encoder(first, second)
    assert described({"actor": first, "value_net": second}) == (
        f"actor Nature CNN, value net linear, {alone + 513:,} parameters"  # one CNN of 512 features for both
    )
    assert described({"actor": nn.Sequential(nn.Linear(2, 3), nn.ReLU())}) == "actor Sequential, 9 parameters"
