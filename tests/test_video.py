"""Videos: what a file shows, and that filming leaves no trace in the training."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image, ImageSequence

import rlexp
from rlexp.config.trust import EVERYTHING
from rlexp.envs import AtariEnv, GymEnv
from rlexp.envs.frame_rate import frame_rate
from rlexp.errors import EnvError, RunError
from rlexp.evaluation import Evaluator, check_filming
from rlexp.loggers import Logger
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.video import Video, gif_of, open_video
from tests.algos.test_runs import assert_same_run, rows, run_config, stop, weights
from tests.counting import COUNTING, CountingEnv

COLOURS = np.random.default_rng(0).integers(0, 256, (40, 3), dtype=np.uint8)


def picture(t: int, shape: tuple[int, int] = (30, 40)) -> np.ndarray:
    """One colour that tells the number, and a black corner."""
    frame = np.full((*shape, 3), COLOURS[t % len(COLOURS)])
    frame[:5, :5] = 0
    return frame


def write(path: Path, count: int, rate: float = 30.0, shape: tuple[int, int] = (30, 40)) -> Path:
    with open_video(path) as video:
        for t in range(count):
            video.add(picture(t, shape), rate)
    return path


def add_until_it_fails(video: Video) -> None:
    video.add(picture(5), 30)
    video.add(None, 30)


def frames_of(gif: bytes | Path) -> list[np.ndarray]:
    image = Image.open(gif if isinstance(gif, Path) else io.BytesIO(gif))
    return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


def film(path: Path) -> list[np.ndarray]:
    cv2 = pytest.importorskip("cv2")
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(read[1][..., ::-1])
    return found


def test_a_gif_shows_half_of_thirty_frames_a_second_at_the_same_pace(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "a.gif", 9, rate=30)
    found = frames_of(path)
    for frame, t in zip(found, range(0, 9, 2), strict=True):
        np.testing.assert_array_equal(frame, picture(t))
    assert Image.open(path).info == Image.open(path).info | {"duration": 70, "loop": 0}  # of 66.7 ms, in hundredths
    assert [each.name for each in path.parent.iterdir()] == ["a.gif"]


def test_a_gif_is_small_and_short(tmp_path: Path) -> None:
    found = frames_of(write(tmp_path / "a.gif", 500, rate=10, shape=(30, 700)))
    assert len(found) == 300
    assert found[0].shape == (14, 320, 3)  # 13.7
    assert (tmp_path / "a.gif").stat().st_size < 300 * 14 * 320 / 4


@pytest.mark.parametrize("rate", [2, 15, 30])
def test_a_gif_ends_after_half_a_minute_however_fast_its_frames(rate: float, tmp_path: Path) -> None:
    image = Image.open(write(tmp_path / "a.gif", 1000, rate=rate, shape=(8, 8)))
    shown = sum(frame.info["duration"] for frame in ImageSequence.Iterator(image))
    assert 30_000 <= shown < 30_000 + 1_000 / min(rate, 15) + 10  # ms: the last frame may end a little later


def test_an_mp4_shows_every_frame_and_becomes_a_gif(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 7, rate=15, shape=(32, 48))
    found = film(path)
    assert len(found) == 7
    for shown in (found, frames_of(gif_of(path))):
        for t, frame in enumerate(shown):
            assert np.abs(frame[-16:, -16:].astype(int) - COLOURS[t]).max() < 12  # the codec is not exact
    assert [each.name for each in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_a_video_that_is_not_finished_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    before = write(tmp_path / name, 3).read_bytes()
    video = open_video(tmp_path / name)
    with pytest.raises(EnvError), video:
        add_until_it_fails(video)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [before]


def test_names_and_frames_that_are_no_video_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"must end with \.mp4 or \.gif"):
        open_video(tmp_path / "a.avi")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(RunError, match="symbolic link"):
        open_video(tmp_path / "link" / "a.gif")
    with pytest.raises(EnvError, match=r"uint8 images \[H, W, 3\]"), open_video(tmp_path / "a.gif") as video:
        video.add(np.zeros((4, 4)), 30)
    with pytest.raises(EnvError, match=r"uint8 images \[H, W, 3\]"):
        check_filming(unseen())


class Unseen(CountingEnv):
    """Says that it can be drawn, and cannot."""

    def render(self) -> Any:
        return None


def unseen() -> GymEnv:
    env = GymEnv(id=COUNTING)
    env.factory = lambda render_mode=None: Unseen(render_mode=render_mode)  # type: ignore[misc]
    return env


def test_an_environment_without_a_way_to_draw_is_told_so() -> None:
    pytest.importorskip("cv2")
    with pytest.raises(EnvError, match=r"BitFlip-v0 has no render mode 'rgb_array'"):
        check_filming(GymEnv(id="BitFlip-v0"))


def test_an_agent_films_what_it_plays(tmp_path: Path) -> None:
    agent = rlexp.DQN(env=lambda render_mode=None: CountingEnv(render_mode=render_mode), progress="none")
    played = agent.evaluate(2, video=tmp_path / "play.mp4")
    assert len(film(tmp_path / "play.mp4")) == sum(length + 1 for length in played.lengths) == 12


class Reel(Video):
    """Keeps the frames."""

    def _write(self, frame: np.ndarray, rate: float) -> None:
        self.kept = [*getattr(self, "kept", []), frame]

    def _finish(self, keep: bool) -> None: ...


def test_a_film_shows_episodes_from_their_first_state_to_their_last_one(tmp_path: Path) -> None:
    env = GymEnv(id=COUNTING, kwargs={"length": 3})
    play = Evaluator(env, render_mode="rgb_array")
    agent = rlexp.DQN(env=CountingEnv, progress="none")
    with Reel(tmp_path / "never") as reel:
        play(agent.policy, 2, seed=0, video=reel)
    assert [int(frame[-1, -1, 0]) for frame in reel.kept] == [0, 1, 2, 3, 0, 1, 2, 3]  # the steps before each
    play(agent.policy, 1, seed=0)  # the same environments, and nobody films them now
    assert reel.frames == 8
    play.close()


def test_the_speed_of_a_film_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(return_value=10.0)
    monkeypatch.setattr("rlexp.evaluation.frame_rate", asked)
    agent = rlexp.DQN(env=lambda render_mode=None: CountingEnv(render_mode=render_mode), progress="none")
    agent.evaluate(2, video=tmp_path / "play.gif")
    assert asked.call_count == 1


# ---- their speed


@pytest.mark.parametrize(
    ("settings", "rate"),
    [({}, 50), ({"action_repeat": 4}, 12.5), ({"wrappers": [{"_target_": "tests.test_video.Slower"}]}, 5)],
)
def test_a_frame_lasts_as_long_as_the_steps_that_it_is_drawn_after(settings: dict[str, Any], rate: float) -> None:
    assert frame_rate(GymEnv(id="CartPole-v1", **settings).make()) == rate


class Slower(gym.Wrapper):
    """Knows how fast it is meant to be seen."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "render_fps": 5}


