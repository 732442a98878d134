"""What no update can be faster than: its matrix products, alone and at the machine's best rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlexp import onednn

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
_PEAK_SIZE = 1024


class Products(TorchDispatchMode):
    """Remembers every matrix product of what runs inside: the operation, and shape and layout of its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a product and go on."""
        if func in _PRODUCTS:
            self.calls.append((func, tuple((tuple(arg.shape), arg.stride()) for arg in args)))
        return func(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return sum(2 * math.prod(operands[-2][0]) * operands[-1][0][-1] for _, operands in self.calls)

    def replay(self) -> Callable[[], None]:
        """A function that does the same products, on operands made beforehand, and nothing else.

        By the library that compiled updates call for each.
        """
        made: dict[Any, torch.Tensor] = {}

        def operand(place: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
            key = (place, shape, stride)
            if key not in made:
                length = 1 + sum((size - 1) * step for size, step in zip(shape, stride))  # an expanded one repeats
                made[key] = torch.randn(length).as_strided(shape, stride)
            return made[key]

        calls = [(func, [operand(i, *each) for i, each in enumerate(operands)]) for func, operands in self.calls]
        if _by_onednn():
            calls = [_own(func, operands) for func, operands in calls]

        def run() -> None:
            with torch.inference_mode():
                for func, operands in calls:
                    func(*operands)

        return run


def _by_onednn() -> bool:
    return onednn.helps(torch.device("cpu")) and onednn.problem() is None


def _own(func: Any, operands: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """What a compiled update calls instead, where oneDNN helps."""
    from rlexp.products import MAX_BY_MKL

    left, right = operands[-2:]
    if left.numel() * right.shape[-1] <= MAX_BY_MKL:
        return func, operands
    return torch.ops.rlexp.product, [left.contiguous() if 0 in left.stride() else left, right]


def peak_flops() -> float:
    """Floating-point operations in a second of one large product: the machine's best."""
    a, b = torch.randn(_PEAK_SIZE, _PEAK_SIZE), torch.randn(_PEAK_SIZE, _PEAK_SIZE)
    multiply = torch.ops.rlexp.product if _by_onednn() else torch.mm
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        multiply(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * _PEAK_SIZE**3 / best
