"""Step for step against torch.optim, eagerly (the fused kernel) and as traced (plain tensor code)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rlexp.errors import CheckpointError
from rlexp.optim import Adam, Optimizer, RMSprop, _once, polyak, set_weight_decay

SHAPES = [(3, 4), (4,), (), (2, 3, 2), (1, 5)]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def parameters() -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in SHAPES]


def twins() -> tuple[list[Tensor], list[Tensor]]:
    ours = parameters()
    return ours, [param.detach().clone().requires_grad_() for param in ours]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)  # rounding over some twenty steps


def follow(ours: Optimizer, theirs: torch.optim.Optimizer, max_norm: float | None, steps: int = 20) -> None:
    """Give both the same gradients, of very different sizes, and compare after every step."""
    reference = theirs.param_groups[0]["params"]
    for step in range(steps):
        grads = [torch.randn_like(param) * 10.0 ** (step % 5 - 3) for param in reference]
        for param, grad in zip(reference, grads, strict=True):
            param.grad = grad.clone()
        norm = ours.apply([grad.clone() for grad in grads])
        if max_norm is None:
            assert norm.item() == 0
        else:
            torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(reference, max_norm))
        theirs.step()
        assert_equal(ours.params, reference)


@pytest.fixture(params=["fused", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two implementations: eager, and what a compiler traces."""
    if request.param == "plain":
        monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    return request.param


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_torchs_adamw(max_norm: float | None, betas: tuple[float, float], weight_decay: float) -> None:
    ours, theirs = twins()
    settings = {"lr": 0.05, "betas": betas, "eps": 1e-5, "weight_decay": weight_decay}
    follow(Adam(ours, **settings, max_grad_norm=max_norm), torch.optim.AdamW(theirs, **settings), max_norm)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_marked_parameters_decay_as_in_torchs_adamw(max_norm: float | None) -> None:
    ours, theirs = twins()
    set_weight_decay(ours[:2], 0.1)
    set_weight_decay(ours[3:4], 0.3)
    rates = (0.1, 0.1, 0.0, 0.3, 0.0)
    groups = [{"params": [param], "weight_decay": rate} for param, rate in zip(theirs, rates, strict=True)]
    reference = torch.optim.AdamW(groups, lr=0.05)
    whole = torch.optim.Adam(theirs)  # only to hand out the parameters in one list
    whole.step = reference.step  # type: ignore[method-assign]
    follow(Adam(ours, lr=0.05, max_grad_norm=max_norm), whole, max_norm)


@pytest.mark.usefixtures("path")
def test_every_optimizer_lets_marked_parameters_decay_by_its_learning_rate() -> None:
    for make in (Adam, RMSprop):
        ours, theirs = twins()
        set_weight_decay(ours[:1], 0.2)
        lr = torch.tensor(0.1)
        grads = [torch.randn_like(param) for param in ours]
        make(ours, lr).apply([grad.clone() for grad in grads])
        before = theirs[0].detach().clone()
        make(theirs, lr).apply([grad.clone() for grad in grads])
        torch.testing.assert_close(ours[0] - theirs[0], -0.1 * 0.2 * before, rtol=1e-4, atol=1e-6)
        assert_equal(ours[1:], theirs[1:])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_rmsprop_is_torchs(max_norm: float | None) -> None:
    ours, theirs = twins()
    follow(
        RMSprop(ours, 0.01, alpha=0.9, eps=1e-5, max_grad_norm=max_norm),
        torch.optim.RMSprop(theirs, 0.01, alpha=0.9, eps=1e-5),
        max_norm,
    )


@pytest.mark.usefixtures("path")
def test_the_first_steps_have_an_exact_bias_correction() -> None:
    """With eps 0, the first step of Adam is lr·sign(g); 1 − β₂ᵗ computed naively in float32 would miss it by 1e-5."""
    param = torch.zeros(4, requires_grad=True)
    Adam([param], 1.0, betas=(0.9, 0.9999), eps=0.0).apply([torch.tensor([1e-3, -2.0, 30.0, -1e-6])])
    torch.testing.assert_close(param.detach(), torch.tensor([-1.0, 1.0, -1.0, 1.0]), rtol=1e-6, atol=1e-6)


def test_a_number_kept_in_memory_is_the_same_number() -> None:
    for value in (1e-45, 0.0, 1.0, 3.4e38, math.inf):
        assert _once(torch.tensor(value)).item() == torch.tensor(value).item()


