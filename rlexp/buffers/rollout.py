"""The on-policy buffer: T steps of N environments as tensors [T, N, …], filled and consumed once per iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlexp.config.component import component
from rlexp.tree import ArrayTree, tree_first, tree_leaves, tree_map
from rlexp.types import Act, Obs, Rollout

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec
    from rlexp.envs.vector import VecStep

ROWS_AT_ONCE = 8_192  # through a network, so that long rollouts of images need no memory for all of them


def in_parts(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``function`` of observations and tensors [B, …], of so many rows at a time."""
    rows = len(tree_first(inputs[0]))
    if rows <= ROWS_AT_ONCE:
        return function(*inputs)
    starts = range(0, rows, ROWS_AT_ONCE)
    cut = [[tree_map(lambda t, i=i: t[i : i + ROWS_AT_ONCE], each) for each in inputs] for i in starts]
    return torch.cat([function(*part) for part in cut])


@component("buffer", "rollout")
@dataclass(eq=False, kw_only=True)
class RolloutBuffer:
    """Collects one rollout at a time. Between iterations it holds nothing, so there is nothing to save."""

    def build(
        self,
        spec: EnvSpec,
        num_envs: int,
        steps: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate ``steps`` rows; columns of ``Act.extras`` are those that the first act brings."""
        self._shape = (steps, num_envs)
        self._device = torch.device(device)
        self._single = spec.obs.single
        self._columns: dict[str, Tensor] = {}  # the tensors [T, N, …]
        self._rows: dict[str, list[Tensor]] = {}  # their rows, cut once: indexing a tensor takes longer than the copy
        self._obs_names = list(spec.obs.leaves)
        for name, leaf in spec.obs.leaves.items():
            self._allocate(f"obs/{name}", leaf.shape, getattr(torch, leaf.dtype))
        self._allocate("action", spec.action.shape, getattr(torch, spec.action.dtype))
        self._allocate("value", (), torch.float32)
        self._values_come = False  # with the acts; otherwise they are computed for the whole rollout at once
        self._extra_names: list[str] | None = None
        # What environments give arrives in NumPy and goes to the device in one piece.
        self._reward = np.zeros(self._shape, np.float32)
        self._terminated = np.zeros(self._shape, bool)
        self._done = np.zeros(self._shape, bool)
        # step, environments, final observations, and what was remembered before those
        self._truncations: list[tuple[int, np.ndarray, list[np.ndarray], Tensor | None]] = []

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        column = torch.zeros((*self._shape, *shape), dtype=dtype, device=self._device)
        self._columns[name] = column
        self._rows[name] = list(column.unbind(0))

    def add(self, t: int, obs: Obs, act: Act, step: VecStep, reward: np.ndarray | None = None) -> None:
        """Step ``t`` of the rollout: ``obs`` [N, …] as acted on; ``reward`` [N] if not the step's own."""
        if t == 0:
            self._truncations.clear()
            self._check_first(obs, act)
        rows = self._rows
        if isinstance(obs, dict):
            for name in self._obs_names:
                rows[f"obs/{name}"][t].copy_(obs[name])
        else:
            rows["obs/"][t].copy_(obs)
        rows["action"][t].copy_(act.action)
        if self._values_come:
            rows["value"][t].copy_(act.extras["value"])
        for name in self._extra_names or ():
            rows[f"extra/{name}"][t].copy_(act.extras[name])
        self._reward[t] = step.reward if reward is None else reward
        self._terminated[t] = step.terminated
        np.logical_or(step.terminated, step.truncated, out=self._done[t])
        if step.next_obs is not step.obs:  # the same object when nothing ended
            envs = np.flatnonzero(step.truncated & ~step.terminated)
            if envs.size:
                final = dict(tree_leaves(step.next_obs))
                carry = None if act.carry is None else act.carry[torch.from_numpy(envs).to(self._device)]
                self._truncations.append((t, envs, [final[name][envs] for name in self._obs_names], carry))

    def finish(
        self,
        value_fn: Callable[..., Tensor],
        last_obs: Any,
        normalize: Callable[[Obs], Obs] = lambda obs: obs,
        last_carry: Tensor | None = None,
    ) -> Rollout:
        """The rollout, with V of every true next observation.

        ``last_obs`` [N, …] is what would be acted on next. ``value_fn`` is called on it, where episodes were
        truncated once on all their final observations [M, …], and on the whole rollout if the acts brought no values.
        Where acts left a carry, it gets the one before each of these observations as well (``last_carry`` [N, …]).
        ``normalize`` turns observations as the environments gave them into what was stored. The tensors are the
        buffer's own and are overwritten by the next rollout.
        """
        columns = self._columns
        leaves = {name: columns[f"obs/{name}"] for name in self._obs_names}
        obs: Obs = leaves[""] if self._single else leaves
        value = columns["value"]
        done, terminated = (torch.from_numpy(flags).to(self._device) for flags in (self._done, self._terminated))
        next_value = torch.empty_like(value)

        def value_of(raw: Any, carry: Tensor | None) -> Tensor:
            seen = normalize(self._to_device(raw))
            return value_fn(seen) if carry is None else value_fn(seen, carry)

        with torch.no_grad():
            if not self._values_come:
                if last_carry is not None:
                    raise ValueError(
                        "a recurrent algorithm must give the value of each step with the act: extras['value']"
                    )
                flat = tree_map(lambda leaf: leaf.flatten(0, 1), obs)
                value.copy_(in_parts(value_fn, flat).view(self._shape))
            next_value[:-1] = value[1:]
            next_value[-1] = value_of(last_obs, last_carry)
            next_value.masked_fill_(done, 0.0)  # termination has no future; truncation is filled in next
            if self._truncations:
                self._bootstrap(next_value, value_of)
        return Rollout(
            obs=obs,
            action=columns["action"],
            reward=torch.from_numpy(self._reward).to(self._device),
            value=value,
            next_value=next_value,
            terminated=terminated,
            done=done,
            extras={name: columns[f"extra/{name}"] for name in self._extra_names or ()},
        )

    def _bootstrap(self, next_value: Tensor, value_of: Callable[[Any, Tensor | None], Tensor]) -> None:
        """Where an episode was truncated, the next value is that of its final observation."""
        times, places, observations, carries = zip(*self._truncations)
        steps = np.concatenate([np.full(len(envs), t) for t, envs in zip(times, places)])
        envs = np.concatenate(places)
        final = [np.concatenate(leaves) for leaves in zip(*observations)]
        carry = None if carries[0] is None else torch.cat(carries)
        final_obs: ArrayTree = final[0] if self._single else dict(zip(self._obs_names, final))
        index = torch.from_numpy(steps).to(self._device), torch.from_numpy(envs).to(self._device)
        next_value[index] = value_of(final_obs, carry)

    def _to_device(self, tree: Any) -> Obs:
        if isinstance(tree, dict):
            return {name: torch.as_tensor(leaf, device=self._device) for name, leaf in tree.items()}
        return torch.as_tensor(tree, device=self._device)

    def _check_first(self, obs: Obs, act: Act) -> None:
        """Once per rollout: copy_ would convert a wrong dtype in silence."""
        self._values_come = "value" in act.extras
        if self._extra_names is None:
            self._extra_names = [name for name in act.extras if name != "value"]
            for name in self._extra_names:
                self._allocate(f"extra/{name}", tuple(act.extras[name].shape[1:]), act.extras[name].dtype)
        given = {f"obs/{name}": leaf for name, leaf in tree_leaves(obs)} | {"action": act.action}
        for name, tensor in given.items():
            column = self._columns[name]
            if tensor.dtype != column.dtype or tensor.shape != column.shape[1:]:
                wanted = f"{column.dtype} {tuple(column.shape[1:])}"
                raise ValueError(f"{name} should be {wanted}, not {tensor.dtype} {tuple(tensor.shape)}")
