"""`stakes evaluate`: once outcomes are known. A tiny run of a logistic regression, then rows as before, and changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from patient_tables import write_csv

from stakes import Decider
from stakes.errors import StakesError, StakesWarning
from stakes.evaluation import metrics
from stakes.evaluation.comparison import select
from stakes.evaluation.metrics import Interval
from stakes.evaluation.promises import mean_cost_bound
from stakes.report.evaluation import sentences, write_evaluation
from stakes.tables.evaluate import evaluate_run, outcome_counts
from stakes.tables.fit import fit_table
from stakes.tables.run import Run
from stakes.tables.run_folder import RunFolder
from stakes.tables.task import TableTask

COSTS = np.array([[0.0, 40.0], [500.0, 0.0]])  # treat, wait x ill, well


def clinic(rows: int, seed: int, shift: float = 0.0, flip: float = 0.0) -> pd.DataFrame:
    """Sick people have a higher marker; ``shift`` moves the marker of all, ``flip`` is a share of swapped outcomes."""
    generator = np.random.default_rng(seed)
    ill = generator.random(rows) < 0.3
    marker = generator.normal(size=rows) + 3.0 * ill + shift
    happened = ill ^ (generator.random(rows) < flip)
    age = generator.integers(20, 80, rows)
    state = np.where(happened, "1", "0")
    return pd.DataFrame({"id": [f"{seed}-{i:03}" for i in range(rows)], "marker": marker, "age": age, "state": state})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clinic")
    clinic(400, 0).to_csv(folder / "data.csv", index=False)
    costs = write_csv(folder / "costs.csv", ["cost [£]", "ill", "well"], [["treat", 0, 40], ["wait", 500, 0]])
    task = TableTask(
        *(folder / "data.csv", "state", costs),
        test=0.5,
        drop=("id",),
        models=("logistic",),
        renames={"1": "ill", "0": "well"},
    )
    fit_table(task, RunFolder(folder / "run"))
    return folder / "run"


def written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_as_before_nothing_is_due(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    frame = clinic(300, 1)
    data = written(tmp_path / "labelled.csv", frame)
    said = stakes("evaluate", run, data, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("300 decisions cost ")
    assert lines[1].startswith("Deciding the same for everybody (treat) would have cost ")
    assert "less), beyond chance" in lines[1]
    assert lines[2].startswith("In the last test, of 199 rows, decisions cost ")
    assert "not beyond chance" in lines[2]
    assert lines[3].startswith("The model claimed ")
    assert lines[-1] == "Retraining is not due: nothing is worse beyond chance."
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["in_words"] == lines
    assert found["retraining"] == {"due": "no", "because": []}

    stakes("decide", run, data, "--out", tmp_path / "decisions.csv")
    decided = pd.read_csv(tmp_path / "decisions.csv")
    costs = COSTS[(decided["decision"] == "wait").astype(int), (frame["state"] == "0").astype(int)]
    assert found["cost"][0] == pytest.approx(costs.mean())
    assert found["cost"] == pytest.approx(metrics.bootstrap(costs, seed=0), abs=2.0)  # of 95 %, by other resamples
    assert found["claims"]["cost"] == pytest.approx(decided["expected_cost"].mean(), abs=1e-3)
    claim = metrics.paired_difference(-costs, -decided["expected_cost"], seed=0)
    np.testing.assert_allclose(found["claims"]["worth_more"], claim, atol=1e-2)
    treated = COSTS[0, (frame["state"] == "0").astype(int)]
    assert found["constant"]["decision"] == "treat"
    assert found["constant"]["cost"][0] == pytest.approx(treated.mean())
    assert found["constant"]["worth_more"][0] == pytest.approx((treated - costs).mean())
    assert np.sum(found["confusion"]) == 300
    assert [each["observed"] for each in found["outcomes"]] == [(frame["state"] == value).sum() for value in "10"]
    bound = mean_cost_bound(costs, 500.0)
    assert found["promise"]["mean_cost_at_most"] == pytest.approx(bound)
    (promised,) = (line for line in lines if line.startswith("With 95 % confidence"))
    assert bound <= float(promised.split("at most £")[1].split(" ")[0]) < bound + 1
    assert "no decision can cost more than £500, by these costs" in promised
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert "Retraining is not due" in page
    assert page.count('class="plot"') == 1


def test_worse_outcomes_make_retraining_due(run: Path, tmp_path: Path) -> None:
    evaluation = evaluate_run(run, written(tmp_path / "worse.csv", clinic(300, 2, flip=0.3)))
    assert evaluation.due == "yes"
    assert {"last test", "claim", "outcomes"} <= set(evaluation.reasons)


def test_other_rows_with_good_results_are_to_be_watched(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    older = clinic(300, 3)
    older["age"] = older["age"] / 4 + 75
    said = stakes("evaluate", run, written(tmp_path / "older.csv", older), "--out", tmp_path / "out")
    assert said.out.splitlines()[-2] == "The distribution has shifted in 'age'."
    assert said.out.splitlines()[-1].startswith("Retraining may be due soon: the rows are no longer distributed like")
    assert 'age <span class="tag">shifted</span>' in (tmp_path / "out" / "evaluation.html").read_text()


def test_few_rows_cannot_tell(run: Path, tmp_path: Path) -> None:
    evaluation = evaluate_run(run, written(tmp_path / "few.csv", clinic(300, 1).iloc[:12]))
    assert evaluation.due == "unknown"


def test_folders_are_numbered(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    data = written(tmp_path / "labelled.csv", clinic(40, 1))
    for number in (1, 2):
        said = stakes("evaluate", run, data)
        assert f"evaluation-{number}/evaluation.html" in said.err
        assert (run / f"evaluation-{number}" / "evaluation.json").is_file()


@pytest.mark.filterwarnings("ignore:.*is the file of the run")
def test_utilities_that_depend_on_the_row(tmp_path: Path, stakes: Callable[..., Any]) -> None:
    frame = clinic(200, 5).assign(fee=np.arange(200) % 7 + 1.0).replace({"state": {"0": "well", "1": "ill"}})
    data = written(tmp_path / "data.csv", frame.drop(columns="id"))
    costs = write_csv(tmp_path / "u.csv", ["utility", "ill", "well"], [["bet", "=-20*fee", "=fee"], ["pass", 0, 0]])
    fit_table(TableTask(data, "state", costs, test=0.5, models=("logistic",)), RunFolder(tmp_path / "run"))
    evaluation = evaluate_run(tmp_path / "run", data)
    bet, ill = evaluation.counts[0].sum(), (frame["state"] == "ill").sum()
    assert 0 < bet < 200
    decided = Decider(tmp_path / "run")(frame)
    worth = np.where(frame["state"] == "ill", -20 * frame["fee"], frame["fee"]) * (decided["decision"] == "bet")
    assert evaluation.worth.mean == pytest.approx(worth.mean())
    assert evaluation.constant_worth.mean == 0  # passing is best for everybody
    assert evaluation.to_dict()["utility"][0] == pytest.approx(worth.mean())
    said = stakes("evaluate", tmp_path / "run", data).out.splitlines()
    assert said[0].startswith("200 decisions were worth ")
    assert said[1].startswith(
        "Deciding the same for everybody (pass) would have been worth 0 (0 to 0): the decisions were"
    )
    assert " more), beyond chance." in said[1]
    assert ill > 20


# Decisions taken earlier -----------------------------------------------------------------------------


@pytest.fixture
def taken(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> Path:
    data = written(tmp_path / "new.csv", clinic(60, 4).drop(columns="state"))
    stakes("decide", run, data, "--out", tmp_path / "taken.csv", "--id", "id")
    return tmp_path / "taken.csv"


def test_decisions_are_joined_by_id_and_not_taken_again(
    run: Path, taken: Path, tmp_path: Path, stakes: Callable[..., Any]
) -> None:
    decided = pd.read_csv(taken, dtype={"id": str})
    decided["decision"] = decided["decision"].map({"treat": "wait", "wait": "treat"})  # as nobody would decide
    written(taken, decided)
    outcomes = clinic(60, 4)[["id", "state"]].sample(frac=1, random_state=0).iloc[:50]  # later, in another order
    outcomes.iloc[7, 1] = ""
    strangers = pd.DataFrame({"id": ["x", "y"], "state": ["0", "1"]})
    labelled = written(tmp_path / "outcomes.csv", pd.concat([outcomes, strangers]))
    evaluation = evaluate_run(run, labelled, decisions=taken, id_columns=["id"])
    assert evaluation.left_out == {
        "rows without an outcome": 1,
        "outcomes without a decision": 2,
        "decisions without an outcome": 11,
    }
    both = decided.merge(outcomes[outcomes["state"] != ""], on="id")
    costs = COSTS[(both["decision"] == "wait").astype(int), (both["state"] == "0").astype(int)]
    assert evaluation.utility.cost_of(evaluation.worth.mean) == pytest.approx(costs.mean())
    claimed = np.where(both["decision"] == "treat", both["cost_treat"], both["cost_wait"])
    assert evaluation.claimed is not None
    assert evaluation.utility.cost_of(evaluation.claimed.mean) == pytest.approx(claimed.mean(), abs=1e-3)
    assert evaluation.drift is None  # the features are not there
    assert evaluation.due == "yes"
    said = stakes("evaluate", run, labelled, "--decisions", taken, "--id", "id", "--out", tmp_path / "out")
    lines = said.out.splitlines()
    assert "Left out: rows without an outcome (1), outcomes without a decision (2), decisions without an" in lines[0]
    assert f"Some outcomes have few cases (ill {(both['state'] == '1').sum()}): what is said to be" in lines[0]
    assert "cannot be told" in (tmp_path / "out" / "evaluation.html").read_text()


@pytest.mark.filterwarnings("ignore:read as numbers")
def test_ids_that_are_features_too_stay_as_they_are_written(tmp_path: Path, stakes: Callable[..., Any]) -> None:
    rows = clinic(120, 6).assign(id=[f"{number:05d}" for number in range(120)])
    costs = write_csv(tmp_path / "c.csv", ["cost", "ill", "well"], [["treat", 0, 40], ["wait", 500, 0]])
    task = TableTask(
        written(tmp_path / "data.csv", rows), "state", costs, models=("logistic",), renames={"1": "ill", "0": "well"}
    )
    with pytest.warns(StakesWarning, match="'id' looks like a row identifier"):
        fit_table(task, RunFolder(tmp_path / "run"))
    new = written(tmp_path / "new.csv", rows.assign(state="1"))
    stakes("decide", tmp_path / "run", new, "--out", tmp_path / "taken.csv", "--id", "id", "--keep", "marker")
    taken = pd.read_csv(tmp_path / "taken.csv", dtype=str)
    assert taken["id"].tolist() == rows["id"].tolist()
    assert taken["marker"].tolist() == pd.read_csv(new, dtype=str)["marker"].tolist()
    assert evaluate_run(tmp_path / "run", new, decisions=tmp_path / "taken.csv", id_columns=["id"]).rows == 120
    # As a spreadsheet in German would save it again, without the zeros in front.
    decimal = [name for name in taken if name.startswith(("p_", "cost_", "expected"))]
    excel = taken.assign(**{name: taken[name].str.replace(".", ",") for name in decimal})
    excel.to_csv(tmp_path / "excel.csv", sep=";", index=False)
    again = evaluate_run(tmp_path / "run", new, decisions=tmp_path / "excel.csv", id_columns=["id"])
    assert again.claimed is not None
    excel.assign(id=excel["id"].str.lstrip("0")).to_csv(tmp_path / "lost.csv", sep=";", index=False)
    some = written(tmp_path / "some.csv", rows.iloc[1:9])
    with pytest.raises(StakesError, match=r"is in both \(the first ones are '' and '00001'\)"):
        evaluate_run(tmp_path / "run", some, decisions=tmp_path / "lost.csv", id_columns=["id"])


def test_several_columns_can_name_a_row(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    rows = clinic(60, 4).assign(ward=["01", "1"] * 30)  # as written: these are two wards
    rows["id"] = np.repeat(np.arange(30), 2)
    data = written(tmp_path / "new.csv", rows.drop(columns="state"))
    stakes("decide", run, data, "--out", tmp_path / "taken.csv", "--id", "id,ward")
    decided = pd.read_csv(tmp_path / "taken.csv", dtype=str)
    assert decided.columns[:2].tolist() == ["id", "ward"]
    labelled = written(tmp_path / "outcomes.csv", rows.sample(frac=1, random_state=0))
    evaluation = evaluate_run(run, labelled, decisions=tmp_path / "taken.csv", id_columns=["id", "ward"])
    costs = COSTS[(decided["decision"] == "wait").astype(int), (rows["state"] == "0").astype(int)]
    assert evaluation.rows == 60
    assert evaluation.utility.cost_of(evaluation.worth.mean) == pytest.approx(costs.mean())
    with pytest.raises(StakesError, match=r"stands more than once; several columns can name a row"):
        evaluate_run(run, labelled, decisions=tmp_path / "taken.csv", id_columns=["id"])


def test_decisions_without_probabilities_are_evaluated_without_claims(
    run: Path, taken: Path, tmp_path: Path, stakes: Callable[..., Any]
) -> None:
    written(taken, pd.read_csv(taken, dtype={"id": str})[["id", "decision"]])
    labelled = written(tmp_path / "outcomes.csv", clinic(60, 4))
    said = stakes("evaluate", run, labelled, "--decisions", taken, "--id", "id", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert "What the model claimed is not known" in said.out
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["claims"] is None
    assert found["drift"]["rows"] == 60  # here are the features


def test_what_is_refused(run: Path, taken: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    frame = clinic(60, 4)
    labelled = written(tmp_path / "outcomes.csv", frame)
    assert "--decisions FILE and --id COLUMN together" in refused("evaluate", run, labelled, "--decisions", taken)
    assert "expected the column 'result'" in refused("evaluate", run, labelled, "--target", "result")
    assert "these are missing: 'marker'" in refused("evaluate", run, written(labelled, frame.drop(columns="marker")))
    assert "there are none" in refused("evaluate", run, written(labelled, frame.assign(state="")))
    join = ("--decisions", taken, "--id", "id")
    strange = written(labelled, frame.assign(id=range(60)))
    assert "no value of 'id' is in both" in refused("evaluate", run, strange, *join)
    twice = written(labelled, frame.assign(id="4-001"))
    assert "expected each 'id' once, but '4-001'" in refused("evaluate", run, twice, *join)
    written(labelled, frame)
    decided = pd.read_csv(taken, dtype={"id": str})
    written(taken, decided.assign(decision="pray"))
    assert "expected the decisions 'treat', 'wait'" in refused("evaluate", run, labelled, *join)
    written(taken, decided.assign(p_ill=3.0))
    assert "expected probabilities that sum to 1" in refused("evaluate", run, labelled, *join)
    written(taken, decided.drop(columns="decision"))
    assert "expected the columns 'id', 'decision'" in refused("evaluate", run, labelled, *join)
    assert "no run.json" in refused("evaluate", tmp_path, labelled)


def test_labels_of_other_spelling(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    frame = clinic(60, 4)
    frame["verdict"] = frame.pop("state").map({"1": "yes", "0": "no"})
    options = ("--target", "verdict", "--labels", "yes=ill,no=well", "--out", tmp_path / "out")
    assert stakes("evaluate", run, written(tmp_path / "a.csv", frame), *options).code == 0


# The numbers -----------------------------------------------------------------------------------------


def test_how_often_outcomes_happened_against_what_was_said() -> None:
    probs = torch.tensor([[0.2, 0.8]], dtype=torch.double).expand(100, -1)
    counts = outcome_counts(("a", "b"), probs, torch.tensor([0] * 22 + [1] * 78))
    assert [(each.observed, each.expected, each.off) for each in counts] == [
        (22, pytest.approx(20), False),
        (78, pytest.approx(80), False),
    ]
    assert counts[0].high - 20.5 == pytest.approx(2.2414 * 4, abs=1e-3)  # 97.5 % each, for there are two
    assert all(each.off for each in outcome_counts(("a", "b"), probs, torch.tensor([0] * 40 + [1] * 60)))


def test_rows_of_one_patient_do_not_raise_an_alarm_together() -> None:
    """A model that is right about 50 patients of 8 rows each, whose outcome is the patient's; 5 % are meant."""
    generator, alarms = np.random.default_rng(0), {"apart": 0, "groups": 0, "times": 0}
    groups = np.repeat(np.arange(50), 8)
    for _ in range(200):
        ill = generator.uniform(0.1, 0.6, 50)
        labels = torch.from_numpy(np.repeat(generator.random(50) < ill, 8).astype(int))
        probs = torch.from_numpy(np.repeat(np.stack([1 - ill, ill], 1), 8, 0))
        ways: dict[str, Any] = {"apart": {}, "groups": {"groups": groups}, "times": {"times": np.arange(400.0)}}
        for name, known in ways.items():
            alarms[name] += any(each.off for each in outcome_counts(("well", "ill"), probs, labels, **known))
    assert alarms["groups"] <= 14
    assert alarms["times"] <= 24
    assert alarms["apart"] > 60
    (count,) = outcome_counts(("a",), torch.ones(3, 1), torch.zeros(3, dtype=torch.long), groups=np.zeros(3))
    assert (count.low, count.high) == (0, 3)  # one patient says nothing


