"""Earlier amounts as features: by time, within series, never from the future."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes import Decider, SavedModel
from stakes.errors import StakesError
from stakes.tables.amounts.lags import Lags
from stakes.tables.amounts.run import AmountRun


def days(count: int, start: str = "2014-01-01", **columns: Any) -> pd.DataFrame:
    dates = pd.date_range(start, periods=count).strftime("%Y-%m-%d")
    return pd.DataFrame({"date": dates, "sold": np.arange(count, dtype=float) ** 2, **columns})


def test_amounts_of_so_many_times_before() -> None:
    frame = days(10)
    lags = Lags.fit(frame, "sold", "date", (1, 7))
    added = lags.add(frame, first=True)
    assert added["sold 1 before"].tolist()[1:] == frame["sold"].tolist()[:-1]
    assert added["sold 7 before"].tolist()[7:] == frame["sold"].tolist()[:3]
    assert added["sold 1 before"].isna().sum() == 1
    assert added["sold 7 before"].isna().sum() == 7
    assert added["date weekday"].tolist()[:3] == ["Wed", "Thu", "Fri"]
    assert set(added["date month"]) == {"Jan"}


def test_the_order_of_rows_does_not_matter() -> None:
    frame = days(30)
    shuffled = frame.sample(frac=1, random_state=0)
    lags = Lags.fit(shuffled, "sold", "date", (2,))
    assert lags == Lags.fit(frame, "sold", "date", (2,))
    pd.testing.assert_frame_equal(lags.add(shuffled, first=True).sort_index(), lags.add(frame, first=True))


def test_no_feature_depends_on_its_own_time_or_a_later_one() -> None:
    frame, generator = days(40), np.random.default_rng(0)
    lags = Lags.fit(frame, "sold", "date", (1, 3))
    before = lags.add(frame, first=True)
    for day in range(40):
        changed = frame.copy()
        changed.loc[day:, "sold"] = generator.normal(size=40 - day)
        after = Lags.fit(changed, "sold", "date", (1, 3)).add(changed, first=True)
        pd.testing.assert_frame_equal(after[list(lags.names)][: day + 1], before[list(lags.names)][: day + 1])


def test_each_series_has_its_own() -> None:
    first, second = days(5, shop="a"), days(5, shop="b")
    second["sold"] += 1000
    frame = pd.concat([first, second], ignore_index=True)
    lags = Lags.fit(frame, "sold", "date", (1,), "shop")
    added = lags.add(frame, first=True)["sold 1 before"].tolist()
    assert added[1:5] == [0, 1, 4, 9]
    assert added[6:] == [1000, 1001, 1004, 1009]
    new = pd.DataFrame({"date": ["2014-01-06"] * 2, "shop": ["b", "a"]})
    assert lags.add(new)["sold 1 before"].tolist() == [1016, 16]


def test_new_rows_look_back_at_the_last_known_ones() -> None:
    lags = Lags.from_dict(Lags.fit(days(20), "sold", "date", (1, 3)).to_dict())
    tomorrow = lags.add(days(1, "2014-01-21")[["date"]])
    assert tomorrow[["sold 1 before", "sold 3 before"]].to_numpy().tolist() == [[361, 289]]
    # With what was sold since then in the file, as far as it goes.
    since = days(3, "2014-01-21").assign(sold=[7.0, 8.0, np.nan])
    assert lags.add(since)["sold 1 before"].tolist() == [361, 7, 8]
    with pytest.raises(StakesError, match=r"row 2 \(date 2014-01-22\): expected 'sold 1 before', but it is not"):
        lags.add(days(2, "2014-01-21")[["date"]])
    with pytest.raises(StakesError, match="expected the column 'date'"):
        lags.add(pd.DataFrame({"rain": [1]}))


def test_later_rows_are_counted_in_the_steps_of_the_first() -> None:
    first, later = days(20), days(2, "2014-01-21")
    lags = Lags.fit(first, "sold", "date", (1, 7)).extended(later)
    both = pd.concat([first, later], ignore_index=True)
    assert lags == Lags.fit(both, "sold", "date", (1, 7))
    assert Lags.fit(first, "sold", "date", (1,)).extended(later[:1]).tail == {"": {"20": 0.0}}  # a single day
    with pytest.raises(StakesError, match="2014-01-21 is followed by 2014-01-23"):
        lags.extended(days(3, "2014-01-21").drop(1))


def test_series_that_later_rows_leave_out_keep_their_last_amounts() -> None:
    first = pd.concat([days(5, shop="a"), days(5, shop="b")], ignore_index=True)
    lags = Lags.fit(first, "sold", "date", (2,), "shop").extended(days(1, "2014-01-06", shop="a"))
    assert lags.tail == {"a": {"4": 16.0, "5": 0.0}, "b": {"3": 9.0, "4": 16.0}}


def test_series_of_one_row_each_are_refused() -> None:
    with pytest.raises(StakesError, match=r"column 'shop': expected several times of each series .* check --series"):
        Lags.fit(days(4, shop=list("abcd")), "sold", "date", (1,), "shop")


def test_gaps_and_repeats_in_time_are_refused() -> None:
    frame = days(10)
    with pytest.raises(StakesError, match=r"2014-01-04 is followed by 2014-01-06 \(row 6\); add the rows"):
        Lags.fit(frame.drop(index=4), "sold", "date", (1,))
    twice = pd.concat([frame, frame.iloc[[3]]], ignore_index=True)
    with pytest.raises(StakesError, match=r"2014-01-04 stands twice \(again in row 11\); name the column"):
        Lags.fit(twice, "sold", "date", (1,))
    odd = frame.assign(date=[*frame["date"][:9], "2014-01-10 07:00"])
    with pytest.raises(StakesError, match="equally far apart"):
        Lags.fit(odd, "sold", "date", (1,))
    with pytest.raises(StakesError, match="expected rows of several times"):
        Lags.fit(frame.iloc[:1], "sold", "date", (1,))


def test_months_weeks_and_numbers_are_steps() -> None:
    months = pd.DataFrame({"date": pd.date_range("2014-01-01", periods=14, freq="MS").astype(str), "sold": range(14)})
    assert Lags.fit(months, "sold", "date", (12,)).add(months, first=True)["sold 12 before"].tolist()[12:] == [0, 1]
    for freq, count in (("QS", 3), ("YS", 12)):
        dates = pd.date_range("2014-01-01", periods=5, freq=freq).astype(str)
        quarters = pd.DataFrame({"date": dates, "sold": range(5)})
        lags = Lags.fit(quarters, "sold", "date", (1,))
        assert lags.months == count
        assert lags.add(quarters, first=True)["sold 1 before"].tolist()[1:] == [0, 1, 2, 3]
        with pytest.raises(StakesError, match="equally far apart"):
            lags.add(quarters.assign(date=quarters["date"].str.replace("-01-01", "-02-01")), first=True)
    with pytest.raises(StakesError, match="followed by 2014-10-01"):
        Lags.fit(
            quarters.assign(date=["2014-01-01", "2014-04-01", "2014-10-01", "2015-01-01", "2015-04-01"]),
            "sold",
            "date",
            (1,),
        )
    weeks = pd.DataFrame({"date": pd.date_range("2014-01-06", periods=5, freq="7D").astype(str), "sold": range(5)})
    assert Lags.fit(weeks, "sold", "date", (1,)).add(weeks, first=True)["sold 1 before"].tolist()[1:] == [0, 1, 2, 3]
    hours = pd.DataFrame({"hour": range(100, 106), "sold": range(6)})
    lags = Lags.fit(hours, "sold", "hour", (2,))
    assert lags.names == ("sold 2 before",)
    assert lags.add(hours, first=True)["sold 2 before"].tolist()[2:] == [0, 1, 2, 3]


def test_damaged_lags_are_refused() -> None:
    good = Lags.fit(days(9), "sold", "date", (1,)).to_dict()
    for change in ({"lags": [0]}, {"step": -1}, {"months": 0}, {"tail": {"": {"x": 1}}}, {"time": 3}, {"other": 1}):
        with pytest.raises(StakesError, match="damaged"):
            Lags.from_dict(good | change)
    with pytest.raises(StakesError, match="damaged"):
        Lags.from_dict([])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sales that are about those of the day before."""
    generator = np.random.default_rng(0)
    sold = 100 + np.cumsum(generator.normal(size=220)).round(1)
    path = tmp_path_factory.mktemp("walk") / "walk.csv"
    days(220, rain=generator.normal(size=220).round(2)).assign(sold=sold).to_csv(path, index=False)
    return path


