import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from stakes import LossCalibrated, StakesError, Standard, Utility, Weighted
from stakes.evaluation.comparison import REFERENCE, Problem, Run, best_run, boosted_probs, score_run, summarise
from stakes.seeds import derive
from stakes.tables.models import METHODS, Recipe, method, predict, train_model
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

NAMES = ["a", "b"]
UTILITY = Utility.from_costs([[0, 10], [1, 0]], NAMES, NAMES, unit="$")
LABELS = torch.tensor([0, 1, 1, 0])
SURE = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.95, 0.05]])
TIMID = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.7, 0.3], [0.6, 0.4]])


def test_a_run_is_scored_under_both_rules() -> None:
    argmax, optimal = score_run(Run("standard", 0, TIMID, 0.5, {"epochs": 3}), LABELS, UTILITY)
    assert (argmax["rule"], optimal["rule"]) == ("argmax", "optimal")
    assert argmax["cost"] == pytest.approx(10 / 4)  # the third case is taken for a
    assert optimal["cost"] == pytest.approx(2 / 4)  # b is decided everywhere: two false alarms
    assert optimal["accuracy"] == pytest.approx(0.5)
    assert optimal["utility"] == pytest.approx(-0.5)
    assert optimal["regret"] == pytest.approx(0.5)
    assert optimal["claimed_utility"] == pytest.approx(-(0.6 + 0.4 + 0.7 + 0.6) / 4)
    assert optimal["confusion"] == [[0, 0], [2, 2]]
    assert optimal["epochs"] == 3


def runs() -> list[Run]:
    return [
        Run("standard", 0, TIMID, -3.0),
        Run("calibrated", 0, SURE, -2.0),
        Run(REFERENCE, 0, SURE, None),
        Run("standard", 1, TIMID, -1.0),
        Run("calibrated", 1, SURE, -1.5),
        Run(REFERENCE, 1, TIMID, None),
    ]


def test_the_choice_is_made_on_validation_and_the_differences_are_paired() -> None:
    comparison = summarise(runs(), LABELS, UTILITY, seed=0)
    assert comparison.chosen == "calibrated"
    assert "calibrated -1.75" in comparison.why
    rows = {(row.model, row.rule): row for row in comparison.rows}
    assert len(rows) == 6
    assert rows["standard", "optimal"].difference is None
    calibrated = rows["calibrated", "optimal"]
    # SURE errs nowhere, but pays 1 for the first case, where p(b) = 0.1 is above the threshold of 1/11.
    assert calibrated.utility.mean == pytest.approx(-0.25)
    assert calibrated.difference.mean == pytest.approx(0.25)
    assert calibrated.seeds == 2
    assert best_run(runs(), "calibrated").seed == 1
    assert rows[REFERENCE, "optimal"].utility.mean == pytest.approx(-0.375)


def test_the_summary_has_the_documented_form() -> None:
    summary = summarise(runs(), LABELS, UTILITY, seed=0).to_dict(UTILITY)
    assert {"unit", "outcomes", "decisions", "chosen", "rows"} <= set(summary)
    wanted = {"model", "rule", "utility", "utility_low", "utility_high", "accuracy", "nll", "ece", "seeds"}
    assert all(wanted <= set(row) for row in summary["rows"])
    assert all(row["utility_low"] <= row["utility"] <= row["utility_high"] for row in summary["rows"])


def test_without_standard_the_first_model_is_the_reference() -> None:
    assert summarise([Run("weighted", 0, SURE, 1.0)], LABELS, UTILITY, seed=0).reference == "weighted"
    assert "no validation" in summarise([Run("weighted", 0, SURE, None)], LABELS, UTILITY, seed=0).why


def test_the_reference_is_scikit_learns_boosting_stopped_on_the_same_rows() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    places = (slice(200), slice(200, 250), slice(250, 300))
    parts = [TensorExamples(torch.tensor(x[rows]), torch.tensor(y[rows])) for rows in places]
    ours = boosted_probs(Problem(*parts, UTILITY), seed=0)
    model = HistGradientBoostingClassifier(
        random_state=derive(0, "boosting") % 2**32, early_stopping=True, max_iter=500
    )
    model.fit(x[:200], y[:200], X_val=x[200:250], y_val=y[200:250])
    np.testing.assert_allclose(ours, model.predict_proba(x[250:]), atol=1e-6)


def test_methods_are_values_in_one_list() -> None:
    assert [known.name for known in METHODS] == ["standard", "weighted", "calibrated", "noise", "noise+calibrated"]
    kinds = [type(known.objective(UTILITY)) for known in METHODS]
    assert kinds == [Standard, Weighted, LossCalibrated, Standard, LossCalibrated]
    assert method("noise").likelihood(0.25).rate == pytest.approx(0.25)
    assert list(method("noise+calibrated").likelihood("learnt").parameters())
    assert not list(method("calibrated").likelihood("learnt").parameters())
    with pytest.raises(StakesError, match="'best'"):
        method("best")
    with pytest.raises(StakesError, match="needs a rate"):
        method("noise").likelihood(None)


def test_every_method_starts_from_the_same_network() -> None:
    """With a learning rate of next to nothing all methods end where they began: at one place."""
    generator = torch.Generator().manual_seed(0)
    examples = TensorExamples(torch.randn(60, 3, generator=generator), torch.randint(2, (60,), generator=generator))
    recipe = Recipe(hidden=(4,), training=Training(epochs=1, learning_rate=1e-12), samples=5, noise=0.1)
    found = [
        predict(train_model(known, recipe, examples, examples, UTILITY, 3)[0], examples.x, 5, 3) for known in METHODS
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