@pytest.mark.usefixtures("path")
def test_a_loss_is_minimised_like_with_backward() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    other = copy.deepcopy(net)
    ours, theirs = Adam(net.parameters(), 0.01), torch.optim.Adam(other.parameters(), 0.01)
    for _ in range(10):
        x = torch.randn(16, 3)
        ours.step((net(x) - x.sum(-1, keepdim=True)).square().mean())
        theirs.zero_grad()
        (other(x) - x.sum(-1, keepdim=True)).square().mean().backward()
        theirs.step()
    assert_equal(list(net.parameters()), list(other.parameters()))
    assert all(param.grad is None for param in net.parameters())


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: (a + b).square().sum(),  # autograd hands out one tensor as the gradient of both
        lambda a, b: 3 * a.sum() + b.sum(),  # expanded scalars: stride 0
        lambda a, b: (a.T * torch.arange(12.0).view(4, 3)).sum() + b.square().sum(),  # transposed
    ],
    ids=["shared", "expanded", "transposed"],
)
def test_gradients_may_share_memory_or_have_any_layout(max_norm: float | None, loss: Callable[..., Tensor]) -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    x, y = (tensor.detach().clone().requires_grad_() for tensor in (a, b))
    # A large eps makes the size of a step depend on the size of the gradient.
    ours, theirs = Adam([a, b], 0.1, eps=1.0, max_grad_norm=max_norm), torch.optim.Adam([x, y], 0.1, eps=1.0)
    for _ in range(3):
        ours.step(loss(a, b))
        theirs.zero_grad()
        loss(x, y).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_([x, y], max_norm)
        theirs.step()
    assert_equal([a, b], [x, y])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("make", [Adam, RMSprop])
def test_the_learning_rate_can_be_set_or_shared(make: type) -> None:
    ours, theirs = twins()
    shared = torch.tensor(0.1)
    first, second = make(ours, 0.1), make(theirs, shared)
    for lr in (0.1, 0.001):
        grads = [torch.randn_like(param) for param in ours]
        first.lr.fill_(lr)
        shared.fill_(lr)
        before = [param.detach().clone() for param in ours]
        first.apply([grad.clone() for grad in grads])
        second.apply(grads)
        assert_equal(ours, theirs)
        moved = max((a - b).abs().max().item() for a, b in zip(before, ours))
        assert lr / 2 < moved < 11 * lr  # RMSprop's first step is lr / √(1 − α)
    first.lr.zero_()
    before = [param.detach().clone() for param in ours]
    first.apply(grads)
    assert_equal(ours, before)


@pytest.mark.parametrize("make", [Adam, RMSprop])
def test_a_parameter_without_gradient_is_named(make: type) -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = make([("actor.weight", used), ("log_std", unused)])
    with pytest.raises(RuntimeError, match=r"depend on log_std:"):
        optimizer.step(used.sum())
    with pytest.raises(RuntimeError, match="parameter 1"):
        make([used, unused]).step(used.sum())


@pytest.mark.parametrize("make", [Adam, RMSprop])
def test_unused_parameters_can_be_allowed_and_stay_as_they_are(make: type) -> None:
    unused, used = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = make([unused, used], 0.1, allow_unused=True, max_grad_norm=1.0)
    assert optimizer.step(used.sum()).item() == pytest.approx(2**0.5)
    assert torch.equal(unused, torch.ones(2))
    assert (used < 1).all()


def test_what_the_fused_kernel_could_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight is not contiguous"):
        Adam([("weight", torch.zeros(3, 4).T)])
    with pytest.raises(ValueError, match="at least one"):
        Adam([])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("make", [Adam, RMSprop])
def test_a_loaded_state_continues_bit_for_bit_in_the_same_tensors(make: type) -> None:
    ours, theirs = twins()
    first = make(ours, 0.1, max_grad_norm=1.0)
    for _ in range(3):
        first.apply([torch.randn_like(param) for param in ours])
    second = make(theirs, 0.1, max_grad_norm=1.0)
    moments = [tensor for moment in second.moments for tensor in getattr(second, moment)]
    polyak(theirs, ours, 1.0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert all(a is b for a, b in zip(moments, [t for m in second.moments for t in getattr(second, m)], strict=True))
    for _ in range(3):
        grads = [torch.randn_like(param) for param in ours]
        first.apply([grad.clone() for grad in grads])
        second.apply(grads)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_a_state_of_another_network_is_refused() -> None:
    state = Adam([torch.zeros(2, 3)]).state_dict()
    with pytest.raises(CheckpointError, match="exp_avg"):
        Adam([torch.zeros(3, 2)]).load_state_dict(state)


@pytest.mark.parametrize("tau", [0.25, torch.tensor(0.25)])
def test_polyak_moves_a_fraction_of_the_way(tau: float | Tensor) -> None:
    target = [torch.tensor([0.0, 4.0]), torch.tensor(8.0, requires_grad=True)]
    source = [torch.tensor([4.0, 0.0], requires_grad=True), torch.tensor(0.0)]
    polyak(target, source, tau)
    assert target[0].tolist() == [1.0, 3.0]
    assert target[1].item() == 6.0
    assert not target[0].requires_grad
