"""Norms, dropout and residual blocks against loops over plain numbers and naive modules."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlexp.errors import ConfigError
from rlexp.models import Activation, Net, NetDefaults, Network, Norm
from rlexp.models.regularization import BatchRenorm, Dropout, scramble
from rlexp.models.target import TargetNetwork
from tests.models.specs import box, env_spec, image

SMALL = NetDefaults(hidden=(6, 6), activation=Activation.tanh, says_train=True)


def make(out: int | None = 3, *, ensemble: int | None = None, action_dim: int = 0, **settings: object) -> Net:
    return Network(**settings).build(env_spec(box(4)), out, defaults=SMALL, ensemble=ensemble, action_dim=action_dim)


def scramble_parameters(net: nn.Module) -> None:
    """Random values everywhere, so that no parameter can be left out unnoticed."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
        for name, buffer in net.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()


# ---- BatchRenorm


class NaiveRenorm:
    """Ioffe's algorithm 1 on NumPy columns, with CrossQ's warm-up."""

    def __init__(self, momentum: float, warmup: int) -> None:
        self.momentum, self.warmup, self.passes = momentum, warmup, 0
        self.mean, self.var = 0.0, 1.0

    def train(self, column: np.ndarray) -> np.ndarray:
        mean, var = sum(column) / len(column), sum((column - column.mean()) ** 2) / len(column)
        std, running = np.sqrt(var + 1e-3), np.sqrt(self.var + 1e-3)
        r, d = 1.0, 0.0
        if self.passes >= self.warmup:
            r = min(max(std / running, 1 / 3), 3)
            d = min(max((mean - self.mean) / running, -5), 5)
        self.mean = self.momentum * self.mean + (1 - self.momentum) * mean
        self.var = self.momentum * self.var + (1 - self.momentum) * var
        self.passes += 1
        return (column - mean) / std * r + d

    def use(self, column: np.ndarray) -> np.ndarray:
        return (column - self.mean) / np.sqrt(self.var + 1e-3)


@pytest.mark.parametrize("ensemble", [None, 3])
def test_batch_renorm_equals_the_papers_loop_before_and_after_warming_up(ensemble: int | None) -> None:
    norm = BatchRenorm(4, ensemble, momentum=0.9, warmup=3)
    scales = (1.0, 10.0, 0.01, 2.0)  # far enough from the running averages to reach the bounds of r and d
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    members = range(ensemble or 1)
    naive = [[NaiveRenorm(0.9, 3) for _ in scales] for _ in members]
    for step in range(8):
        x = torch.randn(*(() if ensemble is None else (ensemble,)), 5, 4) * torch.tensor(scales) + step
        for train in (False, True, False):
            before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
            found = norm(x, train)
            for i in members:
                pick = (lambda t, i=i: t) if ensemble is None else (lambda t, i=i: t[i])
                for k in range(4):
                    column = pick(x)[:, k].double().numpy()
                    wanted = naive[i][k].train(column) if train else naive[i][k].use(column)
                    wanted = wanted * pick(norm.weight)[..., k].item() + pick(norm.bias)[..., k].item()
                    np.testing.assert_allclose(pick(found)[:, k].detach(), wanted, rtol=2e-3, atol=2e-4)
            if not train:
                assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())
    assert norm.passes.item() == 8


