import pytest

from rlexp.bench.contest import BenchError, Entry, alternate, contestants, ratios, thread_environment

FAKES = "tests.bench.fake_peers"


def quiet(text):
    pass


class Scripted:
    """A contestant in this process whose rates are given."""

    def __init__(self, name, rates, log):
        self.name, self.rates, self.log = name, iter(rates), log

    def measure(self, seconds):
        self.log.append(self.name)
        return {"count": next(self.rates) * seconds, "seconds": seconds}


def test_contestants_take_turns_and_every_other_round_goes_backwards(monkeypatch):
    monkeypatch.setattr("rlexp.bench.contest.SETTLE_SECONDS", 0.0)
    log = []
    runners = [Scripted("ours", [10, 20, 30], log), Scripted("theirs", [1, 2, 3], log)]
    ours, theirs = alternate(runners, rounds=3, seconds=2.0)
    assert log == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert ours.rates == [10, 20, 30]
    assert ours.median == 20
    assert theirs.rates == [1, 2, 3]


def test_a_ratio_is_taken_within_each_round():
    assert ratios([10.0, 20.0, 90.0], [5.0, 5.0, 10.0]) == [2.0, 4.0, 9.0]


def test_a_child_is_measured_again_and_again():
    entry = Entry("fake", f"{FAKES}:run_counting", {"per_call": 3})
    with contestants([entry], say=quiet) as (runner,):
        answers = [runner.measure(0.05) for _ in range(2)]
    for answer in answers:
        assert answer["count"] > 0
        assert answer["count"] % 3 == 0
        assert answer["seconds"] >= 0.05
    assert runner._process.returncode == 0


@pytest.mark.parametrize(
    ("function", "reason"),
    [("run_broken", "ValueError: it broke"), ("run_short", "the loop ended by itself")],
)
def test_a_child_that_fails_is_reported_with_its_reason(function, reason):
    with (
        pytest.raises(BenchError, match=reason) as failure,
        contestants([Entry("fake", f"{FAKES}:{function}", {})], say=quiet),
    ):
        pass
    assert "fake could not be measured" in str(failure.value)
    assert ("about to break" in str(failure.value)) == (function == "run_broken")


def test_children_get_their_number_of_threads_and_no_gpu():
    environment = thread_environment(3, EXTRA="1")
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["EXTRA"] == "1"