@pytest.mark.parametrize(("frame_skip", "rate"), [(4, 15), (1, 60)])
def test_atari_is_shown_at_sixty_emulated_frames_a_second(frame_skip: int, rate: float) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    assert frame_rate(AtariEnv(game="pong", frame_skip=frame_skip, size=36).make()) == rate
    assert frame_rate(GymEnv(id="ALE/Pong-v5", kwargs={"frameskip": frame_skip}).make()) == rate


@pytest.mark.parametrize("name", ["play.mp4", "play.gif"])
def test_a_film_of_repeated_actions_lasts_as_long_as_the_episode_and_its_last_frame(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    make = functools.partial(CountingEnv, length=6)
    agent = rlexp.DQN("env.action_repeat=3", env=make, progress="none")
    path = tmp_path / name
    agent.evaluate(1, video=path)
    if name.endswith("gif"):
        shown = sum(frame.info["duration"] for frame in ImageSequence.Iterator(Image.open(path))) / 1000
    else:
        shown = len(film(path)) / cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS)
    assert shown == pytest.approx((6 + 3) / 30)  # 30 steps of an environment that does not say are a second


# ---- while training

LOOPS = [("ppo", "on_policy"), ("dqn", "replay"), ("bc", "offline"), ("rlpd", "mixed")]
FILMED = "trainer.video_interval=50"


@pytest.mark.parametrize(("name", "loop"), LOOPS)
def test_filming_changes_no_number_of_the_training_and_is_resumed(name: str, loop: str, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    plain, filmed = run_config(name, loop), run_config(name, loop, FILMED)
    Runner(plain).train(tmp_path / "plain")
    Runner(filmed).train(tmp_path / "whole")
    assert weights(tmp_path / "plain") == weights(tmp_path / "whole")
    assert rows(tmp_path / "plain") == [row for row in rows(tmp_path / "whole") if "video/return" not in row]
    of_videos = [row for row in rows(tmp_path / "whole") if "video/return" in row]
    videos = sorted((tmp_path / "whole" / "videos").iterdir())
    assert len(videos) == len(of_videos) == 2
    for path, row in zip(videos, of_videos):
        length = row["video/length"]
        assert row["video/return"] == length * (length + 1) / 2
        assert len(film(path)) == length + 1

    runner = Runner(filmed)
    stop(runner.trainer, 90, "crash")
    with pytest.raises(RuntimeError, match="power"):
        runner.train(tmp_path / "run")
    videos[0].unlink()  # what is there already is not needed
    resume_run(tmp_path / "run", trust=EVERYTHING)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert film(tmp_path / "run" / "videos" / videos[1].name)[0].tobytes() == film(videos[1])[0].tobytes()


class Watching(Logger):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []  # index, frames

    def video(self, index: int, row: Any, gif: bytes) -> None:
        self.got.append((index, len(frames_of(gif))))


def test_loggers_get_a_gif_of_each_video_with_its_row(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    runner, logger = Runner(run_config("dqn", "replay", FILMED)), Watching()
    runner.loggers = {"mine": logger}
    runner.train(tmp_path / "run")
    expected = [
        (i, -(-(row["video/length"] + 1) // 2)) for i, row in enumerate(rows(tmp_path / "run")) if "video/return" in row
    ]
    assert logger.got == expected  # half of 30 frames a second


def test_what_cannot_be_filmed_is_told_before_anything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    runner = Runner(run_config("dqn", "replay", FILMED))
    runner.env = unseen()
    with pytest.raises(EnvError, match=r"uint8 images"):
        runner.train(tmp_path / "run")
    assert not (tmp_path / "run").exists()
