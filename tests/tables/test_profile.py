"""Rows unlike the training rows are noticed: single values, gaps, categories, and the row as a whole."""

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes import StakesError
from stakes.errors import StakesWarning
from stakes.tables.drift import DriftCount, stability_index
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import BACKGROUND_ROWS, MOST_CORRELATED, TableProfile


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    height = generator.normal(170, 10, rows)
    age = generator.integers(20, 60, rows).astype(float)
    age[::9] = np.nan
    return pd.DataFrame(
        {
            "height": height,
            "weight": height - 100 + generator.normal(0, 3, rows),  # so that one follows from the other
            "age": age,
            "ward": generator.choice(["north", "south"], rows, p=[0.7, 0.3]),
            "code": generator.integers(1, 4, rows),
        }
    )


@pytest.fixture(scope="module")
def profile() -> TableProfile:
    return fitted(people(400))


def fitted(frame: pd.DataFrame) -> TableProfile:
    return TableProfile.fit(TableEncoder.fit(frame, categorical=["code"] if "code" in frame else []), frame)


def described(profile: TableProfile, **changes: Any) -> str:
    row = pd.DataFrame([{"height": 171.0, "weight": 71.0, "age": 33.0, "ward": "north", "code": 2} | changes])
    return str(profile.describe(row, profile.view(row))[0])


def test_an_ordinary_row_has_nothing_unusual(profile: TableProfile) -> None:
    assert described(profile) == ""
    assert described(profile, age=None) == ""  # there were gaps in training, too


def test_values_outside_the_range_with_a_tolerance(profile: TableProfile) -> None:
    low, high = people(400)["age"].min(), people(400)["age"].max()
    assert described(profile, age=high + 0.09 * (high - low)) == ""
    assert described(profile, age=high + 0.11 * (high - low)).startswith("age 63.29 (in training 20 to 59)")
    assert described(profile, age=-1).startswith("age -1 (in training 20 to 59)")


def test_a_sign_that_never_was_is_unusual_however_wide_the_range() -> None:
    frame = pd.DataFrame({"amount": np.linspace(150, 30_000, 50), "balance": np.linspace(-100, 1000, 50)})
    rows = pd.DataFrame({"amount": [-500.0, 20.0, 150.0], "balance": [-150.0, -150.0, -150.0]})
    profile = fitted(frame)
    assert [column.unusual.tolist() for column in profile.view(rows).columns] == [[True, False, False], [False] * 3]
    assert profile.describe(rows, profile.view(rows))[0].startswith("amount -500 (in training 150 to 30000)")


def test_unseen_categories_and_gaps_that_never_were(profile: TableProfile) -> None:
    assert described(profile, ward="west").startswith("ward 'west' (never in training)")
    assert described(profile, code=9).startswith("code '9' (never in training)")
    assert described(profile, code="2.0") == ""  # a number is the same however it is written
    assert described(profile, ward=None).startswith("ward is missing (never in training)")
    assert described(profile, height=None).startswith("height is missing (never in training)")


def test_a_combination_that_no_single_value_betrays(profile: TableProfile) -> None:
    """Tall and light: both are within their range, and never together."""
    assert described(profile, height=188.0, weight=88.0) == ""
    assert described(profile, height=188.0, weight=58.0).startswith("the row as a whole (score ")


def test_few_rows_of_the_same_kind_are_unusual(profile: TableProfile) -> None:
    fresh = people(4000, seed=1)
    assert profile.view(fresh).unusual.mean() < 0.02
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(60, MOST_CORRELATED - 5)), columns=map(str, range(45)))
    other = pd.DataFrame(np.random.default_rng(1).normal(size=(500, MOST_CORRELATED - 5)), columns=wide.columns)
    assert fitted(wide).view(other).beyond.mean() < 0.1  # as few rows as columns, scored by rows they were not in


def test_many_columns_count_as_independent() -> None:
    frame = pd.DataFrame(
        np.random.default_rng(0).normal(size=(30, MOST_CORRELATED + 1)), columns=map(str, range(MOST_CORRELATED + 1))
    )
    profile = fitted(frame)
    assert profile.precision is None
    z = ((frame - frame.mean()) / frame.std(ddof=0)).clip(-5, 5)
    np.testing.assert_allclose(profile.view(frame).scores, np.sqrt((z**2).mean(axis=1)))


def test_names_of_which_many_are_new_are_not_told() -> None:
    frame = pd.DataFrame({"name": [f"person {number}" for number in range(40)] + ["x"] * 40, "a": range(80)})
    profile = fitted(frame.assign(a=frame["a"] % 7))
    row = pd.DataFrame({"name": ["somebody else"], "a": [3]})
    assert not profile.view(row).columns[0].unusual[0]


def test_a_single_training_row_is_enough() -> None:
    profile = fitted(pd.DataFrame({"a": [1.0], "b": ["x"]}))
    rows = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "x"]})
    assert profile.view(rows).unusual.tolist() == [False, True]


def test_a_constant_column_and_huge_numbers() -> None:
    frame = pd.DataFrame({"same": [3.0] * 20, "huge": 1e308 * np.linspace(-1, 1, 20)})
    profile = fitted(frame)
    assert not profile.view(frame).unusual.any()
    assert profile.view(frame.assign(same=3.1)).unusual.all()


def test_through_json_it_says_the_same(profile: TableProfile) -> None:
    again = TableProfile.from_dict(json.loads(json.dumps(profile.to_dict(), allow_nan=False)))
    rows = people(50, seed=2).assign(ward="west")
    for each in (profile, again):
        assert each.names == ("height", "weight", "age", "ward", "code")
    assert profile.describe(rows, profile.view(rows)).tolist() == again.describe(rows, again.view(rows)).tolist()


