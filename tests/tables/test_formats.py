"""Written numbers and dates: found, said, and read alike when a model decides."""

import json
import warnings
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes.errors import StakesError, StakesWarning
from stakes.tables.columns import CategoricalColumn, NumericColumn
from stakes.tables.date_format import DateFormat, guess_dates
from stakes.tables.encode import TableEncoder
from stakes.tables.formats import Formats
from stakes.tables.number_format import NumberFormat, guess_numbers
from stakes.tables.read import iter_table, read_table


def quiet(frame: pd.DataFrame, **options: Any) -> TableEncoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StakesWarning)
        return TableEncoder.fit(frame, **options)


def read(texts: list[str]) -> list[float | None]:
    guess = guess_numbers(texts)
    assert guess is not None
    return [guess.format.parse(text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["27,857", "850", "1,234,567.5"], [27857, 850, 1234567.5]),
        (["88.9%", "-3 %", "0", "0%"], [88.9, -3, 0, 0]),
        (["£1,200", "-£3.50", "£-2", "950"], [1200, -3.5, -2, 950]),
        (["1 200 €", "12 €", "1 234 567,25 €"], [1200, 12, 1234567.25]),
        (["1\u00a0200", "3\u202f000"], [1200, 3000]),
        (["1.200,50", "850,25", "3"], [1200.5, 850.25, 3]),
        (["1,5", "22,25"], [1.5, 22.25]),
        (["1'234.5", "2\u2019000"], [1234.5, 2000]),
        (["USD 5", "7 USD", "1e3"], [5, 7, 1000]),
        (["\u22125.5", "+4"], [-5.5, 4]),
        (["$.5", "$1."], [0.5, 1]),
    ],
)
def test_numbers_as_people_write_them(texts: list[str], numbers: list[float]) -> None:
    assert read(texts) == numbers


@pytest.mark.parametrize("text", ["", "12-34", "1,2,3", "12:30", "abc", "1.2.3", "5 kg", "£", "%", "--5", "1,23,456"])
def test_what_is_no_number(text: str) -> None:
    guess = guess_numbers([text])
    assert guess is None or guess.format.parse(text) is None


def test_where_a_text_has_two_meanings_the_english_one_is_taken_and_the_other_said() -> None:
    guess = guess_numbers(["27,857", "1,200"])
    assert guess is not None
    assert guess.format == NumberFormat(thousands=",")
    assert guess.other == NumberFormat(decimal=",")
    certain = guess_numbers(["27,857", "1,200.5"])
    assert certain is not None
    assert certain.other is None
    with pytest.warns(StakesWarning, match=r"read as numbers: 'a' .*'27,857' as 27857, though it could be 27.857"):
        Formats.fit(pd.DataFrame({"a": ["27,857", "1,200"]}))


def test_what_is_read_as_numbers_is_said_once_for_all_columns() -> None:
    frame = pd.DataFrame({"price": ["£1,200.5", "£5"], "share": ["88.9%", "7%"], "town": ["Ely", "York"]})
    with pytest.warns(
        StakesWarning, match="read as numbers: 'price' .'£1,200.5' as 1200.5.; 'share' .'88.9%' as 88.9"
    ) as caught:
        encoder = TableEncoder.fit(frame)
    assert len(caught) == 1
    assert [type(column) for column in encoder.columns] == [NumericColumn, NumericColumn, CategoricalColumn]
    clean = encoder.formats.clean(frame)
    assert clean["price"].tolist() == [1200.5, 5]
    assert frame["price"].tolist() == ["£1,200.5", "£5"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["5%", "0.05", "7%"], "2 values are numbers such as '5%', but row 2 has '0.05'"),
        (["£5", "€6", "£7"], "row 2 has '€6'"),
        ([*(f"{i},5" for i in range(30)), "unknown"], "30 values are numbers such as '0,5', but row 31 has 'unknown'"),
        ([*(f"2026-01-{i:02}" for i in range(1, 32)), "soon"], "31 values are dates such as '2026-01-01', but row 32"),
    ],
)
def test_mixed_columns_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(StakesError, match=words):
        Formats.fit(pd.DataFrame({"a": texts}))
    encoder = quiet(pd.DataFrame({"a": texts}), categorical=["a"])
    assert isinstance(encoder.columns[0], CategoricalColumn)


def test_all_columns_that_cannot_be_used_are_named_at_once() -> None:
    frame = pd.DataFrame(
        {"a": [1.0, np.inf, 2.0], "b": ["5%", "0.05", "7%"], "c": [["x"], ["y"], ["z"]], "d": [1, 2, 3]}
    )
    with pytest.raises(StakesError) as caught:
        TableEncoder.fit(frame)
    message = str(caught.value)
    assert message.startswith("3 columns cannot be used: (1) 'a': expected finite")
    assert "(2) 'b': " in message
    assert "(3) 'c': expected single values" in message
    assert "\n" not in message
    assert "'d'" not in message


