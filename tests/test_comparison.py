"""Predictions are scored once for each rule, and compared: paired differences to the constant and to the best other."""

import json

import numpy as np
import pytest
import torch

from stakes import StakesError, Utility
from stakes.evaluation.comparison import (
    Choice,
    Comparison,
    Predictions,
    Scored,
    advantage,
    best_seed,
    compare,
    score,
    select,
)
from stakes.evaluation.metrics import Interval

NAMES = ["a", "b"]
UTILITY = Utility.from_costs([[0, 10], [1, 0]], NAMES, NAMES, unit="$")
COSTS = np.array([[0, 10], [1, 0]])
LABELS = torch.tensor([0, 1, 1, 0])
SURE = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.95, 0.05]])
TIMID = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.7, 0.3], [0.6, 0.4]])


def test_predictions_are_scored_under_both_rules() -> None:
    argmax, optimal = score(Predictions("standard", 0, TIMID, 0.5, {"epochs": 3}), LABELS, UTILITY)
    assert (argmax.rule, optimal.rule) == ("argmax", "optimal")
    assert argmax.scores["cost"] == pytest.approx(10 / 4)  # the third case is taken for a
    assert optimal.scores["cost"] == pytest.approx(2 / 4)  # b is decided everywhere: two false alarms
    assert optimal.scores["accuracy"] == pytest.approx(0.5)
    assert optimal.scores["utility"] == pytest.approx(-0.5)
    assert optimal.scores["regret"] == pytest.approx(0.5)
    assert optimal.scores["claimed_utility"] == pytest.approx(-(0.6 + 0.4 + 0.7 + 0.6) / 4)
    assert optimal.counts.tolist() == [[0, 0], [2, 2]]
    assert optimal.to_dict()["epochs"] == 3
    assert optimal.to_dict()["confusion"] == [[0, 0], [2, 2]]


@pytest.mark.parametrize("probs", [SURE, TIMID])
def test_choice_margin_and_utilities_are_those_of_numpy(probs: torch.Tensor) -> None:
    argmax, optimal = score(Predictions("standard", 0, probs), LABELS, UTILITY)
    table = probs.double().numpy()
    expected = -table @ COSTS.T
    for item, choice in ((argmax, table.argmax(1)), (optimal, expected.argmax(1))):
        rows = np.arange(4)
        assert item.choice.tolist() == choice.tolist()
        np.testing.assert_allclose(item.utilities, -COSTS[choice, LABELS.numpy()])
        np.testing.assert_allclose(item.margin, expected[rows, choice] - expected[rows, 1 - choice], atol=1e-7)


def predictions() -> list[Predictions]:
    return [
        Predictions("standard", 0, TIMID, -3.0),
        Predictions("calibrated", 0, SURE, -2.0),
        Predictions("weighted", 0, SURE, -9.0),
        Predictions("standard", 1, TIMID, -1.0),
        Predictions("calibrated", 1, SURE, -1.5),
        Predictions("weighted", 1, TIMID, -9.0),
    ]


def scored(items: list[Predictions] | None = None) -> list[Scored]:
    return [each for item in items or predictions() for each in score(item, LABELS, UTILITY)]


CHOICE = Choice("calibrated", "it is the test's", "standard", Interval(1.0, -0.5, 2.0))


def test_the_differences_are_paired() -> None:
    comparison = compare(scored(), CHOICE, seed=0)
    assert comparison.chosen == "calibrated"
    assert [row.model for row in comparison.rows if comparison.is_chosen(row)] == ["calibrated"]
    rows = {(row.model, row.rule): row for row in comparison.rows}
    assert len(rows) == 6
    assert rows["standard", "optimal"].difference is None
    calibrated = rows["calibrated", "optimal"]
    # SURE errs nowhere, but pays 1 for the first case, where p(b) = 0.1 is above the threshold of 1/11.
    assert calibrated.utility.mean == pytest.approx(-0.25)
    assert calibrated.difference is not None
    assert calibrated.difference.mean == pytest.approx(0.25)
    assert calibrated.difference == advantage(scored(), ("calibrated", "optimal"), ("standard", "optimal"), seed=0)
    assert calibrated.seeds == 2
    assert best_seed(predictions(), "calibrated").seed == 1
    assert rows["weighted", "optimal"].utility.mean == pytest.approx(-0.375)


