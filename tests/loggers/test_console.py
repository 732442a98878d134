import io
import logging
import math
import os

import pytest

from rlexp.errors import ConfigError, counted
from rlexp.loggers import Console
from rlexp.loggers import live as live_module
from rlexp.loggers.console import closing_lines
from rlexp.loggers.format import duration, mean_std, number, short_path, sparkline

ROW = {
    "env_steps": 10_000,
    "updates": 40,
    "time_s": 8.1,
    "rollout/return_mean": 123.4,
    "eval/return_mean": 210.0,
    "eval/return_std": 12.2,
    "time/steps_per_second": 1234.4,
}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def plain(make_info, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = Console("plain", file=io.StringIO())
    console.start(make_info(), device="cpu", loop="on_policy", total=50_000)
    return console


def lines(console):
    return console._file.getvalue().splitlines()


@pytest.fixture
def rich(make_info, monkeypatch):
    """A live display on a recorded terminal of 100 columns, with a clock set by hand."""
    from rich.console import Console as RichConsole

    terminal = RichConsole(
        file=io.StringIO(), force_terminal=True, width=100, height=20, highlight=False, color_system="truecolor"
    )
    monkeypatch.setattr(live_module, "rich_console", lambda file: terminal)
    clock = Clock()
    console = Console("rich", file=io.StringIO(), clock=clock)
    console.start(make_info(), device="cpu", loop="on_policy", total=50_000)
    yield console, clock, terminal
    console.close()


def shown(console):
    return live_module.display(console.progress, 100).plain.splitlines()


def test_a_row_is_one_plain_line(plain):
    plain.log(ROW)
    plain.log(ROW | {"env_steps": 50_000, "rollout/return_mean": -1.5, "eval/return_std": 0.0})
    assert lines(plain) == [
        "ppo · cartpole · seed 1 · cpu · on_policy  .",
        "step 10,000/50,000  20%  return 123.4  eval 210.0 ± 12  1,234 steps/s  eta 0:32",
        "step 50,000/50,000 100%  return -1.50  eval 210.0 ± 0  1,234 steps/s",
    ]


def test_a_plain_line_shows_what_the_row_has(plain):
    plain.log({"env_steps": 5_000, "updates": 1, "eval/return_mean": -3.0, "eval/success_rate": 0.25})
    plain.log({"env_steps": 49_999, "updates": 1})
    assert lines(plain)[1:] == ["step  5,000/50,000  10%  eval -3.00  success 25%", "step 49,999/50,000  99%"]


def test_no_end_is_foretold_before_updates_begin(plain):
    plain.log({"env_steps": 1_000, "updates": 0, "time/steps_per_second": 1_000.0})
    plain.log({"env_steps": 2_000, "updates": 1_000, "time/steps_per_second": 100.0})
    assert lines(plain)[1:] == [
        "step  1,000/50,000   2%  1,000 steps/s",
        "step  2,000/50,000   4%  100 steps/s",  # not on the word of a mean over both
    ]


def test_the_speed_of_updates_is_not_told_of_steps(make_info):
    clock = Clock()
    console = Console("plain", file=io.StringIO(), clock=clock)
    console.start(make_info(), device="cpu", loop="mixed", total=2_000)
    for update in range(100, 600, 100):
        clock.now += 1
        console.tick(update, 500, "updates")
    console.progress.unit, console.progress.total = "steps", 2_000
    console.log({"env_steps": 10, "updates": 510, "time/steps_per_second": 3.0})
    assert lines(console)[-1] == "step    10/2,000   0%  3 steps/s  eta 11:03"


def test_rows_tell_the_speed_of_late_and_of_steps_with_updates(make_info):
    """The run's mean counts compiling, and steps at random, which are quick."""
    clock = Clock()
    console = Console("plain", file=io.StringIO(), clock=clock)
    console.start(make_info(), device="cpu", loop="replay", total=2_000)
    for step in range(0, 2_000, 100):
        clock.now += 5 if step < 1_000 else 20
        console.tick(step, 2_000)
        if step in (900, 1_000, 1_500):
            console.log({"env_steps": step, "updates": max(step - 950, 0), "time/steps_per_second": 500.0})
    assert lines(console)[1:] == [
        "step   900/2,000  45%  20 steps/s",
        "step 1,000/2,000  50%  500 steps/s",
        "step 1,300/2,000  65%  5 steps/s  eta 2:20",  # a minute without a line
        "step 1,500/2,000  75%  5 steps/s  eta 1:40",
        "step 1,800/2,000  90%  5 steps/s  eta 0:40",
    ]


def test_offline_runs_are_counted_in_updates(make_info):
    console = Console("plain", file=io.StringIO())
    console.start(make_info(), device="cpu", loop="offline", total=2_000, unit="updates")
    console.log({"env_steps": 0, "updates": 500, "time/updates_per_second": 100.0})
    assert lines(console)[1] == "update   500/2,000  25%  100 updates/s  eta 0:15"


def test_a_tick_tells_plain_lines_of_another_unit(plain):
    plain.tick(10, 400, "updates")
    plain.log({"env_steps": 0, "updates": 100})
    assert lines(plain)[1:] == ["update 100/400  25%"]


def test_plain_output_holds_no_control_characters(plain):
    plain.tick(10, 50_000)
    plain.phase("evaluating")
    plain.log(ROW)
    plain.note("a note")
    plain.warn("a warning")
    plain.finish({"status": "completed", "env_steps": 10}, {})
    text = plain._file.getvalue()
    assert not [character for character in text if ord(character) < 32 and character != "\n"]
    assert "a note\nwarning: a warning\n" in text


def test_a_minute_without_a_line_is_followed_by_one_of_progress(make_info):
    clock = Clock()
    console = Console("plain", file=io.StringIO(), clock=clock)
    console.start(make_info(), device="cpu", loop="on_policy", total=50_000)
    for second in range(1, 150):
        clock.now = 100.0 + second
        console.tick(100 * second, 50_000)
        if second == 70:
            console.log({"env_steps": 7_000, "updates": 1})
    assert lines(console)[1:] == [
        "step  6,000/50,000  12%  100 steps/s  eta 7:20",
        "step  7,000/50,000  14%  100 steps/s  eta 7:10",
        "step 13,000/50,000  26%  100 steps/s  eta 6:10",
    ]
    console.finish({"status": "completed"}, {})
    printed = len(lines(console))
    clock.now += 1_000.0
    console.tick(50_000, 50_000)
    assert len(lines(console)) == printed


def test_a_resumed_run_says_where_it_goes_on(make_info):
    console = Console("plain", file=io.StringIO())
    console.start(make_info(resumed=True), device="cpu", loop="replay", total=50_000, done=20_000)
    assert "replay · resumed at 20,000 steps" in lines(console)[0]


def test_nothing_is_printed_in_mode_none_but_warnings_reach_logging(make_info, capfd, caplog):
    console = Console("none")
    with caplog.at_level(logging.WARNING, "rlexp"):
        console.start(make_info(), device="cpu", loop="replay", total=10)
        console.tick(1, 10)
        console.log(ROW)
        console.note("quiet")
        console.warn("loud")
        console.finish({"status": "completed"}, {})
    assert capfd.readouterr().out == ""
    assert caplog.messages == ["loud"]


def test_auto_is_plain_where_there_is_no_terminal():
    assert Console("auto", file=io.StringIO()).mode == "plain"


def test_auto_is_rich_in_a_terminal_that_can_show_it(monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert Console("auto", file=Terminal()).mode == "rich"
    monkeypatch.setenv("TERM", "dumb")
    assert Console("auto", file=Terminal()).mode == "plain"


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="auto, rich, plain, none, not 'fancy'"):
        Console("fancy")


def test_a_closed_pipe_silences_the_console_and_nothing_else(make_info):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as file:
        console = Console("plain", file=file)
        console.start(make_info(), device="cpu", loop="replay", total=10)
        assert console.mode == "none"
        console.log(ROW)
        console.finish({"status": "completed"}, {})  # leaving `with` flushes what is left, as Python does at exit


def test_a_file_that_knows_only_ascii_gets_ascii(make_info):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console("plain", file=file)
    console.start(make_info(), device="cpu", loop="replay", total=50_000)
    console.log(ROW)
    assert b"eval 210.0 +- 12" in file.buffer.getvalue()


def test_ticks_are_drawn_at_most_eight_times_a_second(rich):
    console, clock, _ = rich
    draws = []
    console._live.draw = lambda: draws.append((clock.now, console.progress.done))
    for step in range(1000):  # one second in ticks of a millisecond
        clock.now = 100 + step / 1024
        console.tick(step, 50_000)
    assert draws == [(100 + k / 8, 128 * k) for k in range(8)]


def test_the_live_display_shows_progress_results_and_losses(rich):
    console, clock, _ = rich
    for second in range(6):
        clock.now = 100.0 + second
        console.tick(10_000 + 2_000 * second, 50_000)
    console.log(ROW | {"env_steps": 20_000, "loss/policy": -0.0123, "loss/value": 12.34})
    console.log({"env_steps": 20_000, "eval/return_mean": 150.0, "eval/return_std": 3.0})
    bar, results, losses = shown(console)
    assert bar.endswith("━  40%  20,000/50,000 steps  2,000 steps/s  eta 0:15")
    assert bar.count("━") + bar.count("╸") == 48
    assert results == "return 123.4   eval 150.0 ± 3.0   best 210.0   █▁"
    assert losses == "loss  policy -0.0123   value 12.3"


def test_the_bar_is_full_only_when_all_is_done(rich):
    console, _, _ = rich
    console.tick(49_999, 50_000)
    assert "  99%" in shown(console)[0]
    console.tick(50_000, 50_000)
    assert "╸" not in shown(console)[0]
    assert " 100%" in shown(console)[0]


def test_the_rate_starts_with_the_first_tick_and_anew_with_another_unit(rich):
    console, clock, _ = rich
    console.phase("compiling")
    clock.now += 15  # compiling is not part of the rate
    console.tick(1_000, 50_000)
    clock.now += 1
    console.tick(3_000, 50_000)
    assert console.progress.rate() == 2_000
    clock.now += 1
    console.tick(10, 500, "updates")
    assert console.progress.rate() is None


def test_a_narrow_terminal_cuts_lines_instead_of_breaking_them(rich):
    console, _, _ = rich
    console.log(ROW | {f"loss/number_{k}": 1.0 for k in range(20)})
    narrow = live_module.display(console.progress, 40).plain.splitlines()
    assert len(narrow) == 3
    assert max(map(len, narrow)) <= 40


def test_messages_and_the_final_block_are_printed_whole_above_the_display(rich):
    console, _, terminal = rich
    long_path = "outputs/" + "x" * 150
    console.note(f"saved to {long_path} [bold]")
    console.warn("careful")
    console.finish({"status": "interrupted", "env_steps": 10_000}, {"run": long_path})
    text = terminal.file.getvalue()
    assert f"saved to {long_path} [bold]" in text  # neither wrapped nor read as markup
    assert "warning: careful" in text
    assert f"rlexp resume {long_path}" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_leaving_the_with_block_gives_the_terminal_back(rich):
    console, _, terminal = rich
    with pytest.raises(RuntimeError), console:
        raise RuntimeError
    text = terminal.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    console.tick(1, 2)  # harmless


def final_block(summary, paths):
    return ["".join(text for text, _ in line).rstrip() for line in closing_lines(summary, paths)]


def test_the_final_block_of_a_completed_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "outputs" / "ppo 1"
    summary = {
        "status": "completed",
        "env_steps": 50_000,
        "updates": 3_910,
        "wall_time_s": 32.4,
        "steps_per_second": 1543.2,
        "eval": {"return_mean": 487.2, "return_std": 21.4, "length_mean": 487.2, "episodes": 20},
        "best_eval": {"return_mean": 500.0, "return_std": 0.0, "episodes": 10, "env_steps": 45_000},
        "normalized_score": 98.2,
    }
    assert final_block(summary, {"run": run, "metrics": run / "metrics.jsonl", "wandb": "https://example.org/r"}) == [
        "",
        "✓ completed in 0:32  50,000 steps · 1,543 steps/s",
        "  evaluation   487.2 ± 21 over 20 episodes",
        "  best         500.0 ± 0 over 10 episodes at 45,000 steps",
        "  score        98.2 of 100, normalized",
        "",
        "  run          outputs/ppo 1",
        "  metrics      outputs/ppo 1/metrics.jsonl",
        "  wandb        https://example.org/r",
        "",
        "  next         rlexp eval 'outputs/ppo 1'",
    ]


def test_an_interrupted_run_is_told_how_to_resume():
    block = final_block({"status": "interrupted", "env_steps": 0, "updates": 70}, {"run": "outputs/a"})
    assert block[1] == "■ interrupted in 0:00  70 updates"
    assert block[-2:] == ["  next         rlexp resume outputs/a", "               rlexp eval outputs/a"]


def test_a_run_without_an_environment_is_told_how_it_can_be_used() -> None:
    lines = closing_lines({"status": "completed", "env": "from_dataset"}, {"run": "outputs/a"})[-2:]
    told = ["".join(text for text, _ in line).strip() for line in lines]
    assert told == ["next         rlexp predict outputs/a", "rlexp eval outputs/a env=NAME"]


def test_a_run_whose_environment_is_a_function_goes_on_in_python():
    lines = closing_lines({"status": "interrupted", "env": "Mine"}, {"run": "outputs/a"}, in_python=True)[-2:]
    told = ["".join(text for text, _ in line).strip() for line in lines]
    assert told == [
        "next         rlexp.Agent.load('outputs/a', env=your_function).resume()",
        "rlexp.Agent.load('outputs/a', env=your_function).evaluate()",
    ]
    block = closing_lines({"status": "completed"}, {"run": "outputs/a"}, ["mine"], in_python=True)
    assert block[-1][1][0] == "rlexp.Agent.load('outputs/a', env=your_function, trust=['mine']).evaluate()"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0123, "0.0123"),
        (1.234, "1.23"),
        (-12.34, "-12.3"),
        (123.44, "123.4"),
        (12345.6, "12,346"),
        (3.2e-7, "3.2e-07"),
        (1.234e8, "1.23e+08"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_spreads_have_two_digits():
    assert mean_std(1.0, 0.123) == "1.00 ± 0.12"
    assert mean_std(1.0, 1.26) == "1.00 ± 1.3"
    assert mean_std(1.0, 1234.5) == "1.00 ± 1,234"
    assert mean_std(1.0, None) == "1.00"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (32.4, "0:32"), (59.6, "1:00"), (3723, "1:02:03"), (183845, "2d 03:04:05")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_paths_are_relative_only_inside_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "a b") == "a b"
    assert short_path("a b", quoted=True) == "'a b'"
    assert short_path(tmp_path.parent / "other") == str(tmp_path.parent / "other")