def test_background_rows_are_training_rows_as_the_encoder_sees_them() -> None:
    frame = people(400)
    encoder = TableEncoder.fit(frame, categorical=["code"])
    sample = TableProfile.fit(encoder, frame).background_frame
    assert sample is not None
    assert len(sample) == BACKGROUND_ROWS
    known = {row.tobytes() for row in encoder.transform(frame)}
    assert all(row.tobytes() in known for row in encoder.transform(sample))


@pytest.mark.parametrize(
    "change",
    [
        {"columns": []},
        {"rows": 0},
        {"quantiles": [1.0]},
        {"quantiles": [1.0, 2.0, 3.0, float("inf")]},
        {"precision": [[1.0]]},
        {"precision": (-np.eye(5)).tolist()},
        {"background": {"height": [1.0]}},
        {"background": {"height": [], "weight": [], "age": [], "ward": [], "code": []}},
        {"background": {"height": ["x"], "weight": [1.0], "age": [1.0], "ward": ["x"], "code": ["1"]}},
        {"columns": None},
    ],
)
def test_a_damaged_description_is_refused(profile: TableProfile, change: dict[str, Any]) -> None:
    with pytest.raises(StakesError, match="the saved model is damaged"):
        TableProfile.from_dict(profile.to_dict() | change)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        (0, {"scale": 0.0}),
        (0, {"low": 1e9}),
        (0, {"counts": [1]}),
        (0, {"edges": ["a"]}),
        (0, {"kind": "dates"}),
        (0, {"extra": 1}),
        (3, {"levels": ["a", "a"]}),
        (3, {"scale": -1.0}),
        (3, {"counts": [1, 2, 3, -1]}),
    ],
)
def test_a_damaged_column_is_refused(profile: TableProfile, column: int, change: dict[str, Any]) -> None:
    content = profile.to_dict()
    content["columns"][column] |= change
    with pytest.raises(StakesError, match="the saved model is damaged"):
        TableProfile.from_dict(content)


# Drift -----------------------------------------------------------------------------------------------


def test_the_stability_index_by_hand() -> None:
    before, after = [9, 0], np.array([4, 5])
    p, q = np.array([9.5, 0.5]) / 10, np.array([4.5, 5.5]) / 10
    assert stability_index(before, after) == pytest.approx(((q - p) * np.log(q / p)).sum())
    assert stability_index([7, 7], np.array([70, 70])) == pytest.approx(0, abs=1e-12)


def test_drift_is_told_of_the_columns_that_have_it_and_of_no_others(profile: TableProfile) -> None:
    frame = people(300, seed=3)
    drift = drift_of(profile, frame)
    assert drift.drifted == []
    assert drift.sentences()[-1] == "No column's distribution has shifted much."
    shifted = drift_of(profile, frame.assign(age=frame["age"] / 2 + 25, ward="south"))
    assert [column.name for column in shifted.drifted] == ["ward", "age"]
    assert shifted.sentences()[-1] == "The distribution has shifted in 'ward', 'age'."


def test_drift_is_seldom_told_by_chance(profile: TableProfile) -> None:
    told = [bool(drift_of(profile, people(rows, seed=seed)).drifted) for rows in (10, 40, 400) for seed in range(30)]
    assert sum(told) <= 1


def test_rows_of_one_patient_are_no_drift() -> None:
    generator, told = np.random.default_rng(0), {True: 0, False: 0}
    for _ in range(30):
        before, after = (pd.DataFrame(generator.normal(size=(rows, 3)), columns=[*"abc"]) for rows in (125, 25))
        before, after = (each.loc[each.index.repeat(8)].reset_index(drop=True) for each in (before, after))
        for known in told:
            groups = np.repeat(np.arange(125), 8) if known else None
            profile = TableProfile.fit(TableEncoder.fit(before), before, groups=groups)
            told[known] += bool(drift_of(TableProfile.from_dict(profile.to_dict()), after).drifted)
    assert told[True] <= 1
    assert told[False] > 25


def test_a_handful_of_rows_cannot_tell_that_nothing_has_shifted(profile: TableProfile) -> None:
    cannot = "Whether a column's distribution has shifted cannot be told from fewer than 30 rows."
    assert drift_of(profile, people(7, seed=2)).sentences()[1] == cannot
    assert drift_of(profile, people(60, seed=2)).sentences()[1] == "No column's distribution has shifted much."


def test_blocks_add_up(profile: TableProfile) -> None:
    frame = people(100, seed=4)
    count = DriftCount(profile)
    for start in range(0, 100, 30):
        count.add(profile.view(frame.iloc[start : start + 30]))
    assert count.result() == drift_of(profile, frame)


def drift_of(profile: TableProfile, frame: pd.DataFrame) -> Any:
    count = DriftCount(profile)
    count.add(profile.view(frame))
    return count.result()


def test_months_to_come_are_usual_and_days_are_told_as_dates() -> None:
    days = pd.DataFrame({"day": pd.date_range("2026-01-01", periods=120).astype(str), "x": np.arange(120.0) % 7})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StakesWarning)  # it says that dates were read
        encoder = TableEncoder.fit(days)
    profile = TableProfile.fit(encoder, encoder.formats.clean(days))
    later = encoder.formats.clean(pd.DataFrame({"day": ["2026-05-06", "2026-11-05"], "x": [1.0, 2.0]}))
    texts = profile.describe(later, profile.view(later), encoder.formats.dates)
    assert texts[0] == ""  # a month that was not seen, a day within the tolerance
    assert texts[1].startswith("day 2026-11-05 (in training 2026-01-01 to 2026-04-30)")
