"""`stakes fit`: what it leaves on disk, and that its numbers are the right ones."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from patient_tables import ACTIONS, HEADER, TINY, patient_rows, write_csv

from stakes import SavedModel
from stakes._io.tensors import read_tensors
from stakes.tables.run import Run
from stakes.utility import Utility

ROW_FIELDS = {"model", "rule", "utility", "utility_low", "utility_high", "accuracy", "nll", "ece", "seeds"}
THREE = ["standard", "calibrated", "blend"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def fit(stakes: Callable[..., Any], patients: Path, costs: Path, tmp_path: Path) -> Callable[..., Any]:
    """`stakes fit`, with its folder."""

    def run(*options: object, data: Path = patients, costs: Path = costs, name: str = "out") -> Any:
        out = tmp_path / name
        said = stakes("fit", data, "--target", "diagnosis", "--costs", costs, "--out", out, *TINY, *options)
        assert said.code == 0, said.err
        return out, said

    return run


def test_files_and_summary(fit: Callable[..., Any]) -> None:
    out, said = fit("--seeds", 2, "--workers", 1, "--models", ",".join(THREE))
    names = {path.name for path in out.iterdir()}
    files = {"run.json", "cases.safetensors", "details.json", "summary.json", "results.jsonl", "report.html"}
    assert names == {"model", "parts", "predictions", *files}
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["unit"] == "£"
    assert summary["outcomes"] == summary["decisions"] == ["Healthy", "Mild", "Severe"]
    assert summary["chosen"] in ("blend", "constant")
    assert all(set(row) >= ROW_FIELDS for row in summary["rows"])
    pairs = [(row["model"], row["rule"]) for row in summary["rows"]]
    assert sorted(pairs) == sorted((model, rule) for model in ("constant", *THREE) for rule in ("argmax", "optimal"))
    for row in summary["rows"]:
        assert row["seeds"] == 2
        assert row["utility_low"] <= row["utility"] <= row["utility_high"]
        assert row["cost"] == pytest.approx(-row["utility"])
    results = read_lines(out / "results.jsonl")
    assert len(results) == 2 * len(pairs)
    for row in summary["rows"]:
        own = [line for line in results if (line["model"], line["rule"]) == (row["model"], row["rule"])]
        for key in ("utility", "accuracy", "nll", "ece"):
            assert row[key] == pytest.approx(np.mean([line[key] for line in own]))
    assert "Chosen: " in said.out
    assert re.search(r"constant +lowest expected cost +£\d+ \(£\d+ to £\d+\)", said.out)
    first, *lines, last = said.err.splitlines()
    assert "96 rows to learn from, in 2 folds, and 24 to test on" in first
    assert first.endswith("features")
    assert lines[0].strip().startswith("standard, 2 trainings, seed 0: done, about ")
    finished = {line.strip().partition(", 2 trainings")[0] for line in lines}
    assert finished == {"constant", "standard", "calibrated-0.1", "calibrated-1"}
    assert "what drives the decisions" in last


def test_results_are_those_of_the_predictions(run_folder: Path, patients: Path) -> None:
    """All from scratch, in NumPy, from the predictions on disk and the labels in the file."""
    rows = pd.read_csv(patients)
    utility = Utility.from_csv(patients.parent / "actions.csv")
    probs, _ = read_tensors(run_folder / "predictions" / "standard-0.safetensors")
    table = probs["probs"].double().numpy()
    # Which rows are the test rows: those of which the mean of the parts of two folds says the same.
    parts = [SavedModel.load(run_folder / "parts" / "1" / "standard-0" / fold / "model") for fold in "01"]
    assert all(part.encoder is not None for part in parts)
    x = torch.from_numpy(parts[0].encoder.transform(rows))
    everywhere = np.mean([part.predictor(x).mean_probs().double().numpy() for part in parts], axis=0)
    places = [int(np.abs(everywhere - row).sum(1).argmin()) for row in table]
    np.testing.assert_allclose(everywhere[places], table, atol=1e-6)
    assert places == sorted(set(places))
    assert len(places) == 24
    labels = np.array([utility.outcomes.index(name) for name in rows["diagnosis"].iloc[places]])
    costs = np.array([[float(cell) for cell in line.split(",")[1:]] for line in ACTIONS.splitlines()[1:]])
    choice = (table @ costs.T).argmin(1)
    found = next(
        line
        for line in read_lines(run_folder / "results.jsonl")
        if (line["model"], line["rule"]) == ("standard", "optimal")
    )
    assert found["cost"] == pytest.approx(costs[choice, labels].mean())
    assert found["utility"] == pytest.approx(-found["cost"])
    assert found["nll"] == pytest.approx(-np.log(table[np.arange(24), labels]).mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((choice == costs.argmin(0)[labels]).mean())
    assert np.sum(found["confusion"]) == 24
    assert found["confusion"][choice[0]][labels[0]] >= 1


@pytest.mark.parametrize("posterior", ["ensemble", "mean_field"])
def test_other_posteriors(fit: Callable[..., Any], posterior: str, patients: Path) -> None:
    options = ("--members", 2) if posterior == "ensemble" else ()
    out, _ = fit("--posterior", posterior, "--models", "calibrated", *options)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in summary["rows"]] == ["constant", "constant", "calibrated", "calibrated"]
    part = out / "parts" / "1" / "calibrated-1-0" / "1" / "model" / "model.json"
    saved = json.loads(part.read_text(encoding="utf-8"))
    assert saved["predictor"]["posterior"]["family"] == posterior
    notes = json.loads((out / "model" / "model.json").read_text(encoding="utf-8"))["notes"]
    assert notes["model"] == summary["chosen"]


def test_label_noise_brings_the_noise_models_and_can_be_learnt(fit: Callable[..., Any]) -> None:
    out, _ = fit("--label-noise", "learnt", "--learning-rate", 0.1, "--epochs", 1)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    names = "constant logistic forest boosting standard calibrated noise noise+calibrated"
    assert list(dict.fromkeys(row["model"] for row in summary["rows"])) == names.split()
    part = out / "parts" / "1" / "noise-0" / "0" / "model" / "model.json"
    saved = json.loads(part.read_text(encoding="utf-8"))
    likelihood = saved["predictor"]["likelihood"]
    assert likelihood["learn"] is True
    assert likelihood["rate"] != pytest.approx(0.05)
    out, _ = fit("--label-noise", "0", "--models", "noise", name="zero")
    assert Run.load(out).comparison.models == ["constant", "noise"]


def test_a_test_file(fit: Callable[..., Any], tmp_path: Path) -> None:
    """All of DATA is for training then; the test file needs the features, but not what was dropped."""
    columns = [name for name in HEADER if name != "age"]
    rows = [[*row[:4], row[5]] for row in patient_rows(5, seed=1)]
    test = write_csv(tmp_path / "test.csv", columns, rows)
    out, said = fit("--test", test, "--drop", "age", "--models", "logistic")
    counts = json.loads((out / "summary.json").read_text(encoding="utf-8"))["rows_used"]
    assert counts["test"] == 15
    assert counts == {"train": 120, "test": 15, "folds": 2, "tested": "file"}
    assert "15 to test on, of another file" in said.err


def test_parquet_gives_the_same_as_csv(fit: Callable[..., Any], patients: Path, tmp_path: Path) -> None:
    pd.read_csv(patients).to_parquet(tmp_path / "patients.parquet")
    first, _ = fit("--models", "standard")
    second, _ = fit("--models", "standard", data=tmp_path / "patients.parquet", name="from_parquet")
    for name in ("summary.json", "results.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.filterwarnings("ignore:.*few cases:stakes.errors.StakesWarning")
def test_labels_codes_names_with_commas_and_a_unit(fit: Callable[..., Any], tmp_path: Path) -> None:
    header = ["test_0", "test_1", "test_2", "ward", "age, in years", "diagnosis"]
    codes = {"Healthy": "0", "Mild": "1", "Severe": "2"}
    data = write_csv(tmp_path / "coded.csv", header, [[*row[:5], codes[row[5]]] for row in patient_rows(20)])
    costs = tmp_path / "c.csv"
    costs.write_text("cost,Healthy,Mild,Severe\ntreat,1,2,0\nwait,0,3,4\n")
    out, said = fit(
        "--labels", "0=Healthy, 1=Mild,2 = Severe", "--drop", '"age, in years",ward', "--unit", "minutes",
        "--models", "standard", data=data, costs=costs,
    )  # fmt: skip
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["unit"] == "minutes"
    assert re.search(r"that costs [\d.]+ minutes", said.out)
    assert "; 3 features" in said.err


def test_the_same_run_gives_the_same_bytes_and_another_seed_does_not(fit: Callable[..., Any]) -> None:
    options = ("--models", "calibrated")
    (first, _), (second, _), (other, _) = (
        fit(*options, name="first"),
        fit(*options, name="second"),
        fit(*options, "--seed", 1, name="other"),
    )
    same = ("summary.json", "results.jsonl", "model/weights.safetensors", "report.html")
    for name in same:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert (first / "results.jsonl").read_bytes() != (other / "results.jsonl").read_bytes()


def test_force_replaces_a_run_and_leaves_other_files(fit: Callable[..., Any], tmp_path: Path) -> None:
    out, _ = fit("--models", "standard")
    (out / "notes.txt").write_text("mine")
    out, _ = fit("--models", "weighted", "--force")
    assert (out / "notes.txt").read_text() == "mine"
    assert {path.name for path in (out / "parts" / "1").iterdir()} == {"constant-0", "weighted-0"}
    assert {path.name for path in (out / "predictions").iterdir()} == {
        "constant-0.safetensors", "weighted-0.safetensors"}  # fmt: skip


def test_resuming_a_finished_run_trains_nothing_and_changes_nothing(fit: Callable[..., Any]) -> None:
    out, _ = fit("--models", "standard")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    _, said = fit("--models", "standard", "--resume")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert "standard, 2 trainings, seed 0: done before" in said.err


@pytest.mark.filterwarnings("default")
def test_warnings_are_lines_of_their_own(fit: Callable[..., Any], tmp_path: Path) -> None:
    rows = [[number, *row] for number, row in enumerate(patient_rows(30))]
    _, said = fit("--models", "standard", data=write_csv(tmp_path / "numbered.csv", ["number", *HEADER], rows))
    (line,) = [line for line in said.err.splitlines() if line.startswith("stakes: warning: ")]
    assert "column 'number' looks like a row identifier" in line
