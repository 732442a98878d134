"""Whether the chosen components can work together, told before anything runs."""

from __future__ import annotations

from typing import Any

from rlexp.algos.base import MIXED, OFFLINE, ON_POLICY, Algorithm
from rlexp.buffers import HerBuffer, ReplayBuffer, RolloutBuffer
from rlexp.buffers.derived import LAMBDA_RETURN, MC_RETURN, check_derived
from rlexp.buffers.prioritized import PrioritizedBuffer
from rlexp.config.component import REGISTRY, registered_name
from rlexp.datasets.settings import ObsScaling, Reward
from rlexp.envs import GymEnv
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError, DataError
from rlexp.evaluators import EvaluationMethod
from rlexp.trainers.base import Trainer


def check_env_settings(env: GymEnv, trainer: Trainer, dataset: Any = None) -> None:
    """Refuse a setting of the environment that the loop would silently ignore, or that another one contradicts."""
    if env.normalize_obs and getattr(dataset, "obs", None) is ObsScaling.standardize:
        raise ConfigError("dataset.obs=standardize and env.normalize_obs=true are two ways to do the same: choose one.")
    if env.normalize_obs and not any(leaf.dtype == "float32" for leaf in env.spec().obs.seen.values()):
        raise ConfigError(
            f"env.normalize_obs has no effect: {env.spec().id} shows only bytes and integers, which pass as they are "
            "(images are scaled by their encoder). Leave it out."
        )
    if env.normalize_reward and getattr(dataset, "reward", Reward.none) is not Reward.none:
        raise ConfigError("dataset.reward and env.normalize_reward are two ways to do the same: choose one.")
    if env.show_achieved_goal and not env.spec().obs.has_goals:
        raise ConfigError(
            f"env.show_achieved_goal=true: {env.spec().id} is no goal environment, whose Dict observation has the "
            "entries observation, achieved_goal and desired_goal. There is nothing to show: leave it out."
        )
    if trainer.loop == OFFLINE and env.normalize_reward:
        raise ConfigError(
            "The offline loop takes no environment steps to normalise rewards by: drop env.normalize_reward."
        )


def check_evaluator(evaluator: EvaluationMethod, algo: Algorithm, dataset: Any) -> None:
    """Refuse a way to evaluate that has nothing to go by."""
    name = registered_name("evaluator", type(evaluator))
    if evaluator.needs_data and dataset is None:
        raise ConfigError(f"evaluator={name} judges by a dataset, but dataset is null. Use evaluator=environment.")
    if problem := evaluator.problem(algo):
        raise ConfigError(f"evaluator={name} {problem}.")


