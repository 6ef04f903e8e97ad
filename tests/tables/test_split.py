from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stakes.errors import StakesError
from stakes.tables.read import read_table
from stakes.tables.split import _choose, duplicate_groups, split


def test_equal_rows_share_a_group() -> None:
    features = np.array([[1, 2], [0, 2], [1, 2], [np.nan, 2], [-0.0, 2], [np.nan, 2], [1, 3]])
    assert duplicate_groups(pd.DataFrame(features)).tolist() == [0, 1, 0, 2, 1, 2, 3]


def test_groups_without_features_or_rows() -> None:
    assert duplicate_groups(pd.DataFrame(index=range(3))).tolist() == [0, 0, 0]
    assert duplicate_groups(pd.DataFrame(np.zeros((0, 2)))).tolist() == []


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=60))
def test_groups_are_exactly_the_equal_rows(rows: list[tuple[int, int, int]]) -> None:
    groups = duplicate_groups(pd.DataFrame(rows, dtype=np.float32))
    first_seen = {row: i for i, row in enumerate(dict.fromkeys(rows))}
    assert groups.tolist() == [first_seen[row] for row in rows]


@pytest.mark.parametrize("values", [[[1], [1], [2]], [{"b": 1}, {"b": 1}, {"b": 2}]])
def test_a_column_of_lists_is_named(tmp_path: Path, values: list[object]) -> None:
    """The first column alone does not tell the rows apart, so that the second is looked at."""
    pd.DataFrame({"age": [30, 30, 40], "tags": values}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(StakesError, match=r"'tags'.*--drop tags"):
        duplicate_groups(read_table(tmp_path / "rows.parquet"))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25)), min_size=2, max_size=120),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_split_is_complete_disjoint_and_keeps_groups_whole(
    rows: list[tuple[int, int]], share: float, seed: int
) -> None:
    labels, groups = np.array(rows).T
    heads = {group: label for label, group in reversed(rows)}
    counts = np.bincount(list(heads.values()), minlength=4)
    if counts.max() < 2:
        with pytest.raises(StakesError, match="add rows"):
            split(labels, groups, share, seed)
        return
    kept, held = split(labels, groups, share, seed)
    assert sorted([*kept, *held]) == list(range(len(rows)))
    assert kept.tolist() == sorted(kept)
    assert held.tolist() == sorted(held)
    assert not set(groups[kept]) & set(groups[held])
    kept_classes = {heads[group] for group in groups[kept]}
    held_classes = {heads[group] for group in groups[held]}
    assert kept_classes == set(np.flatnonzero(counts >= 1))
    assert held_classes == set(np.flatnonzero(counts >= 2))


@given(st.integers(2, 300), st.integers(2, 300), st.integers(1, 63), st.integers(0, 99))
def test_classes_without_copies_have_the_nearest_share_there_is(a: int, b: int, share: int, seed: int) -> None:
    """At least one row on each side; of two shares that are equally near, the smaller."""
    labels = np.array([0] * a + [1] * b)
    _, held = split(labels, np.arange(a + b), share / 64, seed)
    for label, count in ((0, a), (1, b)):
        nearest = min(range(1, count), key=lambda size: (abs(Fraction(share, 64) * count - size), size))
        assert (labels[held] == label).sum() == nearest


def nearest_in_order(sizes: list[int], share: Fraction) -> list[int]:
    """As `_choose` is described, in exact numbers."""
    target, total, chosen = share * sum(sizes), 0, []
    for i, size in enumerate(sizes):
        if abs(target - (total + size)) < abs(target - total):
            total += size
            chosen.append(i)
    smallest = min(range(len(sizes)), key=lambda i: sizes[i])
    return [smallest] if not chosen else [i for i in chosen if len(chosen) < len(sizes) or i != smallest]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(1, 63))
def test_groups_are_chosen_in_order_while_that_comes_nearer(sizes: list[int], share: int) -> None:
    chosen = _choose(np.array(sizes), share / 64)  # exact in floating point
    assert chosen.tolist() == nearest_in_order(sizes, Fraction(share, 64))


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(1, 63), st.integers(0, 99))
def test_shares_with_copies_are_off_by_half_a_group(sizes: list[int], share: int, seed: int) -> None:
    """Below the target by at most half of the smallest group left; above it by less than half of the largest taken."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    kept, held = split(np.zeros(len(groups), dtype=int), groups, share / 64, seed)
    held_groups, kept_groups = np.unique(groups[held]), np.unique(groups[kept])
    missing = Fraction(share, 64) * len(groups) - len(held)
    smallest = min(sizes)
    if len(held_groups) > 1 or sizes[held_groups[0]] > smallest:  # the smallest may be held out for want of another
        assert 2 * missing > -max(sizes[group] for group in held_groups)
    if len(kept_groups) > 1 or sizes[kept_groups[0]] > smallest:
        assert 2 * missing <= min(sizes[group] for group in kept_groups)


@pytest.mark.parametrize(
    ("sizes", "share", "chosen"),
    [
        ([10, 1, 10], 0.01, [1]),  # none comes nearer: the smallest
        ([5, 1, 5], 0.99, [0, 2]),  # all do: without the smallest
        ([4, 4], 0.25, [0]),  # 4 is as far from 2 as 0 is: none comes nearer, and the first smallest is taken
        ([9, 1, 2, 3], 0.4, [0]),  # 9 is nearer to 6 than 0 is
        ([13, 1, 2, 3], 0.25, [1, 2, 3]),  # 13 is not nearer to 4.75
        ([1], 0.5, []),
    ],
)
def test_groups_by_hand(sizes: list[int], share: float, chosen: list[int]) -> None:
    assert _choose(np.array(sizes), share).tolist() == chosen


def test_share_holds_with_copies() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 200, 1000)
    labels = groups % 3
    _, held = split(labels, groups, 0.25, 1)
    for label in range(3):
        assert (labels[held] == label).mean() == pytest.approx((labels == label).mean(), abs=0.03)
    assert len(held) == pytest.approx(250, abs=10)


def test_split_follows_the_seed() -> None:
    labels, groups = np.arange(100) % 2, np.arange(100)
    assert split(labels, groups, 0.3, 5)[1].tolist() == split(labels, groups, 0.3, 5)[1].tolist()
    assert split(labels, groups, 0.3, 5)[1].tolist() != split(labels, groups, 0.3, 6)[1].tolist()


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 1.5, float("nan")])
def test_share_must_leave_something(share: float) -> None:
    with pytest.raises(StakesError, match="between 0 and 1"):
        split(np.array([0, 1]), np.array([0, 1]), share, 0)


@pytest.mark.parametrize("groups", [[], [0], [3, 3, 3]])
def test_too_few_rows(groups: list[int]) -> None:
    with pytest.raises(StakesError, match="add rows"):
        split(np.zeros(len(groups), dtype=int), np.array(groups, dtype=int), 0.5, 0)


def test_lengths_must_agree() -> None:
    with pytest.raises(StakesError, match="2 labels, but got 3"):
        split(np.array([0, 1]), np.arange(3), 0.5, 0)
