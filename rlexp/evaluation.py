"""Playing whole episodes with a policy: its own environments, its own random numbers, no trace in the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlexp.envs import GymEnv, SyncVecEnv, VecEnv
from rlexp.envs.frame_rate import frame_rate
from rlexp.envs.locate import missing_package
from rlexp.envs.scores import Reference, reference_for
from rlexp.errors import EnvError, RlexpError
from rlexp.policy import Policy
from rlexp.seeding import derive_seed
from rlexp.video import Video, check_frame, import_cv2

MAX_PARALLEL = 10  # environments played side by side
LONG_EPISODE = 20_000  # steps after which an episode without a time limit may be one that never ends


@dataclass
class Evaluation:
    """The returns and lengths of evaluation episodes."""

    returns: list[float]
    lengths: list[int]
    successes: list[float]  # `is_success` of the episodes whose environment tells
    reference: Reference | None = None  # what scores 0 and 100

    @property
    def return_mean(self) -> float:
        """Mean return over the episodes."""
        return float(np.mean(self.returns))

    @property
    def score(self) -> float:
        """What the best checkpoint is chosen by."""
        return self.return_mean

    def summary(self) -> dict[str, float]:
        """As written to summary.json."""
        values = {
            "return_mean": self.return_mean,
            "return_std": float(np.std(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "episodes": len(self.returns),
        }
        if self.successes:
            values["success_rate"] = float(np.mean(self.successes))
        if self.reference is not None:
            values["normalized_score"] = self.reference.score(self.return_mean)
        return values

    def row(self) -> dict[str, float]:
        """As logged."""
        return {f"eval/{key}": value for key, value in self.summary().items()}


class Evaluator:
    """Evaluates policies in environments built once and restarted for every evaluation."""

    def __init__(self, env: GymEnv, render_mode: str | None = None, warn: Callable[[str], None] | None = None) -> None:
        self.env = env = env.for_evaluation()
        self.warn = warn or logging.getLogger("rlexp").warning
        self.warned = env.spec().max_episode_steps is not None  # then no episode is endless
        self.render_mode = render_mode
        self.reference = reference_for(env)
        self.envs: VecEnv | None = None

    def __call__(
        self,
        policy: Policy,
        episodes: int,
        *,
        seed: int,
        deterministic: bool = True,
        video: Video | None = None,
    ) -> Evaluation:
        """Play ``episodes`` episodes; the same seed gives the same episodes.

        ``video`` gets every frame; the environments must have been made to draw (``render_mode="rgb_array"``).
        """
        count = 1 if self.render_mode else min(episodes, MAX_PARALLEL)
        if self.envs is None or self.envs.num_envs != count:
            self.close()
            self.envs = self.env.build(seed, num_envs=count, render_mode=self.render_mode)
        generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "eval-actions"))
        watch = None if self.warned else self._watch
        try:
            with _filming(self.envs, video) as record:
                evaluation = _play(self.envs, policy, episodes, seed, not deterministic, generator, watch, record)
        except RlexpError:
            raise
        except Exception as error:
            if self.render_mode is None:
                raise
            raise EnvError(_cannot_show(self.env.id, error, self.render_mode)) from error
        evaluation.reference = self.reference
        return evaluation

    def _watch(self, steps: int) -> None:
        """Told how long an episode has become; says once that it may never end."""
        if steps >= LONG_EPISODE and not self.warned:
            self.warned = True
            self.warn(
                f"An evaluation episode of {self.env.spec().id} has gone on for {steps:,} steps, and there is no time "
                "limit to end it. If it may never end by itself, set env.max_episode_steps=…"
            )

    def close(self) -> None:
        """Free the environments."""
        if self.envs is not None:
            self.envs.close()
            self.envs = None


def check_filming(env: GymEnv) -> None:
    """Refuse an environment, or an installation, that no MP4 video can be made with."""
    import_cv2()
    envs = env.for_evaluation().build(0, num_envs=1, render_mode="rgb_array")
    assert isinstance(envs, SyncVecEnv)
    try:
        envs.reset()
        check_frame(envs.render())
    except RlexpError:
        raise
    except Exception as error:
        raise EnvError(_cannot_show(env.id, error, "rgb_array")) from error
    finally:
        envs.close()


@contextmanager
def _filming(envs: VecEnv, video: Video | None) -> Iterator[Callable[[], None] | None]:
    """What adds a frame of the only environment as it looks when it is called.

    The last one of an episode is added unasked: once the step returns, the next episode has begun.
    """
    if video is None:
        yield None
        return
    assert isinstance(envs, SyncVecEnv)
    rate = frame_rate(envs.envs[0].env)

    def record() -> None:
        video.add(envs.render(), rate)

    envs.at_end = record
    try:
        yield record
    finally:
        envs.at_end = None


def _cannot_show(env_id: str, error: Exception, mode: str) -> str:
    """Environments open their window when they are first reset, so a missing package or display is met only then."""
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return f"{'Drawing' if mode == 'rgb_array' else 'Showing'} {missing_package(env_id, error)}"
    problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if mode == "rgb_array":
        return f"{env_id} cannot be drawn ({problem}). Do without a video."
    return f"{env_id} cannot be shown here ({problem}). It takes a display; leave out render=true to do without."


def _play(
    envs: VecEnv,
    policy: Policy,
    episodes: int,
    seed: int,
    explore: bool,
    generator: torch.Generator,
    watch: Callable[[int], None] | None,
    record: Callable[[], None] | None = None,
) -> Evaluation:
    # Every environment plays a fixed share: counting whichever ends first would favour short episodes.
    quota = np.full(envs.num_envs, episodes // envs.num_envs)
    quota[: episodes % envs.num_envs] += 1
    finished: list[list[Any]] = [[] for _ in range(envs.num_envs)]
    obs, carry = envs.reset(derive_seed(seed, "eval")), None
    age = np.zeros(envs.num_envs, np.int64)  # steps of the running episodes
    while True:
        if record is not None:
            record()
        act = policy.act(policy.normalized(policy.tensor(obs)), carry, explore=explore, generator=generator)
        step = envs.step(policy.env_action(act.action))
        obs, carry = step.obs, act.carry
        for episode in step.episodes:
            if len(finished[episode.env]) < quota[episode.env]:
                finished[episode.env].append(episode)
        if watch is not None:
            age = np.where(step.terminated | step.truncated, 0, age + 1)
            watch(int(age.max()))
        if step.episodes:
            if all(len(done) >= share for done, share in zip(finished, quota)):
                break
            ended = torch.from_numpy(step.terminated | step.truncated)
            carry = policy.algo.reset_carry(carry, ended)
    played = [episode for done in finished for episode in done]
    return Evaluation(
        returns=[episode.ret for episode in played],
        lengths=[episode.length for episode in played],
        successes=[episode.info["is_success"] for episode in played if "is_success" in episode.info],
    )
