"""The peers: what they need, and their settings translated from a composed rlexp config.

A translation covers the fields that decide what is computed; a config that the peer cannot express is refused, never
approximated. Nothing here imports a peer: that happens in the contestants' own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from rlexp.config.check import suggest
from rlexp.errors import ConfigError

Settings = dict[str, Any]
SCHEDULABLE = {
    "sb3": {
        "learning_rate",
        "clip_range",
        "epsilon",
        "actor_learning_rate",
        "critic_learning_rate",
        "alpha_learning_rate",
    }
}


@dataclass(frozen=True)
class Peer:
    """A framework to be compared with."""

    title: str
    packages: dict[str, str]  # module -> distribution
    target: str  # contestant that runs it
    install: str = 'pip install "rlexp[bench]"'

    def versions(self) -> dict[str, str]:
        """What is installed of it."""
        return {name: metadata.version(name) for module, name in self.packages.items() if find_spec(module)}


PEERS = {
    "sb3": Peer(
        "SB3",
        {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib"},
        "rlexp.bench.contestants:run_sb3",
    ),
    "d3rlpy": Peer(
        "d3rlpy",
        {"d3rlpy": "d3rlpy"},
        "rlexp.bench.contestants:run_d3rlpy",
        # It pins a Gymnasium older than rlexp's; the extra brings what else it needs.
        'pip install "rlexp[bench]" && pip install --no-deps "d3rlpy>=2.8"',
    ),
}


def require(names: Iterable[str]) -> None:
    """Refuse peers that do not exist or are not installed."""
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"--against {name}: there is no such peer.{suggest(name, PEERS)}")
        missing = [package for module, package in PEERS[name].packages.items() if find_spec(module) is None]
        if missing:
            raise ConfigError(f"--against {name} needs {' and '.join(missing)}. Install it with: {PEERS[name].install}")


def translate(peer: str, config: dict[str, Any]) -> Settings:
    """The peer's settings for what ``config`` says: its class, environment and arguments."""
    algo = config["algo"]["_target_"].rpartition(".")[2]
    translations = {"sb3": SB3, "d3rlpy": D3RLPY}[peer]
    if algo not in translations:
        raise ConfigError(f"The settings of {algo} are not translated for {PEERS[peer].title}.")
    scheduled = {name for name, schedule in config["algo"]["schedules"].items() if schedule is not None}
    for name in scheduled - SCHEDULABLE.get(peer, set()):
        _refuse(True, f"the schedule of {name}")
    return translations[algo](config)


# ---- Stable-Baselines3 and sb3-contrib


def _sb3(config: dict[str, Any], name: str, arguments: Settings, package: str = "stable_baselines3") -> Settings:
    """What all its algorithms share."""
    env, model = config["env"], config["model"]
    _refuse(env["normalize_obs"] or env["normalize_reward"], "normalised observations or rewards")
    _refuse(bool(env["wrappers"]), "wrappers")
    if "game" in env:
        shared = name in ("PPO", "A2C")  # whose networks share their CNN in SB3
        _refuse(model["shared_encoder"] != shared, f"model.shared_encoder={model['shared_encoder']}")
        model = model | {"shared_encoder": False}
    _refuse_model_settings(model)
    if model["hidden"] is not None:  # null: the paper's widths, which are SB3's defaults too
        arguments["policy_kwargs"] = {**arguments.get("policy_kwargs", {}), "net_arch": list(model["hidden"])}
    return {
        "package": package,
        "class": name,
        "env": _sb3_atari(env) if "game" in env else _sb3_env(env),
        "arguments": {"gamma": config["algo"]["gamma"], **arguments},
    }


def _sb3_env(env: dict[str, Any]) -> Settings:
    _refuse(env["action_repeat"] != 1 or env["frame_stack"] != 1, "repeated actions or stacked frames")
    _refuse(env["pixels"] or env["resize"] or env["grayscale"], "observations as images")
    return {"id": env["id"], "num_envs": env["num_envs"], "kwargs": env["kwargs"]}


