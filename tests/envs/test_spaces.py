"""Native Gymnasium values and canonical arrays."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlexp.envs import ActionCodec, Leaf, ObsCodec
from rlexp.envs.spaces import action_spec, observation_spec
from rlexp.errors import EnvError

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def leaf_spaces(draw):
    kind = draw(st.sampled_from(["box", "image", "discrete", "multi_discrete", "multi_binary"]))
    seed, shape = draw(SEEDS), draw(SHAPES)
    if kind == "box":
        dtype = draw(st.sampled_from([np.float32, np.float64, np.int32]))
        return spaces.Box(-5, 5, draw(st.sampled_from([(), shape])), dtype, seed=seed)
    if kind == "image":
        return spaces.Box(0, 255, shape, np.uint8, seed=seed)
    if kind == "discrete":
        return spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-5, 5)), seed=seed)
    if kind == "multi_discrete":
        nvec = draw(hnp.arrays(np.int64, shape, elements=st.integers(1, 9)))
        start = draw(hnp.arrays(np.int64, shape, elements=st.integers(-5, 5)))
        return spaces.MultiDiscrete(nvec, start=start, seed=seed)
    return spaces.MultiBinary(shape, seed=seed)


def nested(children):
    names = st.sampled_from("abcd")
    return st.dictionaries(names, children, min_size=1, max_size=3).map(spaces.Dict) | st.lists(
        children, min_size=1, max_size=3
    ).map(spaces.Tuple)


OBS_SPACES = st.recursive(leaf_spaces(), nested, max_leaves=6)


def naive(space, value, name=""):
    """{leaf name: canonical array}, written down a second time and without speed in mind."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        prefix = f"{name}/" if name else ""
        return {k: v for key, part in parts for k, v in naive(part, value[key], f"{prefix}{key}").items()}
    if isinstance(space, spaces.Box):
        return {name: np.asarray(value).astype("uint8" if space.dtype == np.uint8 else "float32")}
    if isinstance(space, spaces.Discrete):
        return {name: np.array(int(value) - int(space.start), np.int64)}
    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(value.flatten(), space.start.flatten())
        return {name: np.array([int(v) - int(s) for v, s in pairs], np.int64)}
    return {name: np.array([int(v) for v in value.flatten()], np.int8)}


@given(OBS_SPACES, SEEDS)
@settings(max_examples=150, deadline=None)
def test_every_observation_is_delivered_flat_zero_based_and_in_its_declared_dtype(space, seed):
    space.seed(seed)
    codec, value = ObsCodec(space), space.sample()
    codec.check(value, "Test-v0")
    got, wanted = codec.encode(value), naive(space, value)
    assert codec.spec.single == isinstance(got, np.ndarray)
    got = {"": got} if codec.spec.single else got
    assert list(got) == list(wanted) == list(codec.spec.leaves)
    for name, leaf in codec.spec.leaves.items():
        assert got[name].dtype == wanted[name].dtype == leaf.dtype
        assert got[name].shape == wanted[name].shape == leaf.shape
        np.testing.assert_array_equal(got[name], wanted[name])
        if leaf.nvec:
            assert (got[name] >= 0).all()
            assert (got[name].ravel() < np.array(leaf.nvec)).all()


@given(OBS_SPACES, SEEDS)
@settings(max_examples=50, deadline=None)
def test_writing_a_row_leaves_the_other_rows_alone(space, seed):
    space.seed(seed)
    codec = ObsCodec(space)
    values = [space.sample() for _ in range(3)]
    out = codec.empty(3)
    for row in (2, 0, 1):
        codec.write(values[row], out, row)
    out = {"": out} if codec.spec.single else out
    for row, value in enumerate(values):
        for name, wanted in naive(space, value).items():
            np.testing.assert_array_equal(out[name][row], wanted)


def test_leaves_of_known_spaces():
    obs = observation_spec(
        spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "joints": spaces.Box(np.array([-1, -2]), np.array([1, 2]), dtype=np.float64),
                "goal": spaces.Tuple([spaces.Discrete(4, start=7), spaces.MultiDiscrete([[2, 3], [4, 5]])]),
                "keys": spaces.MultiBinary((2, 3)),
            }
        )
    )
    assert not obs.single
    assert obs.leaves == {
        "camera": Leaf("box", (8, 8, 3), "uint8", low=0.0, high=255.0),
        "joints": Leaf("box", (2,), "float32"),
        "goal/0": Leaf("discrete", (), "int64", nvec=(4,)),
        "goal/1": Leaf("multi_discrete", (4,), "int64", nvec=(2, 3, 4, 5)),
        "keys": Leaf("multi_binary", (6,), "int8"),
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_fixed_array_are_refused_by_name(space):
    for attempt in (observation_spec, action_spec, lambda s: observation_spec(spaces.Dict({"a": s}))):
        with pytest.raises(EnvError, match=rf"{type(space).__name__}.*[Cc]onvert it with a wrapper"):
            attempt(space)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.Tuple([spaces.Discrete(2)])])
def test_composite_actions_are_refused(space):
    with pytest.raises(EnvError, match=f"action space {type(space).__name__}"):
        action_spec(space)


def test_two_parts_with_the_same_flat_name_are_refused():
    space = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(EnvError, match="'a/b'"):
        observation_spec(space)


