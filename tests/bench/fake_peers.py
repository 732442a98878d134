"""Contestants without a framework: loops whose rate is known."""

import time


def run_counting(spec, pacer):
    """``spec["per_call"]`` units in every iteration of about a millisecond."""
    count = 0
    while True:
        time.sleep(0.001)
        count += spec.get("per_call", 1)
        pacer(count)


def run_fast(spec, pacer):
    run_counting(spec | {"per_call": 4}, pacer)


def run_broken(spec, pacer):
    print("about to break")
    raise ValueError("it broke")


def run_short(spec, pacer):
    pacer(1)
