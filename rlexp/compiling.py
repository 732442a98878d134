"""Phases: the parts of an update that can each become one compiled graph.

An algorithm marks a method with ``@phase``: tensors in, tensors out, everything else it touches (parameters, optimizer
moments, targets) changed in place, all randomness passed in. Eagerly a phase is the plain method. Compiled, loss,
gradients, clipping, optimizer step and target update are traced as one graph per input signature.

Dynamo's guards cost as much as the work on small networks, so they are dropped; what they would have noticed is checked
here instead: shapes, dtypes and devices of the inputs select the graph, a changed hyperparameter discards it
(``Algorithm.__setattr__``), and every instance compiles its own copy of the function, so that two agents in a process
never share constants.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

BACKEND = "inductor"  # tests set "aot_eager", which traces in a second or two


def phase(method: F) -> F:
    """Mark a method of an algorithm as a part of its update that can be compiled, and run in lower precision."""

    @functools.wraps(method)
    def run(self: Any, *args: Any) -> Any:
        if self.autocast is None:
            return method(self, *args)
        with torch.autocast(self.device.type, dtype=self.autocast):
            return method(self, *args)

    run.__phase__ = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def phases_of(cls: type) -> dict[str, Callable[..., Any]]:
    """The marked methods of an algorithm class, by name, overrides included."""
    found = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if getattr(value, "__phase__", False):
                found[name] = getattr(cls, name)
    return found


def compiler_problem(device: torch.device) -> str | None:
    """Why updates cannot be compiled here, or None."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "no C++ compiler was found (g++ or clang++)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if device.type == "mps":
        return "the device is mps"
    return None


class CompiledPhase:
    """One phase of one algorithm instance: a graph for every signature of its inputs."""

    def __init__(self, owner: Any, function: Callable[..., Any]) -> None:
        self.owner = owner
        self.function = function
        self.graphs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the graph for inputs of this signature, tracing it the first time."""
        signature = _signature(args)
        graph = self.graphs.get(signature)
        if graph is None:
            graph = self.graphs[signature] = self._compile()
        return graph(*args)

    def _compile(self) -> Callable[..., Any]:
        torch._dynamo.config.trace_autograd_ops = True  # gradients by torch.autograd.grad inside the graph
        method = types.MethodType(_fresh_copy(self.function), self.owner)
        options: dict[str, Any] = {"guard_filter_fn": _drop_guards}  # torch takes entries out of it: one for each call
        return torch.compile(method, fullgraph=True, dynamic=False, backend=BACKEND, options=options)


def _drop_guards(guards: list[Any]) -> list[bool]:
    return [False] * len(guards)


def _fresh_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own: dynamo keys its cache, and its recompile limit, by code object."""
    code = function.__code__.replace()
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return functools.update_wrapper(copy, function)


def _signature(value: Any) -> Any:
    """Shapes, dtypes and devices of a nest of tensors, hashable."""
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, value.device.type)
    if isinstance(value, dict):
        return tuple((key, _signature(child)) for key, child in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(_signature(child) for child in value)
    return value
