import json
import math
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from stakes.errors import StakesError, StakesWarning
from stakes.tables.columns import MOST_LEVELS, USUAL_LEVELS, CategoricalColumn, NumericColumn
from stakes.tables.encode import CLIP, TableEncoder
from stakes.tables.formats import Formats
from stakes.tables.read import iter_table, read_table
from stakes.tables.values import as_text, check_classes, encode_labels

ROWS = ["age,sex,smoker", "31,f,True", "44,m,False", ",f,True", "27,,False", "63,m,True"]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [31, 44, np.nan, 27, 63],
            "sex": ["f", "m", "f", None, "m"],
            "smoker": [True, False, True, False, True],
        }
    )


def mixed_table(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=rows),
            "count": rng.integers(0, 9, rows),
            "holes": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(5, 2, rows).round(3)),
            "yes": rng.random(rows) < 0.3,
            "town": rng.choice(["Ely", "Århus", "a, b", "7"], rows),
            "code": rng.choice([1, 2, 3], rows),
        }
    )
    frame.loc[::17, "town"] = None
    return frame


def encoded(path: Path, encoder: TableEncoder, rows: int) -> np.ndarray:
    return np.concatenate([encoder.transform(block) for block in iter_table(path, encoder, rows=rows)])


# Reading


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_any_line_end_and_delimiter(tmp_path: Path, end: str, mark: str) -> None:
    path = write(tmp_path / "t.csv", end.join(ROWS).replace(",", mark) + end)
    pd.testing.assert_frame_equal(read_table(path), people())
    encoder = TableEncoder.fit(people())
    np.testing.assert_array_equal(encoded(path, encoder, 2), encoder.transform(people()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "t.csv", "größe,stadt\n1.5,Århus\n2,Ely\n", encoding)
    frame = read_table(path)
    assert list(frame.columns) == ["größe", "stadt"]
    assert frame["stadt"].tolist() == ["Århus", "Ely"]
    encoder = TableEncoder.fit(frame)
    np.testing.assert_array_equal(encoded(path, encoder, 1), encoder.transform(frame))


def test_mangled_mark_and_blanks_around_names(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", '\u00ef\u00bb\u00bf"Age" , "a, b" ,c \n1, "x, y" , 2\n')
    frame = read_table(path)
    assert list(frame.columns) == ["Age", "a, b", "c"]
    assert frame.iloc[0].tolist() == [1, "x, y ", 2]


def test_column_without_name_and_blank_lines(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path / "t.csv", "\n ,a\n\n0,5\n\n1,6\n"))
    assert list(frame.columns) == ["Unnamed: 0", "a"]
    assert frame["a"].tolist() == [5, 6]


def test_short_line_has_missing_values(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path / "t.csv", "a,b\n1\n2,3\n"))
    assert frame["b"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("\n \n", ["empty"]),
        ("a,b\n", ["rows below the header"]),
        ("a,b, a\n1,2,3\n", ["'a'", "more than once"]),
        ("a,b\n1,2,3\n4,5\n", ["line 2 has 3", "expected 2 fields"]),
        ("a,b\n1,2\n\n4,5,6,7\n", ["line 4 has 4", "expected 2 fields"]),
        ('a,b\n1,2\n"3,4\n5,6\n', ["never closed"]),
        ("PK\0\0a,b\n1,2\n", ["binary"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_files(tmp_path: Path, text: str, words: list[str], stream: bool) -> None:
    path = write(tmp_path / "t.csv", text)
    encoder = TableEncoder((NumericColumn("a", 0.0, 1.0, 0.0, False),))
    with pytest.raises(StakesError) as caught:
        list(iter_table(path, encoder)) if stream else read_table(path)
    message = str(caught.value)
    assert all(word in message for word in [str(path), *words]), message
    assert "\n" not in message


@pytest.mark.parametrize("line", [2, 3, 900, 901, 902, 30_000, 60_001])
def test_a_long_line_is_found_wherever_it_is(tmp_path: Path, line: int) -> None:
    lines = ["a,b,c", *["1,2,3"] * 60_000]
    lines[line - 1] = "1,2,3,4"
    path = write(tmp_path / "t.csv", "\n".join(lines))
    encoder = TableEncoder((NumericColumn("a", 0.0, 1.0, 0.0, False),))
    with pytest.raises(StakesError, match=f"line {line} has 4"):
        list(iter_table(path, encoder, rows=900))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(StakesError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(StakesError, match="directory"):
        read_table(tmp_path)


@pytest.mark.parametrize("suffix", [".parquet", ".PQ"])
def test_parquet(tmp_path: Path, suffix: str) -> None:
    frame = people().rename(columns={"age": " age"}).iloc[[4, 2, 0]]
    frame.to_parquet(tmp_path / f"t{suffix}")  # with the stored index
    read = read_table(tmp_path / f"t{suffix}")
    assert list(read.columns) == ["age", "sex", "smoker"]
    assert read["age"].tolist()[0] == 63
    assert list(read.index) == [0, 1, 2]


def test_parquet_that_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", "a,b\n1,2\n")
    for read in (read_table, lambda p: iter_table(p, TableEncoder.fit(people()))):
        with pytest.raises(StakesError, match=r"expected a Parquet file.*\.csv"):
            read(path)


def test_parquet_without_rows(tmp_path: Path) -> None:
    people().iloc[:0].to_parquet(tmp_path / "t.parquet")
    with pytest.raises(StakesError, match="rows below"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(StakesError, match="rows below"):
        list(iter_table(tmp_path / "t.parquet", TableEncoder.fit(people())))


# Streaming


@pytest.mark.parametrize("rows", [1, 7, 100, 65536])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_streaming_equals_whole(tmp_path: Path, rows: int, suffix: str) -> None:
    frame, path = mixed_table(), tmp_path / f"t{suffix}"
    frame.assign(unused="z").to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    encoder = TableEncoder.fit(read_table(path)[list(frame.columns)].iloc[:300], categorical=["code"])
    expected = encoder.transform(frame)
    np.testing.assert_allclose(encoded(path, encoder, rows), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(encoded(path, encoder, rows), encoder.transform(read_table(path)))


@pytest.mark.parametrize("spelling", [str, str.upper, str.lower])
@pytest.mark.parametrize("categorical", [[], ["yes"]])
def test_truth_values_stream_as_they_were_read(
    tmp_path: Path, spelling: Callable[[str], str], categorical: list[str]
) -> None:
    cells = [spelling(cell) for cell in ["True", "False", "", "True", "False", "False"]]
    path = write(tmp_path / "t.csv", "yes,x\n" + "".join(f"{cell},{i % 4}\n" for i, cell in enumerate(cells)))
    frame = read_table(path)
    encoder = TableEncoder.fit(frame, categorical=categorical)
    assert isinstance(encoder.columns[0], CategoricalColumn if categorical else NumericColumn)
    np.testing.assert_array_equal(encoded(path, encoder, 2), encoder.transform(frame))
    assert as_text(frame["yes"]).dropna().tolist() == ["True", "False", "True", "False", "False"]


def test_kept_columns_are_untouched(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "id,age,note\n007,1,NA\n008,2,\n009,3,1.50\n")
    encoder = TableEncoder((NumericColumn("age", 0.0, 1.0, 0.0, False),))
    blocks = list(iter_table(path, encoder, rows=2, keep=["note", "id"]))
    assert [len(block) for block in blocks] == [2, 1]
    whole = pd.concat(blocks)
    assert list(whole.columns) == ["age", "note", "id"]
    assert whole["id"].tolist() == ["007", "008", "009"]
    assert whole["note"].tolist() == ["NA", "", "1.50"]
    assert list(whole.index) == [0, 1, 2]


def test_streaming_names_missing_columns_at_once(tmp_path: Path) -> None:
    frame = pd.DataFrame({f"c{i}": [1.0, 2.0] for i in range(12)})
    path = write(tmp_path / "t.csv", "x,c3\n1,2\n")
    with pytest.raises(StakesError) as caught:
        iter_table(path, TableEncoder.fit(frame), keep=["ward"])
    message = str(caught.value)
    assert all(f"'c{i}'" in message for i in range(12) if i != 3)
    assert "'ward'" in message


@pytest.mark.parametrize("value", ["old", "1 2", "1,5,2"])
def test_text_in_a_numeric_column_of_a_file(tmp_path: Path, value: str) -> None:
    path = write(tmp_path / "t.csv", f"age;b\n1;2\n2;2\n3;2\n{value};2\n")
    encoder = TableEncoder((NumericColumn("age", 0.0, 1.0, 0.0, False),))
    with pytest.raises(StakesError, match=rf"column 'age': expected a number, but row 4 has '{value}'"):
        list(iter_table(path, encoder, rows=2))


def test_streaming_needs_rows() -> None:
    with pytest.raises(StakesError, match="rows=0"):
        iter_table("t.csv", TableEncoder.fit(people()), rows=0)


# Encoding


def test_standardised_as_scikit_learn_does() -> None:
    values = np.random.default_rng(0).normal(50, [1, 1e-3, 1e6], size=(500, 3))
    frame = pd.DataFrame(values, columns=list("abc"))
    ours = TableEncoder.fit(frame).transform(frame)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(values), atol=1e-5)


def test_statistics_come_from_the_training_rows_only() -> None:
    frame = mixed_table()
    changed = frame.copy()
    changed.loc[300:, "x"] = 1e6
    changed.loc[300:, "town"] = "elsewhere"
    encoder = TableEncoder.fit(frame.iloc[:300])
    assert encoder == TableEncoder.fit(changed.iloc[:300])
    features = encoder.transform(changed)
    np.testing.assert_array_equal(features[:300], encoder.transform(frame)[:300])
    names = encoder.feature_names
    assert (features[300:, names.index("x")] == CLIP).all()
    assert not features[300:, [i for i, name in enumerate(names) if name.startswith("town")]].any()


def test_features_of_a_small_table() -> None:
    encoder = TableEncoder.fit(people())
    assert encoder.feature_names == ("age", "smoker", "age is missing", "sex=f", "sex=m", "sex is missing")
    assert encoder.width == 6
    features = encoder.transform(people())
    assert features[:, 2].tolist() == [0, 0, 1, 0, 0]
    assert features[:, 3:].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    filled = np.array([31, 44, 37.5, 27, 63])
    np.testing.assert_allclose(features[:, 0], (filled - filled.mean()) / filled.std(), rtol=1e-6)
    np.testing.assert_allclose(features[:, 1], (np.array([1, 0, 1, 0, 1]) - 0.6) / math.sqrt(0.24), rtol=1e-6)


def test_missing_only_at_prediction_is_filled_without_indicator() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 6.0], "b": ["x", "y", "x"]})
    encoder = TableEncoder.fit(frame)
    features = encoder.transform(pd.DataFrame({"a": [np.nan], "b": [None]}))
    assert features.shape == (1, 3)
    assert features[0, 0] == np.float32((2 - 3) / np.std([1, 2, 6]))
    assert features[0, 1:].tolist() == [0, 0]


def test_levels_are_ranked_and_limited() -> None:
    towns = [f"t{i:03}" for i in range(60)] + ["zz"] * 3 + ["t059"]
    column = TableEncoder.fit(pd.DataFrame({"town": towns})).columns[0]
    assert isinstance(column, CategoricalColumn)
    assert column.levels[:3] == ("zz", "t059", "t000")
    assert len(column.levels) == USUAL_LEVELS


def test_texts_with_enough_rows_are_told_apart_beyond_the_usual_number() -> None:
    towns = [f"t{i:03}" for i in range(300) for _ in range(10 if i < 120 else 9)]
    column = TableEncoder.fit(pd.DataFrame({"town": towns})).columns[0]
    assert isinstance(column, CategoricalColumn)
    assert column.levels == tuple(f"t{i:03}" for i in range(120))
    everywhere = TableEncoder.fit(pd.DataFrame({"town": np.repeat(towns, 2)})).columns[0]
    assert isinstance(everywhere, CategoricalColumn)
    assert len(everywhere.levels) == MOST_LEVELS


@pytest.mark.parametrize("value", [0.1, 1e300, 0.0, -7e-300])
def test_constant_column_becomes_zero(value: float) -> None:
    frame = pd.DataFrame({"a": [value] * 7})
    assert not TableEncoder.fit(frame).transform(frame).any()


def test_huge_numbers_do_not_overflow() -> None:
    frame = pd.DataFrame({"a": [-1e308, 1e308, 1e307]})
    features = TableEncoder.fit(frame).transform(frame)
    assert np.isfinite(features).all()
    assert features.std() == pytest.approx(1)


def test_other_types_of_numbers_and_text() -> None:
    plain = pd.DataFrame({"a": [1.0, np.nan, 3.0], "b": [1.0, 0.0, np.nan], "c": ["x", "y", "x"]})
    encoder = TableEncoder.fit(plain)
    other = pd.DataFrame(
        {
            "a": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.Series([Decimal(1), Decimal(0), None], dtype=object),
            "c": pd.Categorical(["x", "y", "x"]),
        }
    )
    np.testing.assert_array_equal(encoder.transform(other), encoder.transform(plain))
    assert TableEncoder.fit(other) == encoder
    texts = pd.DataFrame({"a": ["1", None, " 3.0 "], "b": ["true", "0", None], "c": [" x", "y", "x "]})
    np.testing.assert_array_equal(encoder.transform(texts), encoder.transform(plain))


def test_transform_leaves_the_frame_alone_and_takes_no_rows() -> None:
    frame = mixed_table()[["x", "holes"]]
    before = frame.copy()
    encoder = TableEncoder.fit(frame)
    encoder.transform(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert encoder.transform(frame.iloc[:0]).shape == (0, encoder.width)


def test_json_round_trip() -> None:
    encoder = TableEncoder.fit(mixed_table(), categorical=["code"])
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False)))
    assert again == encoder
    np.testing.assert_array_equal(again.transform(mixed_table()), encoder.transform(mixed_table()))