def test_lags_on_the_command_line(stakes: Callable[..., Any], walk: Path, tmp_path: Path) -> None:
    base = ("fit", walk, "--target", "sold", "--under", 3, "--over", 1, "--time", "date", "--folds", 2)
    models = ("--models", "linear", "--workers", 1)
    costs = {}
    for name, options in (("plain", ()), ("lags", ("--lags", "1,7"))):
        said = stakes(*base, *models, *options, "--out", tmp_path / name)
        assert said.code == 0, said.err
        costs[name] = AmountRun.load(tmp_path / name).comparison.row("linear").cost.mean
    assert costs["lags"] < 0.5 * costs["plain"]
    saved = SavedModel.load(tmp_path / "lags" / "model")
    assert {"sold 1 before", "sold 7 before", "date weekday"} <= set(saved.encoder.names)
    # The model knows the last amounts of the file, though the last fifth of its rows was tested on.
    table = pd.read_csv(walk)
    tomorrow = pd.DataFrame({"date": ["2014-08-09"], "rain": [0.0]})
    decided = Decider(tmp_path / "lags")(tomorrow)
    assert abs(decided["decision"].iloc[0] - table["sold"].iloc[-1]) < 4
    tomorrow.to_csv(tmp_path / "new.csv", index=False)
    said = stakes("decide", tmp_path / "lags", tmp_path / "new.csv", "--out", tmp_path / "d.csv", "--id", "date")
    assert said.code == 0, said.err
    assert pd.read_csv(tmp_path / "d.csv")["decision"].iloc[0] == pytest.approx(decided["decision"].iloc[0])
    later = pd.DataFrame({"date": ["2014-08-10"], "rain": [0.0]})
    later.to_csv(tmp_path / "later.csv", index=False)
    said = stakes("decide", tmp_path / "lags", tmp_path / "later.csv", "--out", tmp_path / "e.csv")
    assert said.code == 1
    assert "expected 'sold 1 before', but it is not known" in said.err
    outcome = tomorrow.assign(sold=table["sold"].iloc[-1])
    outcome.to_csv(tmp_path / "outcome.csv", index=False)
    said = stakes("evaluate", tmp_path / "lags", tmp_path / "outcome.csv")
    assert said.code == 0, said.err
    assert said.out.startswith("1 decision cost ")


