"""The scikit-learn regressor: decisions are numbers, or actions."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from stakes import DecisionRegressor, Newsvendor, Squared, StakesError, StakesWarning, Utility
from stakes.predictors import QuantileBlend, past
from stakes.sklearn.regressor import Amounts

# As for the classifier: repeating a row moves minibatches, folds, and the samples of trees.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "repeating a row moves the folds and the samples of trees"
}
NAMES = tuple(Amounts.catalogue.compared)


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "TREES", 20)


@parametrize_with_checks(
    [
        DecisionRegressor(model="linear", folds=2, random_state=0),
        DecisionRegressor(
            model="standard",
            network="mlp",
            hidden=(16,),
            folds=2,
            epochs=60,
            learning_rate=0.02,
            batch_size=32,
            samples=20,
            random_state=0,
        ),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_it(estimator: DecisionRegressor, check: object) -> None:
    check(estimator)


def demand(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3))
    return x, 100 + 20 * x[:, 0] + 8 * (1 + (x[:, 1] > 0)) * generator.normal(size=rows)


QUICK: dict[str, Any] = {"folds": 2, "epochs": 8, "samples": 10, "random_state": 0}
QUICK |= {"tabm": {"members": 2, "width": 16}, "learning_rate": 0.02, "batch_size": 64}


@pytest.mark.parametrize("name", NAMES)
def test_decisions_of_every_model_follow_the_costs(name: str) -> None:
    (x, y), (test_x, test_y) = demand(300), demand(300, 1)
    utility = Newsvendor(under=15, over=5)
    model = DecisionRegressor(utility, model=name, **QUICK).fit(x, y)
    ordered = model.predict(test_x)
    assert ordered.shape == (300,)
    assert 0.55 < (test_y <= ordered).mean() < 0.92
    short, left = np.maximum(test_y - ordered, 0), np.maximum(ordered - test_y, 0)
    assert model.score(test_x, test_y) == pytest.approx(-(15 * short + 5 * left).mean())
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(test_x), ordered)
    if name != "constant":
        constant = DecisionRegressor(utility, model="constant", **QUICK).fit(x, y)
        assert model.score(test_x, test_y) > constant.score(test_x, test_y)


def test_a_blend_says_the_weights_of_its_models() -> None:
    x, y = demand(200)
    model = DecisionRegressor(Newsvendor(15, 5), **QUICK).fit(x, y)
    assert isinstance(model.predictor_, QuantileBlend)
    assert sum(model.details_["weights"].values()) == pytest.approx(1)


def test_intervals_and_quantiles_cover_their_share() -> None:
    (x, y), (test_x, test_y) = demand(600), demand(1000, 1)
    model = DecisionRegressor(model="linear", random_state=0).fit(x, y)
    interval = model.predict_interval(test_x, 0.8)
    assert interval.shape == (1000, 2)
    assert ((test_y >= interval[:, 0]) & (test_y <= interval[:, 1])).mean() == pytest.approx(0.8, abs=0.05)
    np.testing.assert_array_equal(interval[:, 0], model.predict_quantile(test_x, 0.1))
    for share in (0, 1, 1.5):
        with pytest.raises(StakesError, match="share of the outcomes"):
            model.predict_interval(test_x, share)
        with pytest.raises(StakesError, match="share of the outcomes"):
            model.predict_quantile(test_x, share)


def test_without_a_utility_it_is_a_regression_of_means() -> None:
    (x, y), (test_x, test_y) = demand(300), demand(300, 1)
    model = DecisionRegressor(model="mean", random_state=0).fit(x, y)
    residual = test_y - model.predict(test_x)
    assert model.score(test_x, test_y) == pytest.approx(1 - residual.var() / test_y.var(), abs=0.02)
    assert DecisionRegressor(Squared(), model="mean", random_state=0).fit(x, y).score(test_x, test_y) == pytest.approx(
        -(residual**2).mean()
    )


def test_actions_of_a_menu_come_by_name() -> None:
    x, y = demand(200)
    curves = {"wait": [(0, 500), (100, 0)], "act": 50}
    model = DecisionRegressor(Utility.from_curves(curves), model="linear", random_state=0).fit(x, y)
    actions = model.predict(x)
    assert set(actions) == {"wait", "act"}
    assert y[actions == "act"].mean() < y[actions == "wait"].mean()
    assert model.score(x, y) < 0


def test_costs_of_each_row() -> None:
    x, y = demand(200)
    costs = Newsvendor(under=np.where(x[:, 2] > 0, 19.0, 1.0), over=np.where(x[:, 2] > 0, 1.0, 19.0))
    model = DecisionRegressor(model="linear", random_state=0).fit(x, y, costs=costs)
    ordered = model.predict(x, costs=costs)
    assert (y <= ordered)[x[:, 2] > 0].mean() > 0.85
    assert (y <= ordered)[x[:, 2] <= 0].mean() < 0.15
    assert model.score(x, y, costs=costs) == pytest.approx(costs.realised(ordered, y).mean())
    with pytest.raises(StakesError, match="pass costs="):
        model.predict(x)
    for wrong in (Newsvendor(15, 5), 3.0):
        with pytest.raises(StakesError, match="a number for each"):
            DecisionRegressor(model="linear").fit(x, y, costs=wrong)
    with pytest.raises(StakesError, match="200 examples"):
        model.predict(x[:5], costs=costs)


def test_groups_times_and_weights() -> None:
    x, y = demand(200)
    groups = np.arange(200) // 10
    for how in ({"groups": groups}, {"times": np.arange(200)}, {"sample_weight": np.arange(200) % 3}):
        model = DecisionRegressor(Newsvendor(15, 5), model="linear", folds=3, random_state=0).fit(x, y, **how)
        assert np.isfinite(model.predict(x)).all()
    wrong = np.concatenate([y, y + 1000])
    weights = np.concatenate([np.ones(200), np.zeros(200)])
    model = DecisionRegressor(model="linear", random_state=0).fit(np.concatenate([x, x]), wrong, weights)
    assert model.predict(x).max() < 500
    with pytest.raises(StakesError, match="but got both"):
        model.fit(x, y, groups=groups, times=groups)
    days = pd.date_range("2024-01-01", periods=200)
    moments = pd.date_range("2024-01-01", periods=200, freq="1ms")
    written = (np.arange(200), days, moments, days.tz_localize("Europe/Paris"), days.to_period("D"), [*days.date])
    by_number, *by_date = (
        DecisionRegressor(model="constant", random_state=0).fit(x, y, times=times).predict(x).tolist()
        for times in written
    )
    assert by_date == [by_number] * 5
    for bad in (days.astype(str), days.where(days.day > 1), np.where(np.arange(200) == 7, np.nan, 1.0)):
        with pytest.raises(StakesError, match="expected a time for each row, as a number or a date"):
            model.fit(x, y, times=bad)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y, times=np.arange(199))


@pytest.mark.parametrize("setting", [{"network": "resnet"}, {"likelihood": "gausian"}])
def test_unknown_names_are_refused_with_the_known_ones(setting: dict[str, str]) -> None:
    (name, value), (x, y) = *setting.items(), demand(60)
    with pytest.raises(StakesError, match=f"expected the {name} to be one of .* but got {value!r}"):
        DecisionRegressor(model="standard", **setting).fit(x, y)


def test_costs_that_ask_for_quantiles_that_models_do_not_say_are_told() -> None:
    x, y = demand(100)
    model = DecisionRegressor(Newsvendor(2000, 1), model="constant", random_state=0).fit(x, y)
    with pytest.warns(StakesWarning, match=r"the costs ask for the 99\.95 % quantile"):
        model.predict(x)


def test_searches_and_clones() -> None:
    x, y = demand(120)
    model = DecisionRegressor(Newsvendor(15, 5), model="linear", folds=2, random_state=0)
    assert cross_val_score(model, x, y, cv=2).mean() < 0
    search = GridSearchCV(model, {"model": ["constant", "linear"]}, cv=2).fit(x, y)
    assert search.best_params_ == {"model": "linear"}
    np.testing.assert_array_equal(clone(model).fit(x, y).predict(x), model.fit(x, y).predict(x))


def test_what_is_no_utility_of_numbers_is_refused() -> None:
    x, y = demand(60)
    table = Utility.from_costs({"a": {"x": 0, "y": 1}, "b": {"x": 1, "y": 0}})
    for wrong in (table, Newsvendor(np.ones(60), 1)):
        with pytest.raises(StakesError, match="one utility of numbers"):
            DecisionRegressor(wrong).fit(x, y)
    with pytest.raises(StakesError, match="expected a model of"):
        DecisionRegressor(model="logistic").fit(x, y)
