"""What is measured: settings of rlexp, and the peer that runs the same ones. A new algorithm is one entry here.

Peers' settings are never written down: they are translated from the composed rlexp config (`peers.py`), so that both
sides run the same thing by construction, but for the precision of products where a title says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlexp.bench.worker import FOREVER
from rlexp.config.check import suggest
from rlexp.errors import ConfigError

EAGER = "eager"  # the peer of a workload that is compared with its own uncompiled form


@dataclass(frozen=True)
class Workload:
    """One comparison."""

    name: str
    title: str
    overrides: tuple[str, ...]  # as on the command line
    peer: str | None = None  # sb3, d3rlpy, or eager
    unit: str = "steps"  # what is counted: steps of the environments, or updates
    data: int | None = None  # offline: transitions of synthetic data to learn from
    least: float | None = None  # ratio that must be reached
    aim: float | None = None  # ratio that is hoped for


def offline(name: str, title: str, overrides: tuple[str, ...], *, least: float, aim: float) -> Workload:
    """Updates on synthetic data against d3rlpy."""
    title = f"{title} offline, 17 observations, 6 actions, batch 256"
    return Workload(f"{name}_offline", title, overrides, "d3rlpy", "updates", 100_000, least, aim)


SB3_DETERMINISTIC = (  # Stable-Baselines3's defaults for DDPG and TD3: wider networks, faster, and no noise on actions
    "model.hidden=[400,300]",
    "algo.actor_learning_rate=1e-3",
    "algo.critic_learning_rate=1e-3",
    "algo.exploration=none",
    "trainer.learning_starts=100",
)


def after_decay(epsilon: float) -> tuple[str, str]:
    """Steady state is what follows the decay of ε: both sides begin there."""
    return f"algo.schedules.epsilon.start={epsilon}", f"algo.schedules.epsilon.end={epsilon}"


def small(algo: str, title: str, overrides: tuple[str, ...] = ()) -> Workload:
    """With networks of 64, which cost less than what surrounds them; at SB3's widths matrix products are the limit."""
    title = f"{title} Pendulum, networks of 64, batch 256, one update per step"
    given = (f"algo={algo}", "env=pendulum", "trainer.learning_starts=100", *overrides, "model.hidden=[64,64]")
    return Workload(f"{algo}_pendulum_small", title, given, "sb3", least=2.5, aim=3)


def in_bfloat16(work: Workload) -> Workload:
    """The same with rlexp's updates in bfloat16, which the peers do not have: for where products are the limit."""
    overrides = (*work.overrides, "precision=bfloat16")
    return replace(work, name=f"{work.name}_bf16", title=f"{work.title}, rlexp in bfloat16", overrides=overrides)