def test_numbers_that_are_text_in_a_typed_file() -> None:
    many, few = [str(i / 4) for i in range(40)], ["1", "2"] * 20
    encoder = quiet(pd.DataFrame({"many": many, "few": few}))
    assert [type(column) for column in encoder.columns] == [NumericColumn, CategoricalColumn]


def test_an_empty_column_is_left_out_with_a_warning_and_not_needed_later() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [None, None], "c": [np.nan, np.nan]})
    with pytest.warns(StakesWarning, match="left out, for they are empty: 'b', 'c'"):
        encoder = TableEncoder.fit(frame)
    assert encoder.names == ("a",)
    assert encoder.transform(pd.DataFrame({"a": [3]})).shape == (1, 1)


# Dates


@pytest.mark.parametrize(
    ("texts", "pattern", "other"),
    [
        (["2026-01-31", "1969-12-31"], "ISO8601", None),
        (["2026-01-31T12:00:00Z", "2026-01-31 13:30"], "ISO8601", None),
        (["31/01/2026", "01/02/2026"], "%d/%m/%Y", None),
        (["01/31/2026", "02/01/2026"], "%m/%d/%Y", None),
        (["01/02/2026", "03/04/2026"], "%d/%m/%Y", "%m/%d/%Y"),
        (["31.01.2026", "1.2.2026"], "%d.%m.%Y", None),
        (["31 Jan 2026", "1 Feb 2026"], "%d %b %Y", None),
        (["January 31, 2026", "May 1, 2026"], "%B %d, %Y", None),
        (["31/01/2026 14:30", "01/02/2026 00:00"], "%d/%m/%Y %H:%M", None),
        (["31/01/26", "02/03/99"], "%d/%m/%y", None),
    ],
)
def test_dates_as_people_write_them(texts: list[str], pattern: str, other: str | None) -> None:
    guess = guess_dates(texts)
    assert guess is not None
    assert (guess.pattern, guess.odd, guess.other) == (pattern, (), other)


@pytest.mark.parametrize("texts", [["2026", "2027"], ["2026-01"], ["1234-56-78"], ["12-34"], ["a", "b"], ["Ely, 5"]])
def test_what_is_no_date(texts: list[str]) -> None:
    assert guess_dates(texts) is None


def test_days_are_counted_from_1970() -> None:
    expected = [(datetime(2026, 1, 31) - datetime(1970, 1, 1)).days, -1, 0.5]
    assert DateFormat().days(["2026-01-31", "1969-12-31", "1970-01-01 12:00"]).tolist() == expected
    assert DateFormat("%d/%m/%Y").days(["31/01/2026"]).tolist() == expected[:1]
    assert DateFormat().days(["1970-01-01T02:00:00+02:00"]).tolist() == [0]


def stays() -> pd.DataFrame:
    opened = pd.Series(pd.date_range("2026-01-05", periods=60, freq="5D"))
    return pd.DataFrame({"opened": opened, "x": np.arange(60) % 7})


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d/%m/%Y", "%d %b %Y"])
def test_dates_are_the_same_features_from_text_and_from_parquet(tmp_path: Path, written: str) -> None:
    frame = stays()
    frame.assign(opened=frame["opened"].dt.strftime(written)).to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.assign(opened=frame["opened"].dt.date).to_parquet(tmp_path / "d.parquet")
    encoders, features = [], []
    for name in ("t.csv", "t.parquet", "d.parquet"):
        with pytest.warns(StakesWarning, match="read as dates: 'opened'"):
            encoder = TableEncoder.fit(read_table(tmp_path / name))
        features.append(encoder.transform(read_table(tmp_path / name)))
        blocks = [encoder.transform(block) for block in iter_table(tmp_path / name, encoder, rows=7)]
        np.testing.assert_array_equal(np.concatenate(blocks), features[-1])
        encoders.append(encoder)
    np.testing.assert_array_equal(features[0], features[1])
    np.testing.assert_array_equal(features[0], features[2])
    for encoder in encoders:  # whatever a model was made from, it takes both
        np.testing.assert_array_equal(encoder.transform(frame), features[0])
    names = encoders[0].feature_names
    assert names[:2] == ("opened", "x")
    assert "opened (weekday)=Mon" in names
    assert "opened (month)=Jan" in names
    assert encoders[0].names == ("opened", "x")
    assert features[0][0, names.index("opened (weekday)=Mon")] == 1  # 5 January 2026


def test_parts_that_do_not_vary_are_no_features() -> None:
    mondays = pd.DataFrame({"on": [date(2026, 1, 5), date(2026, 1, 12), None]})
    assert quiet(mondays).feature_names == ("on", "on is missing")


