import pytest

from rlexp.bench.timers import REST, Timers


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Loop:
    """Takes known times on a clock of its own."""

    def __init__(self, clock):
        self.clock = clock

    def outer(self):
        self.clock.now += 2.0
        self.inner()
        self.inner()
        self.clock.now += 1.0
        return "result"

    def inner(self):
        self.clock.now += 5.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timers(clock):
    return Timers(clock)


def test_nested_time_counts_for_the_nested_label_alone(clock, timers):
    loop = Loop(clock)
    timers.wrap(loop, "inner", "inner")
    timers.wrap(loop, "outer", "outer")
    assert loop.outer() == "result"
    clock.now += 4.0
    loop.inner()
    assert timers.corrected(total=clock.now) == {"inner": 15.0, "outer": 3.0, REST: 4.0}


def test_the_cost_of_measuring_is_taken_off_where_it_fell(clock, timers):
    loop = Loop(clock)
    timers.wrap(loop, "inner", "inner")
    timers.wrap(loop, "outer", "outer")
    timers.inside, timers.outside = 0.5, 0.25
    loop.outer()
    clock.now += 1.0
    # inner twice: 2 · 0.5 inside; outer: 0.5 inside and 2 · 0.25 around its inner calls; the rest: 0.25 around outer
    assert timers.corrected(total=clock.now) == {"inner": 9.0, "outer": 2.0, REST: 0.75}


def test_a_call_that_raises_is_timed_and_leaves_no_trace(clock, timers):
    loop = Loop(clock)

    def fail():
        clock.now += 2.0
        raise KeyError("no")

    loop.fail = fail
    timers.wrap(loop, "fail", "fail")
    timers.wrap(loop, "inner", "inner")
    with pytest.raises(KeyError):
        loop.fail()
    loop.inner()
    assert timers.corrected(total=clock.now) == {"fail": 2.0, "inner": 5.0, REST: 0.0}


def test_calibration_finds_the_cost_of_a_wrapper_and_forgets_its_own_calls():
    ticks = iter(range(10**9))
    timers = Timers(lambda: float(next(ticks)))  # every reading of the clock takes one second
    timers.calibrate(calls=100)
    assert timers.inside > 0
    assert timers.outside > 0
    assert not timers.seconds
    assert not timers.calls