def test_seeds_are_paired_whatever_the_order_of_the_runs() -> None:
    """Both models say SURE with one seed and TIMID with the other: paired by seed, nothing differs."""
    items = [
        Predictions("standard", 1, TIMID),
        Predictions("weighted", 0, SURE),
        Predictions("weighted", 1, TIMID),
        Predictions("standard", 0, SURE),
    ]
    assert [item.seed for item in select(scored(items), "standard", "optimal")] == [0, 1]
    difference = compare(scored(items), CHOICE, seed=0).row("weighted", "optimal").difference
    assert difference is not None
    assert (difference.low, difference.mean, difference.high) == (0, 0, 0)


def test_models_with_other_seeds_cannot_be_paired() -> None:
    with pytest.raises(StakesError, match="the same examples"):
        compare(scored([*predictions(), Predictions("weighted", 2, SURE, 0.0)]), CHOICE, seed=0)


def test_the_summary_has_the_documented_form_and_is_read_back() -> None:
    comparison = compare(scored(), CHOICE, seed=0)
    summary = comparison.to_dict(UTILITY)
    assert {"unit", "outcomes", "decisions", "chosen", "rows"} <= set(summary)
    wanted = {"model", "rule", "utility", "utility_low", "utility_high", "accuracy", "nll", "ece", "seeds"}
    assert all(wanted <= set(row) for row in summary["rows"])
    assert all(row["utility_low"] <= row["utility"] <= row["utility_high"] for row in summary["rows"])
    assert Comparison.from_dict(json.loads(json.dumps(summary))) == comparison
    alone = compare(scored([Predictions("weighted", 0, SURE)]), Choice("weighted", "it is the only one"), seed=0)
    assert Comparison.from_dict(json.loads(json.dumps(alone.to_dict(UTILITY)))) == alone


def test_the_constant_is_the_reference_and_without_one_the_first_model() -> None:
    items = [Predictions("weighted", 0, SURE), Predictions("constant", 0, torch.full((4, 2), 0.5))]
    assert compare(scored(items), Choice("weighted", ""), seed=0).reference == "constant"
    (_, row) = compare(scored(items[:1]), Choice("weighted", ""), seed=0).rows
    assert (row.difference, row.rival, row.lead) == (None, None, None)


def test_each_row_is_paired_with_the_best_other_model_deciding_by_the_costs() -> None:
    """Costs of the four decisions: constant 1, 0, 0, 1; calibrated 1, 0, 0, 0; weighted 0, 10, 10, 0."""
    items = [
        Predictions("constant", 0, torch.full((4, 2), 0.5)),
        Predictions("calibrated", 0, SURE),
        Predictions("weighted", 0, torch.tensor([[1.0, 0.0]] * 4)),
    ]
    rows = {(row.model, row.rule): row for row in compare(scored(items), CHOICE, seed=0).rows}
    assert {key: row.rival for key, row in rows.items() if key[1] == "optimal"} == {
        ("constant", "optimal"): "calibrated",
        ("calibrated", "optimal"): "constant",
        ("weighted", "optimal"): "calibrated",
    }
    leads = {model: rows[model, "optimal"].lead.mean for model in ("constant", "calibrated", "weighted")}
    assert leads == pytest.approx({"constant": -0.25, "calibrated": 0.25, "weighted": -4.75})
    assert rows["calibrated", "argmax"].lead.mean == pytest.approx(0.5)  # it errs nowhere
    assert rows["constant", "argmax"].difference.mean == pytest.approx(-4.5)  # it takes everybody for a


def test_rows_in_time_are_resampled_in_stretches() -> None:
    """Two months, one in which everything goes right and one in which nothing does, say little about a year."""
    labels = torch.arange(60) // 30
    items = [Predictions("weighted", 0, torch.tensor([[1.0, 0.0]] * 60))]
    own = [item for each in items for item in score(each, labels, UTILITY)]
    apart = compare(own, Choice("weighted", ""), seed=0).row("weighted", "optimal").utility
    in_time = compare(own, Choice("weighted", ""), seed=0, times=np.arange(60.0)).row("weighted", "optimal").utility
    assert in_time.mean == apart.mean
    assert in_time.high - in_time.low > 1.5 * (apart.high - apart.low)
