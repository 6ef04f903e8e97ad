"""What the rows of the experiment say, with intervals: over splits, and over days in order."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes import seeds
from stakes.errors import StakesError
from stakes.evaluation.metrics import RESAMPLES, TAIL, Interval
from stakes.paper.amounts.orders import CHOSEN, METHODS, PAST
from stakes.paper.sweep import Result, Row

BLOCK = 14  # days that are resampled together: weeks have a shape, and demand drifts


def student_interval(values: NDArray[np.float64]) -> Interval:
    """The 95 % interval of a mean over a few splits by Student's t; a bootstrap of five numbers would be too narrow."""
    from scipy.special import stdtrit  # it takes a tenth of a second to import

    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    reach = float(stdtrit(len(values) - 1, 1 - TAIL)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def change(result: Result, data: str, condition: str, cost: str, method: str) -> Interval:
    """By how many per cent a method's cost differs from that of plain training, paired by split."""
    wanted = {"part": "costs", "data": data, "condition": condition, "cost_name": cost}
    ours, theirs = (result.values("cost", method=name, **wanted) for name in (method, "plain"))
    return student_interval(100 * (ours / theirs - 1))


def block_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(..., N) -> (T, ...)``: means over resampled days, in blocks that go round from the last day to the first.

    Methods that are resampled together are paired: the same days for all.
    """
    days = values.shape[-1]
    generator = seeds.numpy_generator(0, "blocks")
    starts = generator.integers(days, size=(RESAMPLES, -(-days // BLOCK)))
    index = ((starts[..., None] + np.arange(BLOCK)) % days).reshape(RESAMPLES, -1)[:, :days]
    weights = np.stack([np.bincount(row, minlength=days) for row in index]) / days  # (T, N)
    return np.moveaxis(values @ weights.T, -1, 0)


def percentiles(mean: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(resampled, [TAIL, 1 - TAIL])
    return Interval(mean, float(low), float(high))


class Orders:
    """The daily costs of every method, products together; ``chosen`` is each product's cheapest on earlier days."""

    def __init__(self, result: Result, share: float) -> None:
        self.products: list[str] = list(result.config["products"])
        self.share = share
        rows = {
            product: {row["method"]: row for row in result.select(part="orders", data=product, share=share)}
            for product in self.products
        }
        for product, known in rows.items():
            if set(known) != set(METHODS):
                raise StakesError(f"expected all orders of {product}, but some are missing: run the sweep to its end")
        self.choice = {product: _cheapest_before(known) for product, known in rows.items()}
        self.costs = {  # by method: (products, days)
            method: np.array([known[method]["days"] for known in rows.values()]) for method in METHODS
        }
        self.costs[CHOSEN] = np.array([rows[product][self.choice[product]]["days"] for product in self.products])

    def cost(self, method: str) -> Interval:
        """The mean cost of a day, over products."""
        costs = self.costs[method].mean(0)
        return percentiles(float(costs.mean()), block_means(costs))

    def of_product(self, method: str, product: str) -> float:
        return float(self.costs[method][self.products.index(product)].mean())

    def difference(self, method: str, against: str, product: str | None = None) -> Interval:
        """The paired difference in the mean cost of a day, of a product or over all."""
        gaps = self.costs[method] - self.costs[against]
        gap = gaps.mean(0) if product is None else gaps[self.products.index(product)]
        return percentiles(float(gap.mean()), block_means(gap))

    def prescriptiveness(self, method: str) -> Interval:
        """The share of what perfect foresight saves against the past quantile (Bertsimas and Kallus 2020).

        Foresight costs nothing here, so it is 1 - cost / cost of the past quantile.
        """
        pair = np.stack([self.costs[name].mean(0) for name in (method, PAST)])
        resampled = block_means(pair)
        ours, past = pair.mean(1)
        return percentiles(float(1 - ours / past), 1 - resampled[:, 0] / resampled[:, 1])

    def best_in_hindsight(self) -> str:
        """The method with the lowest cost on the test days, over all products."""
        return min(METHODS, key=lambda method: float(self.costs[method].mean()))


def _cheapest_before(rows: dict[str, Row]) -> str:
    """The method with the lowest cost on earlier days."""
    return min(rows, key=lambda method: float(rows[method]["earlier_cost"]))


def moments(result: Result, key: str, **wanted: Any) -> tuple[float, float]:
    """The mean over splits, and its standard error."""
    values = result.values(key, **wanted)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
