import pytest

from rlexp.bench.peers import translate
from rlexp.bench.sb3_script import value_of
from rlexp.bench.workloads import config_of, select
from rlexp.config.compose import compose
from rlexp.errors import ConfigError


def test_sb3_gets_the_settings_of_ppo():
    overrides = ["algo=ppo", "env=cartpole", "env.num_envs=8", "trainer.rollout_steps=32", "algo.epochs=20"]
    overrides += ["algo.minibatch_size=256", "algo.gamma=0.98", "algo.gae_lambda=0.8", "algo.learning_rate=1e-3"]
    overrides += ["algo.schedules={learning_rate:{shape:linear,end:0},clip_range:{shape:linear,start:0.3,end:0.1}}"]
    settings = translate("sb3", compose(overrides))
    given = settings["arguments"]
    assert (settings["package"], settings["class"]) == ("stable_baselines3", "PPO")
    assert settings["env"] == {"id": "CartPole-v1", "num_envs": 8, "kwargs": {}}
    assert given["learning_rate"] == {"linear": [1e-3, 0.0, 1.0]}
    assert given["clip_range"] == {"linear": [0.3, 0.1, 1.0]}
    assert (given["n_steps"], given["batch_size"], given["n_epochs"]) == (32, 256, 20)
    assert (given["gamma"], given["gae_lambda"]) == (0.98, 0.8)


def test_sb3_gets_the_settings_of_a2c():
    (work,) = select(["a2c_cartpole"])
    settings = translate("sb3", config_of(work, more=["algo.entropy_coef=0.01", "algo.rms_eps=1e-4"]))
    given = settings["arguments"]
    assert (settings["package"], settings["class"]) == ("stable_baselines3", "A2C")
    assert (given["n_steps"], given["gae_lambda"], given["learning_rate"]) == (5, 1.0, 7e-4)
    assert (given["ent_coef"], given["rms_prop_eps"], given["normalize_advantage"]) == (0.01, 1e-4, False)


def test_sb3_contrib_gets_the_settings_of_trpo():
    (work,) = select(["trpo_cartpole"])
    settings = translate("sb3", config_of(work, more=["algo.cg_damping=0.01", "algo.value_epochs=7"]))
    given = settings["arguments"]
    assert (settings["package"], settings["class"]) == ("sb3_contrib", "TRPO")
    assert (given["n_steps"], given["batch_size"], given["n_critic_updates"]) == (256, 128, 7)
    assert (given["target_kl"], given["cg_max_steps"], given["cg_damping"]) == (0.01, 15, 0.01)
    assert (given["line_search_max_iter"], given["line_search_shrinking_factor"]) == (10, 0.8)


def test_sb3_counts_the_target_interval_in_steps_not_updates():
    overrides = ["algo=dqn", "env=cartpole", "algo.target_interval=128"]
    every = {"train_frequency": 256, "gradient_updates_per_step": 128}
    config = compose([*overrides, *(f"trainer.{name}={value}" for name, value in every.items())])
    assert translate("sb3", config)["arguments"]["target_update_interval"] == 256
    (work,) = select(["dqn_cartpole"])
    given = translate("sb3", config_of(work))["arguments"]
    assert given["target_update_interval"] == 10_000  # SB3's default
    assert given["exploration_initial_eps"] == given["exploration_final_eps"] == 0.05


def test_sb3_gets_widths_and_number_of_critics_together():
    config = compose(["algo=sac", "env=pendulum", "model.hidden=[32,16]", "algo.n_critics=5"])
    assert translate("sb3", config)["arguments"]["policy_kwargs"] == {"n_critics": 5, "net_arch": [32, 16]}


def test_sb3_contrib_gets_the_widths_and_norms_of_crossq():
    (work,) = select(["crossq_pendulum"])
    more = ["model.renorm_momentum=0.95", "model.renorm_warmup=500", "algo.actor_interval=2", "algo.n_critics=3"]
    settings = translate("sb3", config_of(work, more=more))
    given, policy = settings["arguments"], settings["arguments"]["policy_kwargs"]
    assert (settings["package"], settings["class"]) == ("sb3_contrib", "CrossQ")
    assert (given["policy_delay"], given["learning_rate"], given["batch_size"]) == (2, 1e-3, 256)
    assert "tau" not in given
    assert policy["net_arch"] == {"pi": [256, 256], "qf": [1024, 1024]}
    assert policy["optimizer_kwargs"] == {"betas": (0.5, 0.999)}
    assert (policy["n_critics"], policy["renorm_warmup_steps"]) == (3, 500)
    assert policy["batch_norm_momentum"] == pytest.approx(0.05)