def _sb3_atari(env: dict[str, Any]) -> Settings:
    """SB3's own preprocessing of Atari games, which always presses fire and is always grey."""
    _refuse(not env["grayscale"] or not env["fire_reset"], "coloured frames, or games begun without pressing fire")
    _refuse(env["sticky_actions"] or env["full_action_space"], "sticky actions or all actions")
    name = "".join(part.capitalize() for part in env["game"].split("_"))
    return {
        "id": f"{name}NoFrameskip-v4",
        "num_envs": env["num_envs"],
        "kwargs": {},
        "atari": {
            "noop_max": env["noop_max"],
            "frame_skip": env["frame_skip"],
            "screen_size": env["size"],
            "terminal_on_life_loss": env["episodic_life"],
            "clip_reward": env["clip_rewards"],
        },
        "frame_stack": env["frame_stack"],
    }


def _sb3_replay(config: dict[str, Any]) -> Settings:
    trainer = config["trainer"]
    _refuse(config["buffer"]["n_step"] != 1, "n-step returns")
    _refuse("alpha" in config["buffer"], "prioritized replay")
    _refuse("n_sampled_goal" in config["buffer"], "hindsight replay")
    _refuse(config["env"]["num_envs"] != 1, "several environments in a replay loop")
    return {
        "buffer_size": config["buffer"]["capacity"],
        "learning_starts": trainer["learning_starts"],
        "batch_size": trainer["batch_size"],
        "train_freq": trainer["train_frequency"],
        "gradient_steps": trainer["gradient_updates_per_step"],
        **({"tau": config["algo"]["tau"]} if "tau" in config["algo"] else {}),
    }


def _sb3_on_policy(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["initial_log_std"] != 0, "initial_log_std")
    return {
        "learning_rate": _scheduled(algo, "learning_rate"),
        "n_steps": config["trainer"]["rollout_steps"],
        "gae_lambda": algo["gae_lambda"],
        "normalize_advantage": algo["normalize_advantage"],
    }


def _sb3_losses(algo: dict[str, Any]) -> Settings:
    return {
        "ent_coef": algo["entropy_coef"],
        "vf_coef": algo["value_coef"],
        "max_grad_norm": algo["max_grad_norm"],
    }


