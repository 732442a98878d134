import pytest

from rlexp.bench.worker import Finished, Pacer


class Parent:
    """The other end of the channel: gives orders, keeps answers."""

    def __init__(self, orders):
        self.orders, self.answers = list(orders), []

    def send(self, message):
        self.answers.append(message)

    def receive(self):
        return self.orders.pop(0) if self.orders else None


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def play(pacer, clock, calls):
    """A loop of one-second iterations; each call is (count, learning)."""
    for count, learning in calls:
        clock.now += 1.0
        pacer(count, learning)


def test_a_measurement_starts_after_learning_began_and_the_loop_got_warm():
    clock, parent = Clock(), Parent([{"seconds": 2.5}])
    pacer = Pacer(parent, clock=clock, cpu_clock=lambda: clock.now / 2, warm_seconds=2.0)
    play(pacer, clock, [(10, False), (20, False), (30, True), (40, True)])
    assert parent.answers == []
    play(pacer, clock, [(50, True)])
    assert parent.answers == [{"ready": True}]


def test_a_measurement_counts_whole_iterations_and_their_true_time():
    clock, parent = Clock(), Parent([{"seconds": 2.5}, {"seconds": 1.0}])
    pacer = Pacer(parent, clock=clock, cpu_clock=lambda: clock.now / 2, warm_seconds=0.0)
    play(pacer, clock, [(10, True), (20, True)])  # warm, ready at 20
    play(pacer, clock, [(30, True), (40, True), (57, True)])  # 2.5 s are over after the third
    assert parent.answers[1:] == [{"count": 37, "seconds": 3.0, "cpu_seconds": 1.5}]
    with pytest.raises(Finished):
        play(pacer, clock, [(60, True)])
    assert parent.answers[2:] == [{"count": 3, "seconds": 1.0, "cpu_seconds": 0.5}]


def test_time_spent_waiting_for_orders_is_not_measured():
    clock = Clock()

    class SlowParent(Parent):
        def receive(self):
            clock.now += 100.0
            return super().receive()

    parent = SlowParent([{"seconds": 1.0}])
    pacer = Pacer(parent, clock=clock, cpu_clock=lambda: clock.now / 2, warm_seconds=0.0)
    play(pacer, clock, [(0, True), (0, True)])
    with pytest.raises(Finished):
        play(pacer, clock, [(8, True)])
    assert parent.answers[1:] == [{"count": 8, "seconds": 1.0, "cpu_seconds": 0.5}]


def test_the_loop_ends_when_there_are_no_more_orders():
    clock = Clock()
    pacer = Pacer(Parent([]), clock=clock, cpu_clock=lambda: clock.now / 2, warm_seconds=0.0)
    with pytest.raises(Finished):
        play(pacer, clock, [(0, True), (1, True)])


def test_hooks_run_around_the_measurement_and_add_to_its_answer():
    clock, parent, seen = Clock(), Parent([{"seconds": 1.0}, {"seconds": 1.0}]), []
    pacer = Pacer(parent, clock=clock, cpu_clock=lambda: clock.now / 2, warm_seconds=0.0)
    pacer.on_begin = lambda: seen.append("begin")
    pacer.on_end = lambda: {"parts": len(seen)}
    play(pacer, clock, [(0, True), (0, True), (5, True)])
    assert parent.answers[1] == {"count": 5, "seconds": 1.0, "cpu_seconds": 0.5, "parts": 1}
    assert seen == ["begin", "begin"]
