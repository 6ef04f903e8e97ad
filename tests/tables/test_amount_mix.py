"""What is chosen on the rows held out, where outcomes are numbers; and every model on a small problem."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from finished_amounts import normal_quantiles

from stakes import Newsvendor, Utility
from stakes.features import Features
from stakes.mixtures import LEVELS, Quantiles
from stakes.predictors import PastQuantiles
from stakes.tables.amounts.mix import AmountMix, HeldOutAmounts
from stakes.tables.amounts.models import AMOUNT_MODELS, CalibratedAmounts, _limited, shares_of
from stakes.tables.mix import Solution
from stakes.tables.problem import Problem, Recipe, predict_rows
from stakes.tables.split import folds
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

UTILITY = Newsvendor(under=15.0, over=5.0)
RECIPE = Recipe(
    tabm={"members": 4, "width": 16},
    training=Training(epochs=10, batch_size=32, learning_rate=0.02, select="nll"),
    samples=4,
)


def held_out(rows: int, **shifts: float) -> HeldOutAmounts:
    """Amounts around means that a model knows but for a shift; others say nothing of the row."""
    generator = torch.Generator().manual_seed(0)
    means = 30 + 10 * torch.randn(rows, generator=generator, dtype=torch.double)
    labels = means + 3 * torch.randn(rows, generator=generator, dtype=torch.double)
    quantiles = {name: normal_quantiles(means + shift, 3.0).float() for name, shift in shifts.items()}
    quantiles["constant"] = torch.quantile(labels, LEVELS).expand(rows, -1).float()
    return HeldOutAmounts(quantiles, labels, UTILITY)


def test_a_blend_weighs_models_by_what_they_said_of_rows_held_out() -> None:
    held = held_out(400, linear=0.0, forest=20.0)
    mixes = held.mixes(("constant", "linear", "forest", "blend"))
    assert mixes["blend"].weights["linear"] > 0.9
    assert mixes["linear"].weights == {"linear": 1.0}
    few = held_out(4, linear=0.0, forest=3.0).mixes(("linear", "forest", "blend"))["blend"].weights
    assert few["forest"] > 0.2  # few rows say little
    opposite = held_out(400, linear=5.0, forest=-5.0).mixes(("linear", "forest", "blend"))["blend"]
    assert opposite.weights["linear"] == pytest.approx(0.5, abs=0.1)


def test_without_rows_held_out_a_blend_has_equal_weights() -> None:
    held = held_out(10, linear=0.0, forest=0.0)
    none = HeldOutAmounts({name: each[:0] for name, each in held.predictions.items()}, held.labels[:0], UTILITY)
    assert none.mixes(("linear", "forest", "blend"))["blend"].weights == {"linear": 0.5, "forest": 0.5}


def test_the_level_of_a_row_counts_as_much_as_all_levels() -> None:
    counts = replace(held_out(3, linear=0.0), utility=Newsvendor(np.array([15.0, 5.0, 1.0]), 5.0)).emphasis
    assert counts.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert LEVELS[counts.argmax(1)].tolist() == pytest.approx([0.75, 0.5, 0.17])
    assert held_out(3, linear=0.0).emphasis.max() == pytest.approx(0.5 + 0.5 / 99)
    menu = Utility.from_curves({"a": 1, "b": [(0, 0), (60, 3)]})
    assert replace(held_out(3, linear=0.0), utility=menu).emphasis is None


def test_calibration_is_as_weak_as_pays() -> None:
    names = {"standard": 0.0, "calibrated-0.1": 0.01, "calibrated-1": 6.0}
    kept = held_out(300, **names).mixes(("calibrated",))["calibrated"]
    assert (kept.weights, kept.details) == ({"standard": 1.0}, {"strength": 0.0})
    shifts = dict(zip(names, (6.0, 3.0, 0.0), strict=True))
    better = held_out(300, **shifts).mixes(("calibrated",))["calibrated"]
    assert better.details == {"strength": 1.0}


def test_the_constant_is_chosen_where_nothing_beats_it() -> None:
    def solution(**shifts: float) -> Solution:
        held = held_out(200, **shifts)
        return Solution(held, held.mixes((*held.predictions, *(["blend"] if len(shifts) > 1 else []))), {})

    assert solution(linear=0.0, forest=1.0).choose(0).model == "blend"
    assert solution(linear=60.0).choose(0).model == "constant"
    choice = solution(linear=1.0).choose(0)
    assert (choice.model, choice.rival) == ("linear", "constant")
    assert choice.lead.low > 0
    assert solution(linear=0.0).validation("linear") > solution(linear=5.0).validation("linear")


def test_a_mix_as_a_predictor_says_the_same() -> None:
    values = {name: torch.sort(torch.randn(99, dtype=torch.double)).values for name in ("linear", "forest")}
    parts = {name: [PastQuantiles(value), PastQuantiles(value + 2)] for name, value in values.items()}
    mixed = AmountMix({"linear": 0.3, "forest": 0.7})
    trained = {name: (value + 1).expand(3, -1) for name, value in values.items()}  # the mean of the parts
    assert predict_rows(mixed.predictor(parts), torch.zeros(3, 2)) == pytest.approx(
        mixed.predictions(trained), abs=1e-5
    )


def problem(utility: Utility = UTILITY, rows: int = 120) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    y = 30 + 8 * x[:, 0] + 3 * generator.normal(size=rows)
    examples = TensorExamples(torch.from_numpy(x), torch.from_numpy(y))
    return Problem(examples, folds(np.zeros(rows, dtype=np.int64), np.arange(rows), 2, 0), utility, Features(3))


@pytest.mark.parametrize("name", AMOUNT_MODELS.trained)
def test_every_model_says_quantiles_in_order(name: str) -> None:
    model, own = AMOUNT_MODELS.trained[name], problem()
    before = []
    if model.after is not None:
        before = [part.predictor for part in AMOUNT_MODELS.trained[model.after].train(own, RECIPE, 0, range(2))]
    parts = model.train(own, RECIPE, 0, range(2), before=before)
    for part, fold in zip(parts, own.folds, strict=True):
        assert part.held_out.shape == (len(fold.held), 99)
        assert bool((part.held_out.diff(dim=1) >= 0).all())
        held = own.examples.labels[torch.from_numpy(fold.held)]
        correlation = np.corrcoef(part.held_out[:, 49], held)[0, 1] if name != "constant" else 1.0
        assert correlation > 0.5


def test_the_limit_of_calibration_is_a_quantile_of_plain_losses() -> None:
    own = problem()
    past = PastQuantiles(torch.quantile(own.examples.labels, LEVELS))
    limited = _limited(own, [past, past], range(2))
    order = float(Quantiles(past.values.unsqueeze(0)).quantile(0.75))
    held = own.examples.labels[own.selection_rows]
    losses = 15 * (held - order).clamp_min(0) + 5 * (order - held).clamp_min(0)
    assert limited.limit.limit == pytest.approx(float(torch.quantile(losses, 0.8)), rel=1e-4)
    menu = Utility.from_curves({"a": 1, "b": [(0, 0), (60, 3)]})
    assert _limited(problem(menu), [past, past], range(2)) is menu
    assert isinstance(AMOUNT_MODELS.trained["calibrated-1"], CalibratedAmounts)


def test_models_are_trained_for_the_shares_that_costs_ask_for() -> None:
    assert shares_of(UTILITY) == (0.75,)
    assert shares_of(Newsvendor(np.array([1.0, 3.0]), 1.0)) == (0.5, 0.75)
    assert len(shares_of(Newsvendor(np.linspace(1, 9, 50), 1.0))) == 3
    assert shares_of(Newsvendor(1.0, 0.0)) == ()
    assert shares_of(Utility.from_curves({"a": 1})) == ()
