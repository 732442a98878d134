"""Frames of an environment as a file: a whole MP4 by OpenCV, or a GIF by Pillow that is small enough for a README."""

from __future__ import annotations

import importlib
import io
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from rlexp.envs.locate import missing_package
from rlexp.errors import EnvError, RunError
from rlexp.files import write_atomic

GIF_SIDE = 320  # pixels of a GIF's longer side, at most
GIF_RATE = 15  # frames of a GIF that are a second, at most
GIF_SECONDS = 30  # that a GIF shows, from the beginning
_SAMPLES = 16  # frames of a GIF that its colours are chosen by


def check_frame(frame: Any) -> None:
    """Refuse what is no picture."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        raise EnvError("A video needs an environment whose render() gives uint8 images [H, W, 3].")


def open_video(path: Path) -> Video:
    """A video by the ending of its name: .mp4 or .gif."""
    if path.suffix not in FORMATS:
        raise RunError(f"{path} is no name for a video. It must end with {' or '.join(FORMATS)}.")
    if path.parent.is_symlink():
        raise RunError(f"{path.parent} is a symbolic link, and videos are not written through one. Put a folder there.")
    return FORMATS[path.suffix](path)


class Video(ABC):
    """A file that frames [H, W, 3] of one size are added to.

    It has its name once it is complete: at the end of a ``with`` block that ran through. Otherwise nothing is left.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.frames = path, 0

    def add(self, frame: Any, rate: float) -> None:
        """One more frame; ``rate`` is how many of them are a second."""
        check_frame(frame)
        self._write(frame, rate)
        self.frames += 1

    @abstractmethod
    def _write(self, frame: np.ndarray, rate: float) -> None: ...

    @abstractmethod
    def _finish(self, keep: bool) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.frames:
            self._finish(kind is None)


class Mp4(Video):
    """Every frame, by OpenCV."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._cv2 = import_cv2()
        self._part = path.with_name(f"{path.stem}.part.mp4")
        self._writer: Any = None

    def _write(self, frame: np.ndarray, rate: float) -> None:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._part.unlink(missing_ok=True)
            code = self._cv2.VideoWriter_fourcc(*"mp4v")
            self._writer = self._cv2.VideoWriter(str(self._part), code, rate, (frame.shape[1], frame.shape[0]))
            if not self._writer.isOpened():
                raise EnvError(f"The video {self.path} cannot be written by OpenCV. A GIF may do: video=gif.")
        self._writer.write(self._cv2.cvtColor(frame, self._cv2.COLOR_RGB2BGR))

    def _finish(self, keep: bool) -> None:
        self._writer.release()
        if keep:
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)


class Gif(Video):
    """The first half minute, fewer and smaller frames."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kept: list[Image.Image] = []
        self._hundredths = 0  # of a second that each frame is shown

    def _write(self, frame: np.ndarray, rate: float) -> None:
        every = max(round(rate / GIF_RATE), 1)
        self._hundredths = round(100 * every / rate)
        if self.frames % every == 0 and len(self._kept) * self._hundredths < 100 * GIF_SECONDS:
            self._kept.append(_shrunk(Image.fromarray(frame)))

    def _finish(self, keep: bool) -> None:
        if keep:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, self.encoded())

    def encoded(self) -> bytes:
        """The content of the file. All frames have the same colours, so that only what changes is stored of each."""
        samples = [np.asarray(image) for image in self._kept[:: -(-len(self._kept) // _SAMPLES)]]
        colours = Image.fromarray(np.concatenate(samples)).quantize(256)
        first, *others = (image.quantize(palette=colours, dither=Image.Dither.NONE) for image in self._kept)
        file = io.BytesIO()
        first.save(file, "GIF", save_all=True, append_images=others, duration=10 * self._hundredths, loop=0)
        return file.getvalue()


FORMATS: dict[str, type[Video]] = {".mp4": Mp4, ".gif": Gif}


def gif_of(path: Path) -> bytes:
    """An MP4 file as a GIF."""
    cv2 = import_cv2()
    film, gif = cv2.VideoCapture(str(path)), Gif(path)
    try:
        rate = film.get(cv2.CAP_PROP_FPS)
        while (read := film.read())[0]:
            gif.add(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB), rate)
    finally:
        film.release()
    return gif.encoded()


def import_cv2() -> Any:
    """OpenCV, if it is installed."""
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise EnvError(missing_package("An MP4 video", error)) from error


def _shrunk(image: Image.Image) -> Image.Image:
    scale = GIF_SIDE / max(image.size)
    if scale >= 1:
        return image
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX)