NUMERIC = {
    "kind": "numeric",
    "name": "a",
    "center": 0,
    "scale": 1,
    "fill": 0,
    "has_missing": False,
}


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"columns": []},
        {"columns": ["a"]},
        {"columns": [NUMERIC, NUMERIC]},
        {"columns": [NUMERIC | {"scale": 0}]},
        {"columns": [NUMERIC | {"center": float("nan")}]},
        {"columns": [NUMERIC | {"center": 10**400}]},
        {"columns": [NUMERIC | {"fill": "1"}]},
        {"columns": [NUMERIC | {"has_missing": 1}]},
        {"columns": [NUMERIC | {"name": 3}]},
        {"columns": [NUMERIC | {"kind": "other"}]},
        {"columns": [NUMERIC | {"more": 1}]},
        {"columns": [{"kind": "categorical", "name": "a", "levels": [1]}]},
        {"columns": [{"kind": "categorical", "name": "a", "levels": ["x", "x"]}]},
        {"columns": [{"kind": "categorical", "name": "a"}]},
    ],
)
def test_damaged_content(content: Any) -> None:
    with pytest.raises(StakesError, match="damaged"):
        TableEncoder.from_dict(content)


def test_whole_numbers_are_fine_in_saved_content() -> None:
    assert TableEncoder.from_dict({"columns": [NUMERIC]}).names == ("a",)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame(index=range(3)), "at least one feature column"),
        (pd.DataFrame({"a": []}), "there are none"),
        (pd.DataFrame({0: [1.0]}), "different texts as column names"),
        (pd.DataFrame({"a": [np.nan, np.nan]}), "'a' have none"),
        (pd.DataFrame({"a": [1, np.inf, -np.inf]}), "'a': .*2 of 3 are infinite"),
        (pd.DataFrame({"took": pd.to_timedelta(["1 days"])}), "'took': .*times.*--drop took"),
        (pd.DataFrame({"tags": [["a"], ["b"]]}), "'tags': .*lists"),
    ],
)
def test_frames_that_cannot_be_fitted(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        TableEncoder.fit(frame)


def test_unknown_categorical() -> None:
    with pytest.raises(StakesError, match="'town'"):
        TableEncoder.fit(people(), categorical=["town"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"age": [1.0, np.nan, np.inf, 3, 4]}, "'age': .*row 13 is infinite"),
        ({"age": ["1", None, "2", "old", "4"]}, "'age': .*row 14 has 'old'"),
        (
            {"age": ["old"] * 5, "smoker": ["perhaps"] * 5},
            "2 columns cannot.*1. 'age': .*'old'.*2. 'smoker': .*'perhaps'",
        ),
        ({"age": pd.to_datetime(["2020-01-01"] * 5)}, "'age': .*dates"),
        ({"sex": pd.to_datetime(["2020-01-01"] * 5)}, "'sex': .*dates"),
    ],
)
def test_values_that_cannot_be_transformed(change: dict[str, Any], words: str) -> None:
    frame = people().assign(**change).set_axis(range(10, 15))
    with pytest.raises(StakesError, match=words):
        TableEncoder.fit(people()).transform(frame)


