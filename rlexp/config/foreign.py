"""What other libraries call our settings, where it can mean nothing else (docs/coming_from.md has it all)."""

from __future__ import annotations

from collections.abc import Collection

# Their word -> ours; several where it depends on the algorithm: the first that the config has. A name that parts share
# stands with its part.
OURS: dict[str, str | tuple[str, ...]] = {
    "action_noise": "exploration",
    "actor_lr": "actor_learning_rate",
    "alpha_lr": "alpha_learning_rate",
    "batch_size": "minibatch_size",  # on-policy; of the other loops it is the name
    "buffer_size": "capacity",
    "clip_coef": "clip_range",
    "clip_range_vf": "value_clip",
    "critic_lr": "critic_learning_rate",
    "ent_coef": ("entropy_coef", "algo.alpha"),
    "eps_clip": "clip_range",
    "eval_freq": "eval_interval",
    "exploration_initial_eps": "algo.epsilon",
    "goal_selection_strategy": "strategy",
    "gradient_steps": "gradient_updates_per_step",
    "hidden_sizes": "hidden",
    "initial_temperature": "initial_alpha",
    "learning_rate": "learning_rate",  # or that of each network
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "n_epochs": "epochs",
    "n_eval_episodes": "eval_episodes",
    "n_steps": ("rollout_steps", "total_updates", "n_step"),  # on-policy, d3rlpy's fit, SB3's DQN
    "net_arch": "hidden",
    "noise_clip": "target_noise_clip",
    "norm_adv": "normalize_advantage",
    "norm_obs": "normalize_obs",
    "norm_reward": "normalize_reward",
    "num_steps": "rollout_steps",
    "observation_scaler": "dataset.obs",
    "policy_delay": "actor_interval",
    "policy_frequency": "actor_interval",
    "policy_lr": "actor_learning_rate",
    "policy_noise": "target_noise",
    "q_lr": "critic_learning_rate",
    "repeat_per_collect": "epochs",
    "reward_scaler": "dataset.reward",
    "save_freq": "checkpoint_interval",
    "start_e": "algo.epsilon",
    "start_timesteps": "learning_starts",
    "target_network_frequency": "target_interval",
    "target_policy_noise": "target_noise",
    "target_smoothing_clip": "target_noise_clip",
    "target_smoothing_sigma": "target_noise",
    "target_update_freq": "target_interval",
    "target_update_interval": "target_interval",
    "temp_learning_rate": "alpha_learning_rate",
    "total_timesteps": ("total_steps", "total_updates"),
    "train_freq": "train_frequency",
    "training_num": "num_envs",
    "update_actor_freq": "actor_interval",
    "update_actor_interval": "actor_interval",
    "update_epochs": "epochs",
    "update_per_step": "gradient_updates_per_step",
    "vf_coef": "value_coef",
    "weight_temp": "algo.beta",
}

# Where our name means theirs only beside another setting: TD3+BC's alpha is no temperature, AWAC's beta divides by it.
ONLY_BESIDE = {("ent_coef", "algo.alpha"): "initial_alpha", ("weight_temp", "algo.beta"): "expectile"}

_NETWORKS = "Networks have settings of their own: model.hidden=[256,256], model.activation=relu, … (rlexp list model)."
_FALL = "It is written algo.schedules.epsilon.{}."

# What is no single setting here, and the setting that an algorithm must have for that to be so.
NOTES: dict[str, tuple[str | None, str]] = {
    "anneal_lr": ("learning_rate", "It is written algo.schedules.learning_rate.end=0."),
    "autotune": ("initial_alpha", "A temperature is learned where algo.alpha=null, and fixed where it is a number."),
    "clip_vloss": ("value_clip", "It is written algo.value_clip=0.2, with the range."),
    "encoder_factory": (None, _NETWORKS),
    "end_e": ("epsilon", _FALL.format("end=0.05")),
    "exploration_final_eps": ("epsilon", _FALL.format("end=0.05")),
    "exploration_fraction": ("epsilon", _FALL.format("until=0.2")),
    "num_minibatches": ("minibatch_size", "algo.minibatch_size is the size of one, in transitions."),
    "policy_kwargs": (None, _NETWORKS),
    "replay_buffer_class": (None, "Hindsight replay is written buffer=her."),
    "tensorboard_log": (None, "It is written logger=tensorboard."),
    "use_sde": (None, "There is no state-dependent exploration (gSDE)."),
    "verbose": (None, "What the terminal shows is progress=auto, rich, plain or none."),
}


def ours(word: str, beside: Collection[str] | None = None) -> tuple[str, ...]:
    """Our words for another library's, by precedence; none if it is no word of theirs.

    ``beside`` are the settings that there are, where only those that mean the same there are asked for.
    """
    names = OURS.get(word, ())
    names = (names,) if isinstance(names, str) else names
    if beside is None:
        return names
    return tuple(name for name in names if ONLY_BESIDE.get((word, name)) in (None, *beside))


def note(word: str, beside: Collection[str]) -> str:
    """What to do where another library's word is no single setting; nothing where that does not hold either."""
    needed, text = NOTES.get(word, (None, ""))
    return text if needed is None or needed in beside else ""
