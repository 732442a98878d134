"""What tells runs apart."""

from __future__ import annotations

import pytest

from rlexp.comparing import differing, flat_config, seed_groups, tasks, varied
from rlexp.config.component import REGISTRY, target_of
from rlexp.config.compose import choices, compose, register
from rlexp.config.naming import component_name
from rlexp.sweeps.pruning import PruneTrial
from tests.fake_runs import config_of


def flats(*configs):
    return [flat_config(config) for config in configs]


def test_a_config_is_flattened_to_dotted_keys_and_components_to_their_names():
    flat = flat_config(config_of(algo__gamma=0.5))
    assert (flat["algo"], flat["algo.gamma"], flat["env.id"], flat["seed"]) == ("dqn", 0.5, "CartPole-v1", 0)
    assert not any("_target_" in key for key in flat)
    assert not [key for key, value in flat.items() if key.startswith("algo.schedules.") and value is None]
    assert flat["algo.schedules.epsilon.end"] == 0.05  # one that the algorithm begins with


def test_only_settings_that_differ_are_named_and_the_name_of_a_run_is_none():
    runs = flats(config_of(name="a", algo__gamma=0.9), config_of(name="b", algo__gamma=0.99), config_of(name="c"))
    assert differing(runs) == ["algo.gamma"]
    assert differing(runs[1:]) == []


def test_a_list_differs_from_null_and_from_another_list():
    assert differing(flats(config_of(), config_of(model__hidden=[16, 16]))) == ["model.hidden"]


def test_what_follows_from_the_algorithm_was_not_varied():
    dqn, ppo = config_of("dqn"), config_of("ppo")
    found = differing(flats(dqn, ppo))
    assert {"algo", "trainer", "buffer", "algo.learning_rate"} <= set(found)
    assert "algo.clip_range" not in found  # only one of them has it
    assert varied(flats(dqn, ppo)) == ["algo"]


def test_a_setting_that_also_varies_within_an_algorithm_was_varied():
    runs = flats(config_of("dqn"), config_of("ppo"), config_of("ppo", algo__learning_rate=0.1))
    assert varied(runs) == ["algo", "algo.learning_rate"]


def test_how_a_run_is_watched_differs_but_is_not_what_was_varied():
    runs = flats(config_of(), config_of(trainer__eval_interval=7, threads=2))
    assert differing(runs) == ["threads", "trainer.eval_interval"]
    assert varied(runs) == []


def test_runs_that_differ_only_in_their_seed_belong_together():
    settings = [(0.9, 1), (0.99, 1), (0.9, 2), (0.99, 3), (0.9, 3)]
    runs = flats(*(config_of(algo__gamma=gamma, seed=seed, name=f"{gamma}-{seed}") for gamma, seed in settings))
    assert seed_groups(runs) == [[0, 2, 4], [1, 3]]
    assert varied(runs) == ["seed", "algo.gamma"]


def test_the_callback_that_a_search_adds_was_not_varied():
    pruning = [{"_target_": target_of(PruneTrial), "trial": trial} for trial in (0, 1)]
    other = {"_target_": "mine.Watch"}
    searched = flats(*(config_of(trainer__callbacks=[each], seed=seed) for seed, each in enumerate(pruning)))
    assert differing([*searched, *flats(config_of(seed=2))]) == ["seed"]  # the winner run again by hand, too
    assert seed_groups(searched) == [[0, 1]]
    assert "trainer.callbacks" in differing(flats(config_of(), config_of(trainer__callbacks=[pruning[0], other])))


def test_what_an_environment_is_does_not_follow_from_the_algorithm():
    runs = flats(config_of("dqn", env__action_repeat=2), config_of("ppo", env__num_envs=8))
    assert varied(runs) == ["algo", "env.action_repeat"]  # one algorithm may well have other numbers of environments


def test_one_id_with_other_wrappers_or_arguments_is_another_task():
    wrapped = config_of("ppo", env__wrappers=[{"_target_": "rlexp.envs.SelectObservation", "keep": [0, 2]}])
    runs = flats(config_of(), wrapped, config_of(env__action_repeat=2), config_of(env__kwargs={"length": 3}))
    ids = ["CartPole-v1"] * 3 + ["Pole-v0"]
    assert tasks(runs, ids) == ["CartPole-v1", "CartPole-v1 (SelectObservation)", "CartPole-v1", "Pole-v0"]
    assert tasks(runs, ["CartPole-v1"] * 4)[3] == "CartPole-v1 (length=3)"


def test_components_are_called_by_the_names_they_are_chosen_by():
    register()
    for group, known in REGISTRY.items():
        for name, cls in known.items():
            if cls.__module__.startswith("rlexp."):
                expected = "auto" if group == "model" else name  # one class behind all choices of model=
                assert component_name({"_target_": target_of(cls), "encoder": "auto"}) == expected
    assert component_name({"_target_": "rlexp.CrossQ"}) == "crossq"


def test_of_several_choices_of_one_class_the_one_with_these_settings_is_named():
    for choice in choices("model", []):
        assert flat_config(compose([f"model={choice}", "env=cartpole", "algo=dqn"]))["model"] == choice


def test_choices_of_one_class_were_varied_by_their_settings_from_which_no_other_follows():
    runs = flats(config_of(), config_of(model__encoder="flat", model__hidden=[64]))
    assert differing(runs) == ["model", "model.encoder", "model.hidden"]
    assert varied(runs) == ["model.encoder", "model.hidden"]
    own = flats(config_of(), config_of(model__encoder="flat", model___target_="mine.Net"))
    assert varied(own) == ["model"]


@pytest.mark.parametrize("target", ["mine.CrossQ", "mine.parts.CrossQ"])
def test_a_class_of_the_users_own_is_called_after_itself(target):
    assert component_name({"_target_": target}) == "cross_q"


def test_the_whole_config_names_choices():
    flat = flat_config(config_of("drq_v2", "pendulum_pixels"))
    assert [flat[key] for key in ("algo", "buffer", "env", "trainer", "evaluator")] == [
        "drq_v2", "replay", "gym", "replay", "environment",
    ]  # fmt: skip