def test_transform_names_all_missing_columns() -> None:
    with pytest.raises(StakesError, match="'age', 'smoker'"):
        TableEncoder.fit(people()).transform(people()[["sex"]])


# Values and labels


@pytest.mark.parametrize(
    "values",
    [[1, 2, 10], [1.0, 2.0, 10.0], ["1", " 2.0", "10."], ["1.0", "02", "1e1"], [Decimal("1.0"), 2, "10"]],
)
def test_numbers_have_one_text(values: list[object]) -> None:
    assert as_text(pd.Series(values)).tolist() == ["1", "2", "10"]


def test_other_texts() -> None:
    series = pd.Series([True, "1_000", " high risk ", 0.1, -0.0, None, np.nan, "", "inf"], dtype=object)
    texts = as_text(series)
    assert texts.iloc[:5].tolist() == ["True", "1_000", "high risk", "0.1", "0"]
    assert texts.isna().tolist() == [False] * 5 + [True] * 3 + [False]


def test_labels() -> None:
    values = pd.Series([0.0, 1.0, 1.0, 2.0])
    assert encode_labels(values, ["2", "1.0", "0"], name="y").tolist() == [2, 1, 1, 0]
    labels = encode_labels(values, ["well", "ill"], renames={"0": "well", "1": "ill", "2.0": "ill"}, name="y")
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("values", "outcomes", "renames", "words"),
    [
        (["a", None, " "], ["a", "b"], {}, "'y': .*2 of 3 have none, first in row 2"),
        (["a", "c", "c"], ["a", "b"], {}, "2 rows have 'c'; add it to the costs"),
        (["a", "b"], ["a", "b"], {"b": "x"}, "1 rows have 'x'"),
        ([1, 2], ["1", "1.0"], {}, "mean the same"),
        ([["a"], None, ["b"]], ["a", "b"], {}, "lists or records; choose another target"),
        ([{"a": 1}, "b"], ["a", "b"], {}, "lists or records; choose another target"),
    ],
)
def test_bad_labels(values: list[object], outcomes: list[str], renames: dict[str, str], words: str) -> None:
    with pytest.raises(StakesError, match=words):
        encode_labels(pd.Series(values), outcomes, renames=renames, name="y")