def test_batch_renorm_corrects_as_by_constants() -> None:
    norm = BatchRenorm(2, warmup=0)
    x = (torch.randn(6, 2) * 1.5 + 1).double().requires_grad_()
    mean, var = x.detach().mean(0), x.detach().var(0, correction=0)
    r, d = (var + 1e-3).sqrt() / 1.001**0.5, mean / 1.001**0.5  # running averages 0 and 1
    pull = torch.randn(6, 2)
    (found,) = torch.autograd.grad((norm(x, train=True) * pull).sum(), x)
    plain = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt()
    (wanted,) = torch.autograd.grad(((plain * r + d) * pull).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (r - 1).abs().min() > 0.01


def test_batch_renorm_normalises_the_inputs_of_every_linear_layer() -> None:
    net = make(norm=Norm.batch_renorm, renorm_warmup=0)
    scramble_parameters(net)
    x = torch.randn(7, 4)
    expected = x
    for norm, layer in zip(net.renorms, net.layers, strict=True):
        expected = (expected - norm.mean) / (norm.var + 1e-3).sqrt() * norm.weight + norm.bias
        expected = nn.functional.linear(expected, layer.weight, layer.bias)
        expected = expected.tanh() if layer is not net.layers[-1] else expected
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(net(x, train=True), expected, atol=1e-2)
    assert make(None, norm=Norm.batch_renorm)(x).shape == (7, 6)


# ---- dropout


def hashed(value: int) -> int:
    """The published hash, on Python's integers."""
    for _ in range(2):
        value = ((value >> 16) ^ value) * 0x45D9F3B % 2**32
    return (value >> 16) ^ value


def test_the_hash_is_the_published_one() -> None:
    values = [0, 1, 2, 65_536, 2**31 - 1, 2**32 - 1, 123_456_789]
    assert scramble(torch.tensor(values)).tolist() == [hashed(value) for value in values]


def mask(dropout: Dropout, *shape: int) -> Tensor:
    """What the next call multiplies by, from the definition."""
    key = hashed(int(dropout.calls))
    kept = [hashed(place ^ key) >= dropout.rate * 2**32 for place in range(int(np.prod(shape)))]
    return torch.tensor(kept).view(shape) / (1 - dropout.rate)


def test_dropout_is_a_function_of_its_counter_and_off_unless_switched_on() -> None:
    dropout, x = Dropout(0.3), torch.randn(40, 50)
    assert dropout(x) is x
    dropout.on = True
    start = int(dropout.calls)
    first = mask(dropout, 40, 50)
    torch.testing.assert_close(dropout(x), x * first)
    second = mask(dropout, 40, 50)
    torch.testing.assert_close(dropout(x), x * second)
    assert int(dropout.calls) == start + 2
    assert ((first > 0) == (second > 0)).float().mean().item() == pytest.approx(0.7**2 + 0.3**2, abs=0.04)


def test_dropout_drops_its_share_of_units_rows_and_calls() -> None:
    dropout, share = Dropout(0.1), torch.zeros(64, 128)
    dropout.on = True
    for _ in range(200):
        share += dropout(torch.ones(64, 128)) == 0
    share /= 200
    deviation = (0.1 * 0.9 / 200) ** 0.5
    assert share.mean().item() == pytest.approx(0.1, abs=5 * deviation / (64 * 128) ** 0.5)
    assert share.std().item() == pytest.approx(deviation, rel=0.1)
    for axis in (0, 1):
        lines = share.mean(axis)
        assert lines.std().item() == pytest.approx(deviation / share.shape[axis] ** 0.5, rel=0.3)


@pytest.mark.parametrize("norm", [Norm.none, Norm.layer, Norm.layer_after, Norm.batch_renorm])
def test_dropout_stands_behind_the_linear_layer_before_norm_and_activation(norm: Norm) -> None:
    net = make(norm=norm, dropout=0.4)
    scramble_parameters(net)
    x = torch.randn(5, 4)
    whole = net(x)
    for dropout in net.dropouts:
        dropout.on = True
    h = x
    for i, layer in enumerate(net.layers[:2]):
        h = net.renorms[i](h) if norm is Norm.batch_renorm else h
        h = nn.functional.linear(h, layer.weight, layer.bias) * mask(net.dropouts[i], 5, 6)
        if norm is Norm.layer:
            h = nn.functional.layer_norm(h, (6,), layer.norm_weight, layer.norm_bias)
        h = h.tanh()
        if norm is Norm.layer_after:
            h = nn.functional.layer_norm(h, (6,), layer.norm_weight, layer.norm_bias)
    h = net.renorms[2](h) if norm is Norm.batch_renorm else h
    found = net(x)
    torch.testing.assert_close(found, nn.functional.linear(h, net.layers[2].weight, net.layers[2].bias))
    assert not torch.allclose(found, whole, atol=1e-2)


def test_members_of_an_ensemble_drop_units_of_their_own() -> None:
    net = make(1, dropout=0.5, ensemble=2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    x = torch.randn(5, 4)
    assert torch.equal(net(x)[0], net(x)[1])
    for dropout in net.dropouts:
        dropout.on = True
    assert not torch.equal(net(x)[0], net(x)[1])


# ---- residual blocks


class NaiveSimBa(nn.Module):
    """The published network, from torch's own modules."""

    def __init__(self, inputs: int, width: int, blocks: int, out: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.last = nn.LayerNorm(width)
        self.stem, self.head = nn.Linear(inputs, width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.last(x))


def test_a_residual_network_is_simbas() -> None:
    net = make(residual=True, hidden=(8, 8), activation=Activation.relu)
    scramble_parameters(net)
    naive = NaiveSimBa(4, 8, 2, 3)
    for own, other in zip(net.parameters(), naive.parameters(), strict=True):
        assert own.shape == other.shape
        other.data.copy_(own)
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), naive(x))
    assert make(None, residual=True).out == 6
    images = Network(residual=True).build(env_spec(image(3, 36, 36)), 2, defaults=SMALL)
    assert len(images.blocks) == 2  # its blocks are not lost behind a CNN


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("settings", [{"residual": True}, {"norm": Norm.batch_renorm, "renorm_warmup": 0}])
def test_an_ensemble_equals_its_members_one_by_one(settings: dict[str, object], train: bool) -> None:
    ensemble = make(1, ensemble=3, action_dim=2, **settings)
    scramble_parameters(ensemble)
    obs, action = torch.randn(5, 4), torch.randn(3, 5, 2)
    members = [make(1, action_dim=2, **settings) for _ in range(3)]
    for i, member in enumerate(members):
        state = ensemble.state_dict()
        for name, own in member.state_dict().items():
            given = state[name] if name.endswith("passes") else state[name][i]
            hidden = own.dim() == 2 and name != f"layers.{len(member.layers) - 1}.weight"
            own.copy_(given.T if hidden else given.reshape(own.shape))
    together = ensemble(obs, action, train=train)
    for i, member in enumerate(members):
        torch.testing.assert_close(together[i], member(obs, action[i], train=train), rtol=1e-4, atol=1e-5)


# ---- together


def test_settings_of_critics_hold_for_critics_alone() -> None:
    model = Network(
        norm=Norm.none, critic_hidden=(5,), critic_norm=Norm.layer, critic_dropout=0.2, critic_weight_decay=0.1
    )
    spec = env_spec(box(4))
    other, critic = model.build(spec, 1, defaults=SMALL), model.build(spec, 1, defaults=SMALL.of_critic())
    assert (len(other.layers), other.norm, other.dropouts) == (3, Norm.none, None)
    assert (len(critic.layers), critic.norm, len(critic.dropouts)) == (2, Norm.layer, 1)
    assert not hasattr(other.layers[0].weight, "weight_decay")
    assert critic.layers[0].weight.weight_decay == 0.1
    own = Network(dropout=0.3, critic_dropout=0.0)
    assert own.build(spec, 1, defaults=SMALL.of_critic()).dropouts is None
    own.check_used("SAC")


def test_only_weights_decay() -> None:
    model = Network(weight_decay=0.1, norm=Norm.layer, hidden=(8,))
    net = model.build(env_spec(image(3, 36, 36)), 2, defaults=SMALL, ensemble=2)
    decaying = {name for name, parameter in net.named_parameters() if hasattr(parameter, "weight_decay")}
    assert decaying == {name for name, _ in net.named_parameters() if name.endswith(".weight")}
    net = make(residual=True, weight_decay=0.1)
    decaying = {name for name, parameter in net.named_parameters() if hasattr(parameter, "weight_decay")}
    blocks = {f"blocks.{i}.{part}.weight" for i in range(2) for part in ("expand", "contract")}
    assert decaying == blocks | {"layers.0.weight", "layers.1.weight"}


def test_targets_follow_running_averages_and_drop_units_of_their_own() -> None:
    source = make(1, norm=Norm.batch_renorm, dropout=0.5, ensemble=2)
    target = TargetNetwork(source)
    for ours, theirs in zip(target.net.dropouts, source.dropouts, strict=True):
        assert int(ours.calls) != int(theirs.calls)
    x = torch.randn(50, 4) * 3 + 1
    source(x, train=True)
    target.follow(0.5)
    for ours, theirs in zip(target.net.renorms, source.renorms, strict=True):
        torch.testing.assert_close(ours.mean, theirs.mean / 2)
        torch.testing.assert_close(ours.var, (1 + theirs.var) / 2)
        assert (ours.passes.item(), theirs.passes.item()) == (0, 1)  # it never trains


def test_a_copy_shares_no_counter_and_no_average() -> None:
    source = make(norm=Norm.batch_renorm, dropout=0.5)
    twin = copy.deepcopy(source)
    for dropout in (*source.dropouts, *twin.dropouts):
        dropout.on = True
    x = torch.randn(5, 4)
    torch.testing.assert_close(source(x, train=True), twin(x, train=True))
    source(x, train=True)
    assert int(source.dropouts[0].calls) == int(twin.dropouts[0].calls) + 1
    assert not torch.equal(source.renorms[0].mean, twin.renorms[0].mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"residual": True, "hidden": (8, 4)}, r"model\.residual needs blocks of one width.*\[8, 4\]"),
        ({"residual": True, "norm": Norm.layer_after}, r"drop model\.norm=layer_after"),
        ({"dropout": 1.0}, r"model\.dropout=1 would drop everything"),
        ({"critic_hidden": (0,)}, r"model\.critic_hidden.*\[0\]"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_residual_networks_are_not_noisy() -> None:
    with pytest.raises(ConfigError, match=r"algo\.noisy=false"):
        Network(residual=True).build(env_spec(box(4)), 1, defaults=SMALL, noisy=0.5)


def test_batch_renorm_is_refused_where_nobody_says_which_passes_train() -> None:
    with pytest.raises(ConfigError, match=r"model\.norm=batch_renorm needs .*algo=crossq"):
        Network(norm=Norm.batch_renorm).build(env_spec(box(4)), 1, defaults=NetDefaults())
