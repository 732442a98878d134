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

import copy
import functools
import importlib.util
import shutil
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlexp.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

BACKEND = "inductor"  # tests set "aot_eager", which traces in a second or two


def acting(method: F) -> F:
    """Mark a method of an algorithm as the part of acting that can be compiled: obs and noise in, tensors out.

    Only training acts often enough: the graph is that of the first call's shapes, any others are run eagerly.
    """
    method.__phase__ = "acting"  # type: ignore[attr-defined]
    return method


def lowered(method: F) -> F:
    """Run a method of an algorithm in the precision of its updates."""

    @functools.wraps(method)
    def run(self: Any, *args: Any) -> Any:
        if self.autocast is None:
            return method(self, *args)
        with torch.autocast(self.device.type, dtype=self.autocast):
            return method(self, *args)

    return run  # type: ignore[return-value]


def phase(method: F) -> F:
    """Mark a method of an algorithm as a part of its update that can be compiled, and run in lower precision."""
    run = lowered(method)
    run.__phase__ = "update"  # type: ignore[attr-defined]
    return run


def phases_of(cls: type, kind: str | None = None) -> dict[str, Callable[..., Any]]:
    """The marked methods of an algorithm class, by name, overrides included; of both kinds, or "acting" or "update"."""
    found = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            mark = getattr(value, "__phase__", None)
            if mark is not None and kind in (None, mark):
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

    def __init__(self, owner: Any, function: Callable[..., Any], onednn: bool = False) -> None:
        self.owner = owner
        self.function = function
        self.onednn = onednn  # multiplies large matrices
        self.acting = getattr(function, "__phase__", None) == "acting"
        self.graphs: dict[Any, Callable[[Any, list[Tensor]], Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledPhase:
        """That of the copied algorithm: graphs hold the tensors of their own, so it traces anew."""
        return CompiledPhase(copy.deepcopy(self.owner, memo), self.function, self.onednn)

    def __call__(self, *args: Any) -> Any:
        """Run the graph for inputs of this signature, tracing it the first time."""
        leaves: list[Tensor] = []
        signature: list[Any] = []
        _flatten(args, leaves, signature)
        key = tuple(signature)
        graph = self.graphs.get(key)
        if graph is not None:
            return graph(args, leaves)
        if self.acting and self.graphs:
            return self.function(self.owner, *args)
        compiled = self._compile()
        with _watched_graphs() as calls, self._explained(args):
            result = compiled(*args)
        self.graphs[key] = _shortcut(calls, leaves, result) or (lambda args, leaves: compiled(*args))
        return result

    @contextmanager
    def _explained(self, args: tuple[Any, ...]) -> Iterator[None]:
        """Tracing hides the mistake that it met in what it traced, which a copy makes again without it."""
        try:
            yield
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
            self.function(copy.deepcopy(self.owner), *args)
            where = f"{type(self.owner).__name__}.{self.function.__name__}"
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise ConfigError(f"{where} cannot be compiled: {reason}. Use compile=false.") from error

    def _compile(self) -> Callable[..., Any]:
        torch._dynamo.config.trace_autograd_ops = True  # gradients by torch.autograd.grad inside the graph
        method = types.MethodType(_fresh_copy(self.function), self.owner)
        options: dict[str, Any] = {"guard_filter_fn": _drop_guards}  # torch takes entries out of it: one for each call
        if BACKEND == "inductor":
            options["size_asserts"] = False  # the signature has been compared already
            from rlexp import products  # imports the compiler, which takes a second

            if self.acting:
                options["post_grad_custom_pre_pass"] = products.small_products()
            if self.owner.device.type == "cpu":
                # One C++ file for all kernels and the calls between them: most of the compiler's time is headers. The
                # single kernel of acting gains nothing.
                options["cpp_wrapper"] = not self.acting
                if not self.acting:
                    options["post_grad_custom_post_pass"] = products.biases_apart(self.onednn)
                if torch._inductor.config.cpp.vec_isa_ok is None:
                    # The processor's own word for its instructions, instead of compiling and loading a probe of each.
                    options["cpp.vec_isa_ok"] = True
        return torch.compile(method, fullgraph=True, dynamic=False, backend=BACKEND, options=options)


# ---- calling a graph without the layers above it
#
# Around the generated code lie dynamo's frame evaluation and AOTAutograd's wrappers, which cost more than the code on
# small networks. They do nothing but put the tensors in order: so the first call is watched, and later ones repeat it.


_WATCHING = threading.RLock()


@contextmanager
def _watched_graphs() -> Iterator[list[tuple[Any, list[Any], Any]]]:
    """Notes (graph, inputs, outputs) of every call of an Inductor graph; one watcher at a time."""
    from torch._inductor.output_code import CompiledFxGraph

    calls: list[tuple[Any, list[Any], Any]] = []
    _WATCHING.acquire()
    original = CompiledFxGraph.__call__

    def watched(graph: Any, inputs: Any) -> Any:
        given = list(inputs)  # the call empties the list it gets
        outputs = original(graph, inputs)
        calls.append((graph, given, outputs))
        return outputs

    CompiledFxGraph.__call__ = watched  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]
        _WATCHING.release()


def _shortcut(
    calls: list[tuple[Any, list[Any], Any]], leaves: list[Tensor], result: Any
) -> Callable[[Any, list[Tensor]], Any] | None:
    """What calls the graph directly; None where it cannot be told where each tensor came from and went.

    An input is one of ``leaves``, or belongs to the algorithm's state, whose tensors are only ever changed in place.
    """
    if len(calls) != 1:
        return None
    graph, inputs, outputs = calls[0]
    place = {id(leaf): i for i, leaf in enumerate(leaves)}
    slots = [(slot, place[id(value)]) for slot, value in enumerate(inputs) if id(value) in place]
    state = [None if id(value) in place else value for value in inputs]
    memory = {leaf.untyped_storage().data_ptr() for leaf in leaves if leaf.numel()}
    if any(isinstance(value, Tensor) and value.untyped_storage().data_ptr() in memory for value in state):
        return None  # a view of an input, made anew on every call
    made = {id(output): i for i, output in enumerate(outputs)}
    if not {key for key, i in made.items() if isinstance(outputs[i], Tensor)} <= {id(leaf) for leaf in _leaves(result)}:
        return None  # something is done with the others outside of the graph
    kept = {id(value): value for value in state if isinstance(value, Tensor)}
    try:
        rebuild = _builder(result, made, kept)
    except KeyError:
        return None
    code = graph.current_callable

    def call(args: Any, leaves: list[Tensor]) -> Any:
        inputs = state.copy()
        for slot, i in slots:
            inputs[slot] = leaves[i]
        if not torch.is_grad_enabled():
            return rebuild(code(inputs))
        with torch.no_grad():  # the gradients are part of the graph
            return rebuild(code(inputs))

    return call


def _builder(result: Any, made: dict[int, int], kept: dict[int, Tensor]) -> Callable[[Any], Any]:
    """From a graph's flat outputs to the nest of tensors that the phase returned; KeyError if one is not among them."""
    if isinstance(result, dict):
        parts = {key: _builder(value, made, kept) for key, value in result.items()}
        return lambda outputs: {key: part(outputs) for key, part in parts.items()}
    if isinstance(result, (tuple, list)):
        items = [_builder(value, made, kept) for value in result]
        make = type(result)._make if hasattr(result, "_make") else type(result)  # type: ignore[union-attr]
        return lambda outputs: make(item(outputs) for item in items)
    if isinstance(result, Tensor) and id(result) not in made:
        constant = kept[id(result)]
        return lambda outputs: constant
    if not isinstance(result, Tensor):
        return lambda outputs: result
    index = made[id(result)]
    return lambda outputs: outputs[index]


def _drop_guards(guards: list[Any]) -> list[bool]:
    return [False] * len(guards)


def _fresh_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own: dynamo keys its cache, and its recompile limit, by code object."""
    code = function.__code__.replace()
    fresh = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return functools.update_wrapper(fresh, function)


def _leaves(value: Any) -> list[Tensor]:
    leaves: list[Tensor] = []
    _flatten(value, leaves, [])
    return leaves


def _flatten(value: Any, leaves: list[Tensor], signature: list[Any]) -> None:
    """The tensors of a nest; and their shapes, strides, dtypes and devices with everything else, hashable."""
    if isinstance(value, Tensor):
        leaves.append(value)
        signature += (value.shape, value.stride(), value.dtype, value.device)
    elif isinstance(value, dict):
        signature.append(len(value))
        for key, child in value.items():
            signature.append(key)
            _flatten(child, leaves, signature)
    elif isinstance(value, (tuple, list)):
        signature.append(len(value))
        for child in value:
            _flatten(child, leaves, signature)
    else:
        signature.append(value)
