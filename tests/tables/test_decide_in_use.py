"""`stakes decide` on models in use: unusual rows, other costs, the columns of a decision file."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from in_use import COSTS, UTILITY, logistic_model, patients, saved
from patient_tables import write_csv

from stakes import Decider, MCDropout, SavedModel, StakesError, Utility
from stakes.networks import MLP
from stakes.predictors import Logistic, SampledPosterior
from stakes.tables.decide import decide_table
from stakes.tables.decider import significant
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import TableProfile
from stakes.tables.read import read_table

COLUMNS = [
    *("decision", "expected_cost", "runner_up", "margin", "cost_treat", "cost_wait", "cost_refer"),
    *("settled", "p_ill", "p_well", "unusual"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", patients(200))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    patients(40, seed=1).assign(id=[f"00{number}" for number in range(40)]).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_columns_and_what_they_hold(model: Path, data: Path, tmp_path: Path) -> None:
    decided = decide_table(model, data, tmp_path / "out.csv")
    rows = pd.read_csv(tmp_path / "out.csv")
    assert list(rows.columns) == COLUMNS == Decider(model).columns
    costs = rows[["p_ill", "p_well"]].to_numpy() @ UTILITY.costs.T  # (N, D)
    np.testing.assert_allclose(rows[["cost_treat", "cost_wait", "cost_refer"]], costs, atol=1e-3)
    order, names = costs.argsort(1), np.array(UTILITY.decisions)
    assert rows["decision"].tolist() == names[order[:, 0]].tolist()
    assert rows["runner_up"].tolist() == names[order[:, 1]].tolist()
    ranked = np.sort(costs, axis=1)
    np.testing.assert_allclose(rows["expected_cost"], ranked[:, 0], atol=1e-3)
    np.testing.assert_allclose(rows["margin"], ranked[:, 1] - ranked[:, 0], atol=1e-3)
    assert rows["settled"].all()  # a logistic regression has no draws
    assert decided.rows == 40
    assert decided.decisions == rows["decision"].value_counts().reindex(names, fill_value=0).to_dict()
    assert decided.mean == pytest.approx(rows["expected_cost"].mean())


def test_utilities_stay_utilities(tmp_path: Path) -> None:
    given = Utility.from_matrix({name: {key: -cost for key, cost in row.items()} for name, row in COSTS.items()})
    frame = patients(100)
    rows = Decider(saved(tmp_path / "model", frame, given))(frame)
    costs = Decider(saved(tmp_path / "costs", frame))(frame)
    expected = [name.replace("cost", "utility") for name in COLUMNS]
    assert list(rows.columns) == expected
    assert rows["decision"].tolist() == costs["decision"].tolist()
    for name in ("expected_utility", "utility_treat", "utility_wait", "utility_refer"):
        np.testing.assert_allclose(rows[name], -costs[name.replace("utility", "cost")], atol=1e-3)
    np.testing.assert_allclose(rows["margin"], costs["margin"], atol=1e-3)  # of either, a margin is above 0


def test_costs_in_hundreds_are_told_in_their_own_unit(tmp_path: Path) -> None:
    frame = patients(60)
    scaled = Utility.from_costs(COSTS, unit="£", best=1.0, scale=500.0)
    rows, plain = (
        Decider(saved(tmp_path / name, frame, utility))(frame) for name, utility in (("a", scaled), ("b", UTILITY))
    )
    for name in ("expected_cost", "margin", "cost_wait"):
        np.testing.assert_allclose(rows[name], plain[name], atol=2e-3)


def test_small_and_large_costs_keep_their_digits(tmp_path: Path) -> None:
    frame = patients(50)
    model, places = logistic_model(frame), {}
    for name, factor in (("small", 1e-9), ("large", 1e9)):
        replace(model, utility=replace(UTILITY, values=UTILITY.values * factor)).save(tmp_path / name)
        places[name] = Decider(tmp_path / name)(frame)["expected_cost"].to_numpy() / factor
    np.testing.assert_allclose(places["small"], places["large"], rtol=1e-3, atol=1e-3)
    assert (places["small"] != 0).any()


def test_draws_settle_a_decision_or_not(tmp_path: Path) -> None:
    frame = patients(100)
    encoder = TableEncoder.fit(frame)
    torch.manual_seed(0)
    utility = Utility.from_costs({"treat": {"ill": 0, "well": 1}, "wait": {"ill": 1, "well": 0}})
    posterior = MCDropout(MLP(encoder.width, 2, hidden=(16,)))
    model = SavedModel(SampledPosterior(posterior, samples=20, seed=0), utility, encoder)
    model.save(tmp_path / "model")
    rows = model.decide(torch.from_numpy(encoder.transform(frame)), settle=1)
    assert rows.margin_error is not None
    right = (rows.margin > 2 * rows.margin_error).tolist()
    assert 0 < sum(right) < len(right)
    assert Decider(tmp_path / "model", settle=1)(frame)["settled"].tolist() == right
    frame.to_csv(tmp_path / "data.csv", index=False)
    decided = decide_table(Decider(tmp_path / "model", settle=1), tmp_path / "data.csv", tmp_path / "out.csv")
    assert decided.unsettled == len(right) - sum(right)


def test_an_id_comes_first_and_as_it_was(model: Path, data: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    said = stakes("decide", model, data, "--out", tmp_path / "out.csv", "--keep", "ward,id", "--id", "id")
    assert said.code == 0, said.err
    rows = pd.read_csv(tmp_path / "out.csv", dtype=str)
    assert list(rows.columns) == ["id", "ward", *COLUMNS]
    assert rows["id"].tolist() == [f"00{number}" for number in range(40)]


def test_parquet_has_the_same_columns_with_types(model: Path, data: Path, tmp_path: Path) -> None:
    for rows in (7, 1000):
        decide_table(Decider(model, why=1), data, tmp_path / "out.parquet", rows=rows)
        decide_table(Decider(model, why=1), data, tmp_path / "out.csv", rows=rows)
        found = pd.read_parquet(tmp_path / "out.parquet")
        assert found["settled"].dtype == "boolean"
        pd.testing.assert_frame_equal(
            found.fillna({"unusual": ""}), pd.read_csv(tmp_path / "out.csv", keep_default_na=False), check_dtype=False
        )


def test_a_part_without_rows_and_a_pickled_decider(model: Path) -> None:
    """As engines for tables in many parts have them."""
    decider = pickle.loads(pickle.dumps(Decider(model, why=1)))
    rows = patients(5, seed=3)
    assert list(decider(rows.iloc[:0]).columns) == decider.columns
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(decider))(rows), Decider(model, why=1)(rows))


# Unusual rows ----------------------------------------------------------------------------------------


def odd_rows(data: Path, tmp_path: Path) -> Path:
    frame = pd.read_csv(data, dtype={"id": str})
    frame.loc[3, "test 1"] = 99.0
    frame.loc[[3, 30], "ward"] = "west"
    frame.to_csv(tmp_path / "odd.csv", index=False)
    return tmp_path / "odd.csv"


def test_unusual_rows_are_noted_and_the_file_is_summed_up(
    model: Path, data: Path, tmp_path: Path, stakes: Callable[..., Any]
) -> None:
    said = stakes("decide", model, odd_rows(data, tmp_path), "--out", tmp_path / "out.csv")
    assert said.code == 0
    assert said.err == (
        f"{tmp_path / 'out.csv'}: 40 decisions. 2 of 40 rows are unlike the training rows (ward in 2, test 1 in 1). "
        "No column's distribution has shifted much.\n"
    )
    unusual = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)["unusual"]
    assert unusual[unusual != ""].index.tolist() == [3, 30]
    assert unusual[30] == "ward 'west' (never in training)"
    assert "test 1 99 (in training" in unusual[3]
    summary = json.loads((tmp_path / "out.summary.json").read_text())
    assert summary["rows"] == 40
    assert summary["drift"]["unusual_rows"] == 2
    assert [column["unusual"] for column in summary["drift"]["columns"]] == [0, 1, 2]
    assert summary["in_words"][0].startswith("2 of 40 rows are unlike")


def test_unusual_rows_are_referred_by_a_named_decision(model: Path, data: Path, tmp_path: Path) -> None:
    odd = odd_rows(data, tmp_path)
    decide_table(model, odd, tmp_path / "noted.csv")
    decide_table(Decider(model, on_unusual="refer", refer="refer", why=1), odd, tmp_path / "out.csv")
    noted, rows = pd.read_csv(tmp_path / "noted.csv"), pd.read_csv(tmp_path / "out.csv")
    same = ~rows.index.isin([3, 30])
    pd.testing.assert_frame_equal(rows.loc[same, COLUMNS[:-1]].astype({"settled": bool}), noted.loc[same, COLUMNS[:-1]])
    for row in (3, 30):
        assert rows.loc[row, "decision"] == "refer"
        assert rows.loc[row, "expected_cost"] == noted.loc[row, "cost_refer"]
        if noted.loc[row, "decision"] != "refer":
            assert rows.loc[row, "runner_up"] == noted.loc[row, "decision"]
            assert rows.loc[row, "margin"] == pytest.approx(noted.loc[row, "expected_cost"] - 30, abs=1e-3)
        assert pd.isna(rows.loc[row, "settled"])
        assert pd.isna(rows.loc[row, "why_1"])


def test_unusual_rows_stop_it_and_nothing_is_written(
    model: Path, data: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    odd = odd_rows(data, tmp_path)
    message = refused("decide", model, odd, "--out", tmp_path / "out.csv", "--on-unusual", "stop")
    assert "row 4: test 1 99" in message
    assert "row 31: ward 'west'" in message
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / "out.summary.json").exists()
    decide_table(Decider(model, on_unusual="stop"), data, tmp_path / "out.csv")  # there is nothing to stop for


def test_celsius_in_place_of_fahrenheit_is_noticed(data_folder: Path, tmp_path: Path) -> None:
    """All twenty women became "low risk", and not a word was said."""
    frame = read_table(data_folder / "tabular" / "maternal_risk.csv").drop(columns="RiskLevel")
    encoder = TableEncoder.fit(frame)
    weights = torch.zeros(3, encoder.width, dtype=torch.float64)
    weights[2] = 1.0
    utility = Utility.diagonal(["low risk", "mid risk", "high risk"])
    profile = TableProfile.fit(encoder, frame)
    SavedModel(
        Logistic(weights, torch.zeros(3).double(), torch.ones(3, dtype=torch.bool)), utility, encoder, {}, profile
    ).save(tmp_path / "model")
    frame.iloc[:20].assign(BodyTemp=37).to_csv(tmp_path / "celsius.csv", index=False)
    decided = decide_table(tmp_path / "model", tmp_path / "celsius.csv", tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv")["unusual"].str.startswith("BodyTemp 37 (in training 98 to 103)").all()
    assert decided.sentences() == [
        "20 of 20 rows are unlike the training rows (BodyTemp in 20).",
        "The distribution has shifted in 'BodyTemp'.",
    ]
    decide_table(tmp_path / "model", data_folder / "tabular" / "maternal_risk.csv", tmp_path / "all.csv")
    assert pd.read_csv(tmp_path / "all.csv")["unusual"].notna().mean() < 0.01


def test_a_model_of_an_older_version_still_decides(tmp_path: Path, data: Path, stakes: Callable[..., Any]) -> None:
    path = saved(tmp_path / "old", patients(200), profile=False)
    content = json.loads((path / "model.json").read_text())
    del content["profile"]
    (path / "model.json").write_text(json.dumps(content))
    said = stakes("decide", path, data, "--out", tmp_path / "out.csv")
    assert said.code == 0
    assert "does not describe its training rows" in said.err
    rows = pd.read_csv(tmp_path / "out.csv")
    assert list(rows.columns) == COLUMNS
    assert rows["unusual"].isna().all()
    for option in ({"on_unusual": "stop"}, {"on_unusual": "refer", "refer": "treat"}):
        with pytest.raises(StakesError, match="fit it again"):
            Decider(path, **option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--on-unusual", "ask"), "expected note, refer or stop, but got 'ask'"),
        (("--on-unusual", "refer"), "expected --on-unusual refer and --refer DECISION together"),
        (("--refer", "treat"), "expected --on-unusual refer and --refer DECISION together"),
        (("--on-unusual", "refer", "--refer", "pray"), "--refer: expected one of 'treat', 'wait', 'refer', but got"),
        (("--id", "number"), "expected columns that are missing: 'number'"),
    ],
)
def test_refusals(
    model: Path, data: Path, tmp_path: Path, refused: Callable[..., str], options: tuple[str, ...], message: str
) -> None:
    assert message in refused("decide", model, data, "--out", tmp_path / "out.csv", *options)


def test_a_profile_of_other_columns_is_refused() -> None:
    model, other = logistic_model(patients(30)), logistic_model(patients(30, columns=3))
    with pytest.raises(StakesError, match="with the columns of the encoder"):
        replace(model, profile=other.profile)


# Other costs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notes", "share"),
    [
        ({"model": "blend", "weights": {"calibrated": 0.25, "forest": 0.75}, "strength": 0.1}, "25 %"),
        ({"model": "calibrated", "strength": 1.0}, "100 %"),
        ({"model": "weighted"}, "100 %"),
        ({"model": "calibrated", "strength": 0.0}, None),  # which is the standard network
        ({"model": "blend", "weights": {"forest": 1.0}}, None),
    ],
)
def test_a_network_that_was_trained_for_other_costs_is_told(
    tmp_path: Path, notes: dict[str, Any], share: str | None
) -> None:
    replace(logistic_model(patients(50)), notes=notes).save(tmp_path / "model")
    assert Decider(tmp_path / "model").remarks == ()
    assert Decider(tmp_path / "model", costs=UTILITY).remarks == ()
    dearer = Utility.from_costs(2 * UTILITY.costs + 1, UTILITY.decisions, UTILITY.outcomes, unit=UTILITY.unit)
    remarks = Decider(tmp_path / "model", costs=dearer).remarks
    assert len(remarks) == (share is not None)
    assert all(f"a network trained for those is {share} of it" in remark for remark in remarks)


def test_other_costs_decide_with_the_same_probabilities(model: Path, data: Path, tmp_path: Path) -> None:
    """The same outcomes in another order, and other decisions."""
    costs = write_csv(tmp_path / "other.csv", ["cost [€]", "well", "ill"], [["scan", 5, 5], ["operate", 900, 0]])
    decided = decide_table(Decider(model, costs=costs), data, tmp_path / "out.csv")
    assert decided.sentences()[-1] == "The costs are in €, those that the model was made for in £."
    decide_table(model, data, tmp_path / "own.csv")
    rows, own = pd.read_csv(tmp_path / "out.csv"), pd.read_csv(tmp_path / "own.csv")
    pd.testing.assert_frame_equal(rows[["p_ill", "p_well"]], own[["p_ill", "p_well"]])
    np.testing.assert_allclose(rows["cost_operate"], 900 * rows["p_well"], atol=2e-3)
    assert rows["decision"].tolist() == np.where(900 * rows["p_well"] < 5, "operate", "scan").tolist()


@pytest.mark.parametrize("given", ["cost", "utility"])
def test_other_costs_may_be_formulas(model: Path, data: Path, tmp_path: Path, given: str) -> None:
    frame = pd.read_csv(data, dtype={"id": str}).assign(fee=np.arange(1.0, 41.0))
    frame.to_csv(tmp_path / "fees.csv", index=False)
    costs = write_csv(tmp_path / "other.csv", [given, "well", "ill"], [["a", "=fee", 0], ["b", 0, "=2 * fee"]])
    decide_table(Decider(model, costs=costs), tmp_path / "fees.csv", tmp_path / "out.csv")
    rows = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(rows[f"{given}_a"], frame["fee"] * rows["p_well"], atol=1e-3)
    np.testing.assert_allclose(rows[f"{given}_b"], 2 * frame["fee"] * rows["p_ill"], atol=1e-3)
    amounts = rows[[f"{given}_a", f"{given}_b"]]
    best = amounts.min(axis=1) if given == "cost" else amounts.max(axis=1)
    np.testing.assert_array_equal(rows[f"expected_{given}"], best)


def test_costs_of_other_outcomes_are_refused(
    model: Path, data: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    costs = write_csv(tmp_path / "other.csv", ["cost", "well", "sick"], [["scan", 5, 4], ["operate", 900, 0]])
    message = refused("decide", model, data, "--out", tmp_path / "out.csv", "--costs", costs)
    assert "other.csv: expected costs for the outcomes 'ill', 'well', but got them for 'well', 'sick'" in message


def test_numbers_are_rounded_by_their_own_row() -> None:
    row = np.array([[34.470491234, 0.5, 1e-7]])
    alone, beside = significant(row), significant(np.vstack([row, [1e9, 2.0, 3.0]]))
    np.testing.assert_array_equal(alone[0], beside[0])
    np.testing.assert_array_equal(alone[0], [34.47049, 0.5, 0.0])
