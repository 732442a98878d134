import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.buffers.sum_tree import FANOUT, SumTree


@st.composite
def updates(draw):
    """A number of places, and rounds of (places, priorities); whole numbers, so that every sum is exact."""
    size = draw(st.sampled_from([1, 2, FANOUT - 1, FANOUT, FANOUT + 1, 3 * FANOUT + 5, FANOUT**2, FANOUT**2 + 1]))
    pair = st.tuples(st.integers(0, size - 1), st.integers(0, 9))
    return size, draw(st.lists(st.lists(pair, min_size=1, max_size=30), min_size=1, max_size=8))


@given(updates())
@settings(max_examples=150, deadline=None)
def test_finds_what_a_search_in_the_cumulative_sum_finds(given_updates):
    size, rounds = given_updates
    tree, naive = SumTree(size), np.zeros(size)
    for pairs in rounds:
        index, priority = np.array(pairs).T
        tree.update(index, priority)
        for place, value in pairs:  # one after the other: of duplicates the last one counts
            naive[place] = value
        np.testing.assert_array_equal(tree[np.arange(size)], naive)
        assert tree.total == naive.sum()
        mass = np.arange(0, naive.sum(), 0.5)
        np.testing.assert_array_equal(tree.find(mass), np.searchsorted(naive.cumsum(), mass, side="right"))


@given(st.integers(0, 2**32), st.integers(1, 3 * FANOUT**2))
@settings(max_examples=60, deadline=None)
def test_a_tree_rebuilt_from_its_leaves_has_the_same_bits_and_zeros_are_never_found(seed, size):
    rng = np.random.default_rng(seed)
    tree = SumTree(size)
    for _ in range(20):
        index = rng.integers(0, size, rng.integers(1, 50))
        tree.update(index, rng.random(len(index)) ** 8 * (rng.random(len(index)) < 0.7))
    rebuilt = SumTree(size)
    everything = np.arange(size)
    rebuilt.update(everything, tree[everything])
    for mine, theirs in zip(tree.levels, rebuilt.levels, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if tree.total:
        mass = np.append(rng.random(500), [0.0, 1.0]) * tree.total  # the total itself lies just outside
        assert (tree[tree.find(mass)] > 0).all()
