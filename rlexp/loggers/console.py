"""What a person sees while a run goes on: a live display in a terminal, one line per row anywhere else.

Where rows are far apart, a line of progress once a minute says that the run goes on.

``tick`` is called in every iteration of every loop, so it returns before anything is formatted unless it is time to
redraw. rich is imported when a live display starts. An output that breaks (a closed pipe, a full disk) silences the
console; it never ends a run.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rlexp.errors import ConfigError, counted
from rlexp.loggers.base import RunInfo
from rlexp.loggers.format import duration, evaluation_text, number, outcome, short_path, trust_text

if TYPE_CHECKING:
    from rlexp.loggers.live import LiveDisplay

NO_ENV = "from_dataset"  # the environment of a run on data alone, by summary.json
MODES = ("auto", "rich", "plain", "none")
REDRAW_SECONDS = 0.125
SAMPLE_SECONDS = 1.0  # between looks at the progress where nothing is drawn
QUIET_SECONDS = 60.0  # without a line, after which plain output has one of progress
RATE_SECONDS = 20.0  # the live rate is a mean over this long
STATUS = {"completed": ("✓", "green"), "interrupted": ("■", "yellow"), "failed": ("✗", "red")}
STOPS = {  # why a run ended before its budget did, by summary.json's stop_reason
    "stop_return": "an evaluation reached trainer.stop_return",
    "patience": "no new best in trainer.patience evaluations",
    "max_seconds": "trainer.max_seconds have passed",
    "SIGINT": "interrupted from the keyboard (SIGINT)",
    "SIGTERM": "asked to end (SIGTERM)",
}
Line = list[tuple[str, str]]  # (text, rich style) pieces
ASCII = str.maketrans({"±": "+-", "·": "-", "…": "...", "✓": "*", "✗": "x", "■": "*", "→": "->"})


class Progress:
    """How far the run is, how fast, and its latest results: what both kinds of output show."""

    def __init__(self) -> None:
        self.done, self.total, self.unit = 0, 0, "steps"
        self.phase: str | None = None
        self.results: dict[str, float] = {}  # latest value of every metric
        self.evals: deque[float] = deque(maxlen=24)
        self.best: float | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self.warming_up = False  # updates have begun, and nothing was timed since
        self._sampled_unit = "steps"

    def sample(self, now: float) -> None:
        """Remember when ``done`` was reached; the rate is measured over these."""
        samples = self._samples
        if self.unit != self._sampled_unit:
            samples.clear()  # updates first, then steps: a mixed run
            self._sampled_unit = self.unit
        samples.append((now, self.done))
        while now - samples[0][0] > RATE_SECONDS and len(samples) > 2:
            samples.popleft()
        self.warming_up &= len(samples) < 2

    def rate(self) -> float | None:
        """Units per second over the last seconds."""
        if len(self._samples) < 2 or self.unit != self._sampled_unit:
            return None
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start and after > before else None

    def take(self, row: Mapping[str, Any]) -> None:
        """Remember what a row says; the speed of steps without updates says nothing on that of those with them."""
        if self.results.get("updates") == 0 and row.get("updates"):
            self._samples.clear()
            self.warming_up = True
        self.results.update({key: value for key, value in row.items() if isinstance(value, int | float)})
        found = outcome(row, "eval/")
        if found is not None and math.isfinite(value := found[1]):
            self.evals.append(value)
            self.best = value if self.best is None else max(self.best, value)

    def eta(self, rate: float | None) -> str | None:
        """The time left at ``rate``; unknown until steps with updates were timed, as those without are quick."""
        if self.unit == "steps" and (self.warming_up or self.results.get("updates") == 0):
            return None
        return duration((self.total - self.done) / rate) if rate and self.total > self.done else None


class Console:
    """The progress display of one run.

    ``start`` once, ``tick`` in every iteration, ``log`` for every row, ``finish`` at the end; ``close`` (or leaving a
    ``with`` block) gives the terminal back whatever happened.
    """

    def __init__(
        self, mode: str = "auto", *, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"console must be one of {', '.join(MODES)}, not {mode!r}.")
        self._file = sys.stdout if file is None else file
        self.mode = mode if mode != "auto" else "rich" if is_terminal(self._file) else "plain"
        self.progress = Progress()
        self._clock = clock
        self._next_redraw = math.inf  # until the start
        self._last_line = -math.inf  # when plain output had one
        self._live: LiveDisplay | None = None

    def start(
        self,
        info: RunInfo,
        *,
        device: str,
        loop: str,
        total: int,
        unit: str = "steps",
        done: int = 0,
        best: float | None = None,
    ) -> None:
        """Say what runs, and begin to show progress; ``done`` and ``best`` are those of a resumed run."""
        progress = self.progress
        progress.done, progress.total, progress.unit, progress.best = done, total, unit, best
        what = [info.algo, info.env, f"seed {info.seed}", device, loop]
        if info.resumed:
            what.append(f"resumed at {counted(done, unit.removesuffix('s'))}")
        if self.mode == "rich":
            from rlexp.loggers.live import LiveDisplay

            live = self._live = LiveDisplay(self._file, progress)
            self._next_redraw = -math.inf
            self._guard(lambda: live.start(what, short_path(info.path)))
        else:
            self.note(f"{' · '.join(what)}  {short_path(info.path)}")
            if self.mode == "plain":
                self._next_redraw = -math.inf

    def tick(self, done: int, total: int, unit: str = "steps") -> None:
        """Progress of the loop."""
        progress = self.progress
        progress.done, progress.total, progress.unit = done, total, unit
        now = self._clock()
        if now >= self._next_redraw:
            progress.sample(now)  # here only, so that compiling before the first tick does not count
            self._redraw()
            if self.mode == "plain":
                self._break_silence(now)

    def phase(self, text: str | None) -> None:
        """What the run does while it does not tick (``compiling``, ``evaluating``); None: it goes on."""
        self.progress.phase = text
        self._redraw()

    def log(self, row: Mapping[str, Any]) -> None:
        """A row of metrics: a line in plain mode, new values in the live display."""
        progress = self.progress
        progress.take(row)
        count = row.get("updates" if progress.unit == "updates" else "env_steps")
        if count is not None:
            progress.done = int(count)
        if self.mode == "plain":
            self.note(plain_line(progress, row))
        else:
            self._redraw()

    def note(self, text: str) -> None:
        """A message, above the live display."""
        self._message([(text, "")])

    def warn(self, text: str) -> None:
        """A warning; with ``mode="none"`` it goes to the ``rlexp`` logger of Python's logging."""
        if self.mode == "none":
            logging.getLogger("rlexp").warning(text)
        else:
            self._message([(f"warning: {text}", "yellow")])

    def finish(
        self, summary: Mapping[str, Any], paths: Mapping[str, Any], trust: Sequence[str] = (), in_python: bool = False
    ) -> None:
        """The last word: ``summary`` as in summary.json, ``paths`` what was written, by name (``run`` first).

        ``trust`` are the packages that the commands proposed next have to name; ``in_python``: the environment is a
        function, which no command can name.
        """
        self.close()
        for line in closing_lines(summary, paths, trust, in_python):
            self._message(line)

    def close(self) -> None:
        """Remove the live display and give the terminal back."""
        live, self._live = self._live, None
        self._next_redraw = math.inf
        if live:
            self._guard(live.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _redraw(self) -> None:
        if self._live:
            self._next_redraw = self._clock() + REDRAW_SECONDS
            self._guard(self._live.draw)

    def _break_silence(self, now: float) -> None:
        """A line of progress if there was none of any kind for long: no row of metrics, which the clock never makes."""
        self._next_redraw = now + SAMPLE_SECONDS
        if now - self._last_line >= QUIET_SECONDS:
            progress = self.progress
            rate = progress.rate()
            self.note(plain_line(progress, {} if rate is None else {f"time/{progress.unit}_per_second": rate}))

    def _message(self, line: Line) -> None:
        if self.mode == "rich":
            from rlexp.loggers.live import print_styled

            self._guard(lambda: print_styled(line, self._live.console if self._live else self._file))
        elif self.mode == "plain":
            self._last_line = self._clock()
            self._guard(lambda: print_plain(line, self._file))

    def _guard(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self.mode, self._live, self._next_redraw = "none", None, math.inf
            if isinstance(error, BrokenPipeError):
                # What is left in the buffer would fail again when Python flushes it at exit, with exit code 120.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())


def plain_line(progress: Progress, row: Mapping[str, Any]) -> str:
    """``step 10,000/50,000  20%  return 123.4  eval 210.0 ± 12  1,234 steps/s  eta 0:32``: what the row holds."""
    done, total, unit = progress.done, progress.total, progress.unit
    start = f"{unit.removesuffix('s')} {done:,}"
    if total > 0:
        width = len(f"{total:,}")
        start = f"{unit.removesuffix('s')} {done:>{width},}/{total:,} {percent(done, total):>4}"
    parts = [start]
    if (value := row.get("rollout/return_mean")) is not None:
        parts.append(f"return {number(value)}")
    if (value := row.get("rollout/success_rate")) is not None:
        parts.append(f"success {value:.0%}")
    if text := evaluation_text(row, "eval/"):
        parts.append(f"eval {text}")
    if text := trust_text(row, "eval/"):
        parts.append(text)
    if (value := row.get("eval/success_rate")) is not None:
        parts.append(f"success {value:.0%}")
    if (value := row.get("video/return")) is not None:
        parts.append(f"video of return {number(value)}")
    if rate := progress.rate() or row.get(f"time/{unit}_per_second"):
        parts.append(f"{rate:,.0f} {unit}/s")
        if eta := progress.eta(rate):
            parts.append(f"eta {eta}")
    return "  ".join(parts)


def percent(done: int, total: int) -> str:
    """``100%`` only when nothing is left."""
    return f"{min(100, 100 * done // total)}%"


def closing_lines(
    summary: Mapping[str, Any], paths: Mapping[str, Any], trust: Sequence[str] = (), in_python: bool = False
) -> list[Line]:
    """The final block."""
    status = str(summary.get("status", "completed"))
    mark, colour = STATUS.get(status, ("·", "cyan"))
    unit = "steps" if summary.get("env_steps") else "updates"
    facts = [counted(summary.get("env_steps") or summary.get("updates") or 0, unit.removesuffix("s"))]
    if rate := summary.get(f"{unit}_per_second"):
        facts.append(f"{rate:,.0f} {unit}/s")
    head = f"{mark} {status} in {duration(summary.get('wall_time_s') or 0)}"
    lines: list[Line] = [[], [(head, f"bold {colour}"), (f"  {' · '.join(facts)}", "")]]
    if (reason := summary.get("stop_reason")) not in (None, "budget"):
        lines.append(entry("stopped", STOPS.get(reason, str(reason))))
    if summary.get("updates") == 0:
        lines.append(entry("learned", "nothing: it ended before the first update"))
    if final := summary.get("eval"):
        lines.append(entry("evaluation", _evaluation(final), "bold"))
    if best := summary.get("best_eval"):
        lines.append(entry("best", _evaluation(best)))
    if (score := summary.get("normalized_score")) is not None:
        best_score = summary.get("best_normalized_score")
        ending = "" if best_score is None else f" at the end, {number(best_score)} at best"
        lines.append(entry("score", f"{number(score)} of 100, normalized{ending}"))
    lines.append([])
    lines += [entry(label, place_text(place)) for label, place in paths.items()]
    if run := paths.get("run"):
        place = shlex.quote(place_text(run)) + (f" 'trust=[{','.join(trust)}]'" if trust else "")
        commands = [f"rlexp eval {place}"]
        if summary.get("env") == NO_ENV:  # nothing to play in, unless the user has something
            commands = [f"rlexp predict {place}", f"rlexp eval {place} env=NAME"]
        if status != "completed":
            commands.insert(0, f"rlexp resume {place}")
        if in_python:
            calls = ("evaluate",) if status == "completed" else ("resume", "evaluate")
            trusting = f", trust={list(trust)}" if trust else ""
            load = f"rlexp.Agent.load({place_text(run)!r}, env=your_function{trusting})"
            commands = [f"{load}.{call}()" for call in calls]
        lines.append([])
        lines += [entry("" if i else "next", command, "cyan") for i, command in enumerate(commands)]
    return lines


def entry(label: str, text: str, style: str = "") -> Line:
    """An indented line ``label  text``."""
    return [(f"  {label:<13}", "dim"), (text, style)]


def place_text(place: Any) -> str:
    """A path, shortened, or a command or address, as it is."""
    return short_path(place) if isinstance(place, os.PathLike) else str(place)


def _evaluation(result: Mapping[str, Any]) -> str:
    text = evaluation_text(result)
    if told := trust_text(result):
        text += f" ({told})"
    if (rate := result.get("success_rate")) is not None:
        text += f", success {rate:.0%}"
    if states := result.get("states"):
        text += f" over {counted(states, 'first state')} of the data"
    if episodes := result.get("episodes"):
        text += f" over {counted(episodes, 'episode')}"
    if (step := result.get("env_steps") or result.get("updates")) is not None:
        text += f" at {counted(step, 'step' if result.get('env_steps') else 'update')}"
    return text


def is_terminal(file: TextIO) -> bool:
    """Whether a live display can be drawn: a terminal that moves its cursor and speaks Unicode."""
    try:
        unicode = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
        return file.isatty() and unicode and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # not a real file, or closed
        return False


def print_plain(line: Line, file: TextIO) -> None:
    """Print without styles, in ASCII where the file can write nothing else, and at once: logs are watched."""
    text = "".join(part for part, _ in line)
    try:
        print(text, file=file, flush=True)
    except UnicodeEncodeError:
        print(text.translate(ASCII).encode("ascii", "replace").decode(), file=file, flush=True)
