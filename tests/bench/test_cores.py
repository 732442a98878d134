"""The distance between cores: told where there are two, and the process is left as it was."""

import contextlib
import os

import pytest

from rlexp.bench import cores

affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")


@affinity
def test_a_round_trip_takes_between_nanoseconds_and_a_millisecond_and_leaves_no_trace(monkeypatch):
    allowed, children, fork = os.sched_getaffinity(0), [], os.fork

    def noted_fork():
        if child := fork():
            children.append(child)
        return child

    monkeypatch.setattr(os, "fork", noted_fork)
    answers = [cores.round_trip_ns() for _ in range(5)]
    assert os.sched_getaffinity(0) == allowed
    for child in children:
        with pytest.raises(ChildProcessError):  # it was waited for
            os.waitpid(child, os.WNOHANG)
    if len(allowed) > 1:  # a busy core may leave some without an answer
        told = [answer for answer in answers if answer is not None]
        assert told
        assert all(10 < answer < 1e6 for answer in told)


@affinity
def test_one_core_has_no_distance(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert cores.round_trip_ns() is None


@affinity
def test_no_answer_is_told_as_none_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(cores, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(cores, "_echo", lambda memory, core, parent: os._exit(0))
    if len(os.sched_getaffinity(0)) > 1:
        assert cores.round_trip_ns() is None


@affinity
def test_where_no_process_can_be_made_no_distance_is_told(monkeypatch):
    def full():
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert cores.round_trip_ns() is None


@affinity
@pytest.mark.parametrize("error", [ChildProcessError, KeyboardInterrupt])
def test_a_wait_that_fails_leaves_nobody_pinned(error, monkeypatch):
    chosen, waitpid = [], os.waitpid

    def failing(child, options):
        waitpid(child, options)
        raise error

    monkeypatch.setattr(os, "waitpid", failing)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})  # also on a machine with one
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: chosen.append(set(cores)))
    monkeypatch.setattr(cores, "_ask", lambda memory: 150.0)
    with contextlib.suppress(KeyboardInterrupt):
        assert cores.round_trip_ns() == 150.0
    assert chosen == [{0}, {0, 1}]
