"""A restaurant's orders: what each predictor's would have cost on the days after those that it learnt from.

Predictors are trained with their defaults. ``blend`` orders the mean of what all of them order, and
``chosen`` as the one that was cheapest on earlier days, of which it had seen only those before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.decisions import decide
from stakes.features import Features
from stakes.objectives import Standard
from stakes.outcomes import Outcomes
from stakes.paper.amounts.accuracy import predicted
from stakes.paper.amounts.data import DAYS, TEST_DAYS, Numbers
from stakes.paper.amounts.networks import Schedule, make_posterior, train
from stakes.predictors import ForestPast, LinearQuantiles, MeanTrees, NearestPast, QuantileTrees
from stakes.training.examples import TensorExamples
from stakes.utility import Newsvendor

if TYPE_CHECKING:  # so that help comes soon
    import pandas as pd

SHARES = (0.5, 0.75, 0.9)
TOTAL = 10.0  # under + over, as published
FIRST_TEST = DAYS - TEST_DAYS
WINDOWS = ((343, 458), (458, FIRST_TEST))  # earlier days on which a model is chosen, each after those it is trained on
LAGS = (1, 7, 14)
RAW, LAGGED = "columns", "columns and lags"
# Not the year: those to come are never among those learnt from.
COLUMNS = ("is_holiday", "is_closed", "weekend", "wind", "clouds", "rain", "sunshine", "temperature")
LEVELS = {
    "weekday": ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"),
    "month": ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
}
PAST, WEEKDAY, BLEND, CHOSEN = "past quantile", "past quantile by weekday", "blend", "chosen"
# Steps chosen of 60, 120, 250 and 600, the rate of .05 and .2, on the earlier days of two products.
NETWORK_STEPS, NETWORK_RATE, NETWORK_BATCH = 60, 0.05, 64
DECIMALS = 3


@dataclass(frozen=True)
class Days:
    """The days to learn from and those to order for."""

    train: TensorExamples
    x: torch.Tensor
    features: Features


Learner = Callable[[Days, float], NDArray[np.float64]]  # the orders, for a share of demand to be covered


def _from_outcomes(say: Callable[[Days], Outcomes]) -> Learner:
    """Orders of a predictor whose outcomes are the same for every share: it is trained once for each `Days`."""
    kept: dict[int, tuple[Days, Outcomes]] = {}

    def order(days: Days, share: float) -> NDArray[np.float64]:
        if id(days) not in kept:
            kept.clear()
            kept[id(days)] = days, say(days)
        return np.asarray(decide(kept[id(days)][1], Newsvendor(share, 1 - share)).choice, dtype=np.float64)

    return order


def _predictor(kind: Any) -> Learner:
    return _from_outcomes(lambda days: kind.fit(days.train, None, 0, days.features)(days.x).mixture())


def _network(family: str) -> Learner:
    def say(days: Days) -> Outcomes:
        posterior = make_posterior(family, days.features.width, 0, rate=NETWORK_RATE)
        schedule = Schedule(NETWORK_BATCH, 0.01, steps=NETWORK_STEPS)
        train([posterior], Standard(), [days.train], schedule, [0])
        return predicted(posterior, days.x, 200, 0)

    return _from_outcomes(say)


def _scikit_boosting(days: Days, share: float) -> NDArray[np.float64]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(loss="quantile", quantile=share, random_state=0)
    return np.asarray(model.fit(days.train.x.numpy(), days.train.labels.numpy()).predict(days.x.numpy()))  # type: ignore[union-attr]


def learners() -> dict[str, Learner]:
    return {
        "linear quantiles": _predictor(LinearQuantiles),
        "nearest past": _predictor(NearestPast),
        "forest of the past": _predictor(ForestPast),
        "trees of quantiles": _predictor(QuantileTrees),
        "trees of the mean": _predictor(MeanTrees),
        "scikit-learn's quantile boosting": _scikit_boosting,
        "dropout network": _network("dropout"),
        "ensemble": _network("ensemble"),
    }


METHODS = (PAST, WEEKDAY, *(f"{name}, {part}" for part in (RAW, LAGGED) for name in learners()), BLEND)


def past_quantile(past: NDArray[Any], share: float) -> float:
    """The lowest past demand that covered the share: a quantile without interpolation."""
    return float(np.quantile(past, share, method="inverted_cdf"))


def weekday_quantiles(days: "pd.DataFrame", product: str, cut: int, end: int, share: float) -> Numbers:
    """For each day from ``cut`` to ``end`` the quantile of the same weekdays before ``cut``."""
    past = days[:cut].groupby("weekday")[product].apply(lambda sold: past_quantile(sold.to_numpy(), share))
    return days["weekday"][cut:end].map(past).to_numpy(dtype=np.float64, copy=True)


def cost_of(orders: NDArray[Any], sold: NDArray[Any], share: float) -> Numbers:
    """Of each day."""
    return -Newsvendor(TOTAL * share, TOTAL * (1 - share)).realised(orders, sold)


def matrix(days: "pd.DataFrame", product: str, lags: bool) -> tuple[Numbers, Features]:
    """The features of every day, numbers first; lags of the demand are NaN on the first days."""
    numbers = [days[name].to_numpy(dtype=np.float64) for name in COLUMNS]
    if lags:
        numbers += [days[product].shift(lag).to_numpy(dtype=np.float64) for lag in LAGS]
    levels = [(days[name] == level).to_numpy(dtype=np.float64) for name, known in LEVELS.items() for level in known]
    return np.stack([*numbers, *levels], 1), Features(len(numbers), levels=tuple(map(len, LEVELS.values())))


def days_between(days: "pd.DataFrame", product: str, lags: bool, cut: int, end: int) -> Days:
    """Learn from the days before ``cut``, order for those from there to ``end``."""
    x, features = matrix(days, product, lags)
    first = max(LAGS) if lags else 0
    numbers = x[first:cut, : features.numbers]
    scale = numbers.std(0)
    x[:, : features.numbers] = (x[:, : features.numbers] - numbers.mean(0)) / np.where(scale > 0, scale, 1.0)
    sold = torch.from_numpy(days[product].to_numpy(dtype=np.float32, copy=True)[first:cut])
    return Days(
        TensorExamples(torch.from_numpy(x[first:cut]).float(), sold), torch.from_numpy(x[cut:end]).float(), features
    )


def all_orders(days: "pd.DataFrame", product: str, cut: int, end: int) -> dict[str, Mapping[float, Numbers]]:
    """What each method orders from ``cut`` to ``end``, for each share."""
    past = days[product][:cut].to_numpy()
    orders: dict[str, Mapping[float, Numbers]] = {
        PAST: {share: np.full(end - cut, past_quantile(past, share)) for share in SHARES},
        WEEKDAY: {share: weekday_quantiles(days, product, cut, end, share) for share in SHARES},
    }
    constants = len(orders)
    for part in (RAW, LAGGED):
        known = days_between(days, product, part == LAGGED, cut, end)
        for name, order in learners().items():
            orders[f"{name}, {part}"] = {share: order(known, share).clip(0) for share in SHARES}
    learnt = list(orders.values())[constants:]
    orders[BLEND] = {share: np.mean([each[share] for each in learnt], axis=0) for share in SHARES}
    return orders


def run_orders(days: "pd.DataFrame", product: str) -> list[dict[str, Any]]:
    """A row for each method and share: its cost on each test day, and its mean cost on the earlier days."""
    sold = days[product].to_numpy(dtype=np.float64, copy=True)
    earlier = [(cut, end, all_orders(days, product, cut, end)) for cut, end in WINDOWS]
    rows = []
    for method, orders in all_orders(days, product, FIRST_TEST, DAYS).items():
        for share in SHARES:
            costs = cost_of(orders[share], sold[FIRST_TEST:], share)
            before = [cost_of(each[method][share], sold[cut:end], share) for cut, end, each in earlier]
            rows.append(
                {
                    "method": method,
                    "share": share,
                    "cost": round(float(costs.mean()), 6),
                    "earlier_cost": round(float(np.concatenate(before).mean()), 6),
                    "days": [round(float(cost), DECIMALS) for cost in costs],
                }
            )
    return rows
