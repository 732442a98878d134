"""Environments in worker processes: several per worker, arrays through shared memory, commands through pipes.

A worker runs a :class:`SyncVecEnv` over its share of the environments, so both backends give the same bits. Workers
come from a fork server that has imported neither torch nor the user's main module. Free of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.envs.spec import EnvSpec
from rlexp.envs.vector import StepArrays, SyncVecEnv, VecEnv, VecStep, final_rows
from rlexp.errors import EnvError, RlexpError
from rlexp.tree import ArrayTree, tree_map

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_IN_PROCESS = "env.vectorization=sync env.workers=null"  # sync alone is refused where workers are set
_CLOSE_SECONDS = 5.0  # for the environments' own close(); then the worker is killed


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: Connection
    first: int  # index of its first environment
    count: int

    def __str__(self) -> str:
        last = self.first + self.count - 1
        which = f"environment {last}" if self.count == 1 else f"environments {self.first} to {last}"
        return f"The worker process of {which}"


class SubprocVecEnv(VecEnv):
    """Environments spread over worker processes. ``make`` must be importable there: a module-level callable."""

    def __init__(
        self, make: Callable[[], gym.Env], spec: EnvSpec, num_envs: int, seed: int, workers: int | None = None
    ) -> None:
        super().__init__(spec, num_envs, seed)
        self._workers: list[_Worker] = []
        self._number = 0  # of the latest command; a reply carries the number of the command it answers
        self._whole = True  # whether every worker has answered it
        memory = _context().RawArray(ctypes.c_byte, _Layout(spec, num_envs).size)  # anonymous: nothing to clean up
        self._action, self._arrays = _Layout(spec, num_envs).views(memory)
        shares = np.array_split(np.arange(num_envs), min(workers or num_envs, num_envs))
        self._needs_main = b"__main__" in _pickled(make)
        # Also runs at exit, before multiprocessing waits for its children.
        self._finalizer = util.Finalize(self, _shut_down, args=(self._workers,), exitpriority=10)
        try:
            with _one_thread(), contextlib.nullcontext() if self._needs_main else _without_main():
                for share in shares:
                    self._workers.append(_start(make, spec, memory, num_envs, int(share[0]), len(share), seed))
            self._replies()
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int | None = None) -> ArrayTree:  # noqa: D102
        self.seed = self.seed if seed is None else seed
        self._command("reset", lambda worker: self.seed)
        return tree_map(np.copy, self._arrays.obs)

    def step(self, action: np.ndarray) -> VecStep:  # noqa: D102
        self._check_action(action)
        self._action[...] = action
        episodes = [episode for ended in self._command("step") for episode in ended]
        obs = tree_map(np.copy, self._arrays.obs)
        terminated, truncated = self._arrays.terminated.copy(), self._arrays.truncated.copy()
        next_obs = final_rows(obs, self._arrays.final, terminated | truncated) if episodes else obs
        return VecStep(obs, next_obs, self._arrays.reward.copy(), terminated, truncated, episodes)

    def snapshot(self) -> dict[str, Any]:  # noqa: D102
        return {"envs": [state for states in self._command("snapshot") for state in states]}

    def restore(self, state: dict[str, Any]) -> tuple[ArrayTree, list[int]]:  # noqa: D102
        states = self._env_states(state)
        replies = self._command("restore", lambda worker: states[worker.first : worker.first + worker.count])
        self.seed = states[0]["seed"]
        return tree_map(np.copy, self._arrays.obs), [index for inexact in replies for index in inexact]

    def close(self) -> None:  # noqa: D102
        self._finalizer()

    def _command(self, name: str, argument: Callable[[_Worker], Any] | None = None) -> list[Any]:
        """Send a command to all workers and wait for all replies."""
        if not self._workers:
            raise EnvError("The environments have been closed.")
        if not self._whole and name in ("step", "snapshot"):
            raise EnvError("The last step was interrupted half way: reset() or restore() the environments first.")
        self._whole = False
        self._number += 1
        for worker in self._workers:
            try:
                worker.pipe.send((self._number, name, argument(worker) if argument else None))
            except OSError:
                raise self._died(worker) from None
        values = self._replies()
        self._whole = True
        return values

    def _replies(self) -> list[Any]:
        values = []
        for worker in self._workers:
            number = -1
            while number != self._number:  # an older one answers a command that an interrupt cut short
                try:
                    number, problem, value = worker.pipe.recv()
                except (EOFError, OSError):
                    raise self._died(worker) from None
                if problem:
                    raise self._failed(worker, problem, value)
            values.append(value)
        return values

    def _failed(self, worker: _Worker, problem: str, cause: str | type[RlexpError]) -> RlexpError:
        code = _exit_code(worker)
        self.close()
        if isinstance(cause, type):
            return cause(problem)
        error = EnvError(f"{worker} failed (exit code {code}): {problem}")
        error.add_note(cause)  # the worker's traceback, for whoever sees more than the message
        return error

    def _died(self, worker: _Worker) -> EnvError:
        code = _exit_code(worker)
        self.close()
        name = ""
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                name = f" ({signal.Signals(-code).name}{', perhaps out of memory' if code == -signal.SIGKILL else ''})"
        hint = f"{_IN_PROCESS} runs the environments in the main process, where the cause can be seen."
        if self._needs_main:
            hint += " A script that defines its environment must start training under `if __name__ == '__main__':`."
        return EnvError(f"{worker} died with exit code {code}{name}. {hint}")


class _Layout:
    """Where each array lies in the shared memory."""

    def __init__(self, spec: EnvSpec, n: int) -> None:
        self.spec, self.size = spec, 0
        self._places: dict[tuple[str, str], tuple[int, tuple[int, ...], str]] = {}
        self._place(("action", ""), (n, *spec.action.shape), spec.action.dtype)
        self._place(("reward", ""), (n,), "float32")
        self._place(("terminated", ""), (n,), "bool")
        self._place(("truncated", ""), (n,), "bool")
        for part in ("obs", "final"):
            for name, leaf in spec.obs.leaves.items():
                self._place((part, name), (n, *leaf.shape), leaf.dtype)

    def _place(self, key: tuple[str, str], shape: tuple[int, ...], dtype: str) -> None:
        self._places[key] = (self.size, shape, dtype)
        used = math.prod(shape) * np.dtype(dtype).itemsize
        self.size += -(-used // 64) * 64  # each array begins on a cache line

    def views(self, memory: Any, rows: slice = slice(None)) -> tuple[np.ndarray, StepArrays]:
        """The actions and the results of a step, for some of the environments, as arrays over ``memory``."""
        trees: dict[str, Any] = {}
        for (part, name), (offset, shape, dtype) in self._places.items():
            flat = np.frombuffer(memory, dtype, math.prod(shape), offset)
            trees.setdefault(part, {})[name] = flat.reshape(shape)[rows]
        bare = {"action", "reward", "terminated", "truncated"} | ({"obs", "final"} if self.spec.obs.single else set())
        trees = {part: tree[""] if part in bare else tree for part, tree in trees.items()}
        return trees.pop("action"), StepArrays(**trees)


def _work(
    pipe: Connection, make: Callable[[], gym.Env], spec: EnvSpec, memory: Any, n: int, first: int, count: int, seed: int
) -> None:
    """A worker process: make ``count`` environments, then serve commands until told to close or left alone."""
    # Ctrl-C and `timeout` signal the whole process group; the parent needs its workers to save a checkpoint.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    env, number = None, 0
    try:
        env = SyncVecEnv(make, spec, count, seed, first)
        action, arrays = _Layout(spec, n).views(memory, slice(first, first + count))
        reply = None
        while _send(pipe, (number, "", reply)) and (message := _receive(pipe)):
            number, name, argument = message
            reply = _serve(env, action, arrays, name, argument)
    except RlexpError as error:
        _send(pipe, (number, str(error), type(error)))
        sys.exit(1)
    except BaseException as error:
        last_line = traceback.format_exception_only(error)[-1].strip()
        _send(pipe, (number, last_line, traceback.format_exc()))
        sys.exit(1)
    finally:
        with contextlib.suppress(Exception):
            if env is not None:
                env.close()


def _serve(env: SyncVecEnv, action: np.ndarray, arrays: StepArrays, name: str, argument: Any) -> Any:
    if name == "step":
        arrays.terminated[:] = arrays.truncated[:] = False
        return env.step_into(action, arrays)
    if name == "reset":
        return env.reset_into(argument, arrays.obs)
    if name == "snapshot":
        return env.snapshot()["envs"]
    return env.restore_into(argument, arrays.obs)


def _receive(pipe: Connection) -> Any:
    """The next command; None when told to close and when the parent is gone."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _send(pipe: Connection, message: Any) -> bool:
    try:
        pipe.send(message)
    except OSError:  # the parent is gone
        return False
    return True


def _context() -> Any:
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([__name__])  # instead of the main module, which may import torch
    return context


def _start(make: Any, spec: EnvSpec, memory: Any, n: int, first: int, count: int, seed: int) -> _Worker:
    context = _context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, make, spec, memory, n, first, count, seed), daemon=True)
    process.start()
    theirs.close()  # so that the worker's death closes the pipe
    return _Worker(process, ours, first, count)


def _pickled(make: Callable[[], gym.Env]) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(make))
    except Exception as error:
        raise EnvError(
            f"The environment cannot be sent to worker processes ({error}). Define its factory and its classes at the "
            f"top level of a module, or use {_IN_PROCESS}."
        ) from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for each numerical library of the processes started here: there is one worker per core already."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module from multiprocessing, which would import it in every worker, and torch with it.

    A script without an ``if __name__ == "__main__"`` guard would even start its training again there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _exit_code(worker: _Worker) -> int | None:
    worker.process.join(1.0)
    return worker.process.exitcode


def _shut_down(workers: list[_Worker]) -> None:
    """End all workers: by asking, then by force. Never waits long, and never for a worker that is stuck."""
    for worker in workers:
        _send(worker.pipe, None)
        worker.pipe.close()
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(1.0)
    workers.clear()