def test_sb3_gets_its_own_defaults_for_ddpg_and_td3():
    for name, expected in (
        ("ddpg", {"policy_kwargs": {"n_critics": 1, "net_arch": [400, 300]}}),
        ("td3", {"policy_kwargs": {"n_critics": 2, "net_arch": [400, 300]}, "policy_delay": 2}),
    ):
        (work,) = select([f"{name}_pendulum"])
        settings = translate("sb3", config_of(work))
        given = settings["arguments"]
        assert (settings["package"], settings["class"]) == ("stable_baselines3", name.upper())
        assert (given["learning_rate"], given["batch_size"], given["train_freq"]) == (1e-3, 256, 1)
        assert (given["gradient_steps"], given["tau"], given["buffer_size"]) == (1, 0.005, 1_000_000)
        assert {key: given[key] for key in expected} == expected
        assert "action_noise" not in given
    assert (given["target_policy_noise"], given["target_noise_clip"]) == (0.2, 0.5)
    config = compose(["algo=td3", "env=pendulum", "algo.exploration=none", "algo.actor_interval=3"])
    given = translate("sb3", config)["arguments"]
    assert (given["policy_delay"], given["policy_kwargs"]["net_arch"]) == (3, [256, 256])


def test_sb3_contrib_gets_the_settings_of_tqc():
    (work,) = select(["tqc_pendulum"])
    settings = translate("sb3", config_of(work, more=["algo.n_dropped=3", "model.hidden=[32]"]))
    given = settings["arguments"]
    assert (settings["package"], settings["class"]) == ("sb3_contrib", "TQC")
    assert given["policy_kwargs"] == {"n_critics": 2, "n_quantiles": 25, "net_arch": [32]}
    assert (given["top_quantiles_to_drop_per_net"], given["ent_coef"]) == (3, "auto_1.0")


def test_sb3_contrib_gets_the_number_of_quantiles():
    settings = translate("sb3", compose(["algo=qrdqn", "env=cartpole", "model.hidden=[32]", "algo.n_quantiles=20"]))
    assert (settings["package"], settings["class"]) == ("sb3_contrib", "QRDQN")
    assert settings["arguments"]["policy_kwargs"] == {"n_quantiles": 20, "net_arch": [32]}
    assert settings["arguments"]["train_freq"] == 4


def test_d3rlpy_gets_the_same_ensemble_and_soft_targets():
    (work,) = select(["crr_offline"])
    settings = translate("d3rlpy", config_of(work, "data.npz"))
    assert settings["data"] == "data.npz"
    assert settings["hidden"] == [256, 256]
    given = settings["arguments"]
    assert (given["n_critics"], given["target_update_type"], given["tau"]) == (2, "soft", 0.005)
    assert (given["batch_size"], given["n_action_samples"]) == (256, 4)


def test_d3rlpy_gets_the_settings_of_the_offline_algorithms():
    def given(name, *more):
        (work,) = select([f"{name}_offline"])
        settings = translate("d3rlpy", config_of(work, "data.npz", more))
        return settings, settings["arguments"]

    settings, arguments = given("td3_bc", "algo.alpha=2", "algo.target_noise=0.1")
    assert (settings["class"], arguments["alpha"], arguments["update_actor_interval"]) == ("TD3PlusBC", 2.0, 2)
    assert (arguments["target_smoothing_sigma"], arguments["target_smoothing_clip"]) == (0.1, 0.5)
    for name, cls in (("cql", "CQL"), ("cal_ql", "CalQL")):
        settings, arguments = given(name, "algo.conservative_weight=3")
        assert (settings["class"], arguments["conservative_weight"], arguments["soft_q_backup"]) == (cls, 3.0, True)
        assert (arguments["alpha_learning_rate"], arguments["temp_learning_rate"]) == (0.0, 1e-4)  # a fixed weight
        assert (arguments["actor_learning_rate"], arguments["critic_learning_rate"]) == (1e-4, 3e-4)
    settings, arguments = given("bcq")
    assert (settings["hidden"], len(settings["networks"])) == ([256, 256], 3)
    assert (arguments["n_action_samples"], arguments["action_flexibility"], arguments["lam"]) == (10, 0.05, 0.75)
    settings, arguments = given("bear")
    assert (arguments["n_mmd_action_samples"], arguments["n_target_samples"], arguments["warmup_steps"]) == (4, 10, 0)
    assert (arguments["mmd_kernel"], arguments["mmd_sigma"], arguments["alpha_threshold"]) == ("laplacian", 20.0, 0.05)
    settings, arguments = given("rebrac")
    assert (settings["hidden"], settings["layer_norm"]) == ([256, 256, 256], ["critic_encoder_factory"])
    assert (arguments["actor_beta"], arguments["critic_beta"], arguments["batch_size"]) == (0.001, 0.01, 256)


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["algo=cql"], "backup=plain"),
        (["algo=cql", "algo.backup=soft", "algo.target_gap=5"], "target_gap"),
        (["algo=bcq", "model.hidden=[32]"], "n_target_samples"),
        (["algo=bear"], "several widths"),
        (["algo=rebrac"], "model.hidden=null"),
    ],
)
def test_what_d3rlpy_cannot_express_is_refused(overrides, what):
    with pytest.raises(ConfigError, match=what):
        translate("d3rlpy", compose([*overrides, "dataset=npz", "dataset.path=data.npz"]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("iql", {"weight_temp": 3.0, "expectile": 0.7, "max_weight": 100.0, "gamma": 0.99, "tau": 0.005}),
        ("awac", {"lam": pytest.approx(1 / 3), "n_action_samples": 1, "n_critics": 2, "gamma": 0.99}),
        ("bc", {"policy_type": "deterministic", "learning_rate": 3e-4, "batch_size": 256}),
    ],
)
def test_d3rlpy_gets_the_settings_of_the_algorithms_that_clone(name, expected):
    (work,) = select([f"{name}_offline"])
    settings = translate("d3rlpy", config_of(work, "data.npz"))
    assert (settings["class"], settings["hidden"]) == (name.upper(), [256, 256])
    assert {key: settings["arguments"][key] for key in expected} == expected
    assert ("gamma" in settings["arguments"]) == (name != "bc")


