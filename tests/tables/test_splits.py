import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stakes.errors import StakesError
from stakes.tables.split import duplicate_groups, split


def test_equal_rows_share_a_group() -> None:
    features = np.array([[1, 2], [0, 2], [1, 2], [np.nan, 2], [-0.0, 2], [np.nan, 2], [1, 3]])
    assert duplicate_groups(features).tolist() == [0, 1, 0, 2, 1, 2, 3]


def test_groups_without_features_or_rows() -> None:
    assert duplicate_groups(np.zeros((3, 0))).tolist() == [0, 0, 0]
    assert duplicate_groups(np.zeros((0, 2))).tolist() == []


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=60))
def test_groups_are_exactly_the_equal_rows(rows: list[tuple[int, int, int]]) -> None:
    groups = duplicate_groups(np.array(rows, dtype=np.float32))
    first_seen = {row: i for i, row in enumerate(dict.fromkeys(rows))}
    assert groups.tolist() == [first_seen[row] for row in rows]


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


@given(st.integers(4, 300), st.integers(4, 300), st.floats(0.05, 0.95), st.integers(0, 99))
def test_share_of_each_class_is_exact_without_duplicates(a: int, b: int, share: float, seed: int) -> None:
    labels = np.array([0] * a + [1] * b)
    _, held = split(labels, np.arange(a + b), share, seed)
    for label, count in ((0, a), (1, b)):
        assert abs((labels[held] == label).sum() - share * count) <= 1


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