@given(leaf_spaces().filter(lambda s: s.dtype != np.uint8), SEEDS)
@settings(max_examples=150, deadline=None)
def test_actions_make_the_round_trip_with_native_dtype_and_shape(space, seed):
    space.seed(seed)
    codec = ActionCodec(space, action_spec(space))
    natives = [space.sample() for _ in range(3)]
    canonical = np.stack([codec.encode(native) for native in natives])
    assert canonical.dtype == codec.spec.dtype
    assert canonical.shape == (3, *codec.spec.shape)
    if codec.spec.nvec:
        assert (canonical >= 0).all()
        assert (canonical.reshape(3, -1) < np.array(codec.spec.nvec)).all()
    taken, decoded = codec.decode(canonical)
    np.testing.assert_array_equal(np.array(list(taken)), canonical)
    for before, after in zip(natives, decoded, strict=True):
        assert np.asarray(after).dtype == space.dtype
        assert np.shape(after) == space.shape
        assert space.contains(after)
        np.testing.assert_array_equal(np.asarray(before, np.float32), np.asarray(after, np.float32))


def test_box_actions_are_clipped_to_each_dimension():
    space = spaces.Box(np.array([[-1], [0]], np.float32), np.array([[1], [3]], np.float32))
    codec = ActionCodec(space, action_spec(space))
    given_actions = np.array([[-5, -5], [5, 5], [0.5, 2]], np.float32)
    taken, native = codec.decode(given_actions)
    np.testing.assert_array_equal(np.array(taken), [[-1, 0], [1, 3], [0.5, 2]])
    np.testing.assert_array_equal(np.array(native), np.array([[[-1], [0]], [[1], [3]], [[0.5], [2]]]))
    np.testing.assert_array_equal(given_actions[0], [-5, -5])  # the caller's array is its own


def test_a_double_precision_bound_is_not_passed_by_rounding():
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    assert float(np.float32(0.1)) > 0.1
    _, native = ActionCodec(space, action_spec(space)).decode(np.array([[1.0]], np.float32))
    assert space.contains(native[0])


def test_an_integer_box_gets_the_nearest_integer_inside_its_bounds():
    space = spaces.Box(-3, 3, (4,), np.int32)
    _, native = ActionCodec(space, action_spec(space)).decode(np.array([[1.7, -1.7, 9.0, -0.2]], np.float32))
    np.testing.assert_array_equal(native[0], [2, -2, 3, 0])
    assert space.contains(native[0])


def test_an_environment_that_writes_into_its_action_does_not_write_into_the_callers():
    space = spaces.Box(-1, 1, (2,))
    mine = np.zeros((1, 2), np.float32)
    _, native = ActionCodec(space, action_spec(space)).decode(mine)
    native[0][:] = 9
    assert (mine == 0).all()


def test_action_limit_bounds_only_the_dimensions_without_a_bound():
    space = spaces.Box(np.array([-np.inf, -1, 0], np.float32), np.array([np.inf, 1, np.inf], np.float32))
    assert not action_spec(space).bounded
    limited = action_spec(space, 2.5)
    assert limited.bounded
    assert limited.low == (-2.5, -1, 0)
    assert limited.high == (2.5, 1, 2.5)
    taken, _ = ActionCodec(space, limited).decode(np.full((1, 3), 100, np.float32))
    np.testing.assert_array_equal(np.array(taken), [[2.5, 1, 2.5]])


def test_the_largest_float_as_a_bound_means_unbounded():
    largest = np.finfo(np.float32).max
    assert action_spec(spaces.Box(-largest, largest, (1,))).low == (-np.inf,)


def test_an_action_limit_below_a_bound_is_refused():
    with pytest.raises(EnvError, match=r"action_limit=3"):
        action_spec(spaces.Box(5, np.inf, (1,)), 3)


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(4, np.float32), r"has shape \(4,\)"),
        (spaces.Box(-1, 1, (3,)), np.zeros((3, 1), np.float32), r"has shape \(3, 1\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32), "has dtype float32"),
        (spaces.Box(-1, 1, (2,)), np.array(["a", "b"]), "has dtype <U1"),
        (spaces.Box(-1, 1, (2,)), [[1], [1, 2]], "is ragged"),
        (spaces.Discrete(3, start=1), 0, "holds 0"),
        (spaces.Discrete(3, start=1), 4, "holds 4"),
        (spaces.Discrete(3), 1.0, "has dtype float64"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), "holds"),
        (spaces.MultiBinary(2), np.array([0, 2]), "holds"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, r"no observation\['a'\]"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (1,), r"no observation\[1\]"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), {"a": np.zeros(3)}, r"observation\['a'\].*has shape \(3,\)"),
    ],
)
def test_an_observation_that_breaks_its_space_is_named(space, value, problem):
    with pytest.raises(EnvError, match=problem):
        ObsCodec(space).check(value, "Test-v0")


def test_a_double_precision_observation_of_a_float32_box_is_accepted():
    ObsCodec(spaces.Box(-1, 1, (2,))).check(np.zeros(2, np.float64), "Test-v0")


def test_the_envs_of_gymnasium_have_the_specs_they_document():
    assert action_spec(gym.make("CartPole-v1").action_space).n == 2
    pendulum = gym.make("Pendulum-v1")
    assert action_spec(pendulum.action_space).high == (2.0,)
    assert observation_spec(pendulum.observation_space).leaves[""].shape == (3,)
