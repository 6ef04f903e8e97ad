from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stakes.errors import StakesError
from stakes.tables.read import read_table
from stakes.tables.split import _choose, duplicate_groups, folds, forward_folds, merge_groups, split, split_latest


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


# Groups that are linked ----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25))
def test_linked_rows_are_those_that_a_chain_connects(rows: list[tuple[int, int]]) -> None:
    """By brute force: the closure of "equal in the first or equal in the second"."""
    first, second = np.array(rows, dtype=int).reshape(-1, 2).T
    near = (first[:, None] == first) | (second[:, None] == second)
    for _ in range(len(rows)):
        near = near @ near
    found = merge_groups(first, second)
    assert found.shape == (len(rows),)
    np.testing.assert_array_equal(found[:, None] == found, near)


# Folds ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25)), min_size=2, max_size=120),
    st.integers(2, 7),
    st.integers(0, 2**32),
)
def test_every_row_is_held_once_or_never_and_groups_stay_whole(
    rows: list[tuple[int, int]], count: int, seed: int
) -> None:
    labels, groups = np.array(rows).T
    heads = {group: label for label, group in reversed(rows)}
    alone = [group for group, label in heads.items() if list(heads.values()).count(label) == 1]
    if len(alone) == len(heads):
        with pytest.raises(StakesError, match="add rows"):
            folds(labels, groups, count, seed)
        return
    made = folds(labels, groups, count, seed)
    assert 2 <= len(made) <= min(count, len(heads))
    for fold in made:
        assert sorted([*fold.train, *fold.held]) == list(range(len(rows)))
        assert len(fold.held)
        assert (np.diff(fold.train) > 0).all()
        assert (np.diff(fold.held) > 0).all()
        assert not set(groups[fold.train]) & set(groups[fold.held])
        # What is to be told apart can be learnt: every class heads a group that is trained on.
        assert {heads[group] for group in groups[fold.train]} == set(heads.values())
    held = np.concatenate([fold.held for fold in made])
    assert sorted(held) == np.flatnonzero(~np.isin(groups, alone)).tolist()


@given(st.lists(st.integers(2, 60), min_size=1, max_size=4), st.integers(2, 6), st.integers(0, 99))
def test_folds_have_as_many_rows_of_each_class(counts: list[int], count: int, seed: int) -> None:
    """Without copies they differ by at most one row, in every class and as a whole by one for each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    made = folds(labels, np.arange(len(labels)), count, seed)
    held = np.array([np.bincount(labels[fold.held], minlength=len(counts)) for fold in made])
    present = held if len(made) == count else np.vstack([held, np.zeros((count - len(made), len(counts)), dtype=int)])
    assert (np.ptp(present[: min(count, len(labels))], axis=0) <= 1).all()
    assert np.ptp(held.sum(1)) <= 1  # the smallest fold goes first


def test_folds_follow_the_seed() -> None:
    labels, groups = np.arange(100) % 2, np.arange(100)
    assert all(map(np.array_equal, folds(labels, groups, 3, 5)[0], folds(labels, groups, 3, 5)[0]))
    assert folds(labels, groups, 3, 5)[0].held.tolist() != folds(labels, groups, 3, 6)[0].held.tolist()


def test_folds_that_cannot_be() -> None:
    with pytest.raises(StakesError, match="at least 2 folds, but got 1"):
        folds(np.array([0, 1]), np.array([0, 1]), 1, 0)
    with pytest.raises(StakesError, match="2 labels, but got 3"):
        folds(np.array([0, 1]), np.arange(3), 2, 0)
    with pytest.raises(StakesError, match="no class with two different rows"):
        folds(np.array([0, 0, 1]), np.array([7, 7, 8]), 2, 0)


# Time ----------------------------------------------------------------------------------------------

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=80)


@given(TIMES, st.floats(0.05, 0.95))
def test_the_latest_rows_are_later_than_all_others(times: list[int], share: float) -> None:
    values = np.array(times, dtype=float)
    first = min(len(values) - 1, round(len(values) * (1 - share)))
    if np.sort(values)[first] == values.min():  # the share begins among the earliest, which stay together
        with pytest.raises(StakesError, match="several times"):
            split_latest(values, share)
        return
    early, late = split_latest(values, share)
    assert sorted([*early, *late]) == list(range(len(times)))
    assert len(early)
    assert len(late)
    assert values[early].max() < values[late].min()


@given(st.integers(2, 200), st.floats(0.05, 0.95))
def test_the_latest_share_of_distinct_times(count: int, share: float) -> None:
    times = np.random.default_rng(0).permutation(count).astype(float)
    if round(count * (1 - share)) == 0:
        return
    _, late = split_latest(times, share)
    assert len(late) == pytest.approx(max(1, count * share), abs=0.51)
    assert sorted(times[late]) == list(range(count - len(late), count))


def test_bad_shares_of_time() -> None:
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(StakesError, match="between 0 and 1"):
            split_latest(np.arange(5.0), share)
    with pytest.raises(StakesError, match="several times"):
        split_latest(np.zeros(5), 0.2)


@given(TIMES, st.integers(2, 6))
def test_folds_in_time_train_on_what_was_before(times: list[int], count: int) -> None:
    values = np.array(times, dtype=float)
    if len(set(times)) < 3:
        with pytest.raises(StakesError, match="three times"):
            forward_folds(values, count, start=0.4)
        return
    made = forward_folds(values, count, start=0.4)
    assert 2 <= len(made) <= count
    for fold in made:
        assert len(fold.train)
        assert len(fold.held)
        assert values[fold.train].max() < values[fold.held].min()
    held = np.concatenate([fold.held for fold in made])
    assert len(set(held)) == len(held)
    never = np.setdiff1d(np.arange(len(values)), held)
    assert values[never].max() < values[held].min()
    for before, after in pairwise(made):
        assert after.train.tolist() == sorted([*before.train, *before.held])


def test_folds_of_distinct_times_are_of_one_size() -> None:
    made = forward_folds(np.random.default_rng(0).permutation(60).astype(float), 5, start=0.5)
    assert [len(fold.held) for fold in made] == pytest.approx([6] * 5, abs=1)
    with pytest.raises(StakesError, match="three times for folds in time, but got 2"):
        forward_folds(np.arange(20) % 2.0, 5, start=0.5)
