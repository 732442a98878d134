"""Matrix products in compiled graphs: which become plain loops, where biases are added, which library multiplies.

Passes over the graphs that the compiler is about to turn into code. What they decide depends on shapes alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

aten = torch.ops.aten

# Up to so many multiplications a plain loop beats a call of the matrix library (measured: 64² to 256² by 1 to 16 rows).
MAX_IN_ONE_ROW, MAX_IN_SEVERAL = 1 << 17, 1 << 15
# From more than so many on oneDNN is ahead where it helps at all (measured: 1 to 10 members, 32 to 512 rows, 2 to 256
# inputs and outputs, 1 and 2 threads); a call of it takes some 10 µs more.
MAX_BY_MKL = 1 << 20


class _Pass(CustomGraphPass):
    """A pass that the compiler's cache knows by the text of this file."""

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,), type(self).__name__)


class SmallProducts(_Pass):
    """Writes products of a few rows as plain loops, which the compiler fuses with what surrounds them."""

    def __call__(self, graph: Graph) -> None:
        """Change ``graph`` in place."""
        for node in list(graph.nodes):
            if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
                continue
            *bias, left, right = node.args
            rows = left.meta["val"].shape[0]
            if _multiplications(left, right) > (MAX_IN_ONE_ROW if rows == 1 else MAX_IN_SEVERAL):
                continue
            with graph.inserting_before(node):
                weight = _insert(graph, aten.permute.default, right, [1, 0])
                pairs = _insert(graph, aten.mul.Tensor, _insert(graph, aten.unsqueeze.default, left, 1), weight)
                out = _insert(graph, aten.sum.dim_IntList, pairs, [-1])
                if bias:
                    out = _insert(graph, aten.add.Tensor, out, bias[0])
            node.replace_all_uses_with(out)
            graph.erase_node(node)


class BiasesApart(_Pass):
    """Adds biases in the loop behind a product instead of before it.

    On a CPU the matrix library wants its result's memory to hold the bias already: torch copies it there, row by row.
    The activation's loop reads every number anyway, and adds it for nothing. In float32 the sum is the same but for its
    order; a bfloat16 product is rounded before the bias comes to it instead of after.
    """

    products: ClassVar = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}

    def __call__(self, graph: Graph) -> None:
        """Change ``graph`` in place."""
        for node in list(graph.nodes):
            if node.target not in self.products or node.kwargs:
                continue
            bias, left, right = node.args
            if bias.meta["val"].numel() == node.meta["val"].numel():
                continue  # no bias: a matrix, which the library adds as fast as anybody
            with graph.inserting_before(node):
                product = graph.call_function(self.products[node.target], (left, right))
                out = graph.call_function(aten.add.Tensor, (product, bias))
            product.meta["val"] = out.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(out)
            graph.erase_node(node)


class ByOneDNN(BiasesApart):
    """The same, and has large products in float32 made by oneDNN (see :mod:`rlexp.onednn`)."""

    def __call__(self, graph: Graph) -> None:
        """Change ``graph`` in place."""
        super().__call__(graph)
        for node in list(graph.nodes):
            if node.target not in self.products.values() or node.meta["val"].dtype is not torch.float32:
                continue
            left, right = node.args
            if _multiplications(left, right) <= MAX_BY_MKL:
                continue
            with graph.inserting_before(node):
                own = graph.call_function(
                    torch.ops.rlexp.product.default, (_spread(graph, left), _spread(graph, right))
                )
            own.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(own)
            graph.erase_node(node)


@functools.cache
def small_products() -> SmallProducts:
    """For acting."""
    return SmallProducts()


@functools.cache
def biases_apart(onednn: bool) -> BiasesApart:
    """For updates on a CPU."""
    return ByOneDNN() if onednn else BiasesApart()


def _multiplications(left: Node, right: Node) -> int:
    return math.prod(left.meta["val"].shape) * right.meta["val"].shape[-1]


def _spread(graph: Graph, node: Node) -> Node:
    """A batch of matrices that are one and the same in memory, written out: oneDNN is slow on the others."""
    value = node.meta["val"]
    if value.dim() == 2 or value.stride(0) != 0:
        return node
    return _insert(graph, aten.clone.default, node, memory_format=torch.contiguous_format)


def _insert(graph: Graph, op: Any, *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(op, args, kwargs)
    node.meta["val"] = op(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args), **kwargs)
    return node