def test_the_difference_of_two_means_over_different_rows() -> None:
    """For symmetric intervals it is that of independent normal means."""
    found = metrics.independent_difference(Interval(5.0, 2.0, 8.0), Interval(1.0, -3.0, 5.0))
    assert found == pytest.approx((4.0, -1.0, 9.0))
    skewed = metrics.independent_difference(Interval(0.0, -1.0, 3.0), Interval(0.0, -4.0, 0.0))
    assert skewed == pytest.approx((0.0, -1.0, 5.0))


def test_other_costs_decide_and_count(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    """At a twentieth of the cost of waiting, and with a third decision: all amounts by hand, the last test's too."""
    frame = clinic(300, 1)
    data = written(tmp_path / "labelled.csv", frame)
    lines = [["wait", 25, 0], ["treat", 0, 40], ["ask", 8, 8]]
    costs = write_csv(tmp_path / "other.csv", ["cost [€]", "ill", "well"], lines)
    said = stakes("evaluate", run, data, "--costs", costs, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert said.out.startswith("At the costs of other.csv, 300 decisions cost ")
    assert "In the last test, of 199 rows, decisions would have cost " in said.out
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["unit"] == "€"
    assert found["costs"] == "other.csv"

    table = np.array([line[1:] for line in lines], dtype=float)
    ids = ("--id", "id")
    assert stakes("decide", run, data, "--costs", costs, "--out", tmp_path / "decisions.csv", *ids).code == 0
    decided = pd.read_csv(tmp_path / "decisions.csv")
    probs = decided[["p_ill", "p_well"]].to_numpy()
    choice = (probs @ table.T).argmin(1)
    assert set(choice) == {0, 1, 2}
    own = table[choice, (frame["state"] == "0").astype(int)]
    assert found["cost"][0] == pytest.approx(own.mean())
    tested = Run.load(run)
    (item,) = select(tested.scored, tested.comparison.chosen, "optimal")
    before = table[(item.predictions.probs.numpy() @ table.T).argmin(1), tested.labels.numpy()]
    assert found["last_test"]["cost"][0] == pytest.approx(before.mean())

    # Decisions that were taken by these costs can be counted by them, and by no others.
    joined = ("evaluate", run, data, "--decisions", tmp_path / "decisions.csv", *ids, "--out", tmp_path / "joined")
    assert stakes(*joined, "--costs", costs).out.split(" each")[0] == said.out.split(" each")[0]
    assert "of the costs, but got 'ask'" in stakes(*joined).err


def test_costs_by_formula_leave_the_last_test_unknown(run: Path, tmp_path: Path, stakes: Callable[..., Any]) -> None:
    data = written(tmp_path / "labelled.csv", clinic(100, 1))
    costs = write_csv(tmp_path / "f.csv", ["cost", "ill", "well"], [["treat", 0, "=0.5 * age"], ["wait", 500, 0]])
    said = stakes("evaluate", run, data, "--costs", costs, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert "What the decisions of the last test would have cost is not known" in said.out
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["last_test"]["cost"] is None
    assert "the last test" not in (tmp_path / "out" / "evaluation.html").read_text().split('id="decisions"')[0].split(
        "<table")[1]  # fmt: skip


def test_a_difference_that_rests_on_few_cases_is_not_beyond_chance(run: Path, tmp_path: Path) -> None:
    """Treating everybody is never dear for the ill: that none of 25 was missed says little about the next 25."""
    frame = clinic(2000, 5)
    ill = frame[(frame["state"] == "1") & (frame["marker"] > 3)][:25]
    data = written(tmp_path / "labelled.csv", pd.concat([ill, frame[frame["state"] == "0"][:30]]))
    evaluation = evaluate_run(run, data)
    assert evaluation.against_constant.low > 0
    assert [(each.outcome, each.cases, each.differing) for each in evaluation.few] == [("ill", 25, 0)]
    assert "cannot be told: the two differ in none of 25 cases of ill" in " ".join(sentences(evaluation))


def test_rows_of_one_group_are_resampled_together(run: Path, tmp_path: Path) -> None:
    grouped = tmp_path / "run"
    shutil.copytree(run, grouped)
    settings = json.loads((grouped / "run.json").read_text())
    (grouped / "run.json").write_text(json.dumps({**settings, "group": "ward"}))
    frame = clinic(60, 1)
    copies = pd.concat([frame.assign(ward=range(60))] * 5)
    of_groups = evaluate_run(grouped, written(tmp_path / "copies.csv", copies)).worth
    with pytest.warns(StakesWarning, match="'ward', by which the run has --group, is not there: intervals take rows"):
        of_rows = evaluate_run(grouped, written(tmp_path / "without.csv", copies.drop(columns="ward"))).worth
    of_sixty = evaluate_run(run, written(tmp_path / "once.csv", frame)).worth
    assert of_groups.mean == of_rows.mean == pytest.approx(of_sixty.mean)
    assert of_groups.high - of_groups.low == pytest.approx(of_sixty.high - of_sixty.low, rel=0.15)
    assert of_groups.high - of_groups.low > 1.7 * (of_rows.high - of_rows.low)


def test_rows_that_the_model_was_trained_on_are_told(run: Path, tmp_path: Path) -> None:
    with pytest.warns(StakesWarning, match="is the file of the run: the model was trained on most of these rows"):
        evaluation = evaluate_run(run, run.parent / "data.csv")
    assert evaluation.promise.bound is None
    known = "data.csv is the file of the run: the model was trained on most of these rows"
    assert known in json.dumps(evaluation.to_dict())
    assert known in (write_evaluation(evaluation, run, tmp_path / "out") / "evaluation.html").read_text("utf-8")
