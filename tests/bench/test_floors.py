import pytest
import torch

from rlexp import onednn
from rlexp.bench.floors import Products, peak_flops
from tests.test_products import needs_operator


def recorded(function):
    products = Products()
    with products:
        function()
    return products


def test_every_product_of_a_gradient_step_is_counted():
    weight, x = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)

    def step():
        torch.autograd.grad(torch.nn.functional.linear(x, weight, torch.zeros(5)).sum(), [weight, x])

    products = recorded(step)
    assert len(products.calls) == 3  # forward, and one for each gradient
    assert products.flops == 3 * 2 * 7 * 3 * 5


def test_batched_products_count_every_member():
    products = recorded(lambda: torch.baddbmm(torch.zeros(4, 7, 5), torch.randn(4, 7, 3), torch.randn(4, 3, 5)))
    assert products.flops == 2 * 4 * 7 * 3 * 5


def test_a_replay_does_the_same_products_and_nothing_else():
    def work():
        a = torch.randn(6, 3).relu()
        torch.mm(a, torch.randn(5, 3).t())
        torch.bmm(a.expand(2, 6, 3), torch.randn(2, 3, 4))  # an expanded operand has a stride of zero

    products = recorded(work)
    replay = products.replay()
    again = recorded(replay)
    assert again.calls == products.calls
    assert len(again.calls) == 2


@needs_operator
@pytest.mark.parametrize("helps", [True, False])
def test_a_replay_multiplies_as_compiled_updates_do(helps, monkeypatch):
    monkeypatch.setattr(onednn, "helps", lambda device: helps)

    def work():
        torch.mm(torch.randn(6, 3), torch.randn(3, 5))
        torch.addmm(torch.zeros(256), torch.randn(256, 128), torch.randn(128, 256))
        torch.bmm(torch.randn(128, 64).expand(4, 128, 64), torch.randn(4, 64, 64))

    products = recorded(work)
    asked = []
    own = torch.ops.rlexp.product
    monkeypatch.setattr(torch.ops.rlexp, "product", lambda *operands: asked.append(operands) or own(*operands))
    products.replay()()
    assert [left.shape for left, right in asked] == ([(256, 128), (4, 128, 64)] if helps else [])
    assert peak_flops() > 0
    assert len(asked) == (7 if helps else 0)
