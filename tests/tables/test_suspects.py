"""Columns that should probably not be used: identifiers, too many texts, and what gives the outcome away."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stakes.tables.read import read_table
from stakes.tables.suspects import identifiers, leaks, many_texts, repeated_subjects, unchanging

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a", range(1, 61)),
        ("a", range(60, 0, -1)),
        ("a", RNG.permutation(60)),
        ("a", RNG.permutation(200)[:100]),
        ("a", RNG.choice(np.arange(10_000, 100_000), 2_000, replace=False)),
        ("a", np.cumsum(np.arange(1, 61))),
        ("a", [*range(59), 0]),
        ("a", [f"P{i}" for i in range(60)]),
        ("a", [f"P{i % 59}" for i in range(60)]),
        *(
            (name, RNG.choice(10**9, 60, replace=False))
            for name in ("ID", "customer_id", "PassengerId", "account nr", "key")
        ),
    ],
)
def test_identifiers_are_pointed_out_whatever_their_order(name: str, values: object) -> None:
    (message,) = identifiers(pd.DataFrame({name: values})).values()
    assert message.startswith(f"column '{name}' looks like a row identifier")
    assert message.endswith(f"--drop {shlex.quote(name)}")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a", range(49)),  # too few to tell
        ("a", np.arange(60) + 0.5),
        ("a", RNG.normal(size=500)),
        ("salary", RNG.integers(20_000, 80_000, 100)),
        ("salary", RNG.integers(20_000, 80_000, 3_000)),
        ("amount", RNG.choice(10**9, 60, replace=False)),
        ("age", RNG.integers(18, 90, 60)),
        ("paid", RNG.integers(0, 2, 60)),
        ("town", [f"t{i % 30}" for i in range(60)]),
        ("valid", [*range(40)] * 2),
        ("yes", [True, False] * 30),
    ],
)
def test_measurements_are_no_identifiers(name: str, values: object) -> None:
    assert identifiers(pd.DataFrame({name: values})) == {}


def test_texts_too_many_to_tell_apart_are_warned_of() -> None:
    frame = pd.DataFrame({"street": [f"s{i % 84}" for i in range(400)], "x": range(400)})
    (message,) = many_texts(frame)
    assert "'street' has 84 different texts, of which the 50 most frequent" in message
    assert many_texts(frame, skip=["street"]) == []
    assert len(many_texts(frame, categorical=["x"])) == 2


def test_columns_with_one_value_are_named() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "x"], "c": [3, 3], "empty": [None, None], "gap": [1.0, None]})
    assert unchanging(frame) == ["columns 'b', 'c' each have the same value in every row: nothing is learnt from that"]
    assert unchanging(frame, skip=["c"])[0].startswith("column 'b' has the same value")
    assert unchanging(frame[["a"]]) == unchanging(frame[:1]) == []


def outcome(rows: int, share: float) -> np.ndarray:
    return (RNG.random(rows) < share).astype(np.int64)


def test_a_column_that_decides_the_outcome_alone_is_named() -> None:
    ill = outcome(400, 0.3)
    frame = pd.DataFrame(
        {
            "x": RNG.normal(size=400),
            "paid back": np.where(ill, RNG.uniform(0, 5, 400), RNG.uniform(6, 9, 400)),
            "ward": np.where(ill, "isolation", RNG.choice(["north", "south"], 400)),
            "holes": np.where(ill, np.nan, RNG.normal(size=400)),
            "huge": np.where(ill, 1e300, 1.0),
            "predictive": ill + RNG.normal(size=400) / 2,
        }
    )
    (message,) = leaks(frame, ill, ["well", "ill"])
    for name in ("paid back", "ward", "holes", "huge"):
        assert f"'{name}' alone decides it" in message
    assert "'x'" not in message
    assert "predictive" not in message
    assert message.endswith("--drop 'paid back,ward,holes,huge'")


@pytest.mark.parametrize("whole", [False, True], ids=["fractions", "whole numbers that repeat"])
@pytest.mark.parametrize("seed", range(8))
def test_a_gap_between_the_values_of_two_outcomes_gives_them_away(seed: int, whole: bool) -> None:
    """In ranks there is no gap, and a rule cuts beside some of the values that it has not seen."""
    generator = np.random.default_rng(seed)
    late = (generator.random(600) < 0.3).astype(np.int64)
    days = np.where(late, generator.uniform(90, 150, 600), generator.uniform(0, 20, 600))
    frame = pd.DataFrame({"days overdue": days.round() if whole else days, "x": generator.normal(size=600)})
    assert repeated_subjects(frame, late) == {}
    (message,) = leaks(frame, late, ["repaid", "late"])
    assert "'days overdue' alone decides it" in message


def test_a_rare_outcome_must_be_found_and_not_only_be_rare() -> None:
    fraud = np.zeros(6_000, dtype=np.int64)
    fraud[RNG.choice(6_000, 60, replace=False)] = 1
    frame = pd.DataFrame({"x": RNG.normal(size=6_000), "blocked days": np.where(fraud, RNG.uniform(1, 9, 6_000), 0.0)})
    (message,) = leaks(frame, fraud, ["fine", "fraud"])
    assert "'blocked days' alone decides it" in message
    assert "'x'" not in message
    assert leaks(frame[:300], fraud[:300], ["fine", "fraud"]) == []  # three frauds tell nothing


def test_a_value_that_only_one_outcome_has_is_named() -> None:
    failed = outcome(2_000, 0.1)
    flag = failed * (RNG.random(2_000) < 0.3)
    (message,) = leaks(pd.DataFrame({"worn": flag}), failed, ["runs", "fails"])
    assert f"'worn' is 1 in {flag.sum()} rows, all of them 'fails'" in message
    few = np.where(np.cumsum(flag) <= 19, flag, 0)
    assert leaks(pd.DataFrame({"worn": few, "safe": 1 - failed * few}), failed, ["runs", "fails"]) == []


def test_noise_of_many_columns_gives_nothing_away() -> None:
    frame = pd.DataFrame(RNG.normal(size=(300, 40)), columns=[f"c{i}" for i in range(40)])
    flags = pd.DataFrame({f"f{i}": RNG.integers(0, 4, 300) for i in range(40)})
    assert leaks(pd.concat([frame, flags], axis=1), outcome(300, 0.4), ["a", "b"]) == []


@pytest.mark.parametrize(
    ("file", "target", "leaking", "ids"),
    [
        ("credit_default.csv", "default.payment.next.month", [], ["ID"]),
        ("fetal_health.csv", "NSP", ["CLASS"], []),  # the expert's pattern, from which NSP was derived
        ("machine_failure.csv", "Machine failure", ["TWF", "HDF", "PWF", "OSF"], ["UDI", "Product ID"]),
        ("maternal_risk.csv", "RiskLevel", [], []),
        ("telco_churn.csv", "Churn", [], ["customerID"]),
    ],
)
def test_real_tables(data_folder: Path, file: str, target: str, leaking: list[str], ids: list[str]) -> None:
    frame = read_table(data_folder / "tabular" / file)
    labels, texts = pd.factorize(frame[target])
    features = frame.drop(columns=target)
    messages = leaks(features, labels.astype(np.int64), [str(text) for text in texts])
    assert [message.rpartition(" ")[2] for message in messages] == [",".join(leaking)] * bool(leaking)
    assert list(identifiers(features)) == ids


def test_rows_that_belong_to_one_subject_are_told() -> None:
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(60), 6)
    labels = (owner % 3 == 0).astype(np.int64)
    frame = pd.DataFrame(
        {
            "who": [f"w{number}" for number in owner],  # by the outcomes, which agree
            "number": owner,
            "customer id": generator.permutation(owner),  # by its name
            "city": generator.permutation([f"c{number}" for number in owner]),  # neither
            "age": generator.integers(20, 80, len(owner)),
            "dose": generator.integers(0, 40, len(owner)) / 8,
        }
    )
    messages = repeated_subjects(frame, labels)
    assert list(messages) == ["who", "number", "customer id"]
    assert (
        "(60 values in 360 rows; two rows with one value have the same outcome in 100%, any two in " in messages["who"]
    )
    assert messages["who"].endswith("Keep them together with --group who")
