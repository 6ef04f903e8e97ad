"""What a reader is told: every sentence of the answer, from runs made of numbers that are known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import UTILITY, finished_run, random_probs, three_models, write_report

from stakes import Utility
from stakes.decisions import decide
from stakes.evaluation.comparison import Choice
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import AmountFormat
from stakes.report.caveats import caveats
from stakes.report.decided import recall, thresholds
from stakes.report.drivers import drivers
from stakes.report.groups import grouped, subgroups
from stakes.report.headline import contrast, headline
from stakes.report.ratio import FACTORS, by_ratio, mean_costs, two_mistakes, where_it_wins, with_factor
from stakes.tables.run import Run
from stakes.utility import TableUtility

FRAUD = Utility.from_costs({"pay": {"honest": 0, "fraud": 1000}, "block": {"honest": 20, "fraud": 0}}, unit="£")


def one_model(path: Path, probs: torch.Tensor, labels: torch.Tensor, utility: TableUtility, **options: Any) -> Run:
    return finished_run(path, {"blend": [probs]}, labels, utility, **options)


def fraud(path: Path, cases: int, rows: int = 1200, noise: float = 0.0) -> Run:
    """A model that knows every fraud, but for a share of the honest rows, which it takes for one."""
    labels = torch.zeros(rows, dtype=torch.long)
    labels[:cases] = 1
    suspected = labels.clone()
    suspected[cases : cases + int(noise * rows)] = 1
    p = torch.where(suspected == 1, 0.9, 0.001)
    return one_model(path, torch.stack([1 - p, p], -1), labels, FRAUD)


# The headline --------------------------------------------------------------------------------------


def test_the_answer_is_the_paired_difference_to_one_decision_for_everybody(tmp_path: Path) -> None:
    run = three_models(tmp_path, cases=400)
    probs, labels = random_probs(400, 3, seed=1)
    costs, true = UTILITY.costs, labels.numpy()
    ours = costs[decide(probs, UTILITY).choice.numpy(), true].mean()
    alike = min(costs[d, true].mean() for d in range(3))
    answer = headline(run)
    assert answer.sentence.startswith(
        f"Deciding with this model costs £{ours:.2f} per decision, £{alike - ours:.2f} less than deciding “treat” for "
        "everybody (95 % interval £"
    )
    assert answer.sentence.endswith(" less).")
    assert answer.judgement == "That is beyond chance, on 400 test rows."
    assert answer.others[0].startswith("Against highest probability, with the same model: £")
    assert answer.others[1].startswith("The model expected its decisions to cost £")


def test_of_noise_no_model_is_worth_more(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (2000,), generator=generator)
    probs = torch.randn(2000, 3, generator=generator).softmax(-1)
    run = one_model(tmp_path, probs, labels, UTILITY)
    assert "This model is not worth more than deciding the same for everybody" in headline(run).sentence
    assert "beyond chance, on" not in headline(run).judgement or "loss" in headline(run).judgement
    chosen = replace(run, comparison=replace(run.comparison, choice=Choice("constant", "no model did better")))
    answer = headline(chosen)
    assert answer.sentence.startswith(
        "No model is worth more than deciding the same for everybody, so “treat” is decided for everybody: that costs £"
    )
    assert "the best of the models, blend, cost £" in answer.judgement


def test_six_frauds_do_not_tell_what_is_beyond_chance(tmp_path: Path) -> None:
    run = fraud(tmp_path, cases=6)
    answer = headline(run)
    assert contrast(run, ("blend", "optimal"), ("constant", "optimal")).gain.low > 0, "the bootstrap would say so"
    assert "cannot be told: there are only 6 cases of fraud among 1,200 test rows" in answer.judgement
    assert "That is beyond chance" not in answer.text
    assert any("6 cases of fraud among 1,200 test rows" in sentence for sentence in caveats(run))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Before you rely on it" in page
    assert "too few cases to tell" in page


def test_frauds_that_both_find_tell_little_about_the_next(tmp_path: Path) -> None:
    """Of 40 frauds none was missed, against blocking everybody: that 3 of the next 40 are missed would undo it all."""
    labels = torch.zeros(1200, dtype=torch.long)
    labels[:40] = 1
    utility = Utility.from_costs({"pay": {"honest": 0, "fraud": 9000}, "block": {"honest": 20, "fraud": 0}}, unit="£")
    p = torch.where(labels == 1, 0.9, 0.001)
    answer = headline(one_model(tmp_path, torch.stack([1 - p, p], -1), labels, utility))
    assert answer.finding == "too_few"
    assert "the two differ in none of 40 cases of fraud among 1,200 test rows" in answer.judgement


def test_a_claim_is_not_off_because_rare_mistakes_did_not_happen(tmp_path: Path) -> None:
    """A mistake in 2,000 rows was expected: none in 1,200 is no surprise, though the bootstrap sees no spread."""
    labels = torch.zeros(1200, dtype=torch.long)
    labels[:300] = 1
    p = torch.where(labels == 1, 0.9995, 0.0005)
    run = one_model(tmp_path, torch.stack([1 - p, p], -1), labels, FRAUD)
    assert run.comparison.row("blend", "optimal").utility == (0, 0, 0)
    assert "beyond chance: do not rely" not in headline(run).text
    p = torch.where(labels == 1, 0.98, 0.015)
    sure = one_model(tmp_path / "unsure", torch.stack([1 - p, p], -1), labels, FRAUD)
    assert "which is beyond chance: do not rely on what it expects" in headline(sure).text


def test_many_frauds_do(tmp_path: Path) -> None:
    run = fraud(tmp_path, cases=60)
    assert headline(run).judgement == "That is beyond chance, on 1,200 test rows."
    assert not any("fraud" in sentence for sentence in caveats(run))


def test_few_cases_that_could_not_turn_it_do_not_matter(tmp_path: Path) -> None:
    """Blocking everybody costs 20 each; six frauds could never make up for 1,000 honest rows."""
    labels = torch.zeros(1200, dtype=torch.long)
    labels[:6] = 1
    utility = Utility.from_costs({"pay": {"honest": 0, "fraud": 6000}, "block": {"honest": 25, "fraud": 0}})
    p = torch.where(labels == 1, 0.9, 0.0001)
    run = one_model(tmp_path, torch.stack([1 - p, p], -1), labels, utility)
    assert "cannot be told" in headline(run).judgement
    cheap = replace(run, utility=replace(utility, values=utility.values / np.array([1, 100])))
    assert contrast(cheap, ("blend", "optimal"), ("constant", "optimal")).finding == "more"


@pytest.mark.parametrize("rows", [1, 2, 12])
def test_a_handful_of_rows_tells_nothing(tmp_path: Path, rows: int) -> None:
    labels = torch.arange(rows) % 2
    probs = torch.nn.functional.one_hot(labels, 2).float() * 0.9 + 0.05
    run = one_model(tmp_path, probs, labels, FRAUD)
    assert "beyond chance, on" not in headline(run).text
    assert f"rests on {'one test row' if rows == 1 else f'{rows} test rows'}" in caveats(run)[0]
    write_report(tmp_path)


def test_a_claim_that_is_far_off_is_said_beside_the_headline(tmp_path: Path) -> None:
    _, labels = random_probs(400, 3, seed=1)
    run = one_model(tmp_path, torch.tensor([[0.998, 0.001, 0.001]]).expand(400, 3), labels, UTILITY)
    assert "which is beyond chance: do not rely on what it expects" in headline(run).text
    good = headline(three_models(tmp_path / "good", cases=400)).text
    assert "a difference that these rows cannot tell from chance" in good


def test_a_choice_by_a_hair_and_what_reading_warned_of(tmp_path: Path) -> None:
    run = three_models(tmp_path)
    choice = replace(run.comparison.choice, lead=Interval(0.5, -1, 2))
    close = replace(
        run, comparison=replace(run.comparison, choice=choice), data=SimpleNamespace(notices=("'x' is empty",))
    )
    said = caveats(close)
    assert said[-1] == "'x' is empty"
    assert said[-2].startswith("calibrated was chosen over standard by a hair: ")
    assert said[-2].endswith("its decisions cost £0.50 less each (95 % interval £1.00 more to £2.00 less).")


# Amounts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "shown"),
    [("£", "£13.60"), ("$", "$13.60"), ("€", "13.60 €"), ("minutes", "13.6 minutes"), ("", "13.6")],
)
def test_the_unit_stands_where_its_language_has_it(unit: str, shown: str) -> None:
    amounts = AmountFormat(unit, costs=True, best=0, scale=1)
    assert amounts.mean(Interval(13.6, 11, 16)) == shown


def test_digits_follow_the_width() -> None:
    amounts = AmountFormat("£", costs=True, best=0, scale=1)
    assert amounts.range(Interval(6.9, 4.1, 9.7)) == "£4.10 to £9.70 less"
    assert amounts.range(Interval(0.4, -0.2, 1)) == "£0.20 more to £1.00 less"
    assert amounts.range(Interval(-0.4, -1, 0.2)) == "£0.20 less to £1.00 more"
    assert amounts.interval(Interval(5099.4, 4000, 6000)) == "£5,099 (£4,000 to £6,000)"
    assert amounts.interval(Interval(0.00123, 0.001, 0.0015)) == "£0.00123 (£0.00100 to £0.00150)"
    assert amounts.mean(Interval(-3.2, -4, -2.5)) == "-£3.20"
    assert amounts.difference(Interval(0, 0, 0)) == "no difference"
    assert AmountFormat("", costs=False, best=0, scale=1).difference(Interval(2, 1, 3)) == "2.0 more"


def test_utilities_stay_utilities(tmp_path: Path) -> None:
    lend = Utility.from_matrix(
        {"lend": {"repaid": 20.0, "defaulted": -100.0}, "decline": {"repaid": 0.0, "defaulted": 0.0}}
    )
    run = three_models(tmp_path, lend, cases=300)
    answer = headline(run)
    assert "Deciding with this model is worth " in answer.sentence
    assert " more than deciding “decline” for everybody" in answer.sentence
    page = write_report(tmp_path).read_text(encoding="utf-8")
    text = page[page.index("<main") : page.index('<script type="application/json"')]
    assert "cost" not in text.replace("mistake cost more", "").replace("--costs", "").replace("costs.csv", "").replace(
        'id="costs"', "").replace("most costly", "").replace("costly to miss", "").replace("/c.csv", "").replace(
        "&#34;costs", "")  # fmt: skip
    assert by_ratio(run) is None


# Decisions -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")  # of a decision that is never best
def test_thresholds_in_words(tmp_path: Path) -> None:
    """Where expected costs are equal, by hand: 1000 p = 20 (1 - p)."""
    run = fraud(tmp_path, cases=60)
    assert thresholds(run) == (
        "At these costs, decide “pay” when the probability of fraud is below 2 %, “block” when it is above 2 %."
    )
    three = Utility.from_costs(
        {
            "home": {"ill": 500, "well": 0},
            "test": {"ill": 60, "well": 15},
            "treat": {"ill": 0, "well": 40},
            "wait": {"ill": 600, "well": 5},
        }
    )
    assert thresholds(replace(run, utility=three)) == (
        "At these costs, decide “home” when the probability of ill is below 3.3 %, “test” when it is from 3.3 % to "
        "29.4 %, “treat” when it is above 29.4 %. “wait” is never best."
    )
    assert thresholds(three_models(tmp_path / "three")) is None


def test_recall_instead_of_accuracy(tmp_path: Path) -> None:
    run = fraud(tmp_path, cases=60, noise=0.1)
    shown = recall(run)
    assert shown is not None
    assert shown["rows"][0] == ("honest", "pay", "1,140", [f"{100 * 1020 / 1140:.1f} %"] * 2)
    assert shown["rows"][1] == ("fraud", "block", "60", ["100.0 %"] * 2)
    assert shown["names"] == {"fraud": "sensitivity", "honest": "specificity"}
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "sensitivity" in page
    assert "accuracy" not in page
    utility = run.utility
    assert isinstance(utility, TableUtility)
    values = np.vstack([utility.values, utility.values.mean(0)])
    third = replace(run, utility=replace(utility, values=values, decisions=(*utility.decisions, "ask")))
    assert recall(third)["names"] == {}  # type: ignore[index]


# New sections --------------------------------------------------------------------------------------


def test_costs_against_a_ratio_are_those_of_the_library(tmp_path: Path) -> None:
    run = three_models(tmp_path, cases=200)
    mistakes = two_mistakes(UTILITY)
    assert mistakes is not None
    first, second = mistakes
    assert (UTILITY.decisions[first.decision], UTILITY.outcomes[first.outcome]) == ("send home", "severe")
    assert (UTILITY.decisions[second.decision], UTILITY.outcomes[second.outcome]) == ("operate", "healthy")
    models, constants = mean_costs(run, first)
    probs, labels = random_probs(200, 3, seed=1)
    for place in (0, 20, 40):
        costs = UTILITY.costs.copy()
        costs[0, 2] *= FACTORS[place]
        choice = (probs.double().numpy() @ costs.T).argmin(1)
        assert models["calibrated"][place] == pytest.approx(costs[choice, labels.numpy()].mean())
        assert constants["treat"][place] == pytest.approx(costs[1, labels.numpy()].mean())
    assert with_factor(UTILITY, first, 1.0) == UTILITY
    shown = by_ratio(run)
    assert shown is not None
    assert [name for name, _ in shown["chart"]["legend"]][:3] == ["standard", "calibrated", "boosting"]
    assert shown["said"]


def test_the_ratio_of_costs_below_0_has_all_its_points(tmp_path: Path) -> None:
    """Most decisions gain: the axis goes down to the lowest mean."""
    gains = Utility.from_costs(UTILITY.costs - 190, UTILITY.decisions, UTILITY.outcomes, unit="£")
    probs, labels = random_probs(200, 3, seed=1)
    chart = by_ratio(finished_run(tmp_path, {"calibrated": [probs], "boosting": [probs]}, labels, gains))["chart"]
    assert chart["texts"][0][3].startswith("-")
    calibrated = chart["curves"][0][2]
    assert calibrated.count("L") == len(FACTORS) - 1
    assert all(0 <= float(point.split()[1]) <= chart["height"] for point in calibrated.lstrip("M").split("L"))


def test_a_constant_that_was_chosen_is_a_model_of_the_ratio(tmp_path: Path) -> None:
    """It decides alike for everybody at every ratio, and never costs less than the best such decision."""
    run = three_models(tmp_path, cases=200, chosen="constant")
    mistakes = two_mistakes(UTILITY)
    assert mistakes is not None
    models, constants = mean_costs(run, mistakes[0])
    np.testing.assert_allclose(models["constant"], np.min(list(constants.values()), axis=0))
    shown = by_ratio(run)
    assert shown is not None
    assert not [sentence for sentence in shown["said"] if "costs less" in sentence]
    assert "constant" in write_report(tmp_path).read_text(encoding="utf-8")


def test_where_which_wins_in_words() -> None:
    low, high = np.full(41, 1.0), np.full(41, 3.0)
    model = np.where(np.arange(41) < 20, 2.0, 0.5)
    assert where_it_wins(model, {"a": low, "b": high}, 10.0) == [
        "From 1 : 1 to 8.91 : 1 deciding “a” for everybody costs no more than the model.",
        "From 10 : 1 to 100 : 1 the model costs less than any one decision for everybody.",
    ]


def test_costs_by_subgroup(tmp_path: Path) -> None:
    values = tuple("north" if place % 3 else "south" for place in range(400))
    run = three_models(tmp_path, cases=400, by=values, changes={"by": "region"})
    shown = subgroups(run)
    assert shown is not None
    assert [(row["name"], row["rows"]) for row in shown["rows"]] == [("north", 266), ("south", 134)]
    own = next(item for item in run.scored if (item.model, item.rule) == ("calibrated", "optimal"))
    north = np.array(values) == "north"
    assert shown["rows"][0]["level"].mean == pytest.approx(UTILITY.cost_of(own.utilities[north].mean()))
    assert "By region" in write_report(tmp_path).read_text(encoding="utf-8")
    assert Run.load(tmp_path).by == values
    assert subgroups(three_models(tmp_path / "without")) is None


def test_groups_of_many_values() -> None:
    quarters = grouped(tuple(str(value) for value in range(100)))
    assert list(quarters) == ["0 to 24", "25 to 49", "50 to 74", "75 to 99"]
    assert all(members.sum() == 25 for members in quarters.values())
    names = grouped(("", *(f"town {value % 30}" for value in range(90))))
    assert len(names) == 12
    assert sum(members.sum() for members in names.values()) == 91
    assert list(grouped(("", *map(str, range(50)))))[-1] == "missing"


def test_what_drives_the_decisions(tmp_path: Path) -> None:
    importance = {"columns": {"age": Interval(1, -1, 3), "pulse": Interval(9, 7, 11)}, "rows": 120, "not_measured": 3}
    run = three_models(tmp_path, importance=importance)
    shown = drivers(run)
    assert shown is not None
    assert [name for name, _ in shown["rows"]] == ["pulse", "age"]
    assert shown["said"] == (
        "pulse matters most: without what it tells, decisions cost £9.00 more each. 1 of 2 columns make a difference "
        "beyond chance."
    )
    assert Run.load(tmp_path).importance == importance
    assert "3 columns that differ least between the outcomes were not measured" in " ".join(
        write_report(tmp_path).read_text(encoding="utf-8").split()
    )
    assert drivers(three_models(tmp_path / "without")) is None


def test_cases_are_told_by_their_ids(tmp_path: Path) -> None:
    ids = tuple(f"patient <{place}>" for place in range(120))
    three_models(tmp_path, ids=ids, changes={"id": "patient"})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Cases are named by the column patient." in page
    assert "patient \\u003c7\\u003e" in page
