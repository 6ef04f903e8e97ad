"""`stakes fit`, `decide` and `evaluate` where the outcome is a number."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from stakes import Decider, Newsvendor, SavedModel, StakesWarning
from stakes.evaluation.promises import mean_cost_bound
from stakes.mixtures import LEVELS
from stakes.predictors import PastQuantiles, QuantileBlend
from stakes.tables.amounts.decider import AmountDecider
from stakes.tables.amounts.run import AmountRun
from stakes.tables.encode import TableEncoder
from stakes.tables.fit import fit_table
from stakes.tables.problem import Recipe
from stakes.tables.run_folder import RunFolder
from stakes.tables.runs import load_run
from stakes.tables.task import TableTask, command
from stakes.training.config import Training

QUICK = ("--models", "constant,neighbours,forest", "--folds", "2", "--workers", "1")
TINY = Recipe(
    tabm={"members": 4, "width": 16},
    training=Training(epochs=8, batch_size=32, learning_rate=0.02, select="nll", patience=4),
    samples=4,
)


def demand_table(days: int = 240, seed: int = 0) -> pd.DataFrame:
    """Weekends sell more, rain sells less; the date is the day."""
    generator = np.random.default_rng(seed)
    dates = pd.date_range("2014-01-01", periods=days)
    rain = generator.gamma(1, 2, days).round(2)
    mean = 30 + 15 * (dates.day_of_week >= 5) - 2 * rain
    return pd.DataFrame(
        {
            "date": dates.strftime("%Y-%m-%d"),
            "weekday": dates.strftime("%a"),
            "rain": rain,
            "price": generator.choice([10, 20], days),
            "sold": np.maximum(0, (mean + 4 * generator.normal(size=days)).round()).astype(int),
        }
    )


@pytest.fixture(scope="session")
def demand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demand") / "demand.csv"
    demand_table().to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def demand_run(demand: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every model."""
    task = TableTask(
        demand, "sold", unit="€", time="date", folds=2, recipe=TINY, under="15", over="5", step=1.0, at_least=0.0
    )
    out = tmp_path_factory.mktemp("amounts") / "run"
    fit_table(task, RunFolder(out))
    return out


def test_a_run_from_beginning_to_end(demand_run: Path) -> None:
    run = load_run(demand_run)
    assert isinstance(run, AmountRun)
    assert run.comparison.models == [
        *("constant", "linear", "neighbours", "forest", "mean", "boosting", "standard", "calibrated", "blend")
    ]
    assert run.comparison.chosen == "blend"
    assert len(run.labels) == 48
    assert run.rows["tested"] == "latest"
    assert run.time_texts[0] == "2014-07-12"
    saving = run.comparison.row("blend").saving
    assert saving.low > 0
    for item in run.scored:
        assert item.predictions.quantiles.shape == (48, 99)
        assert bool((item.predictions.quantiles.diff(dim=1) >= 0).all())
        assert (item.choice == item.choice.round()).all()
    weights = run.scored[-1].predictions.details["weights"]
    assert sum(weights.values()) == pytest.approx(1)
    constant = run.scored[0].choice.unique()
    early = demand_table()["sold"][:192]
    assert constant.tolist() == [np.quantile(early, 0.75, method="inverted_cdf")]


def test_the_saved_model_says_what_was_compared(demand_run: Path) -> None:
    run, saved = AmountRun.load(demand_run), SavedModel.load(demand_run / "model")
    assert isinstance(saved.predictor, QuantileBlend)
    rows = demand_table().iloc[192:]
    decided = saved.decide(torch.from_numpy(saved.encoder.transform(rows)))
    said = run.scored[-1].predictions.quantiles
    assert decided.outcomes.at_levels == pytest.approx(said.double(), rel=1e-5, abs=1e-4)
    assert (decided.choice - run.scored[-1].choice).abs().max() <= 1  # beside a tie, a step


def test_models_are_made_of_all_rows_and_judged_going_forward(demand: Path) -> None:
    from stakes.tables.prepare import prepare

    task = TableTask(demand, "sold", time="date", folds=3, under="15", over="5")
    problem = prepare(task).divisions[-1].problem
    assert (problem.selection_folds, problem.model_folds) == ((0, 1, 2), (3, 4, 5))
    for fold in problem.selection_folds:
        train, held = problem.folds[fold]
        assert train.max() < held.min()
    assert problem.folds[0].held.min() == 96  # half of the rows to learn from come before all that is judged
    assert sorted(np.concatenate([problem.folds[fold].held for fold in problem.model_folds])) == list(range(192))
    for fold in problem.model_folds:  # two weeks at a time
        assert all(len(run) % 14 == 0 or run[-1] == 191 for run in _runs(problem.folds[fold].held))


def _runs(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)