FULL_PRECISION = (
    Workload(
        "ppo_cartpole",
        "PPO CartPole, 8 envs × 256, minibatch 64, 10 epochs",
        ("algo=ppo", "env=cartpole", "env.num_envs=8", "trainer.rollout_steps=256"),
        peer="sb3",
        least=4,
        aim=6,
    ),
    Workload(
        "ppo_pong",
        "PPO Atari Pong, 8 envs × 128, minibatch 256, 4 epochs",
        ("zoo=ppo_atari", "env.game=pong"),
        peer="sb3",
        least=2,
    ),
    Workload(
        "dqn_pong",
        "DQN Atari Pong, batch 32, one update for four steps",
        ("zoo=dqn_atari", "env.game=pong", "trainer.learning_starts=1000", "buffer.capacity=10000", *after_decay(0.01)),
        peer="sb3",
        least=2,
    ),
    Workload(
        "a2c_cartpole",
        "A2C CartPole, 8 envs × 5",
        ("algo=a2c", "env=cartpole", "env.num_envs=8"),
        peer="sb3",
        least=3,
        aim=4,
    ),
    Workload(
        "trpo_cartpole",
        "TRPO CartPole, 8 envs × 256",
        ("algo=trpo", "env=cartpole", "env.num_envs=8", "trainer.rollout_steps=256"),
        peer="sb3",
        least=2,
        aim=3,
    ),
    Workload(
        "dqn_cartpole",
        "DQN CartPole, batch 32, train every 4",
        (
            "algo=dqn",
            "env=cartpole",
            "trainer.learning_starts=100",
            "algo.target_interval=2500",
            *after_decay(0.05),
        ),
        peer="sb3",
        least=4,
        aim=6,
    ),
    Workload(
        "qrdqn_cartpole",
        "QR-DQN CartPole, 200 quantiles, batch 32, train every 4",
        (
            "algo=qrdqn",
            "env=cartpole",
            "trainer.learning_starts=100",
            "algo.target_interval=2500",
            *after_decay(0.05),
        ),
        peer="sb3",
        least=4,
        aim=6,
    ),
    Workload(
        "sac_pendulum",
        "SAC Pendulum, batch 256, one update per step",
        ("algo=sac", "env=pendulum", "trainer.learning_starts=100"),
        peer="sb3",
        least=2.5,
        aim=3,
    ),
    Workload(
        "crossq_pendulum",
        "CrossQ Pendulum, critics of width 1024, batch 256, one update per step",
        ("algo=crossq", "env=pendulum", "model.critic_hidden=[1024,1024]", "trainer.learning_starts=100"),
        peer="sb3",
        least=2,
        aim=3,
    ),
    Workload(
        "ddpg_pendulum",
        "DDPG Pendulum, batch 256, one update per step",
        ("algo=ddpg", "env=pendulum", *SB3_DETERMINISTIC),
        peer="sb3",
        least=2.5,
        aim=3,
    ),
    Workload(
        "td3_pendulum",
        "TD3 Pendulum, batch 256, one update per step",
        ("algo=td3", "env=pendulum", *SB3_DETERMINISTIC),
        peer="sb3",
        least=2.5,
        aim=3,
    ),
    Workload(
        "tqc_pendulum",
        "TQC Pendulum, 2 critics of 25 quantiles, batch 256, one update per step",
        ("algo=tqc", "env=pendulum", "algo.n_critics=2", "trainer.learning_starts=100"),  # sb3-contrib's number
        peer="sb3",
        least=2,
        aim=3,
    ),
    small("sac", "SAC"),
    small("ddpg", "DDPG", SB3_DETERMINISTIC),
    small("td3", "TD3", SB3_DETERMINISTIC),
    small("tqc", "TQC", ("algo.n_critics=2",)),
    small("crossq", "CrossQ"),
    offline("crr", "CRR", ("algo=crr",), least=2.5, aim=3),
    Workload(
        "discrete_sac_cartpole",
        "Discrete SAC CartPole, the zoo's preset, compiled against eager",
        # Networks of 64: those of 256 spend three quarters of an eager update in matrix products already.
        ("zoo=discrete_sac_cartpole", "trainer.learning_starts=100"),
        peer=EAGER,
        unit="updates",
        least=2,
        aim=3,
    ),
    # d3rlpy has none unless it is told to
    offline("iql", "IQL", ("algo=iql", "algo.schedules.actor_learning_rate=null"), least=2.5, aim=3),
    offline("awac", "AWAC", ("algo=awac",), least=2.5, aim=3),
    offline("bc", "BC", ("algo=bc", "algo.objective=mse"), least=2, aim=3),
    offline("td3_bc", "TD3+BC", ("algo=td3_bc",), least=2.5, aim=3),
    offline("cql", "CQL", ("algo=cql", "algo.backup=soft"), least=1.8, aim=2),
    offline("cal_ql", "Cal-QL", ("algo=cal_ql", "algo.backup=soft"), least=1.8, aim=2),
    offline(
        "bcq", "BCQ, 10 samples", ("algo=bcq", "model.hidden=[256,256]", "algo.n_action_samples=10"), least=1.8, aim=2
    ),
    offline(
        "bear",
        "BEAR, 4 samples for the distance",
        ("algo=bear", "model.hidden=[256,256]", "algo.n_mmd_samples=4", "algo.warmup_updates=0"),
        least=2,
        aim=3,
    ),
    offline(
        "rebrac", "ReBRAC", ("algo=rebrac", "model.hidden=[256,256,256]", "trainer.batch_size=256"), least=2, aim=3
    ),
)


BY_NAME = {work.name: work for work in FULL_PRECISION}
IN_BFLOAT16 = tuple(
    in_bfloat16(BY_NAME[name])
    for name in ("ppo_pong", "dqn_pong", "sac_pendulum", "ddpg_pendulum", "td3_pendulum", "crossq_pendulum")
)
WORKLOADS = (*FULL_PRECISION, *IN_BFLOAT16)


def select(names: Sequence[str] | None) -> list[Workload]:
    """The workloads named; or all, in bfloat16 only where the processor has products of it."""
    known = {work.name: work for work in WORKLOADS}
    if not names:
        from rlexp.machine import multiplies_bfloat16

        return [*FULL_PRECISION, *(IN_BFLOAT16 if multiplies_bfloat16() else ())]
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such workload.{suggest(name, known)}")
    return [known[name] for name in names]


def loop_overrides(offline: bool) -> list[str]:
    """What turns a run into an endless one: the loop with its logging, without evaluations and checkpoints."""
    budget = "trainer.total_updates" if offline else "trainer.total_steps"
    return ["seed=0", "device=cpu", f"{budget}={FOREVER}", "trainer.eval_episodes=0", "trainer.checkpoint_interval=0"]


def config_of(work: Workload, data_path: str | None = None, more: Sequence[str] = ()) -> dict[str, Any]:
    """The composed config of a workload; ``data_path`` is where the synthetic data of an offline one lie."""
    from rlexp.bench.synthetic import ENV_ID
    from rlexp.config.compose import compose

    given = [*work.overrides, *loop_overrides(offline=work.data is not None)]
    if work.data is not None:
        given += ["env=gym", f"env.id='{ENV_ID}'", "dataset=npz", f"dataset.path='{data_path}'"]
    return compose([*given, "compile=true", *more])
