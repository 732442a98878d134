"""Specs as values: agent units, and the way through JSON."""

import json
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlexp.envs import ActionSpec, GymEnv, Leaf, ObsSpec, spec_of
from tests.counting import ACTION_SPACES, COUNTING, OBS_SPACES

BOUNDED = ActionSpec("continuous", (2,), low=(-2.0, 0.0), high=(2.0, 10.0))


def test_agent_units_are_scaled_to_the_bounds():
    agent = np.array([[-1, -1], [0, 0], [1, 1], [0.5, 0.5]], np.float32)
    env = np.array([[-2, 0], [0, 5], [2, 10], [1, 7.5]], np.float32)
    np.testing.assert_array_equal(BOUNDED.to_env(agent), env)
    np.testing.assert_array_equal(BOUNDED.from_env(env), agent)
    assert BOUNDED.to_env(agent).dtype == np.float32


def test_scaling_works_on_tensors_and_passes_gradients():
    agent = torch.tensor([[0.5, 0.5]], requires_grad=True)
    env = BOUNDED.to_env(agent)
    assert env.tolist() == [[1.0, 7.5]]
    env.sum().backward()
    assert agent.grad is not None
    assert agent.grad.tolist() == [[2.0, 5.0]]
    assert BOUNDED.from_env(env.detach()).tolist() == [[0.5, 0.5]]


def test_actions_without_finite_bounds_have_only_one_unit():
    half = ActionSpec("continuous", (2,), low=(-1.0, -math.inf), high=(1.0, math.inf))
    actions = np.array([[3.0, 4.0]], np.float32)
    assert not half.bounded
    assert half.to_env(actions) is actions
    discrete = ActionSpec("discrete", (), nvec=(4,))
    choices = np.array([1, 3])
    assert discrete.from_env(choices) is choices


def test_a_dimension_with_one_possible_value_does_not_divide_by_zero():
    fixed = ActionSpec("continuous", (1,), low=(3.0,), high=(3.0,))
    assert fixed.to_env(np.array([0.7], np.float32)) == 3
    assert fixed.from_env(np.array([3.0], np.float32)) == 0


@given(st.floats(-100, 100, width=32), st.floats(0.015625, 100, width=32), st.floats(-1, 1, width=32))
def test_agent_units_come_back(low, width, action):
    high = float(np.float32(low + width))
    spec = ActionSpec("continuous", (1,), low=(low,), high=(high,))
    back = spec.from_env(spec.to_env(np.array([action], np.float32)))
    np.testing.assert_allclose(back, [action], atol=1e-5 * max(1, 200 / (high - low)))


def all_specs():
    for obs in OBS_SPACES:
        for action in ACTION_SPACES:
            yield pytest.param({"obs": obs, "action": action}, id=f"{obs}-{action}")


@pytest.mark.parametrize("kwargs", list(all_specs()))
def test_specs_are_strict_json_that_says_what_differs(kwargs):
    spec = GymEnv(id=COUNTING, kwargs=kwargs).spec()
    text = json.dumps(spec.to_dict(), allow_nan=False)
    assert json.loads(text) == spec.to_dict()
    other = GymEnv(id=COUNTING, kwargs={"obs": "vector", "action": "discrete"}).spec()
    assert (spec.to_dict() == other.to_dict()) == (spec == other)


def test_infinite_bounds_are_written_as_text():
    written = GymEnv(id=COUNTING, kwargs={"action": "unbounded"}).spec().to_dict()
    assert written["action"]["high"] == ["inf", "inf"]
    assert written["obs"]["leaves"][0]["low"] == "-inf"


IMPOSSIBLE = {
    "kind": lambda: ActionSpec("text", (2,)),
    "bounds": lambda: ActionSpec("continuous", (2,), low=(0.0,), high=(1.0, 1.0)),
    "crossed bounds": lambda: ActionSpec("continuous", (1,), low=(5.0,), high=(1.0,)),
    "nan": lambda: ActionSpec("continuous", (1,), low=(math.nan,), high=(1.0,)),
    "nvec": lambda: ActionSpec("continuous", (1,), nvec=(3,), low=(0.0,), high=(1.0,)),
    "leaf kind": lambda: Leaf("text", (2,), "float32"),
    "dtype": lambda: Leaf("box", (2,), "object"),
    "negative": lambda: Leaf("box", (-1,), "float32"),
    "no leaves": lambda: ObsSpec({}, single=False),
    "named single": lambda: ObsSpec({"a": Leaf("box", (2,), "float32")}, single=True),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_spec_that_cannot_be_is_refused(case):
    with pytest.raises(ValueError, match="Malformed environment spec"):
        IMPOSSIBLE[case]()


def test_limits_are_read_from_the_registration():
    spec = spec_of(gym.make("CartPole-v1"))
    assert (spec.id, spec.max_episode_steps, spec.reward_threshold) == ("CartPole-v1", 500, 475.0)
    assert spec.obs == ObsSpec({"": Leaf("box", (4,), "float32")}, single=True)


def test_the_time_limit_of_an_unregistered_env_is_found_inside_its_wrappers():
    from gymnasium.envs.classic_control import CartPoleEnv
    from gymnasium.wrappers import ClipReward, TimeLimit

    spec = spec_of(ClipReward(TimeLimit(CartPoleEnv(), 17), -1, 1))
    assert (spec.id, spec.max_episode_steps) == ("CartPoleEnv", 17)


def test_only_discrete_actions_have_a_number_of_choices():
    assert ActionSpec("discrete", (), nvec=(4,)).n == 4
    assert BOUNDED.dim == 2
    with pytest.raises(ValueError, match="continuous"):
        _ = BOUNDED.n
