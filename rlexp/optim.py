"""Optimizers that can be part of a compiled graph, and target networks.

They compute gradients with ``torch.autograd.grad``, keep all that changes in tensors that are updated in place (so that
compiled graphs stay valid after loading a checkpoint), and equal ``torch.optim``'s step for step. Eagerly, Adam is
torch's fused kernel, clipping included; traced, it is plain tensor code that the compiler fuses by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlexp.errors import CheckpointError

_FUSED_DEVICES = {"cpu", "cuda"}


class Optimizer:
    """What all optimizers share: gradients, clipping, learning rate and state.

    ``params`` are tensors, or (name, tensor) pairs as from ``module.named_parameters()``; names serve messages only.
    ``lr`` is a number or a 0-dim tensor, which is then shared: whoever changes it in place changes the learning rate.
    ``max_grad_norm`` may be such a tensor too.
    With ``allow_unused``, parameters that the loss does not depend on are left alone instead of being an error.
    Parameters marked by :func:`set_weight_decay` shrink at every step, whatever the optimizer.
    """

    moments: tuple[str, ...] = ()  # names of the lists of tensors, one for each parameter, that make up the state

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        lr: float | Tensor,
        *,
        max_grad_norm: float | Tensor | None = None,
        allow_unused: bool = False,
    ) -> None:
        named = [item if isinstance(item, tuple) else (f"parameter {i}", item) for i, item in enumerate(params)]
        if not named:
            raise ValueError("An optimizer needs at least one parameter.")
        self.names = [name for name, _ in named]
        # The fused kernel walks through memory, so everything must lie in it in the same order.
        self.params = [_contiguous(name, param) for name, param in named]
        self.max_grad_norm = max_grad_norm
        self.allow_unused = allow_unused
        first = self.params[0]
        self.lr = lr if isinstance(lr, Tensor) else torch.tensor(lr, dtype=torch.float32, device=first.device)
        self._zero = torch.zeros((), device=first.device)
        self._decays = [getattr(param, "weight_decay", 0.0) for param in self.params]
        self._decaying = any(self._decays)
        for moment in self.moments:
            setattr(self, moment, [torch.zeros_like(param, requires_grad=False) for param in self.params])

    def step(self, loss: Tensor) -> Tensor:
        """Minimise ``loss`` by one step; gives what :meth:`apply` gives."""
        return self.apply(torch.autograd.grad(loss, self.params, allow_unused=True))

    @torch.no_grad()
    def apply(self, grads: Sequence[Tensor | None]) -> Tensor:
        """One step along given gradients, one for each parameter, whose memory may be reused.

        Gives their global norm before clipping, 0-dim; zero where ``max_grad_norm`` is None and nobody computed it.
        """
        used = self._used(grads)
        given = [grads[i] for i in used]
        if self._decaying:
            self._decay(used)
        if self.max_grad_norm is None:
            self._update(used, given, None)  # type: ignore[arg-type]
            return self._zero
        norm = _global_norm(given)  # type: ignore[arg-type]
        # As torch.nn.utils.clip_grad_norm_, but as the number to divide by.
        self._update(used, given, ((norm + 1e-6) / self.max_grad_norm).clamp(min=1.0))  # type: ignore[arg-type]
        return norm

    def _decay(self, used: list[int]) -> None:
        """θ ← (1 − lr · decay) θ before the step, apart from the gradient (Loshchilov & Hutter, 2019)."""
        for rate in sorted({self._decays[i] for i in used} - {0.0}):
            shrinking = [self.params[i] for i in used if self._decays[i] == rate]
            torch._foreach_mul_(shrinking, 1 - self.lr * rate)

    def _used(self, grads: Sequence[Tensor | None]) -> list[int]:
        """The indices of the parameters that have a gradient."""
        used = [i for i, grad in enumerate(grads) if grad is not None]
        if len(used) < len(self.params) and not self.allow_unused:
            missing = ", ".join(self.names[i] for i in range(len(self.params)) if i not in used)
            raise RuntimeError(f"The loss does not depend on {missing}: no gradient. Is the graph cut by a detach?")
        return used

    def _update(self, used: list[int], grads: list[Tensor], divisor: Tensor | None) -> None:
        """Change the parameters ``used`` along ``grads`` / ``divisor``."""
        raise NotImplementedError

    def _pick(self, values: list[Tensor], used: list[int]) -> list[Tensor]:
        return values if len(used) == len(values) else [values[i] for i in used]

    def state_dict(self) -> dict[str, Any]:
        """The moments, as the tensors themselves. The learning rate is a setting, not state."""
        return {moment: list(getattr(self, moment)) for moment in self.moments}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state into the existing tensors."""
        for moment in self.moments:
            own, given = getattr(self, moment), state[moment]
            if [tuple(t.shape) for t in own] != [tuple(t.shape) for t in given]:
                raise CheckpointError(
                    f"The optimizer's {moment} does not fit the parameters: the state has {len(given)} tensors "
                    f"of other shapes than the {len(own)} parameters. Was the network changed since it was saved?"
                )
            for mine, theirs in zip(own, given):
                mine.copy_(theirs)


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015); with ``weight_decay`` AdamW, whose decay is decoupled from the gradient."""

    moments = ("exp_avg", "exp_avg_sq")
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        lr: float | Tensor = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | Tensor | None = None,
        allow_unused: bool = False,
    ) -> None:
        super().__init__(params, lr, max_grad_norm=max_grad_norm, allow_unused=allow_unused)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        # One counter for all parameters. float32, as the fused kernels want it, counts to 16.7 million and then stands
        # still, long after the bias correction has become 1.
        self.step_count = torch.zeros((), device=self.params[0].device)
        self._counters = [self.step_count] * len(self.params)

    def _update(self, used: list[int], grads: list[Tensor], divisor: Tensor | None) -> None:
        params, averages = self._pick(self.params, used), self._pick(self.exp_avg, used)
        squares = self._pick(self.exp_avg_sq, used)
        self.step_count.add_(1)
        if torch.compiler.is_compiling() or params[0].device.type not in _FUSED_DEVICES:
            self._plain(params, grads, averages, squares, divisor)
            return
        grads = [grad.contiguous() for grad in grads]  # the kernel would silently misread any other layout
        if divisor is not None and len({grad.data_ptr() for grad in grads}) < len(grads):
            grads = [grad.clone() for grad in grads]  # it divides in place: a shared gradient would be divided twice
        kernel = torch._fused_adamw_ if self.weight_decay else torch._fused_adam_
        kernel(
            params,
            grads,
            averages,
            squares,
            [],
            self._counters[: len(used)],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )

    def _plain(
        self, params: list[Tensor], grads: list[Tensor], averages: list[Tensor], squares: list[Tensor], divisor: Any
    ) -> None:
        beta1, beta2 = self.betas
        step_size = _once(self.lr / self._bias_correction(beta1))
        root_correction = _once(self._bias_correction(beta2).sqrt())
        divisor = divisor if divisor is None else _once(divisor)
        for param, grad, average, square in zip(params, grads, averages, squares):
            if divisor is not None:
                grad = grad / divisor
            if self.weight_decay:
                param.mul_(1 - self.lr * self.weight_decay)
            average.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            param.sub_(step_size * average / (square.sqrt() / root_correction + self.eps))

    def _bias_correction(self, beta: float) -> Tensor:
        """1 − βᵗ, by expm1 because the difference itself has only four digits in float32 at small t."""
        return -torch.expm1(self.step_count * (math.log(beta) if beta else -math.inf))

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count."""
        return {**super().state_dict(), "step": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state into the existing tensors."""
        super().load_state_dict(state)
        self.step_count.copy_(state["step"])


class RMSprop(Optimizer):
    """RMSprop (Hinton, 2012) as torch has it: ε outside of the root, no momentum."""

    moments = ("square_avg",)
    square_avg: list[Tensor]

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        lr: float | Tensor = 7e-4,
        alpha: float = 0.99,
        eps: float = 1e-8,
        max_grad_norm: float | Tensor | None = None,
        allow_unused: bool = False,
    ) -> None:
        super().__init__(params, lr, max_grad_norm=max_grad_norm, allow_unused=allow_unused)
        self.alpha, self.eps = alpha, eps

    def _update(self, used: list[int], grads: list[Tensor], divisor: Tensor | None) -> None:
        params, squares = self._pick(self.params, used), self._pick(self.square_avg, used)
        if divisor is not None:
            grads = list(torch._foreach_div(grads, divisor))
        torch._foreach_mul_(squares, self.alpha)
        torch._foreach_addcmul_(squares, grads, grads, 1 - self.alpha)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, self.eps)
        steps = torch._foreach_div(grads, roots)
        torch._foreach_mul_(steps, self.lr)
        torch._foreach_sub_(params, steps)


def set_weight_decay(params: Iterable[Any], rate: float) -> None:
    """Mark parameters: optimizers made of them from now on let them decay at ``rate``, see :class:`Optimizer`."""
    for param in params:
        param.weight_decay = rate


@torch.no_grad()
def polyak(target: Sequence[Tensor], source: Sequence[Tensor], tau: float | Tensor) -> None:
    """Move target parameters a fraction of the way to the source: θ′ ← θ′ + τ (θ − θ′); τ a number or 0-dim."""
    torch._foreach_lerp_(list(target), list(source), [tau] * len(target) if isinstance(tau, Tensor) else tau)


def _once(value: Tensor) -> Tensor:
    """The same 0-dim number, as a sum, which the compiler keeps in memory.

    It would write anything else into the loop over the parameters and compute it anew for every sixteen of them: a
    twentieth of an update for Adam's bias corrections (measured).
    """
    return torch.stack((value, torch.zeros_like(value))).sum()


def _global_norm(tensors: list[Tensor]) -> Tensor:
    if torch.compiler.is_compiling():  # _foreach_norm is a call the compiler cannot fuse; this it can
        return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def _contiguous(name: str, param: Tensor) -> Tensor:
    if not param.is_contiguous():
        raise ValueError(f"{name} is not contiguous: create it with .contiguous() before making it a parameter.")
    return param
