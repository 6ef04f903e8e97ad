"""The column of --time: read as it is written everywhere, or refused."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes.errors import StakesError, StakesWarning
from stakes.tables.amounts.lags import Lags
from stakes.tables.times import TimeFormat

DAYS = pd.date_range("2023-12-20", periods=400)
SECONDS = np.array([datetime.datetime(d.year, d.month, d.day, tzinfo=datetime.UTC).timestamp() for d in DAYS])


@pytest.mark.parametrize("pattern", ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d %B %Y"])
def test_dates_keep_their_order_however_they_are_written(pattern: str) -> None:
    column = pd.Series(DAYS.strftime(pattern), name="day")
    with pytest.warns(StakesWarning, match=r"read as times: 'day' \('.*' as 20 December 2023\)$"):
        found = TimeFormat.of(column)
    assert found.times(column).tolist() == SECONDS.tolist()


@pytest.mark.parametrize(
    "column",
    [
        DAYS.strftime("%Y-%m-%d"),
        DAYS,
        DAYS.tz_localize("UTC"),
        [day.date() for day in DAYS],
        DAYS.strftime("%Y-%m-%dT00:00:00Z"),
    ],
    ids=["texts", "dates", "with a zone", "of Python", "ISO"],
)
def test_plain_dates_are_read_without_a_word(column: Any, recwarn: pytest.WarningsRecorder) -> None:
    series = pd.Series(column)
    assert TimeFormat.of(series).times(series).tolist() == SECONDS.tolist()
    assert not recwarn.list


def test_hours_are_exact() -> None:
    column = pd.Series(pd.date_range("2024-01-31 22:00", periods=5, freq="h").strftime("%d.%m.%Y %H:%M"))
    with pytest.warns(StakesWarning, match="31 January 2024"):
        times = TimeFormat.of(column).times(column)
    assert np.diff(times).tolist() == [3600.0] * 4


def test_where_the_day_could_be_the_month_that_is_said() -> None:
    column = pd.Series(["01/02/2024", "01/03/2024", "01/04/2024"], name="month")
    with pytest.warns(StakesWarning, match=r"'01/02/2024' as 1 February 2024, though the day could be the month"):
        found = TimeFormat.of(column)
    assert found.pattern == "%d/%m/%Y"


def test_months_and_numbers() -> None:
    months = pd.Series(["2024-03", "2024-01", "2024-02"])
    assert np.argsort(TimeFormat.of(months).times(months)).tolist() == [1, 2, 0]
    numbers = pd.Series([3, 1, 2])
    assert TimeFormat.of(numbers).times(numbers).tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["2024-01-31", "2024-02-01", "soon"], "expected a date such as '2026-01-31' in every row .* row 3 has 'soon'"),
        (["31.01.2024", "1.2.2024", None], "expected a date such as '31.01.2026' in every row .* row 3 has none"),
        (["31.01.2024 at 10", "01.02.2024 at 10"], "not clear which part of '31.01.2024 at 10' is the day"),
        (["north", "south"], "expected a date or a number in every row to order them by, but row 1 has 'north'"),
    ],
)
@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
def test_what_is_no_time_is_refused(texts: list[str | None], message: str) -> None:
    column = pd.Series(texts, name="day")
    with pytest.raises(StakesError, match=message):
        TimeFormat.of(column).times(column)


@pytest.mark.parametrize(
    ("pattern", "later", "message"),
    [
        ("%d.%m.%Y", ["2024-02-05"], "expected a date such as '31.01.2026' in every row .* row 1 has '2024-02-05'"),
        (None, ["2024-02-05"], "expected a number, but row 1 has '2024-02-05'"),
        ("%d.%m.%Y", [20240205], "expected a date such as '31.01.2026'"),
    ],
)
def test_later_rows_are_read_as_the_first_were(pattern: str | None, later: list[Any], message: str) -> None:
    with pytest.raises(StakesError, match=message):
        TimeFormat(pattern).times(pd.Series(later, name="day"))
    assert TimeFormat("%m/%d/%Y").times(pd.Series(["02/03/2024"]))[0] == pd.Timestamp("2024-02-03").timestamp()


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
def test_lags_of_a_saved_model_read_a_single_new_day_as_training_did() -> None:
    """12/11/2024 alone could be a day of November or of December."""
    frame = pd.DataFrame({"day": DAYS.strftime("%m/%d/%Y"), "sold": np.arange(400.0)})
    lags = Lags.from_dict(Lags.fit(frame, "sold", "day", (1,)).to_dict())
    new = pd.DataFrame({"day": [(DAYS[-1] + pd.Timedelta(days=1)).strftime("%m/%d/%Y")]})
    assert lags.add(new)["sold 1 before"].tolist() == [399.0]
    with pytest.raises(StakesError, match="damaged"):
        Lags.from_dict(lags.to_dict() | {"pattern": "%s"})