def test_classes() -> None:
    check_classes(np.array([0, 1, 1]), ["a", "b"], "y")
    with pytest.raises(StakesError, match="every row has 'b'"):
        check_classes(np.array([1, 1]), ["a", "b"], "y")
    with pytest.raises(StakesError, match="'c' never does"):
        check_classes(np.array([1, 0]), ["a", "b", "c"], "y")


# Real files


def real(name: str) -> Path:
    folder = os.environ.get("STAKES_DATA")
    if not folder:
        pytest.skip("STAKES_DATA does not name the folder of the real data")
    return Path(folder) / "tabular" / name


@pytest.mark.parametrize(
    ("name", "label", "shape", "classes"),
    [
        ("credit_default.csv", "default.payment.next.month", (30000, 25), ["0", "1"]),
        ("fetal_health.csv", "NSP", (2126, 23), ["1", "2", "3"]),
        ("maternal_risk.csv", "RiskLevel", (1014, 7), ["low risk", "mid risk", "high risk"]),
    ],
)
def test_real_files(name: str, label: str, shape: tuple[int, int], classes: list[str]) -> None:
    path = real(name)
    frame = read_table(path)
    assert frame.shape == shape
    check_classes(encode_labels(frame[label], classes, name=label), classes, label)
    features = frame.drop(columns=[label, "ID"], errors="ignore")
    encoder = TableEncoder.fit(features)
    matrix = encoder.transform(features)
    assert matrix.shape == (shape[0], features.shape[1])
    np.testing.assert_array_equal(encoded(path, encoder, 1000), matrix)
    kept = pd.concat(iter_table(path, encoder, rows=1000, keep=[label]))[label]
    np.testing.assert_array_equal(
        encode_labels(kept, classes, name=label), encode_labels(frame[label], classes, name=label)
    )