def test_the_terminal_says_the_answer(stakes: Callable[..., Any], demand: Path, tmp_path: Path) -> None:
    said = stakes(
        *("fit", demand, "--target", "sold", "--under", 15, "--over", 5, "--unit", "€", "--time", "date"),
        *("--out", tmp_path / "run", *QUICK),
    )
    assert said.code == 0, said.err
    assert said.out.startswith("Deciding with this model costs ")
    constant = np.quantile(demand_table()["sold"][:192], 0.75)
    assert f"less than deciding {constant:g} every time (95 % interval " in said.out
    assert "; the costs ask for 75.0 %" in said.out
    assert "intervals resample 8 consecutive times together" in said.out
    assert {"model", "results.jsonl", "summary.json", "predictions"} <= set(os.listdir(tmp_path / "run"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [row["model"] for row in summary["rows"]] == ["constant", "neighbours", "forest"]
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "--target sold --under 15 --over 5 --folds 2 --time date --unit '€' " in command(settings)
    assert "--costs" not in command(settings)


def test_decide_writes_numbers_costs_and_intervals(
    stakes: Callable[..., Any], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    out, data = tmp_path / "d.csv", pd.read_csv(demand)
    said = stakes("decide", demand_run, demand, "--out", out, "--id", "date")
    assert said.code == 0, said.err
    table = pd.read_csv(out)
    assert list(table) == ["date", "decision", "expected_cost", "low", "high", "unusual"]
    assert (table["date"] == data["date"]).all()
    assert (table["decision"] == table["decision"].round()).all()
    assert (table["low"] < table["high"]).all()
    weekend = data["weekday"].isin(["Sat", "Sun"])
    assert table["decision"][weekend].mean() > table["decision"][~weekend].mean() + 8
    within = (table["low"] <= data["sold"]) & (data["sold"] <= table["high"])
    assert within.mean() > 0.8
    summary = json.loads((tmp_path / "d.summary.json").read_text())
    assert summary["decisions"]["total"] == pytest.approx(table["decision"].sum())
    assert summary["mean_expected_cost"] == pytest.approx(table["expected_cost"].mean(), rel=1e-4)


def test_a_decider_of_amounts_is_one_of_its_kind(demand_run: Path) -> None:
    decider = Decider(demand_run)
    assert isinstance(decider, AmountDecider)
    frame = demand_table(5)
    again = pickle.loads(pickle.dumps(decider))
    pd.testing.assert_frame_equal(again(frame), decider(frame))
    strange = decider(frame.assign(rain=500.0))
    assert strange["unusual"].str.contains("rain").all()


def test_amounts_are_rounded_by_their_own_size_whatever_they_cost(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    past = PastQuantiles(torch.linspace(0.05, 1, 99, dtype=torch.float64) * 0.02)
    for name, utility in {"any": Newsvendor(3e8, 1e8), "steps": Newsvendor(3e8, 1e8, at_least=0, step=2.5e-4)}.items():
        model = SavedModel(past, utility, TableEncoder.fit(frame))
        model.save(tmp_path / name)
        exact = model.decide(torch.zeros(2, 1))
        written = Decider(tmp_path / name)(frame)
        np.testing.assert_allclose(written["decision"], exact.choice, rtol=1e-6)
        np.testing.assert_allclose(written[["low", "high"]].T, torch.stack(exact.interval(0.9)), rtol=1e-5)
        np.testing.assert_allclose(written["expected_cost"], -exact.expected_utility, rtol=1e-6)
    assert written["decision"].tolist() == [0.01525] * 2


def test_reasons_sum_to_the_decision_less_its_mean(demand_run: Path) -> None:
    decider = Decider(demand_run, why=3)
    frame = demand_table(3, seed=5)
    x = torch.from_numpy(decider.encoder.transform(frame))
    background = torch.from_numpy(decider.encoder.encode(decider.profile.background_frame))
    took = decider.model.decide(x)
    values = np.array(
        [sum(float(text.split()[-1].replace(",", "")) for text in row if isinstance(text, str)) for row in
         decider(frame)[["why_1", "why_2", "why_3"]].to_numpy()]
    )  # fmt: skip
    mean = decider.model.decide(background).choice.mean()
    assert values == pytest.approx((took.choice - mean).numpy(), abs=0.05)
    weekend = frame.assign(weekday="Sat")
    assert decider(weekend)["why_1"].str.startswith("weekday +").all()


def test_evaluate_says_what_decisions_came_to(stakes: Callable[..., Any], demand_run: Path, tmp_path: Path) -> None:
    later = demand_table(400).iloc[240:]
    later.to_csv(tmp_path / "later.csv", index=False)
    said = stakes("evaluate", demand_run, tmp_path / "later.csv", "--out", tmp_path / "now")
    assert said.code == 0, said.err
    assert said.out.startswith("160 decisions cost ")
    assert "Deciding the same every time (35) would have cost " in said.out
    now = json.loads((tmp_path / "now" / "evaluation.json").read_text())
    # The same from decisions that were taken earlier, and by hand.
    stakes("decide", demand_run, tmp_path / "later.csv", "--out", tmp_path / "d.csv", "--id", "date")
    taken = pd.read_csv(tmp_path / "d.csv")["decision"].to_numpy()
    sold = later["sold"].to_numpy()
    costs = 15 * np.maximum(sold - taken, 0) + 5 * np.maximum(taken - sold, 0)
    assert now["cost"][0] == pytest.approx(costs.mean())
    assert now["coverage"]["at_or_below"][0] == pytest.approx((sold <= taken).mean())
    page = (tmp_path / "now" / "evaluation.html").read_text()
    too_many = 5 * np.maximum(taken - sold, 0).sum()
    assert f'<td data-label="cost in all">{too_many:,.0f} €</td>' in page
    assert f'<td data-label="rows">{100 * (sold < taken).mean():.1f} %</td>' in page
    assert "Intervals resample 11 consecutive times together" in page
    assert "The latest 84 of 160 rows" in page
    assert page.count('<svg viewBox="0 0') - page.count('<svg viewBox="0 0 44 14"') == 3  # fan, coverage, costs
    said = stakes(
        *("evaluate", demand_run, tmp_path / "later.csv", "--decisions", tmp_path / "d.csv", "--id", "date"),
        *("--out", tmp_path / "then"),
    )
    assert said.code == 0, said.err
    then = json.loads((tmp_path / "then" / "evaluation.json").read_text())
    assert then["cost"] == pytest.approx(now["cost"])
    assert then["claims"]["cost"] == pytest.approx(now["claims"]["cost"], rel=1e-4)
    page = (tmp_path / "then" / "evaluation.html").read_text()
    assert "90 % of all outcomes were expected here" in page  # low and high are in the file
    assert "now</span>" not in page  # but quantiles are not: there is only the curve of the last test


def test_evaluate_tells_of_coverage_and_of_rows_that_have_changed(
    stakes: Callable[..., Any], demand_run: Path, tmp_path: Path
) -> None:
    """More is sold than ever, on days with more rain than ever."""
    later = demand_table(400).iloc[240:].assign(rain=lambda table: table["rain"] + 30)
    later["sold"] += 40
    later.to_csv(tmp_path / "later.csv", index=False)
    said = stakes("evaluate", demand_run, tmp_path / "later.csv", "--out", tmp_path / "out")
    assert "Decisions were enough for 0.0 % of what happened (95 % interval 0.0 % to 0.0 %); the costs ask" in said.out
    assert "That is beyond chance: outcomes were higher than the model expected." in said.out
    last = said.out.splitlines()[-1]
    assert last.startswith("Retraining is due: the decisions cost more than in the last test, and the decisions cost")
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert f'<p class="headline">{last}</p>' in page
    assert 'rain <span class="tag">shifted</span>' in page
    # Without the columns, by decisions of earlier, drift is not known.
    stakes("decide", demand_run, tmp_path / "later.csv", "--out", tmp_path / "d.csv", "--id", "date")
    later[["date", "sold"]].to_csv(tmp_path / "sold.csv", index=False)
    said = stakes("evaluate", demand_run, tmp_path / "sold.csv", "--decisions", tmp_path / "d.csv", "--id", "date")
    assert "Drift is unknown" in said.out
    assert "or the steps and bounds of decisions are the reason" in said.out


def test_costs_that_are_columns(stakes: Callable[..., Any], demand: Path, tmp_path: Path) -> None:
    said = stakes(
        *("fit", demand, "--target", "sold", "--under", "=price - 2", "--over", "2", "--time", "date"),
        *("--out", tmp_path / "run", *QUICK),
    )
    assert said.code == 0, said.err
    run = AmountRun.load(tmp_path / "run")
    prices = demand_table()["price"].to_numpy()[192:]
    assert run.utility.under.tolist() == (prices - 2).tolist()
    assert run.formulas is not None
    assert run.formulas.under == "=price - 2"
    constant = run.scored[0].choice.numpy()  # one number for each price
    assert {len(set(constant[prices == price])) for price in (10, 20)} == {1}
    assert constant[prices == 20][0] > constant[prices == 10][0]
    decided = Decider(tmp_path / "run")(demand_table(10).assign(price=[10, 20] * 5))
    assert decided["decision"].notna().all()


@pytest.mark.filterwarnings("ignore:.*is the file of the run")
def test_a_menu_of_actions(stakes: Callable[..., Any], demand: Path, tmp_path: Path) -> None:
    menu = tmp_path / "menu.csv"
    menu.write_text("cost curve [€],0,30,60\nsmall shift,0,0,300\nlarge shift,100,,\n", encoding="utf-8")
    checked = stakes("costs", "check", menu)
    assert "small shift" in checked.out
    assert "No warnings." in checked.out
    said = stakes(
        *("fit", demand, "--target", "sold", "--costs", menu, "--time", "date", "--out", tmp_path / "run", *QUICK)
    )
    assert said.code == 0, said.err
    run = AmountRun.load(tmp_path / "run")
    assert run.utility.decisions == ("small shift", "large shift")
    assert "than deciding “" in said.out
    out = tmp_path / "d.csv"
    assert stakes("decide", tmp_path / "run", demand, "--out", out, "--why", 1).code == 0
    table, weekend = pd.read_csv(out), demand_table()["weekday"].isin(["Sat", "Sun"])
    assert list(table)[:6] == [*("decision", "expected_cost", "low", "high", "cost_small shift", "cost_large shift")]
    assert (table["expected_cost"] == table[["cost_small shift", "cost_large shift"]].min(axis=1)).all()
    assert (table["decision"][weekend] == "large shift").mean() > (table["decision"][~weekend] == "large shift").mean()
    said = stakes("evaluate", tmp_path / "run", demand, "--out", tmp_path / "e")
    assert said.code == 0, said.err
    page = (tmp_path / "e" / "evaluation.html").read_text()
    taken = (table["decision"] == "large shift").to_numpy()
    assert f'<td data-label="taken"><span>{taken.sum()}<small>' in page
    assert f'<td data-label="cost in all">{100 * taken.sum():,} €</td>' in page
    assert 'id="fan"' not in page


def test_a_number_with_a_table_of_costs_is_a_class(stakes: Callable[..., Any], tmp_path: Path) -> None:
    table = demand_table()[["weekday", "rain", "sold"]].assign(sold=lambda frame: (frame["sold"] > 30).astype(int))
    table.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "costs.csv").write_text("cost,0,1\nsmall,0,5\nlarge,2,0\n")
    said = stakes(
        *("fit", tmp_path / "d.csv", "--target", "sold", "--costs", tmp_path / "costs.csv", "--test", "0.3"),
        *("--models", "logistic", "--folds", "2", "--out", tmp_path / "run", "--workers", "1"),
    )
    assert said.code == 0, said.err
    assert load_run(tmp_path / "run").kind == "classes"
    # And with costs for each unit, two numbers are amounts.
    said = stakes(
        *("fit", tmp_path / "d.csv", "--target", "sold", "--under", 3, "--over", 1, "--test", "0.3"),
        *("--models", "neighbours", "--folds", "2", "--out", tmp_path / "two", "--workers", "1"),
    )
    assert said.code == 0, said.err
    assert load_run(tmp_path / "two").kind == "amounts"


def test_without_time_every_row_of_a_small_table_is_tested(
    stakes: Callable[..., Any], demand: Path, tmp_path: Path
) -> None:
    said = stakes(
        *("fit", demand, "--target", "sold", "--under", 15, "--over", 5, "--drop", "date"),
        *("--out", tmp_path / "run", "--models", "neighbours", "--folds", "2", "--workers", "1"),
    )
    assert said.code == 0, said.err
    run = AmountRun.load(tmp_path / "run")
    assert (len(run.labels), run.comparison.block, run.times) == (240, None, None)


BAD = {
    ("--under", "15"): "expected --under and --over together",
    ("--under", "15", "--over", "-5"): "--over: expected a cost of 0 or more of each unit too many, but got -5",
    ("--under", "inf", "--over", "5"): "--under: expected a cost of 0 or more of each unit too few, but got inf",
    ("--under", "0", "--over", "0"): "expected a cost above 0 of too few or of too many",
    ("--under", "=rain - 5", "--over", "1"): "expected costs of 0 or more for under, =rain - 5, but row ",
    ("--under", "cost", "--over", "1"): "expected the columns 'cost', which the costs depend on",
    ("--under", "=sold", "--over", "1"): "the costs depend on the target 'sold'",
    ("--under", "a b", "--over", "1"): "--under: expected",
    ("--under", "1", "--over", "1", "--step", "0"): "expected a step above 0",
    ("--under", "1", "--over", "1", "--step", "7", "--at-least", "1", "--at-most", "5"): "leaves one decision",
    (
        "--under",
        "1",
        "--over",
        "1",
        "--at-least",
        "9",
        "--at-most",
        "3",
    ): "expected the lowest decision below the highest, but got at least 9 and at most 3",
    ("--under", "1", "--over", "1", "--labels", "0=none"): "--labels names classes",
    ("--under", "1", "--over", "1", "--label-noise", "0.1"): "--label-noise is for classes",
    ("--under", "1", "--over", "1", "--models", "logistic"): "expected a model of 'constant', 'linear'",
    ("--under", "1", "--over", "1", "--lags", "7"): "--lags: expected --time",
    ("--under", "1", "--over", "1", "--lags", "0", "--time", "date"): "--lags: expected different whole numbers",
    ("--under", "1", "--over", "1", "--series", "weekday"): "give --lags, or leave it out",
    ("--under", "1", "--over", "1", "--likelihood", "poisson"): "expected the likelihood to be one of",
    ("--under", "1", "--over", "1", "--likelihood", "log_normal"): "expected amounts above 0 with --likelihood",
    (): "say what decisions cost",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_options(refused: Callable[..., str], demand: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    table = pd.read_csv(demand)
    table.loc[7, "sold"] = 0
    table.to_csv(tmp_path / "d.csv", index=False)
    message = refused("fit", tmp_path / "d.csv", "--target", "sold", "--out", tmp_path / "run", *options)
    assert BAD[options] in message
    assert not (tmp_path / "run").exists()


def test_bad_targets(refused: Callable[..., str], demand: Path, tmp_path: Path) -> None:
    def fit(target: str, **changes: Any) -> str:
        pd.read_csv(demand).assign(**changes).to_csv(tmp_path / "d.csv", index=False)
        costs = ("--under", 1, "--over", 1, "--out", tmp_path / "run")
        return refused("fit", tmp_path / "d.csv", "--target", target, *costs)

    assert "--under, --over and cost curves are for a target that is a number" in fit("weekday")
    assert "expected amounts that differ, but every row has 3" in fit("sold", sold=3)
    gap = demand_table()["sold"].astype(float)
    gap[4] = np.nan
    assert "1 of 240 have none, first in row 5" in fit("sold", sold=gap)


def test_a_curve_file_with_options_for_numbers(refused: Callable[..., str], demand: Path, tmp_path: Path) -> None:
    menu, out = tmp_path / "menu.csv", tmp_path / "run"
    menu.write_text("cost curve,0,30\na,1,2\nb,2,1\n")
    base = ("fit", demand, "--target", "sold", "--out", out)
    assert "but got '--costs', '--under', '--over'; leave one out" in refused(
        *base, "--costs", menu, "--under", 1, "--over", 1
    )
    assert "--step is for decisions that are numbers" in refused(*base, "--costs", menu, "--step", 1)
    menu.write_text("cost curve,0,x\na,1,2\n")
    assert "expected an outcome in the header as a number, but got 'x'" in refused(*base, "--costs", menu)
    menu.write_text("cost curve,30,0\na,1,2\n")
    assert "in the order of their outcomes" in refused(*base, "--costs", menu)
    (tmp_path / "table.csv").write_text("cost,0,1\na,1,2\nb,2,1\n")
    assert "--step is for outcomes that are numbers" in refused(*base, "--costs", tmp_path / "table.csv", "--step", 1)


yaz = Path(os.environ.get("STAKES_DATA", "")) / "newsvendor" / "yaz.csv"


@pytest.mark.skipif(not os.environ.get("STAKES_DATA") or not yaz.exists(), reason="needs STAKES_DATA")
def test_the_published_costs_of_the_past_are_met(tmp_path: Path) -> None:
    """Steak at 15 / 5: the .75 quantile of the first 573 days costs 59.9479 on the last 192, by weekday 52.0573."""
    task = TableTask(yaz, "steak", time="date", test=0.251, folds=2, models=("constant",), under="15", over="5")
    run = fit_table(task, RunFolder(tmp_path / "run"))
    assert isinstance(run, AmountRun)
    assert len(run.labels) == 192
    assert run.comparison.row("constant").cost.mean == pytest.approx(59.9479, abs=5e-5)
    from stakes.predictors import NearestPast

    table = pd.read_csv(yaz)
    days = torch.tensor(pd.get_dummies(table["weekday"]).to_numpy(np.float32))
    sold = torch.tensor(table["steak"].to_numpy(np.float64))
    costs = []
    for day in days.unique(dim=0):  # the past of a weekday: all rows that are nearest
        early = (days[:573] == day).all(1).nonzero().flatten()
        past = NearestPast(days[early], sold[early].sort().values, len(early))
        late = 573 + (days[573:] == day).all(1).nonzero().flatten()
        order = torch.from_numpy(past.quantiles(days[late].numpy()))[:, int((LEVELS == 0.75).nonzero())]
        costs.append(15 * (sold[late] - order).clamp_min(0) + 5 * (order - sold[late]).clamp_min(0))
    assert float(torch.cat(costs).mean()) == pytest.approx(52.0573, abs=5e-5)


@pytest.mark.filterwarnings("default::stakes.StakesWarning")
def test_few_days_are_enough_for_folds(stakes: Callable[..., Any], tmp_path: Path) -> None:
    demand_table(24).to_csv(tmp_path / "d.csv", index=False)
    said = stakes(
        *("fit", tmp_path / "d.csv", "--target", "sold", "--under", 15, "--over", 5, "--time", "date"),
        *("--models", "neighbours,forest,blend", "--out", tmp_path / "run", "--workers", 2),
    )
    assert said.code == 0, said.err
    assert "there are only 5 test rows: results are uncertain" in said.err


def test_what_is_for_classes_is_refused_in_use(
    refused: Callable[..., str], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    assert "--labels is for outcomes with names" in refused("evaluate", demand_run, demand, "--labels", "1=a")
    table = tmp_path / "costs.csv"
    table.write_text("cost,a,b\nx,1,2\ny,2,1\n")
    assert "expected cost curves of a number" in refused("evaluate", demand_run, demand, "--costs", table)
    decide = ("decide", demand_run, demand, "--out", tmp_path / "d.csv")
    assert "expected cost curves of a number" in refused(*decide, "--costs", table)
    assert "decisions are numbers, of which none" in refused(*decide, "--on-unusual", "refer", "--refer", "x")


def test_a_model_without_training_rows(stakes: Callable[..., Any], demand: Path, tmp_path: Path) -> None:
    fit = ("fit", demand, "--target", "sold", "--under", 15, "--over", 5, "--drop", "date")
    kept = stakes(*fit, "--out", tmp_path / "kept", "--models", "neighbours", "--folds", 2, "--workers", 1)
    assert "it holds training rows, those that 'neighbours' looks up, and 64 for" in kept.out
    refused = stakes(*fit, "--out", tmp_path / "run", "--models", "neighbours", "--no-keep-rows")
    assert refused.code == 1
    assert "'neighbours' looks up training rows" in refused.err
    task = TableTask(demand, "sold", under="15", over="5", keep_rows=False)
    assert "neighbours" not in task.kind.catalogue.trained_for(task.compared)
    assert "blend" in task.compared


def test_a_handful_of_rows_says_nothing_and_outcomes_are_numbers(
    stakes: Callable[..., Any], refused: Callable[..., str], demand_run: Path, tmp_path: Path
) -> None:
    few = demand_table(400).iloc[240:245]
    few["sold"] += 200.0
    few.to_csv(tmp_path / "few.csv", index=False)
    said = stakes("evaluate", demand_run, tmp_path / "few.csv", "--out", tmp_path / "e")
    assert "too few rows to tell whether that is chance" in said.out
    assert "5 rows cannot tell whether retraining is due" in said.out
    few.assign(sold=np.inf).to_csv(tmp_path / "few.csv", index=False)
    assert "expected finite numbers, but row 1 has none" in refused("evaluate", demand_run, tmp_path / "few.csv")
    few.assign(sold="many").to_csv(tmp_path / "few.csv", index=False)
    assert "expected a number, but row 1 has 'many'" in refused("evaluate", demand_run, tmp_path / "few.csv")


# Other costs than those of the fit ---------------------------------------------------------------------


def cheapest(quantiles: np.ndarray, under: np.ndarray | float, over: np.ndarray | float) -> np.ndarray:
    """(N,) the whole numbers from 0 to 99 that cost least, by trying all of them on the 99 quantiles of each row."""
    weights = np.array([0.015, *[0.01] * 97, 0.015])
    tried = np.arange(100.0)
    errors = np.sort(quantiles, axis=1)[:, None, :] - tried[None, :, None]  # (N, 100, 99)
    costs = np.reshape(under, (-1, 1, 1)) * errors.clip(0) + np.reshape(over, (-1, 1, 1)) * (-errors).clip(0)
    return tried[(costs @ weights).argmin(1)]


def newsvendor_costs(taken: np.ndarray, sold: np.ndarray, under: float, over: float) -> np.ndarray:
    return under * np.maximum(sold - taken, 0) + over * np.maximum(taken - sold, 0)


@pytest.mark.parametrize(("under", "over"), [(60.0, 5.0), (1.0, 9.0)])
def test_other_costs_of_each_unit(
    stakes: Callable[..., Any], demand_run: Path, tmp_path: Path, under: float, over: float
) -> None:
    """Decisions, costs and the last test at other costs, all by trying every number."""
    run, later = AmountRun.load(demand_run), demand_table(400).iloc[240:]
    later.to_csv(tmp_path / "later.csv", index=False)
    costs, sold = ("--under", f"{under:g}", "--over", f"{over:g}"), later["sold"].to_numpy()
    out = tmp_path / "d.csv"
    said = stakes("decide", demand_run, tmp_path / "later.csv", "--out", out, "--id", "date", *costs)
    assert said.code == 0, said.err
    assert "The model was fitted for other costs: its quantiles are for any, but the " in said.err
    saved = SavedModel.load(demand_run / "model")
    quantiles = saved.predictor(torch.from_numpy(saved.encoder.transform(later))).mixture().at_levels.numpy()
    taken = pd.read_csv(out)["decision"].to_numpy()
    best = cheapest(quantiles, under, over)
    assert (taken == best).mean() > 0.95  # beside a tie, a step
    assert np.abs(taken - best).max() <= 1
    said = stakes("evaluate", demand_run, tmp_path / "later.csv", *costs, "--out", tmp_path / "e")
    assert said.code == 0, said.err
    assert said.out.startswith(f"At {under:g} € for each unit too few and {over:g} € for each too many, 160 decisions ")
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert found["cost"][0] == pytest.approx(newsvendor_costs(taken, sold, under, over).mean())
    assert found["coverage"]["asked_for"] == pytest.approx(under / (under + over))
    assert found["costs"]["under"] == under
    tested = next(item for item in run.scored if item.model == run.comparison.chosen)
    before = cheapest(tested.predictions.quantiles.double().numpy(), under, over)
    cost = newsvendor_costs(before, run.labels.numpy(), under, over).mean()
    assert found["last_test"]["cost"][0] == pytest.approx(cost, rel=0.02)
    assert "In the last test, of 48 rows, decisions would have cost " in said.out
    constant = float(found["constant"]["decision"])
    assert (constant > 35) == (under > 15)  # 35 at 15 and 5
    # From the file of decisions, by the same costs.
    again = ("--decisions", out, "--id", "date", "--out", tmp_path / "again")
    said = stakes("evaluate", demand_run, tmp_path / "later.csv", *costs, *again)
    assert ", if the decisions were taken by these costs: the decisions cost " in said.out
    assert json.loads((tmp_path / "again" / "evaluation.json").read_text())["cost"] == pytest.approx(found["cost"])


def test_costs_in_the_same_ratio_ask_for_the_same_decisions(
    stakes: Callable[..., Any], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    tables = []
    for number, costs in enumerate([(), ("--under", "30", "--over", "10")]):
        said = stakes("decide", demand_run, demand, "--out", tmp_path / f"{number}.csv", *costs)
        assert "fitted for other costs" not in said.err
        tables.append(pd.read_csv(tmp_path / f"{number}.csv"))
    assert (tables[0]["decision"] == tables[1]["decision"]).all()
    assert tables[1]["expected_cost"].to_numpy() == pytest.approx(2 * tables[0]["expected_cost"].to_numpy(), rel=1e-4)


def test_other_costs_that_are_formulas(
    stakes: Callable[..., Any], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    """The price is a column of the model too; any other will do. Of the last test, columns are not kept."""
    table = demand_table().assign(margin=lambda table: table["price"] * 3)
    table.to_csv(tmp_path / "d.csv", index=False)
    costs = ("--under", "=margin + 1", "--over", "5")
    said = stakes("decide", demand_run, tmp_path / "d.csv", "--out", tmp_path / "out.csv", *costs)
    assert said.code == 0, said.err
    decided = pd.read_csv(tmp_path / "out.csv")["decision"].to_numpy()
    saved = SavedModel.load(demand_run / "model")
    quantiles = saved.predictor(torch.from_numpy(saved.encoder.transform(table))).mixture().at_levels.numpy()
    best = cheapest(quantiles, table["margin"].to_numpy() + 1, 5.0)
    assert np.abs(decided - best).max() <= 1
    said = stakes("evaluate", demand_run, tmp_path / "d.csv", *costs, "--out", tmp_path / "e")
    assert said.out.startswith("At =margin + 1 for each unit too few and 5 for each too many, 240 decisions cost ")
    assert "What the decisions of the last test would have cost is not known" in said.out
    page = (tmp_path / "e" / "evaluation.html").read_text()
    assert "the last test</th>" not in page.split('id="fan"')[0]
    missing = stakes("decide", demand_run, demand, "--out", tmp_path / "x.csv", *costs)
    assert "expected columns that are missing: 'margin'" in missing.err


@pytest.mark.filterwarnings("ignore:.*is the file of the run")
def test_a_menu_for_a_model_of_numbers_and_numbers_for_one_of_a_menu(
    stakes: Callable[..., Any], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    menu, out = tmp_path / "menu.csv", tmp_path / "d.csv"
    menu.write_text("cost curve [£],0,30,60\nsmall shift,0,0,300\nlarge shift,100,,\n", encoding="utf-8")
    assert stakes("decide", demand_run, demand, "--costs", menu, "--out", out, "--id", "date").code == 0
    table, sold = pd.read_csv(out), demand_table()["sold"].to_numpy()
    large = (table["decision"] == "large shift").to_numpy()
    assert set(table["decision"]) == {"small shift", "large shift"}
    said = stakes("evaluate", demand_run, demand, "--costs", menu, "--out", tmp_path / "e")
    assert said.out.startswith("At the costs of menu.csv, 240 decisions cost £")
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    costs = np.where(large, 100, np.interp(sold, [0, 30, 60], [0, 0, 300]))
    assert found["cost"][0] == pytest.approx(costs.mean())
    assert (found["coverage"], found["costs"]) == (None, "menu.csv")
    # Decisions by these costs are counted by these, and by no others.
    joined = ("evaluate", demand_run, demand, "--decisions", out, "--id", "date", "--out", tmp_path / "j")
    assert stakes(*joined, "--costs", menu).out.split(" each")[0] == said.out.split(" each")[0]
    assert "has 'large shift'" in (wrong := stakes(*joined).err) or "has 'small shift'" in wrong
    assert "if other costs were decided by, give them" in wrong
    # And the other way round, without steps and bounds.
    fit = ("fit", demand, "--target", "sold", "--costs", menu, "--time", "date", "--out", tmp_path / "run", *QUICK)
    assert stakes(*fit).code == 0
    assert stakes("decide", tmp_path / "run", demand, "--out", out, "--under", 15, "--over", 5).code == 0
    assert (pd.read_csv(out)["decision"] % 1 != 0).any()


@pytest.mark.filterwarnings("default::stakes.StakesWarning")
def test_quantiles_that_models_do_not_say_are_told(
    stakes: Callable[..., Any], demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    costs = ("--under", 2000, "--over", 1)
    with pytest.warns(
        StakesWarning, match=r"the costs ask for the 99\.95 % quantile: beyond these they are extrapolated"
    ):
        Decider(demand_run, costs=Newsvendor(2000, 1))(demand_table(5))
    said = stakes("evaluate", demand_run, demand, *costs, "--out", tmp_path / "e")
    assert "stakes: warning: models say quantiles from 1 % to 99 %, but the costs ask for the 99.95 %" in said.err


def test_bad_other_costs(
    refused: Callable[..., str], run_folder: Path, demand_run: Path, demand: Path, tmp_path: Path
) -> None:
    for start in (("decide", demand_run, demand, "--out", tmp_path / "d.csv"), ("evaluate", demand_run, demand)):
        assert "got only '--under'; give the other one too" in refused(*start, "--under", "5")
        assert "--over: expected a cost of 0 or more of each unit" in refused(*start, "--under", "5", "--over=-1")
        both = ("--under", "1", "--over", "1", "--costs", "costs.csv")
        assert "but got '--costs', '--under', '--over'; leave one out" in refused(*start, *both)
        assert "the costs depend on the target 'sold'" in refused(*start, "--under", "=sold", "--over", "1")
        assert "--under: expected" in refused(*start, "--under", "a b", "--over", "1")
    named = ("decide", run_folder, demand, "--out", tmp_path / "d.csv", "--under", "1", "--over", "1")
    assert "are for outcomes that are numbers, but those of" in refused(*named)
    assert "give other costs with --costs FILE" in refused("evaluate", run_folder, demand, "--over", "1")


# What can be promised ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the column 'date', by which the run has --time, is not there")
def test_the_mean_cost_that_can_be_promised(stakes: Callable[..., Any], demand_run: Path, tmp_path: Path) -> None:
    later = demand_table(400).iloc[240:]
    later.to_csv(tmp_path / "later.csv", index=False)
    evaluate = ("evaluate", demand_run, tmp_path / "later.csv", "--out", tmp_path / "e")
    said = stakes(*evaluate)
    assert "With 95 % confidence" not in said.out
    assert (
        "No mean cost can be promised: one decision may cost any amount" in (tmp_path / "e/evaluation.html").read_text()
    )
    assert json.loads((tmp_path / "e/evaluation.json").read_text())["promise"]["mean_cost_at_most"] is None
    said = stakes(*evaluate, "--worst", 400)
    found = json.loads((tmp_path / "e/evaluation.json").read_text())
    stakes("decide", demand_run, tmp_path / "later.csv", "--out", tmp_path / "d.csv")
    taken, sold = pd.read_csv(tmp_path / "d.csv")["decision"].to_numpy(), later["sold"].to_numpy()
    costs = newsvendor_costs(taken, sold, 15, 5)
    means = costs[160 % 11 :].reshape(-1, 11).mean(1)
    assert found["promise"]["mean_cost_at_most"] == pytest.approx(mean_cost_bound(means, 400.0))
    assert found["promise"]["block"] == 11
    assert "With 95 % confidence, decisions about rows like these cost at most " in said.out
    assert "no decision can cost more than 400 €, as was stated" in said.out
    assert "and one did cost" in stakes(*evaluate, "--worst", costs.max() - 1).err
    report = stakes("report", demand_run, "--worst", 400)
    assert report.code == 0, report.err
    # Without the column of times, rows may be neighbours.
    later[["date", "sold"]].rename(columns={"date": "day"}).to_csv(tmp_path / "sold.csv", index=False)
    stakes("decide", demand_run, tmp_path / "later.csv", "--out", tmp_path / "d.csv", "--keep", "date")
    pd.read_csv(tmp_path / "d.csv").rename(columns={"date": "day"}).to_csv(tmp_path / "d.csv", index=False)
    joined = ("evaluate", demand_run, tmp_path / "sold.csv", "--decisions", tmp_path / "d.csv", "--id", "day")
    said = stakes(*joined, "--worst", 400, "--out", tmp_path / "j")
    assert said.code == 0, said.err
    assert (
        "neighbouring rows in date are alike, and the times of these are not known"
        in (tmp_path / "j/evaluation.html").read_text()
    )