def test_sparklines_span_their_values():
    assert sparkline([0, 7, 3.5, math.nan]) == "▁█▅"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("stop_return", "an evaluation reached trainer.stop_return"),
        ("patience", "no new best in trainer.patience evaluations"),
        ("max_seconds", "trainer.max_seconds have passed"),
        ("SIGTERM", "asked to end (SIGTERM)"),
        ("steady", "steady"),  # a callback's own
        ("budget", None),  # nothing to explain
        (None, None),
    ],
)
def test_the_closing_block_says_why_a_run_ended_before_its_budget(reason, said):
    block = closing_lines({"status": "completed", "env_steps": 10, "stop_reason": reason}, {})
    stopped = ["".join(text for text, _ in line) for line in block if line and "stopped" in line[0][0]]
    assert stopped == ([] if said is None else [f"  stopped      {said}"])


def test_one_of_a_thing_is_no_plural():
    assert [counted(n, "row") for n in (0, 1, 2, 12345)] == ["0 rows", "1 row", "2 rows", "12,345 rows"]
    block = closing_lines({"env_steps": 1, "eval": {"return_mean": 1.0, "episodes": 1, "updates": 1}}, {})
    text = "\n".join("".join(text for text, _ in line) for line in block)
    assert "  1 step\n" in text
    assert "over 1 episode at 1 update" in text


@pytest.mark.parametrize(("updates", "said"), [(0, True), (1, False), (None, False)])
def test_the_closing_block_says_when_nothing_was_learned(updates, said):
    block = closing_lines({"status": "completed", "env_steps": 10, "updates": updates}, {})
    text = "\n".join("".join(text for text, _ in line) for line in block)
    assert ("  learned      nothing: it ended before the first update" in text) == said


def test_the_next_command_names_the_packages_that_the_run_needs() -> None:
    last = closing_lines({"status": "completed"}, {"run": "outputs/a"}, ["mine", "yours"])[-1]
    assert "".join(text for text, _ in last).endswith("  rlexp eval outputs/a 'trust=[mine,yours]'")
