"""A policy as one file that needs no rlexp: torch's ``.pt2`` or ONNX.

The program takes observations as the environment gives them and answers with actions as the environment takes them:
normalisation, the greedy choice, rescaling and clipping are inside. Before a file gets its name it is read back and
compared with the agent; one that acts differently is not kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlexp import files
from rlexp.config.messages import suggest
from rlexp.envs import DatasetEnv, GymEnv
from rlexp.envs.spaces import ports
from rlexp.envs.spec import ACHIEVED, MASK
from rlexp.errors import ConfigError, ExportError
from rlexp.policy import Policy
from rlexp.prediction import Predictor

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
PLAYED, SAMPLED = 64, 32  # observations that the written file is compared on: of episodes, and of the space
TOLERANCE = 1e-4  # of continuous actions, as a share of half their range (without bounds: of 1, or of the action)
INFO_FILE = "rlexp.json"  # what the program is, inside of a .pt2

Leaves = dict[str, np.ndarray]  # observations [N, …] by input
Program = Callable[[Leaves, "np.ndarray | None"], "tuple[np.ndarray, np.ndarray | None]"]


@dataclass(frozen=True)
class Exported:
    """A file that was written and compared."""

    path: Path
    info: dict[str, Any]  # what it takes and gives, and where it comes from
    compared: int  # observations on which it acts like the agent


def export(policy: Policy, env: GymEnv, path: Path, kind: str, origin: dict[str, Any] | None = None) -> Exported:
    """Write the greedy policy to ``path``, which must not exist; ``origin``: what the file is to say of its source."""
    check_exportable(path, kind)
    program = PolicyProgram(policy, env)
    info = {"rlexp": metadata.version("rlexp"), **(origin or {}), **program.info()}
    predictor = Predictor(env, policy)
    observations = _observations(predictor, env)
    traced = _trace(program, policy)
    write, read = (_write_torch, _read_torch) if kind == "torch" else (_write_onnx, _read_onnx)
    path = path.absolute()
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _quiet():
                write(traced, temporary, info)
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {files.reason(error)}.") from error
        with _quiet():
            written = read(temporary, info)
        _compare(written, program, predictor, observations)
        files.sync_file(temporary)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    files.sync_directory(path.parent)
    return Exported(path, info, len(observations))


def export_target(to: str, name: str) -> tuple[Path, str]:
    """(file, format) of ``to=``: a name that ends in .pt2 or .onnx, or a format alone, for a file called ``name``."""
    if to in FORMATS:
        path, kind = Path(f"{name}{FORMATS[to]}"), to
    else:
        path = Path(to).expanduser()
        kinds = {suffix: kind for kind, suffix in FORMATS.items()}
        if path.suffix not in kinds:
            known = [*FORMATS, "policy.pt2", "policy.onnx"]
            raise ConfigError(f"to={to}: a policy is exported to torch (a .pt2 file) or onnx.{suggest(to, known)}")
        kind = kinds[path.suffix]
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already. Choose another name, or delete it.")
    return path, kind


def check_exportable(path: Path, kind: str) -> None:
    """Refuse at once what would be refused after the translation: a missing package, a place that takes no file."""
    if kind == "onnx":
        _require_onnx()
    path = path.absolute()
    try:
        existing = next(each for each in path.parents if each.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {files.reason(error)}.") from error


# ---- the program


class PolicyProgram(nn.Module):
    """The greedy policy between the environment's own spaces: ``program(obs)``; recurrent: ``program(obs, carry)``.

    ``obs`` is a tensor [N, …], or a dict of them by the path of each part ("inner/count"). Boxes are float32 (images
    uint8), Discrete and MultiDiscrete int64, MultiBinary int8, all in their native shapes and counted from their
    ``start``. The answer is the actions [N, …], and for a recurrent policy the carry [N, size], zeros at first.
    """

    def __init__(self, policy: Policy, env: GymEnv) -> None:
        super().__init__()
        made = env.make()
        try:
            observation_space, self.action_space = made.observation_space, made.action_space
        finally:
            made.close()
        self.policy, self.spec = policy, policy.spec
        unseen = ACHIEVED if self.spec.obs.achieved_unseen else None
        self.ports = [port for port in ports(observation_space) if port.name != unseen]
        self.starts = {
            port.name: torch.as_tensor(_start(port.space)) for port in self.ports if _start(port.space).any()
        }
        self.carry_size = int(policy.algo.greedy_carry_size)
        start = _start(self.action_space).reshape(-1)
        self._action_start = torch.as_tensor(start) if start.any() else None
        if self.spec.action.kind == "continuous":
            self._low, self._high = (torch.from_numpy(bound.copy()) for bound in self.spec.action.bounds)

    def forward(self, obs: Any, carry: Tensor | None = None) -> tuple[Tensor, ...]:
        """Native actions for native observations."""
        leaves = {
            port.name: self._canonical(port, obs if self.spec.obs.single else obs[port.name]) for port in self.ports
        }
        seen = self.policy.normalized(leaves[""] if self.spec.obs.single else leaves)
        act = self.policy.algo.act(seen, carry, explore=False, generator=self.policy.algo.generator)
        action = self._native(act.action)
        return (action,) if act.carry is None else (action, act.carry)

    def _canonical(self, port: Any, values: Tensor) -> Tensor:
        if port.name in self.starts:
            values = values - self.starts[port.name]
        return values if port.leaf.shape == port.space.shape else values.reshape(values.shape[0], *port.leaf.shape)

    def _native(self, action: Tensor) -> Tensor:
        """As ``Policy.env_action`` and ``ActionCodec.decode``, in torch."""
        space, shape = self.action_space, tuple(self.action_space.shape or ())
        if self.spec.action.kind == "continuous":
            if self.policy.rescale:
                action = self.spec.action.to_env(action)
            action = action.clamp(self._low, self._high)
            if not np.issubdtype(space.dtype, np.floating):
                action = action.round().to(torch.int64)
        elif self._action_start is not None:
            action = action + self._action_start
        return action if tuple(self.spec.action.shape) == shape else action.reshape(action.shape[0], *shape)

    def example(self, rows: int) -> tuple[Any, ...]:
        """Inputs of the right shapes to trace with."""
        leaves = {
            port.name: torch.zeros(rows, *(port.space.shape or ()), dtype=getattr(torch, port.leaf.dtype))
            + self.starts.get(port.name, torch.zeros((), dtype=getattr(torch, port.leaf.dtype)))
            for port in self.ports
        }
        obs = leaves[""] if self.spec.obs.single else leaves
        return (obs, torch.zeros(rows, self.carry_size)) if self.carry_size else (obs,)

    def info(self) -> dict[str, Any]:
        """Inputs and outputs in their order, with type and shape of one row."""
        inputs = [
            {"name": port.name or "obs", "dtype": port.leaf.dtype, "shape": list(port.space.shape or ())}
            for port in self.ports
        ]
        whole = self.spec.action.kind != "continuous" or not np.issubdtype(self.action_space.dtype, np.floating)
        dtype = "int64" if whole else "float32"
        outputs = [{"name": "action", "dtype": dtype, "shape": list(self.action_space.shape or ())}]
        if self.carry_size:
            carry = {"dtype": "float32", "shape": [self.carry_size]}
            inputs.append({"name": "carry", **carry})
            outputs.append({"name": "next_carry", **carry})
        return {"single": self.spec.obs.single, "inputs": inputs, "outputs": outputs}


def _start(space: spaces.Space) -> np.ndarray:
    return np.asarray(getattr(space, "start", 0), np.int64)


def _trace(program: PolicyProgram, policy: Policy) -> torch.export.ExportedProgram:
    """The program as a graph for any number of rows."""
    rows = torch.export.Dim("batch")
    arguments = program.example(4)
    shapes = torch.utils._pytree.tree_map(lambda _: {0: rows}, arguments)
    modules = [part for part in policy.algo.parts().values() if isinstance(part, nn.Module)]
    learning = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:  # the graph holds them as constants, which learn nothing
            parameter.requires_grad_(False)
        with torch.no_grad(), _quiet():
            traced = torch.export.export(program, arguments, dynamic_shapes=shapes)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"{type(policy.algo).__name__} cannot be exported: its greedy policy is not one graph for any number of "
            f"observations ({reason[:200]})."
        ) from error
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
    for node in traced.graph.nodes:
        for trace in (
            "stack_trace",
            "nn_module_stack",
            "source_fn_stack",
            "torch_fn",
        ):  # where in whose files it is made
            node.meta.pop(trace, None)
    return traced


# ---- the formats


def _write_torch(traced: torch.export.ExportedProgram, path: Path, info: dict[str, Any]) -> None:
    buffer = io.BytesIO()  # torch's own writer answers a full disk with a RuntimeError
    torch.export.save(traced, buffer, extra_files={INFO_FILE: json.dumps(info)})
    path.write_bytes(buffer.getvalue())


def _read_torch(path: Path, info: dict[str, Any]) -> Program:
    module = torch.export.load(path).module()

    def run(leaves: Leaves, carry: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        tensors = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
        obs = tensors["obs"] if info["single"] else tensors
        with torch.no_grad():
            out = module(obs) if carry is None else module(obs, torch.from_numpy(carry))
        return out[0].numpy(), out[1].numpy() if carry is not None else None

    return run


def _require_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise ExportError(f"to=onnx needs {package}: pip install 'rlexp[onnx]'") from error


def _write_onnx(traced: torch.export.ExportedProgram, path: Path, info: dict[str, Any]) -> None:
    names = [each["name"] for each in info["inputs"]], [each["name"] for each in info["outputs"]]
    try:
        program = torch.onnx.export(traced, input_names=names[0], output_names=names[1], verbose=False)
    except Exception as error:
        raise ExportError(
            f"ONNX has no way to say what this policy does: {str(error).splitlines()[0][:200]}"
        ) from error
    assert program is not None
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        assert value.shape is not None
        value.shape = type(value.shape)(["batch", *value.shape[1:]])
    program.model.metadata_props["rlexp"] = json.dumps(info)
    program.save(path, external_data=False)


def _read_onnx(path: Path, info: dict[str, Any]) -> Program:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(leaves: Leaves, carry: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        given = leaves if carry is None else {**leaves, "carry": carry}
        action, *following = session.run(None, given)
        return action, following[0] if following else None

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch tells of its own passes while it exports."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# ---- the comparison


def _observations(predictor: Predictor, env: GymEnv) -> list[Any]:
    """Native observations: those of episodes that the policy plays, in their order, then any of the space."""
    space = predictor.space
    space.seed(0)
    sampled = [_possible(space.sample(), predictor) for _ in range(SAMPLED)]
    if isinstance(env, DatasetEnv):  # there is nothing to play in
        return sampled
    made = env.make()
    played: list[Any] = []
    try:
        obs, _ = made.reset(seed=0)
        predictor.reset()
        while len(played) < PLAYED:
            played.append(obs)
            obs, _, terminated, truncated, _ = made.step(predictor(obs))
            if terminated or truncated:
                obs, _ = made.reset()
    finally:
        made.close()
        predictor.reset()
    return played + sampled


def _possible(obs: Any, predictor: Predictor) -> Any:
    """A sampled observation in which something can be done."""
    return {**obs, MASK: np.ones_like(obs[MASK])} if predictor.policy.spec.obs.masked else obs


def _compare(written: Program, program: PolicyProgram, predictor: Predictor, observations: Sequence[Any]) -> None:
    """Refuse a file that acts otherwise than the agent: on all rows at once, and on an episode row by row."""
    size = program.carry_size
    carry = np.zeros((len(observations), size), np.float32) if size else None
    predictor.reset()
    expected = np.stack([np.asarray(each) for each in predictor(observations)])
    actual, _ = written(_inputs(program, observations), carry)
    wrong = _differences(actual, expected, program)
    predictor.reset()
    row = np.zeros((1, size), np.float32) if size else None
    for obs in observations[: PLAYED if size else 1]:  # a recurrent policy in its memory, too
        action, row = written(_inputs(program, [obs]), row)
        wrong += _differences(action, np.asarray(predictor(obs))[None], program)
    predictor.reset()
    if wrong:
        raise ExportError(
            f"The exported policy does not act like the agent on {wrong} of {len(observations)} observations, so it "
            "was not kept. Please report it with the run's config.yaml."
        )


def _inputs(program: PolicyProgram, observations: Sequence[Any]) -> Leaves:
    leaves = {}
    for port in program.ports:
        rows = []
        for obs in observations:
            for key in port.path:
                obs = obs[key]
            rows.append(np.asarray(obs))
        leaves[port.name or "obs"] = np.stack(rows).astype(port.leaf.dtype)
    return leaves


def _differences(actual: np.ndarray, expected: np.ndarray, program: PolicyProgram) -> int:
    """Rows whose actions differ."""
    if actual.shape != expected.shape:
        return len(expected)
    rows = (len(expected), -1)
    if np.issubdtype(expected.dtype, np.floating):
        low, high = (np.asarray(bound, np.float64).reshape(1, -1) for bound in program.spec.action.bounds)
        half = np.where(np.isfinite(high - low), (high - low) / 2, np.maximum(1, np.abs(expected.reshape(rows))))
        same = np.abs(actual.reshape(rows) - expected.reshape(rows)) <= TOLERANCE * half  # NaN is not
    else:
        same = actual.reshape(rows) == expected.reshape(rows)
    return int((~same.all(1)).sum())