def test_d3rlpy_has_one_learning_rate_for_the_values_of_iql():
    overrides = ["algo=iql", "env=pendulum", "algo.schedules.actor_learning_rate=null", "algo.value_learning_rate=1e-3"]
    with pytest.raises(ConfigError, match="value_learning_rate"):
        translate("d3rlpy", compose(overrides))


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["algo=ppo", "env.normalize_obs=true"], "normalised"),
        (["algo=dqn", "algo.double=true"], "double"),
        (["algo=dqn", "buffer.n_step=3"], "n-step"),
        (["algo=dqn", "algo.dueling=true"], "dueling"),
        (["algo=dqn", "algo.noisy=true"], "noisy"),
        (["algo=dqn", "buffer=prioritized"], "prioritized"),
        (["algo=dqn", "env=bit_flip", "buffer=her"], "hindsight"),
        (["algo=ppo", "env.frame_stack=4"], "stacked"),
        (["algo=qrdqn", "algo.kappa=0.5"], "kappa"),
        (["algo=sac", "env=pendulum", "algo.actor_learning_rate=1e-3"], "learning rates"),
        (["algo=sac", "env=pendulum", "algo.max_grad_norm=1"], "max_grad_norm"),
        (["algo=sac", "env=pendulum", "algo.actor_interval=2"], "actor_interval"),
        (["algo=td3", "env=pendulum"], "noise on actions"),
        (["algo=ddpg", "env=pendulum", "algo.exploration=none", "algo.n_critics=2"], "n_critics"),
        (["algo=tqc", "env=pendulum", "algo.kappa=0.5"], "kappa"),
        (["algo=ppo", "model.activation=elu"], "model.activation"),
        (["algo=ppo", "algo.schedules={entropy_coef:{shape:linear,end:0.1}}"], "schedule of entropy_coef"),
        (["algo=discrete_sac"], "DiscreteSAC"),
    ],
)
def test_what_the_peer_cannot_express_is_refused(overrides, what):
    with pytest.raises(ConfigError, match=what):
        translate("sb3", compose(overrides))


def test_a_linear_schedule_reaches_its_end_where_the_config_says():
    schedule = value_of({"linear": [1.0, 0.2, 0.5]})
    assert [schedule(left) for left in (1.0, 0.75, 0.5, 0.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert value_of(3) == 3


def test_sb3_gets_its_own_atari_preprocessing_with_the_same_settings():
    works = select(["ppo_pong", "dqn_pong"])
    ppo, dqn = (translate("sb3", config_of(work)) for work in works)
    assert ppo["env"]["id"] == dqn["env"]["id"] == "PongNoFrameskip-v4"
    assert (ppo["env"]["num_envs"], ppo["env"]["frame_stack"]) == (8, 4)
    assert ppo["env"]["atari"] == {
        "noop_max": 30,
        "frame_skip": 4,
        "screen_size": 84,
        "terminal_on_life_loss": True,
        "clip_reward": True,
    }
    assert (ppo["arguments"]["n_steps"], ppo["arguments"]["batch_size"]) == (128, 256)
    assert dqn["arguments"]["target_update_interval"] == 1_000
    with pytest.raises(ConfigError, match="shared_encoder"):
        translate("sb3", config_of(works[0], more=["model.shared_encoder=false"]))
    with pytest.raises(ConfigError, match="sticky"):
        translate("sb3", config_of(works[0], more=["env.sticky_actions=0.25"]))