def test_real_mangled_mark() -> None:
    assert read_table(real("maternal_risk.csv")).columns[0] == "Age"


def test_decimal_commas_are_numbers_where_commas_separate_nothing(tmp_path: Path) -> None:
    file = tmp_path / "europe.csv"
    file.write_text("a;b;note\n1,5;2;x,y\n-0,25;3;z\n;4;1,5\n")
    frame = read_table(file)
    assert frame["note"].tolist() == ["x,y", "z", "1,5"]
    with pytest.warns(StakesWarning, match=r"read as numbers: 'a' \('-0,25' as -0.25\)"):
        encoder = TableEncoder.fit(frame)
    assert encoder.formats.clean(frame)["a"].tolist()[:2] == [1.5, -0.25]
    (block,) = iter_table(file, encoder)
    np.testing.assert_array_equal(encoder.transform(block), encoder.transform(frame))
    file.write_text("a;b\n1.5;1,5\n2.5;2,5\n")
    assert read_table(file)["a"].tolist() == [1.5, 2.5]


def test_what_a_comma_means_is_settled_by_the_column_then_by_the_table_and_kept(tmp_path: Path) -> None:
    """34,030 beside 884 is read as in English, with doubt; beside 79,89 it has a decimal comma, then and later."""
    file = tmp_path / "a.csv"
    file.write_text("people;n\n34,030;1\n884;2\n43,844;3\n")
    with pytest.warns(StakesWarning, match=r"'people' \('34,030' as 34030, though it could be 34.03"):
        assert Formats.fit(read_table(file)).clean(read_table(file))["people"].tolist() == [34030, 884, 43844]
    file.write_text("three;two\n79,890;79,89\n1,500;2,5\n")
    with pytest.warns(StakesWarning, match=r"'three' \('79,890' as 79.89, though it could be 79890"):
        formats = Formats.fit(read_table(file))
    later = tmp_path / "later.csv"
    later.write_text("three;two;score\n79,890;79,89;0.5\n1,500;2,5;0.25\n")
    assert formats.clean(read_table(later))["three"].tolist() == [79.89, 1.5]


def test_numbers_spoilt_by_a_few_texts_are_refused_unless_they_are_codes() -> None:
    frame = pd.DataFrame({"amount": [*map(str, range(100)), "n.a."]})
    with pytest.raises(StakesError, match=r"100 values are numbers such as '0', but row 101 has 'n\.a\.'"):
        TableEncoder.fit(frame)
    codes = pd.DataFrame({"code": [*map(str, range(30)), "x"] * 3})
    assert TableEncoder.fit(codes, categorical=["code"]).width == 31
    TableEncoder.fit(pd.DataFrame({"grade": ["1", "2", "3", "x"] * 10}))