def _sb3_ppo(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    own = {
        "batch_size": algo["minibatch_size"],
        "n_epochs": algo["epochs"],
        "clip_range": _scheduled(algo, "clip_range"),
        "clip_range_vf": algo["value_clip"],
        "target_kl": algo["target_kl"],
    }
    return _sb3(config, "PPO", _sb3_on_policy(config) | _sb3_losses(algo) | own)


def _sb3_a2c(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["rms_alpha"] != 0.99, "rms_alpha")
    own = {"rms_prop_eps": algo["rms_eps"]}
    return _sb3(config, "A2C", _sb3_on_policy(config) | _sb3_losses(algo) | own)


def _sb3_trpo(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    own = {
        "batch_size": algo["minibatch_size"],
        "n_critic_updates": algo["value_epochs"],
        "target_kl": algo["target_kl"],
        "cg_max_steps": algo["cg_iterations"],
        "cg_damping": algo["cg_damping"],
        "line_search_max_iter": algo["line_search_steps"],
        "line_search_shrinking_factor": algo["line_search_shrink"],
    }
    return _sb3(config, "TRPO", _sb3_on_policy(config) | own, package="sb3_contrib")


def _sb3_dqn(config: dict[str, Any]) -> Settings:
    algo, trainer = config["algo"], config["trainer"]
    _refuse(algo["double"], "double Q-learning")
    _refuse(algo["dueling"], "a dueling network")
    _refuse(algo["noisy"], "a noisy network")
    updates_per_step = trainer["gradient_updates_per_step"] / trainer["train_frequency"]
    epsilon = _scheduled(algo, "epsilon")
    start, end, until = epsilon["linear"] if isinstance(epsilon, dict) else (epsilon, epsilon, 1.0)
    arguments = _sb3_replay(config) | {
        "learning_rate": _scheduled(algo, "learning_rate"),
        "target_update_interval": round(algo["target_interval"] / updates_per_step),  # SB3 counts steps
        "exploration_initial_eps": start,
        "exploration_final_eps": end,
        "exploration_fraction": until,
        "max_grad_norm": algo["max_grad_norm"],
    }
    return _sb3(config, "DQN", arguments)


def _sb3_qrdqn(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["kappa"] != 1, "kappa")
    arguments = _sb3_dqn(config)["arguments"]
    arguments["policy_kwargs"] = {**arguments.get("policy_kwargs", {}), "n_quantiles": algo["n_quantiles"]}
    return _sb3(config, "QRDQN", arguments, package="sb3_contrib")


def _sb3_actor_critic(config: dict[str, Any], *rates: str) -> Settings:
    algo = config["algo"]
    _refuse(len({str(_scheduled(algo, rate)) for rate in rates}) > 1, "different learning rates")
    _refuse(algo["max_grad_norm"] is not None, "max_grad_norm")
    return _sb3_replay(config) | {
        "learning_rate": _scheduled(algo, rates[0]),
        "policy_kwargs": {"n_critics": algo["n_critics"]},
    }


def _sb3_soft(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["target_entropy_scale"] != 1, "target_entropy_scale")
    _refuse(algo["actor_interval"] != 1, "actor_interval")
    rates = ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate")
    return _sb3_actor_critic(config, *rates) | {"ent_coef": algo["alpha"] or f"auto_{algo['initial_alpha']}"}


def _sb3_sac(config: dict[str, Any]) -> Settings:
    return _sb3(config, "SAC", _sb3_soft(config))


def _sb3_tqc(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["kappa"] != 1, "kappa")
    arguments = _sb3_soft(config) | {"top_quantiles_to_drop_per_net": algo["n_dropped"]}
    arguments["policy_kwargs"]["n_quantiles"] = algo["n_quantiles"]
    return _sb3(config, "TQC", arguments, package="sb3_contrib")


def _sb3_crossq(config: dict[str, Any]) -> Settings:
    algo, model = config["algo"], config["model"]
    arguments = _sb3_soft(config | {"algo": algo | {"actor_interval": 1}}) | {"policy_delay": algo["actor_interval"]}
    hidden = list(model["hidden"] or (256, 256))
    arguments["policy_kwargs"] |= {
        "net_arch": {"pi": hidden, "qf": list(model["critic_hidden"] or model["hidden"] or (2048, 2048))},
        "optimizer_kwargs": {"betas": (algo["adam_beta1"], 0.999)},
    }
    if model["renorm_momentum"] is not None:
        arguments["policy_kwargs"]["batch_norm_momentum"] = 1 - model["renorm_momentum"]
    if model["renorm_warmup"] is not None:
        arguments["policy_kwargs"]["renorm_warmup_steps"] = model["renorm_warmup"]
    said = dict.fromkeys(("hidden", "critic_hidden", "renorm_momentum", "renorm_warmup"))
    return _sb3(config | {"model": model | said}, "CrossQ", arguments, package="sb3_contrib")


def _sb3_deterministic(config: dict[str, Any]) -> Settings:
    _refuse(config["algo"]["exploration"] != "none", "noise on actions")
    if config["model"]["hidden"] is None:  # the papers' widths are not SB3's own
        config = config | {"model": config["model"] | {"hidden": [256, 256]}}
    return _sb3(config, "", _sb3_actor_critic(config, "actor_learning_rate", "critic_learning_rate"))


def _sb3_ddpg(config: dict[str, Any]) -> Settings:
    _refuse(config["algo"]["n_critics"] != 1, "n_critics")
    _refuse(config["algo"]["actor_interval"] != 1, "actor_interval")
    return _sb3_deterministic(config) | {"class": "DDPG"}


def _sb3_td3(config: dict[str, Any]) -> Settings:
    algo, settings = config["algo"], _sb3_deterministic(config) | {"class": "TD3"}
    settings["arguments"] |= {
        "policy_delay": algo["actor_interval"],
        "target_policy_noise": algo["target_noise"],
        "target_noise_clip": algo["target_noise_clip"],
    }
    return settings


SB3: dict[str, Callable[[dict[str, Any]], Settings]] = {
    "A2C": _sb3_a2c,
    "CrossQ": _sb3_crossq,
    "DDPG": _sb3_ddpg,
    "DQN": _sb3_dqn,
    "PPO": _sb3_ppo,
    "QRDQN": _sb3_qrdqn,
    "SAC": _sb3_sac,
    "TD3": _sb3_td3,
    "TQC": _sb3_tqc,
    "TRPO": _sb3_trpo,
}


# ---- d3rlpy

ACTOR_CRITIC = ("actor_encoder_factory", "critic_encoder_factory")


def _d3rlpy(config: dict[str, Any], name: str, arguments: Settings, networks: tuple[str, ...]) -> Settings:
    model = config["model"]
    _refuse_model_settings(model)
    _refuse(config["algo"].get("max_grad_norm") is not None, "max_grad_norm")
    return {
        "class": name,
        "arguments": {"batch_size": config["trainer"]["batch_size"], **arguments},
        "hidden": list(model["hidden"] or (256, 256)),
        "networks": list(networks),  # arguments that take an encoder of those widths
        "data": config["dataset"]["path"],
        "log_interval": config["trainer"]["log_interval"],
    }


def _d3rlpy_crr(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    same = ("actor_learning_rate", "critic_learning_rate", "beta", "n_action_samples", "max_weight", "n_critics", "tau")
    arguments = {name: algo[name] for name in ("gamma", *same)} | {
        "advantage_type": algo["advantage_type"],
        "weight_type": algo["weight_type"],
        "target_update_type": "soft",
    }
    return _d3rlpy(config, "CRR", arguments, ACTOR_CRITIC)


def _d3rlpy_awac(config: dict[str, Any]) -> Settings:
    """Its weights are a softmax over the batch and its loss a sum: other numbers, as much to compute."""
    algo = config["algo"]
    same = ("gamma", "actor_learning_rate", "critic_learning_rate", "n_action_samples", "n_critics", "tau")
    arguments = {name: algo[name] for name in same} | {"lam": algo["beta"]}
    return _d3rlpy(config, "AWAC", arguments, ACTOR_CRITIC)


def _d3rlpy_iql(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["value_learning_rate"] != algo["critic_learning_rate"], "value_learning_rate")
    same = ("gamma", "actor_learning_rate", "critic_learning_rate", "n_critics", "tau", "expectile", "max_weight")
    arguments = {name: algo[name] for name in same} | {"weight_temp": algo["beta"]}
    networks = ("actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory")
    return _d3rlpy(config, "IQL", arguments, networks)


def _d3rlpy_bc(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    kind = {"mse": "deterministic", "nll": "stochastic"}[algo["objective"]]
    arguments = {"learning_rate": algo["learning_rate"], "policy_type": kind}
    return _d3rlpy(config, "BC", arguments, ("encoder_factory",))


def _d3rlpy_same(algo: dict[str, Any], **names: str) -> Settings:
    """The fields that mean the same there, by their names here and there, and those that all have."""
    shared = ("actor_learning_rate", "critic_learning_rate", "n_critics", "tau")
    return {name: algo[name] for name in shared} | {theirs: algo[ours] for ours, theirs in names.items()}


def _d3rlpy_td3_bc(config: dict[str, Any]) -> Settings:
    arguments = _d3rlpy_td3(config["algo"]) | {"alpha": config["algo"]["alpha"]}
    return _d3rlpy(config, "TD3PlusBC", arguments, ACTOR_CRITIC)


def _d3rlpy_rebrac(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(not algo["normalize_q"], "normalize_q=false")
    _refuse(config["model"]["hidden"] is None, "model.hidden=null of ReBRAC")
    arguments = _d3rlpy_td3(algo) | {"actor_beta": algo["actor_bc_coef"], "critic_beta": algo["critic_bc_coef"]}
    settings = _d3rlpy(config, "ReBRAC", arguments, ACTOR_CRITIC)
    return settings | {"layer_norm": ["critic_encoder_factory"]}  # behind the activation, as in rlexp's


def _d3rlpy_td3(algo: dict[str, Any]) -> Settings:
    return _d3rlpy_same(
        algo,
        target_noise="target_smoothing_sigma",
        target_noise_clip="target_smoothing_clip",
        actor_interval="update_actor_interval",
    )


def _d3rlpy_cql(config: dict[str, Any], name: str = "CQL") -> Settings:
    algo = config["algo"]
    _refuse(algo["alpha"] is not None, "a fixed temperature")
    _refuse(algo["target_entropy_scale"] != 1, "target_entropy_scale")
    _refuse(algo["actor_interval"] != 1, "actor_interval")
    _refuse(algo["bc_updates"], "bc_updates")
    _refuse(algo["target_gap"] is not None, "target_gap")  # there the threshold is weighted, too
    _refuse(algo["backup"] != "soft", f"backup={algo['backup']}")  # there it takes the mean action
    arguments = _d3rlpy_same(
        algo,
        alpha_learning_rate="temp_learning_rate",
        initial_alpha="initial_temperature",
        conservative_weight="conservative_weight",
        n_action_samples="n_action_samples",
    )
    fixed_weight = {"alpha_learning_rate": 0.0, "initial_alpha": 1.0, "alpha_threshold": 0.0}
    return _d3rlpy(config, name, arguments | fixed_weight | {"soft_q_backup": True}, ACTOR_CRITIC)


def _d3rlpy_bcq(config: dict[str, Any]) -> Settings:
    algo = config["algo"]
    _refuse(algo["n_target_samples"] != algo["n_action_samples"], "n_target_samples unlike n_action_samples")
    arguments = _d3rlpy_vae(config, n_target_samples="n_action_samples", phi="action_flexibility", vae_kl_weight="beta")
    return _d3rlpy(config, "BCQ", arguments, (*ACTOR_CRITIC, "imitator_encoder_factory"))


def _d3rlpy_bear(config: dict[str, Any]) -> Settings:
    arguments = _d3rlpy_vae(
        config,
        multiplier_learning_rate="alpha_learning_rate",
        n_target_samples="n_target_samples",
        n_action_samples="n_action_samples",
        n_mmd_samples="n_mmd_action_samples",
        kernel="mmd_kernel",
        mmd_sigma="mmd_sigma",
        mmd_threshold="alpha_threshold",
        vae_kl_weight="vae_kl_weight",
        warmup_updates="warmup_steps",
    )
    no_entropy = {"initial_temperature": 1e-8, "temp_learning_rate": 0.0}
    return _d3rlpy(config, "BEAR", arguments | no_entropy, (*ACTOR_CRITIC, "imitator_encoder_factory"))


def _d3rlpy_vae(config: dict[str, Any], **names: str) -> Settings:
    _refuse(config["model"]["hidden"] is None, "model.hidden=null of networks of several widths")
    return _d3rlpy_same(config["algo"], vae_learning_rate="imitator_learning_rate", min_weight="lam", **names)


D3RLPY: dict[str, Callable[[dict[str, Any]], Settings]] = {
    "AWAC": _d3rlpy_awac,
    "BC": _d3rlpy_bc,
    "BCQ": _d3rlpy_bcq,
    "BEAR": _d3rlpy_bear,
    "CQL": _d3rlpy_cql,
    "CRR": _d3rlpy_crr,
    "CalQL": lambda config: _d3rlpy_cql(config, "CalQL"),
    "IQL": _d3rlpy_iql,
    "ReBRAC": _d3rlpy_rebrac,
    "TD3BC": _d3rlpy_td3_bc,
}


# ---- shared


def _scheduled(algo: dict[str, Any], name: str) -> Any:
    """A number, or ``{"linear": [start, end, until]}``."""
    schedule = (algo.get("schedules") or {}).get(name)
    if schedule is None:
        return algo[name]
    _refuse(schedule["shape"] != "linear" or schedule["begin"] != 0, f"the schedule of {name}")
    start = algo[name] if schedule["start"] is None else schedule["start"]
    return {"linear": [start, schedule["end"], schedule["until"]]}


def _refuse_model_settings(model: dict[str, Any]) -> None:
    """Null settings are the paper's own; of the others only the widths are translated."""
    for name, value in model.items():
        _refuse(name not in ("_target_", "encoder", "hidden") and value, f"model.{name}={value}")


def _refuse(condition: Any, what: str) -> None:
    if condition:
        raise ConfigError(f"{what} cannot be translated into the peer's settings, so there is nothing to compare.")