def test_few_texts_among_dates_are_missing_and_stay_so() -> None:
    texts = [f"2026-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(200)]
    frame = pd.DataFrame({"on": [*texts, "0000-00-00"]})
    with pytest.warns(StakesWarning, match="1 rows with no date, such as '0000-00-00', count as missing"):
        encoder = TableEncoder.fit(frame)
    missing = encoder.feature_names.index("on is missing")
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    new = pd.DataFrame({"on": ["2026-03-01", "0000-00-00", None, " NA "]})
    assert again.transform(new)[:, missing].tolist() == [0, 1, 1, 1]
    with pytest.raises(StakesError, match="'on': expected a date such as '2026-01-31', but row 1 has 'soon'"):
        again.transform(pd.DataFrame({"on": ["soon"]}))


def test_a_day_that_could_be_a_month_is_said() -> None:
    with pytest.warns(StakesWarning, match="'01/02/2026' as 1 February 2026, though the day could be the month"):
        Formats.fit(pd.DataFrame({"on": ["01/02/2026", "03/04/2026"]}))


def test_a_column_with_the_name_of_a_part_is_refused() -> None:
    frame = stays().assign(**{"opened (month)": 1})
    with pytest.raises(StakesError, match=r"'opened \(month\)': .*rename or drop"):
        Formats.fit(frame)


# When a model decides


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_written_numbers_are_read_alike_in_any_block(tmp_path: Path, suffix: str, rows: int) -> None:
    # A block of 1.200 and 3.400 alone looks like decimals; one of plain numbers has no text at all.
    texts = ["1.200", "3.400", "850", "12", "1.234.567", "2,5", "", "7"]
    frame = pd.DataFrame({"amount": texts, "share": ["5%", "0%", "0", "12.5%", "", "7%", "8%", "9%"], "x": range(8)})
    path = tmp_path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    encoder = quiet(read_table(path))
    clean = encoder.formats.clean(read_table(path))
    assert clean["amount"].fillna(-1).tolist() == [1200, 3400, 850, 12, 1234567, 2.5, -1, 7]
    blocks = [encoder.transform(block) for block in iter_table(path, encoder, rows=rows)]
    np.testing.assert_array_equal(np.concatenate(blocks), encoder.transform(frame))
    kept = pd.concat(iter_table(path, encoder, rows=rows, keep=["amount"]))["amount"]
    assert kept.dropna().tolist() == [text for text in texts if text] or suffix == ".parquet"


def test_new_rows_that_cannot_be_read() -> None:
    frame = pd.DataFrame({"price": ["£1,200", "£5"], "share": ["5%", "7%"], "on": ["2026-01-01", "2026-05-02"]})
    encoder = quiet(frame)
    bad = pd.DataFrame({"price": ["£5", "cheap"], "share": ["5%", "0.05"], "on": ["2026-01-01", "1/2/2026"]})
    with pytest.raises(StakesError) as caught:
        encoder.transform(bad)
    for words in (
        "3 columns",
        "'price': expected a number such as '£1,234.5', but row 2 has 'cheap'",
        "'0.05'",
        "'1/2/2026'",
    ):
        assert words in str(caught.value)
    with pytest.raises(StakesError, match="'share': expected percentages"):
        encoder.transform(frame.assign(share=[0.05, 0.07]))
    assert np.isfinite(encoder.transform(frame.assign(price=[1200, 5]))).all()


def test_formats_are_saved_and_old_models_have_none() -> None:
    encoder = quiet(pd.DataFrame({"price": ["£1,200", "£5"], "on": ["2026-01-01", "2026-05-02"], "x": [1, 2]}))
    content = json.loads(json.dumps(encoder.to_dict(), allow_nan=False))
    assert TableEncoder.from_dict(content) == encoder
    old = {"columns": [column for column in content["columns"] if column["name"] == "x"]}
    assert TableEncoder.from_dict(old).formats == Formats()
    assert "formats" not in TableEncoder.from_dict(old).to_dict()


@pytest.mark.parametrize(
    "formats",
    [
        [],
        {"a": None},
        {"a": {"kind": "other"}},
        {"a": {"kind": "number", "decimal": ".", "thousands": ",", "symbol": "kg"}},
        {"a": {"kind": "number", "decimal": ";", "thousands": "", "symbol": ""}},
        {"a": {"kind": "number", "decimal": "."}},
        {"a": {"kind": "date", "pattern": "%s", "parts": [], "gaps": []}},
        {"a": {"kind": "date", "pattern": "ISO8601", "parts": ["year"], "gaps": []}},
        {"a": {"kind": "date", "pattern": "ISO8601", "parts": [], "gaps": [3]}},
    ],
)
def test_damaged_formats(formats: Any) -> None:
    column = {"kind": "numeric", "name": "a", "center": 0, "scale": 1, "fill": 0, "has_missing": False}
    with pytest.raises(StakesError, match="damaged"):
        TableEncoder.from_dict({"columns": [column], "formats": formats})
