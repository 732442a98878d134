"""The contestants, each run in a process of its own by `worker.py`: rlexp's Runner and the peers' own loops.

Each function starts the loop a user would start and lets the pacer hold it between iterations. Frameworks are imported
inside, so that a process holds only its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlexp.bench.worker import FOREVER, Pacer

# ---- rlexp


def run_rlexp(spec: dict[str, Any], pacer: Pacer) -> None:
    """A whole run in a temporary directory: collecting, storing, sampling, updating and logging as always."""
    from rlexp.callbacks import Callback

    class Pace(Callback):
        def on_start(self, trainer: Any) -> None:
            if "fill" in spec:
                fill(trainer.buffer, spec["fill"])

        def on_step(self, trainer: Any) -> None:
            pacer(trainer.updates if counts_updates else trainer.env_steps, trainer.updates > 0)

    counts_updates = spec["unit"] == "updates"
    train(spec, Pace())


def train(spec: dict[str, Any], callback: Any) -> None:
    """Run ``spec["config"]`` with a callback until that ends it."""
    from rlexp.config.compose import register
    from rlexp.runner import Runner

    register()
    runner = Runner(spec["config"] | {"threads": spec["threads"]})
    runner.callbacks.append(callback)
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:
        runner.train(Path(folder) / "run", ["rlexp", "bench"])


def run_envs(spec: dict[str, Any], pacer: Pacer) -> None:
    """The environments alone, with random actions: no loop can be faster."""
    import numpy as np

    from rlexp.config.check import build
    from rlexp.config.compose import register
    from rlexp.config.trust import EVERYTHING

    register()
    env = build("env", spec["config"]["env"], EVERYTHING)
    envs = env.build(0)
    envs.reset()
    rng = np.random.default_rng(0)
    actions = [env.spec().action.sample(envs.num_envs, rng) for _ in range(256)]
    count = 0
    while True:
        for action in actions:
            envs.step(action)
        count += len(actions) * envs.num_envs
        pacer(count)


def run_sampling(spec: dict[str, Any], pacer: Pacer) -> None:
    """Batches of 256 from a replay buffer alone that holds ``spec["fill"]`` transitions."""
    from rlexp.bench.synthetic import ENV_ID
    from rlexp.buffers import ReplayBuffer
    from rlexp.envs import GymEnv

    buffer = ReplayBuffer()
    buffer.build(GymEnv(id=ENV_ID).spec(), 1, 0.99, 0)
    fill(buffer, spec["fill"])
    count = 0
    while True:
        for _ in range(32):
            buffer.sample(256)
        count += 32
        pacer(count)


def fill(buffer: Any, count: int) -> None:
    """Put transitions into an empty replay buffer of one environment until it holds ``count``; they are all alike."""
    import numpy as np

    from rlexp.envs import VecStep

    obs = np.zeros_like(buffer._obs_rows[0][0])
    action = np.zeros_like(buffer._action_rows[0])
    no = np.zeros(1, bool)
    step = VecStep(obs, obs, np.zeros(1, np.float32), no, no, [])
    for _ in range(count - len(buffer)):
        buffer.add(action, step)


# ---- peers


def run_sb3(spec: dict[str, Any], pacer: Pacer) -> None:
    """``model.learn`` of Stable-Baselines3 or sb3-contrib."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    from rlexp.bench.sb3_script import make_model

    class Pace(BaseCallback):
        """Between iterations is where a rollout starts: on-policy after the update, off-policy after the training."""

        def _on_rollout_start(self) -> None:
            updates = self.model._n_updates
            pacer(updates if counts_updates else self.model.num_timesteps, updates > 0)

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(spec["threads"])
    counts_updates = spec["unit"] == "updates"
    make_model(spec["settings"], seed=0).learn(FOREVER, callback=Pace())


def run_d3rlpy(spec: dict[str, Any], pacer: Pacer) -> None:
    """``algo.fit`` of d3rlpy on the same data."""
    import d3rlpy
    import numpy as np
    import torch

    torch.set_num_threads(spec["threads"])
    settings = spec["settings"]
    with np.load(settings["data"]) as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        dataset = d3rlpy.dataset.MDPDataset(**{name: file[name] for name in names})
    normed = settings.get("layer_norm", ())
    arguments = settings["arguments"] | {
        name: d3rlpy.models.VectorEncoderFactory(hidden_units=settings["hidden"], use_layer_norm=name in normed)
        for name in settings["networks"]
    }
    algo = getattr(d3rlpy.algos, f"{settings['class']}Config")(**arguments).create(device="cpu")
    paced: Callable[..., None] = lambda algo, epoch, total: pacer(total)  # noqa: E731
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:
        algo.fit(
            dataset,
            n_steps=FOREVER,
            n_steps_per_epoch=settings["log_interval"],  # it logs at the end of an epoch
            logger_adapter=d3rlpy.logging.FileAdapterFactory(root_dir=folder),
            show_progress=False,
            save_interval=FOREVER,
            callback=paced,
        )