def check_compatible(name: str, algo: Algorithm, trainer: Trainer, buffer: Any, dataset: Any, spec: EnvSpec) -> None:
    """Refuse a combination that cannot work, with one that does."""
    if trainer.loop not in algo.loops:
        fitting = " or ".join(f"trainer={loop}" for loop in sorted(algo.loops))
        raise ConfigError(f"algo={name} cannot learn in the {trainer.loop} loop. Use {fitting}.")
    if spec.action.kind not in algo.actions:
        others = _algorithms_for(spec.action.kind, name, algo, trainer.loop)
        raise ConfigError(
            f"algo={name} acts in {_listed(algo.actions)} action spaces, but {spec.id} has a {spec.action.kind} one. "
            f"For {spec.id} choose algo={' or algo='.join(others) or '…'}; `rlexp list algo` shows all."
        )
    if algo.unit_actions and spec.action.kind == "continuous" and not spec.action.bounded:
        raise ConfigError(
            f"algo={name} squashes its actions into the bounds of the action space, but {spec.id} has none. "
            "Give a bound with env.action_limit=…, or use algo=ppo."
        )
    if check_derived(algo.derived) & {MC_RETURN, LAMBDA_RETURN} and algo.schedules.get("gamma") is not None:
        raise ConfigError(
            f"algo={name} learns from returns of whole episodes, which need one γ: drop algo.schedules.gamma."
        )
    if LAMBDA_RETURN in algo.derived and getattr(buffer, "n_step", 1) != 1:
        raise ConfigError(f"algo={name} mixes the returns of all numbers of steps itself: drop buffer.n_step.")
    wanted: type = RolloutBuffer if trainer.loop == ON_POLICY else ReplayBuffer
    if not isinstance(buffer, wanted):
        buffers = [each for each, cls in REGISTRY["buffer"].items() if issubclass(cls, wanted)]
        raise ConfigError(f"The {trainer.loop} loop needs buffer={' or buffer='.join(sorted(buffers))}.")
    if isinstance(buffer, ReplayBuffer) and trainer.loop != OFFLINE:  # which makes room for its data by itself
        _check_capacity(trainer, buffer.capacity)
    if trainer.loop == OFFLINE and isinstance(buffer, ReplayBuffer) and buffer.capacity != type(buffer).capacity:
        raise ConfigError(
            f"buffer.capacity={buffer.capacity} has no effect in the offline loop, which keeps its whole dataset. "
            "Leave it out; trainer.best_episodes learns from less."
        )
    if isinstance(buffer, HerBuffer) and not spec.obs.has_goals:
        raise ConfigError(
            "buffer=her needs a goal environment, whose Dict observation has the entries observation, achieved_goal "
            f"and desired_goal, both goals one array of the same form; {spec.id} is none. Use buffer=replay."
        )
    if isinstance(buffer, HerBuffer) and algo.derived & {MC_RETURN, LAMBDA_RETURN}:
        raise ConfigError(
            f"algo={name} learns from returns of whole episodes, which are those of their own goals: buffer=her cannot "
            "give them for others. Use buffer=replay."
        )
    if isinstance(buffer, PrioritizedBuffer) and algo.tied_to_data:
        raise ConfigError(
            f"algo={name} learns what the data do, and buffer=prioritized would show it other data than there are. "
            "Use buffer=replay."
        )
    if isinstance(buffer, PrioritizedBuffer) and getattr(dataset, "weighted", False):
        raise ConfigError("buffer=prioritized samples by TD errors, not by the weights of sources. Use buffer=replay.")
    if trainer.loop in (OFFLINE, MIXED) and dataset is None:
        choices = " or ".join(f"dataset={choice}" for choice in sorted(REGISTRY.get("dataset", {})))
        raise DataError(f"algo={name} learns from data in the {trainer.loop} loop, but dataset is null. Use {choices}.")
    if trainer.loop not in (OFFLINE, MIXED) and dataset is not None:
        mixed = ", or use trainer=mixed" if MIXED in algo.loops else ""
        raise ConfigError(
            f"The {trainer.loop} loop uses no dataset: add dataset=null (algo={name} may name one by itself){mixed}."
        )


def _check_capacity(trainer: Trainer, capacity: int) -> None:
    """Refuse a memory that cannot hold one batch, or that has forgotten the first steps when learning starts."""
    for name in ("batch_size", "learning_starts"):
        wanted = getattr(trainer, name, 0)
        if wanted > capacity:
            raise ConfigError(
                f"buffer.capacity={capacity} is smaller than trainer.{name}={wanted}: the memory must hold that many "
                f"transitions. Use buffer.capacity={wanted} or more, or a smaller trainer.{name}."
            )


def _algorithms_for(kind: str, name: str, algo: Algorithm, loop: str) -> list[str]:
    """Those with actions of this kind: of the same loops as ``algo``, where there are any; variants of it first."""
    fitting = {each: cls.loops for each, cls in REGISTRY["algo"].items() if kind in cls.actions}  # type: ignore[attr-defined]
    same = [each for each, loops in fitting.items() if loops == algo.loops]
    same = same or [each for each, loops in fitting.items() if loop in loops] or list(fitting)
    return sorted(same, key=lambda each: (name not in each, each))


def _listed(kinds: frozenset[str]) -> str:
    return " and ".join(sorted(kinds))
