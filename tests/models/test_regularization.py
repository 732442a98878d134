"""Norms, dropout and residual blocks against loops over plain numbers and naive modules."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlexp.errors import ConfigError
from rlexp.models import Activation, Net, NetDefaults, Network, Norm
from rlexp.models.regularization import NUMBERS, BatchRenorm, Dropout, learning, scramble
from rlexp.models.target import TargetNetwork
from tests.models.specs import box, env_spec, image

SMALL = NetDefaults(hidden=(6, 6), activation=Activation.tanh)


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


def trained(net: nn.Module, *inputs: Tensor, **keywords: Tensor) -> Tensor:
    """A pass as within an update, by which dropout and BatchRenorm learn."""
    with learning([module for module in net.modules() if isinstance(module, BatchRenorm)]):
        return net(*inputs, **keywords)


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
            found = trained(norm, x) if train else norm(x)
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
    (found,) = torch.autograd.grad((trained(norm, x) * pull).sum(), x)
    plain = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt()
    (wanted,) = torch.autograd.grad(((plain * r + d) * pull).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (r - 1).abs().min() > 0.01


def test_only_passes_that_lead_to_a_step_of_its_own_train_batch_renorm() -> None:
    x, action = torch.randn(5, 4) * 2 + 1, torch.randn(5, 2)

    def moved(net: nn.Module, *inputs: Tensor) -> bool:
        before = [norm.mean.clone() for norm in net.renorms]
        net(*inputs)
        return any(not torch.equal(was, norm.mean) for was, norm in zip(before, net.renorms, strict=True))

    plain, critic = (
        Network(norm=Norm.batch_renorm).build(env_spec(box(4)), 1, defaults=defaults, action_dim=2)
        for defaults in (SMALL, SMALL.of_critic())
    )
    target = TargetNetwork(critic)
    asked = (action * nn.Parameter(torch.ones(2))).tanh()
    assert not moved(critic, x, action)  # nobody learns
    with learning([*plain.renorms, *critic.renorms, *target.net.renorms]):
        assert moved(critic, x, action)
        assert moved(plain, x, action)
        assert moved(plain, x, asked)  # a decoder of latents, say
        assert not moved(critic, x, asked)  # a policy wants to know what would be better
        assert moved(critic, x * nn.Parameter(torch.ones(4)), action)  # behind a CNN, whose features have a gradient
        assert not moved(target.net, x, action)
        with torch.no_grad():
            assert not moved(critic, x, action)
    assert not moved(critic, x, action)


def test_where_nothing_is_clipped_batch_renorm_answers_the_same_in_training_and_in_use() -> None:
    net = make(norm=Norm.batch_renorm)  # no warm-up, unless an algorithm has one
    x = torch.randn(200, 4)
    with torch.no_grad():
        h = x
        for norm, layer in zip(net.renorms, net.layers, strict=True):
            norm.mean.copy_(h.mean(0) + 0.1)
            norm.var.copy_(h.var(0) * 1.3)
            h = nn.functional.linear(norm(h), layer.weight, layer.bias).tanh()
    used = net(x)
    torch.testing.assert_close(trained(net, x), used, rtol=1e-4, atol=1e-5)
    assert make(norm=Norm.batch_renorm, renorm_warmup=7).renorms[0].warmup == 7
    crossq = NetDefaults(norm=Norm.batch_renorm, renorm_warmup=9)
    assert Network().build(env_spec(box(4)), 1, defaults=crossq).renorms[0].warmup == 9


def test_rows_that_are_not_counted_leave_no_trace() -> None:
    x, padding = torch.randn(6, 4) * 2 + 1, torch.full((3, 4), 50.0)
    alone, padded = make(norm=Norm.batch_renorm), make(norm=Norm.batch_renorm)
    padded.load_state_dict(alone.state_dict())
    counted = torch.tensor([0, 1, 1, 1, 0, 1, 1, 1, 0.0])
    mixed = torch.empty(9, 4)
    mixed[counted.bool()], mixed[~counted.bool()] = x, padding
    found = trained(padded, mixed, counted=counted)
    torch.testing.assert_close(found[counted.bool()], trained(alone, x))
    for ours, theirs in zip(padded.renorms, alone.renorms, strict=True):
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.var, theirs.var)
    torch.testing.assert_close(padded.renorms[0].mean, 0.01 * x.mean(0))
    # Two rows of one number, (1, 3): mean 2, variance 1, averages 0 and 1 before, r = 1, d = 2, so (−1, 1) / 1 + 2.
    norm = BatchRenorm(1)
    norm.EPS = 0.0
    rows = trained(norm, torch.tensor([[1.0], [3.0], [8.0]]), counted=torch.tensor([1.0, 1.0, 0.0]))
    assert rows.flatten().tolist() == pytest.approx([1, 3, 8])
    assert (norm.mean.item(), norm.var.item()) == (pytest.approx(0.02), pytest.approx(1.0))


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
    assert not torch.allclose(trained(net, x), expected, atol=1e-2)
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


def test_a_number_stands_for_the_units_a_row_goes_without() -> None:
    first, second = Dropout(0.3), Dropout(0.3, place=1)
    x, numbers = torch.randn(5, 40), torch.tensor([0, 7, 7, 123_456_789, NUMBERS - 1])
    for place, dropout in enumerate((first, second)):
        keys = [hashed(number ^ hashed(place + 1)) for number in numbers.tolist()]
        kept = torch.tensor([[hashed(unit ^ key) >= 0.3 * 2**32 for unit in range(40)] for key in keys])
        before = int(dropout.calls)
        for on in (False, True):
            dropout.on = on
            torch.testing.assert_close(dropout(x, numbers), x * kept / 0.7)
        assert int(dropout.calls) == before
        torch.testing.assert_close(dropout(x[[4, 1]], numbers[[4, 1]]), (x * kept / 0.7)[[4, 1]])  # in any company
        assert torch.equal(kept[1], kept[2])
    ones = torch.ones(2000, 128)
    many = torch.randint(NUMBERS, (2000,), generator=torch.Generator().manual_seed(0))
    masks = [dropout(ones, many) == 0 for dropout in (first, second)]
    deviation = (0.3 * 0.7) ** 0.5
    for mask in masks:
        assert mask.float().mean().item() == pytest.approx(0.3, abs=5 * deviation / (2000 * 128) ** 0.5)
        for axis, count in ((0, 2000), (1, 128)):
            assert mask.float().mean(axis).std().item() == pytest.approx(deviation / count**0.5, rel=0.3)
    assert (masks[0] & masks[1]).float().mean().item() == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("settings", [{}, {"residual": True}])
def test_a_network_hands_the_numbers_of_rows_to_all_its_layers(settings: dict[str, object]) -> None:
    net = make(dropout=0.4, **settings)
    scramble_parameters(net)
    x, numbers = torch.randn(5, 4), torch.arange(5)
    found = net(x, dropped=numbers)
    assert not torch.allclose(found, net(x), atol=1e-2)
    torch.testing.assert_close(net(x[[3, 0]], dropped=numbers[[3, 0]]), found[[3, 0]])
    if not settings:
        h = x
        for dropout, layer in zip(net.dropouts, net.layers[:2], strict=True):
            h = dropout(nn.functional.linear(h, layer.weight, layer.bias), numbers).tanh()
        torch.testing.assert_close(found, nn.functional.linear(h, net.layers[2].weight, net.layers[2].bias))
    places = [module.salt for module in net.modules() if isinstance(module, Dropout)]
    assert len(set(places)) == len(places) == 2


def test_a_policy_that_must_be_told_its_units_does_not_drop_others() -> None:
    net = make(dropout=0.4)
    for dropout in net.dropouts:
        dropout.numbered = True
    net(torch.randn(5, 4))  # nothing is dropped
    with (
        learning(list(net.dropouts)),
        pytest.raises(ConfigError, match=r"model\.dropout: .* dropped=….*critic_dropout"),
    ):
        net(torch.randn(5, 4))


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
    together = trained(ensemble, obs, action) if train else ensemble(obs, action)
    for i, member in enumerate(members):
        alone = trained(member, obs, action[i]) if train else member(obs, action[i])
        torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-5)


# ---- together


def test_the_first_critic_is_asked_alone_or_among_the_others() -> None:
    spec = env_spec(image(3, 36, 36))
    images, action = torch.randint(256, (5, 3, 36, 36), dtype=torch.uint8), torch.randn(5, 2)
    for settings in ({}, {"dropout": 0.4}, {"norm": Norm.batch_renorm}, {"residual": True, "hidden": (6, 6)}):
        critic = Network(**settings).build(spec, 1, defaults=SMALL.of_critic(), ensemble=2, action_dim=2)
        torch.testing.assert_close(critic.first_of(images, action), critic(images, action)[0])


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
    trained(source, x)
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
    torch.testing.assert_close(trained(source, x), trained(twin, x))
    trained(source, x)
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
