import torch

from rlexp.bench.floors import Products


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