@pytest.mark.filterwarnings("ignore:there are only 1 test rows")
def test_the_model_knows_the_amounts_of_both_files(stakes: Callable[..., Any], walk: Path, tmp_path: Path) -> None:
    table = pd.read_csv(walk)
    table[:-1].to_csv(tmp_path / "train.csv", index=False)
    table[-1:].to_csv(tmp_path / "test.csv", index=False)  # a single day, which shows no step
    said = stakes(
        *(
            "fit",
            tmp_path / "train.csv",
            "--test",
            tmp_path / "test.csv",
            "--target",
            "sold",
            "--under",
            3,
            "--over",
            1,
        ),
        *("--time", "date", "--lags", "1,7", "--folds", 2, "--models", "linear", "--workers", 1),
        *("--out", tmp_path / "run"),
    )
    assert said.code == 0, said.err
    tomorrow = pd.DataFrame({"date": ["2014-08-09"], "rain": [0.0]})
    assert abs(Decider(tmp_path / "run")(tomorrow)["decision"].iloc[0] - table["sold"].iloc[-1]) < 4


@pytest.mark.filterwarnings("ignore:read as numbers", "ignore:there are only")
def test_later_amounts_may_be_written_in_another_way(stakes: Callable[..., Any], walk: Path, tmp_path: Path) -> None:
    said = stakes(
        *("fit", walk, "--target", "sold", "--under", 3, "--over", 1, "--time", "date", "--lags", "1"),
        *("--folds", 2, "--models", "linear", "--workers", 1, "--out", tmp_path / "run"),
    )
    assert said.code == 0, said.err
    later = days(3, "2014-08-09", rain=0.0).assign(sold=["£101.5", "£102", None])
    later.to_csv(tmp_path / "later.csv", index=False)
    assert stakes("decide", tmp_path / "run", tmp_path / "later.csv", "--out", tmp_path / "d.csv").code == 0
    assert abs(pd.read_csv(tmp_path / "d.csv")["decision"].iloc[-1] - 102) < 4
    later[:2].to_csv(tmp_path / "known.csv", index=False)
    assert stakes("evaluate", tmp_path / "run", tmp_path / "known.csv").code == 0


def test_a_bad_amount_is_named_with_lags(refused: Callable[..., str], walk: Path, tmp_path: Path) -> None:
    table = pd.read_csv(walk)
    sold = [f"£{1000 + each:,.1f}" for each in table["sold"]]
    sold[7] = "abc"
    table.assign(sold=sold).to_csv(tmp_path / "bad.csv", index=False)
    message = refused(
        *("fit", tmp_path / "bad.csv", "--target", "sold", "--under", 3, "--over", 1, "--time", "date"),
        *("--lags", "1", "--out", tmp_path / "run"),
    )
    assert "row 8 has 'abc'" in message


def test_a_gap_is_one_line(refused: Callable[..., str], walk: Path, tmp_path: Path) -> None:
    pd.read_csv(walk).drop(index=50).to_csv(tmp_path / "gap.csv", index=False)
    message = refused(
        *("fit", tmp_path / "gap.csv", "--target", "sold", "--under", 3, "--over", 1, "--time", "date"),
        *("--lags", "1", "--out", tmp_path / "run"),
    )
    assert "2014-02-19 is followed by 2014-02-21" in message
