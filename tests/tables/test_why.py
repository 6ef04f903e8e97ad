"""Why a decision: Shapley values by definition, and what they sum to."""

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from in_use import UTILITY, logistic_model, patients, saved

from stakes import Decider, SavedModel, StakesError
from stakes.predictors import Constant, Logistic
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import TableProfile
from stakes.tables.why import Explainer, top_columns
from stakes.utility import TableUtility

GAPS = torch.tensor([[30.0, -10.0], [-470.0, 30.0]], dtype=torch.double)


def probs_of(model: SavedModel, frame: pd.DataFrame) -> np.ndarray:
    assert model.encoder is not None
    return model.predictor(torch.from_numpy(model.encoder.transform(frame))).mean_probs().double().numpy()


def by_definition(model: SavedModel, row: pd.DataFrame, gap: np.ndarray) -> list[float]:
    """Averages over all orders of the columns, on raw tables."""
    assert model.profile is not None
    background = model.profile.background_frame
    assert background is not None
    names = list(background.columns)
    worth = {}
    for size in range(len(names) + 1):
        for members in itertools.combinations(names, size):
            hybrid = background.assign(**{name: row[name].iloc[0] for name in members})
            worth[frozenset(members)] = float(probs_of(model, hybrid).mean(0) @ gap)
    values = dict.fromkeys(names, 0.0)
    for order in itertools.permutations(names):
        for place, name in enumerate(order):
            values[name] += worth[frozenset(order[: place + 1])] - worth[frozenset(order[:place])]
    return [values[name] / math.factorial(len(names)) for name in names]


def test_few_columns_are_exact() -> None:
    frame = patients(120)
    model, rows = logistic_model(frame), frame.iloc[[0, 7]]  # one of them with a gap
    explainer = Explainer(model)
    assert model.encoder is not None
    values = explainer.values(torch.from_numpy(model.encoder.transform(rows)), GAPS)
    for number in range(2):
        right = by_definition(model, rows.iloc[[number]], GAPS[number].numpy())
        np.testing.assert_allclose(values[number], right, atol=1e-4)  # probabilities are of single precision


@pytest.mark.parametrize("enumerated", [8, 0])
def test_they_sum_to_the_difference_less_its_mean_over_the_background(enumerated: int) -> None:
    frame = patients(200, columns=4)
    model, rows = logistic_model(frame), frame.iloc[:2]
    explainer = Explainer(model, enumerated)
    assert model.encoder is not None
    assert model.profile is not None
    x = torch.from_numpy(model.encoder.transform(rows))
    values, baseline = explainer.values(x, GAPS), explainer.baseline(GAPS)
    background = model.profile.background_frame
    assert background is not None
    np.testing.assert_allclose(baseline, GAPS.numpy() @ probs_of(model, background).mean(0), atol=1e-6)
    difference = (GAPS.numpy() * probs_of(model, rows)).sum(1)
    np.testing.assert_allclose(values.sum(1), difference - baseline, atol=1e-4)


def test_orders_drawn_at_random_are_near_the_exact_values_and_always_the_same() -> None:
    frame = patients(200, columns=4)
    model = logistic_model(frame)
    assert model.encoder is not None
    x = torch.from_numpy(model.encoder.transform(frame.iloc[:2]))
    exact, sampled = (Explainer(model, enumerated).values(x, GAPS) for enumerated in (8, 0))
    assert np.abs(sampled - exact).max() < 0.15 * np.abs(exact).max()
    assert not np.array_equal(sampled, exact)
    np.testing.assert_array_equal(sampled, Explainer(model, 0).values(x, GAPS))


def test_the_values_of_a_linear_function_are_those_in_closed_form() -> None:
    """A column that the model does not use has none; one that decides alone has all of it."""
    frame = patients(100, columns=2)
    encoder = TableEncoder.fit(frame)
    model = logistic_model(frame)
    weights = torch.zeros(2, encoder.width, dtype=torch.double)
    weights[0, 1] = 1.0  # "test 1"
    predictor = Logistic(weights, torch.zeros(2).double(), torch.ones(2, dtype=torch.bool))
    model = SavedModel(predictor, UTILITY, encoder, {}, model.profile)
    explainer = Explainer(model)
    x = torch.from_numpy(encoder.transform(frame.iloc[:1]))
    values = explainer.values(x, GAPS[:1])
    alone = float(GAPS[0].numpy() @ probs_of(model, frame.iloc[:1])[0]) - explainer.baseline(GAPS[:1])[0]
    np.testing.assert_allclose(values, [[0, alone, 0]], atol=1e-5)


def test_the_columns_that_moved_most_in_words() -> None:
    values = np.array([[0.0, -12.345, 3.2], [1e-9, 1234.56, -0.012345]])
    texts = top_columns(("a", "b", "c d"), values, torch.tensor([[-40.0, 30.0], [2000.0, 0.0]]), 3)
    assert texts.tolist() == [["b -12.3", "c d +3.20", ""], ["b +1,235", "c d -0.0123", ""]]


def test_decisions_say_why_with_the_margin_in_the_unit_of_the_costs(tmp_path: Path) -> None:
    frame = patients(150)
    path = saved(tmp_path / "model", frame)
    decided = Decider(path, why=3)(frame.iloc[:6])
    explainer = Explainer(SavedModel.load(path))
    for _, row in decided.iterrows():
        parts = {text.rpartition(" ")[0]: float(text.rpartition(" ")[2]) for text in row[["why_1", "why_2", "why_3"]]}
        assert list(parts) == sorted(parts, key=lambda name: -abs(parts[name]))
        first, second = (UTILITY.decisions.index(row[name]) for name in ("decision", "runner_up"))
        gap = torch.tensor(UTILITY.costs[second] - UTILITY.costs[first])[None]
        total = sum(parts.values()) + explainer.baseline(gap)[0]
        assert total == pytest.approx(row["margin"], abs=0.02 * max(map(abs, parts.values())))


def test_refused_without_training_rows_or_another_decision(tmp_path: Path) -> None:
    frame = patients(30)
    with pytest.raises(StakesError, match="keeps no training rows"):
        Decider(saved(tmp_path / "old", frame, profile=False), why=1)
    one = TableUtility([[1, 0]], ("treat",), ("ill", "well"))
    with pytest.raises(StakesError, match="there is only one"):
        Decider(saved(tmp_path / "one", frame, one), why=1)


def test_a_model_that_says_the_same_of_all_has_nothing_to_tell(tmp_path: Path) -> None:
    frame = patients(30)
    encoder = TableEncoder.fit(frame)
    constant = Constant(torch.tensor([0.5, 0.5], dtype=torch.double))
    SavedModel(constant, UTILITY, encoder, {}, TableProfile.fit(encoder, frame)).save(tmp_path / "model")
    assert Decider(tmp_path / "model", why=2)(frame)[["why_1", "why_2"]].isna().all().all()
