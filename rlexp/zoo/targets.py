"""What presets are held to: the least return or rate of success, and within how much. Data only; free of torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["steps", "updates"]  # of the environment; of an agent that learns from data
OVERSHOOT = 1.02  # the last rollout may go beyond the budget


@dataclass(frozen=True)
class Target:
    """What the median over seeds is to reach at the end."""

    least: float
    budget: int  # no run may take more
    unit: Unit = "steps"
    success: bool = False  # the share of episodes that succeed, not their mean return
    fails: bool = False  # shows what cannot be learned so: the median stays below ``least``
    clones: bool = False  # learns from an expert, who is hardly surpassed; others must surpass their data on average

    @property
    def figure(self) -> str:
        """What of an evaluation is compared."""
        return "success_rate" if self.success else "return_mean"

    def __str__(self) -> str:
        return f"{'success ' if self.success else ''}{'<' if self.fails else '≥'} {self.least:g}"

    def met(self, finals: Sequence[float], spent: int, data: float | None = None) -> bool:
        """Whether the last evaluations of all seeds are as wanted; ``data`` is the mean return of the data."""
        median = statistics.median(finals)
        reached = median < self.least if self.fails else median >= self.least
        surpassed = data is None or self.clones or median > data
        return reached and surpassed and spent <= self.budget * OVERSHOOT


TARGETS = {
    "ppo_cartpole": Target(475, 100_000),
    "dqn_cartpole": Target(475, 80_000),
    "dqn_double_cartpole": Target(475, 80_000),
    "dqn_dueling_cartpole": Target(475, 80_000),
    "dqn_prioritized_cartpole": Target(475, 80_000),
    "dqn_n_step_cartpole": Target(475, 80_000),
    "dqn_noisy_cartpole": Target(475, 80_000),
    "c51_cartpole": Target(475, 80_000),
    "qrdqn_cartpole": Target(475, 80_000),
    "iqn_cartpole": Target(475, 80_000),
    "rainbow_cartpole": Target(475, 80_000),
    "discrete_sac_cartpole": Target(475, 80_000),
    "a2c_cartpole": Target(475, 300_000),
    "trpo_cartpole": Target(475, 100_000),
    "recurrent_ppo_cartpole_masked": Target(450, 300_000),
    "recurrent_ppo_cartpole_pixels": Target(400, 50_000),
    "ppo_cartpole_masked": Target(200, 300_000, fails=True),
    "ppo_acrobot": Target(-100, 300_000),
    "dqn_acrobot": Target(-100, 300_000),
    "ppo_lunar_lander": Target(200, 1_000_000),
    "dqn_lunar_lander": Target(200, 1_000_000),
    "ppo_pendulum": Target(-250, 200_000),
    "trpo_pendulum": Target(-250, 200_000),
    "sac_pendulum": Target(-200, 20_000),
    "ddpg_pendulum": Target(-200, 20_000),
    "td3_pendulum": Target(-200, 20_000),
    "drq_v2_pendulum": Target(-400, 30_000),
    "drq_v2_cartpole": Target(400, 12_000),
    "ppo_pong": Target(0, 2_400_000),
    "dqn_pong": Target(18, 700_000),
    "ppo_breakout": Target(5, 400_000),
    "ppo_road_runner": Target(3_000, 300_000),
    "ppo_qbert": Target(400, 200_000),
    "ppo_space_invaders": Target(250, 200_000),
    "ppo_ms_pacman": Target(600, 200_000),
    "ppo_seaquest": Target(200, 200_000),
    "ppo_assault": Target(400, 200_000),
    "ppo_crazy_climber": Target(20_000, 200_000),
    "ppo_krull": Target(3_000, 200_000),
    "tqc_pendulum": Target(-200, 20_000),
    "redq_pendulum": Target(-200, 20_000),
    "crossq_pendulum": Target(-200, 20_000),
    "simba_pendulum": Target(-200, 20_000),
    "droq_pendulum": Target(-200, 20_000),
    "rlpd_pendulum": Target(-200, 10_000),
    "rlpd_paper_pendulum": Target(-200, 2_500),
    "crr_pendulum": Target(-250, 30_000, "updates"),
    "awac_pendulum": Target(-250, 30_000, "updates"),
    "iql_pendulum": Target(-250, 30_000, "updates"),
    "xql_pendulum": Target(-250, 30_000, "updates"),
    "bc_pendulum": Target(-250, 20_000, "updates", clones=True),
    "awr_pendulum": Target(-250, 20_000, "updates", clones=True),
    "marwil_pendulum": Target(-250, 20_000, "updates", clones=True),
    "bc_cartpole": Target(475, 20_000, "updates", clones=True),
    "marwil_cartpole": Target(475, 30_000, "updates"),
    "iql_cartpole": Target(475, 30_000, "updates"),
    "awac_cartpole": Target(475, 30_000, "updates"),
    "crr_cartpole": Target(475, 30_000, "updates"),
    "her_dqn_bit_flip": Target(0.9, 100_000, success=True),
    "her_discrete_sac_bit_flip": Target(0.9, 20_000, success=True),
    "dqn_bit_flip": Target(0.1, 100_000, success=True, fails=True),
    "cql_pendulum": Target(-250, 30_000, "updates"),
    "cal_ql_pendulum": Target(-250, 30_000, "updates"),
    "sac_n_pendulum": Target(-250, 30_000, "updates"),
    "edac_pendulum": Target(-250, 30_000, "updates"),
    "bcq_pendulum": Target(-250, 30_000, "updates"),
    "bear_pendulum": Target(-250, 30_000, "updates"),
    "td3_bc_pendulum": Target(-250, 30_000, "updates"),
    "rebrac_pendulum": Target(-250, 30_000, "updates"),
    "discrete_cql_cartpole": Target(475, 30_000, "updates"),
    "discrete_bcq_cartpole": Target(475, 30_000, "updates"),
    "her_sac_point_maze_open": Target(0.9, 15_000, success=True),
    "her_sac_point_maze": Target(0.9, 40_000, success=True),
    "sac_point_maze_open": Target(0.7, 15_000, success=True, fails=True),
    # With Stable-Baselines3's settings: the least final return of the seeds that it had then, rounded down
    # (docs/benchmarks/reference/*.csv).
    "sac_hopper": Target(327, 50_000),
    "td3_hopper": Target(319, 50_000),
    "ppo_hopper": Target(652, 204_800),
    "sac_half_cheetah": Target(2_808, 50_000),
    "td3_half_cheetah": Target(853, 50_000),
    "ppo_half_cheetah": Target(281, 204_800),
    # Without such a reference: set before they were measured (but for tqc_hopper, of which one seed was known).
    "tqc_hopper": Target(250, 50_000),
    "ddpg_hopper": Target(150, 30_000),
    "crossq_hopper": Target(200, 20_000),
    "redq_hopper": Target(150, 3_000),
    "droq_hopper": Target(150, 3_000),
    "simba_hopper": Target(200, 20_000),
    "tqc_half_cheetah": Target(1_000, 30_000),
    "ddpg_half_cheetah": Target(500, 30_000),
    "crossq_half_cheetah": Target(1_000, 20_000),
    "redq_half_cheetah": Target(300, 3_000),
    "sac_walker2d": Target(200, 30_000),
    "td3_walker2d": Target(150, 30_000),
    "ppo_walker2d": Target(250, 204_800),
    "tqc_walker2d": Target(200, 30_000),
    "ddpg_walker2d": Target(100, 30_000),
    "crossq_walker2d": Target(150, 20_000),
    "redq_walker2d": Target(100, 3_000),
    # After runs of 30 k steps (PPO: 204,800), which all missed what was set for them; before those of these budgets.
    "sac_ant": Target(400, 100_000),
    "td3_ant": Target(400, 100_000),
    "ppo_ant": Target(500, 1_000_000),
    "tqc_ant": Target(500, 80_000),
    "crossq_ant": Target(700, 60_000),
    "dqn_cartpole_pixels": Target(400, 60_000),
}
