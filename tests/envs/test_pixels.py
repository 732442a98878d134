"""Images as observations: drawn, scaled, grey, stacked, and the same when an episode is played again."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlexp.envs import CartPolePixels, GymEnv, PendulumPixels
from rlexp.envs.drawn import Canvas
from rlexp.envs.pixels import Images
from rlexp.errors import ConfigError, EnvError
from tests.counting import COUNTING, image
from tests.envs.common import play, random_actions, same_steps
from tests.masked import MASKED

cv2 = pytest.importorskip("cv2")


def assert_restored(config: GymEnv, steps: int = 6) -> None:
    env, fresh = config.build(seed=1), config.build(seed=2)
    env.reset()
    actions = random_actions(env, 2 * steps)
    before = play(env, actions[:steps])[-1].obs
    obs, inexact = fresh.restore(env.snapshot())
    assert inexact == []
    np.testing.assert_array_equal(obs, before)
    assert same_steps(play(env, actions[steps:]), play(fresh, actions[steps:]))


def test_images_are_scaled_and_grey():
    env = GymEnv(id=COUNTING, kwargs={"obs": "image"}, resize=18, grayscale=True).make()
    assert env.observation_space.shape == (18, 18, 1)
    obs, _ = env.reset(seed=7)
    expected = cv2.resize(cv2.cvtColor(image(7, 0), cv2.COLOR_RGB2GRAY), (18, 18), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(obs[..., 0], expected)
    stacked = GymEnv(id=COUNTING, kwargs={"obs": "image"}, resize=18, grayscale=True, frame_stack=3)
    assert stacked.spec().obs.leaves[""].shape == (3, 18, 18)
    assert stacked.spec().obs.leaves[""].stack == 3


def test_of_a_dict_only_the_images_are_scaled():
    env = GymEnv(id=COUNTING, kwargs={"obs": "dict"}, resize=20).make()
    obs, _ = env.reset(seed=0)
    assert obs["image"].shape == (20, 20, 3)
    assert obs["vector"].shape == (3,)


class TwoCameras(gym.Env):
    """One image with its channels last, the same one with its channels first, and one that is neither."""

    observation_space = spaces.Dict(
        {
            "last": spaces.Box(0, 255, (30, 40, 3), np.uint8),
            "first": spaces.Box(0, 255, (3, 30, 40), np.uint8),
            "grid": spaces.Box(0, 255, (5, 30, 40), np.uint8),
        }
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        image = self.np_random.integers(0, 256, (30, 40, 3), np.uint8)
        return {"last": image, "first": image.transpose(2, 0, 1), "grid": np.zeros((5, 30, 40), np.uint8)}, {}


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"resize": 20, "grayscale": False}, (20, 20, 3)),
        ({"resize": 20, "grayscale": True}, (20, 20, 1)),
        ({"resize": None, "grayscale": True}, (30, 40, 1)),
        ({"resize": 20, "grayscale": True, "flat": True}, (20, 20)),
    ],
)
def test_channels_are_found_where_they_are_and_stay_there(settings, shape):
    env = Images(TwoCameras(), **settings)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert (obs["last"].shape, obs["grid"].shape) == (shape, (5, 30, 40))
    first = obs["first"] if len(shape) == 2 else obs["first"].transpose(1, 2, 0)
    np.testing.assert_array_equal(first, obs["last"])
    single = gym.wrappers.TransformObservation(
        TwoCameras(), lambda obs: obs["first"], TwoCameras.observation_space["first"]
    )
    np.testing.assert_array_equal(Images(single, **settings).reset(seed=0)[0], obs["first"])


def test_images_are_restored_exactly():
    assert_restored(GymEnv(id=COUNTING, kwargs={"obs": "image"}, num_envs=2, resize=18, grayscale=True, frame_stack=2))
    assert_restored(GymEnv(id="PendulumPixels-v0", num_envs=2, frame_stack=3))


def test_stacks_beside_an_action_mask_are_marked_as_such():
    leaves = GymEnv(id=MASKED, frame_stack=2).spec().obs.leaves
    assert (leaves["obs"].stack, leaves["action_mask"].stack) == (2, 1)


def test_stacks_that_another_wrapper_changes_are_stored_whole():
    stack = {"_target_": "rlexp.envs.FrameStack", "size": 3}
    outermost = GymEnv(id=COUNTING, wrappers=[stack]).spec().obs.leaves[""]
    assert (outermost.shape[0], outermost.stack) == (3, 3)
    delayed = {"_target_": "gymnasium.wrappers.DelayObservation", "delay": 2}
    below = GymEnv(id=COUNTING, wrappers=[stack, delayed]).spec().obs.leaves[""]
    assert (below.shape, below.stack) == (outermost.shape, 1)


def test_any_environment_that_draws_can_be_seen():
    pytest.importorskip("pygame")
    config = GymEnv(id="CartPole-v1", pixels=True, resize=40, grayscale=True, frame_stack=2)
    assert config.spec().obs.leaves[""].shape == (2, 40, 40)
    assert_restored(config, 3)


def test_what_cannot_be_seen_is_refused():
    with pytest.raises(EnvError, match=r"env\.pixels=true"):
        GymEnv(id="CartPole-v1", pixels=True).make("human")
    with pytest.raises(EnvError, match=r"env\.pixels=true draws one"):
        GymEnv(id="CartPole-v1", grayscale=True).make()
    with pytest.raises(EnvError, match=r"env\.pixels=true needs an environment that draws images: BitFlip-v0"):
        GymEnv(id="BitFlip-v0", pixels=True).make()


def test_a_bar_covers_what_it_should():
    cover = Canvas(8).bar((0.0, 0.0), (0.0, 0.75), 0.5)  # two pixels wide, from the centre to the second row
    assert cover[1:4, 3:5].min() > 0.7
    assert cover[6:].max() == 0
    assert cover[:, :2].max() == 0
    np.testing.assert_array_equal(cover, cover[:, ::-1])


def test_the_pictures_show_the_state():
    env = PendulumPixels(size=16)
    env.reset(seed=0)
    for angle, (row, column) in {0.0: (4, 8), np.pi: (11, 8), np.pi / 2: (8, 4), -np.pi / 2: (8, 11)}.items():
        env.state = np.array([angle, 0.0])
        picture = env.picture()[..., 0]
        assert picture[row, column] > 128
        assert picture[15 - row, 15 - column] == 0
    cart = CartPolePixels(size=32)
    cart.reset(seed=0)
    cart.state = np.array([-2.0, 0.0, 0.0, 0.0])
    left = cart.picture()
    cart.state = np.array([2.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(left, cart.picture()[:, ::-1])
    assert left[:, :16].sum() > 0
    assert left[:, 20:].sum() == 0


def test_a_cart_is_pushed_by_any_force_or_by_the_two_of_cartpole():
    free, two = CartPolePixels(size=16, continuous=True), CartPolePixels(size=16)
    for env in (free, two):
        env.reset(seed=3)
    for push in (1, 0, 1, 1):
        free.step(np.array([2 * push - 1], np.float32))
        two.step(push)
        np.testing.assert_array_equal(free.state, two.state)
    speed = free.state[1]
    free.step(np.zeros(1, np.float32))
    assert abs(free.state[1] - speed) < 0.01  # 10 N change it by 0.2
    assert_restored(GymEnv(id="CartPolePixelsContinuous-v0", num_envs=2, frame_stack=3))


def test_sizes_that_no_memory_holds_are_refused():
    with pytest.raises(ConfigError, match=r"env.resize must be at most 2048"):
        GymEnv(id="PendulumPixels-v0", resize=100_000)
    with pytest.raises(ConfigError, match=r"env.frame_stack must be at most 256"):
        GymEnv(id="PendulumPixels-v0", frame_stack=1_000_000)
