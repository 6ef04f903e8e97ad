"""Calibrated against plain against direct: the same start, as many more steps, three objectives.

A plain network (Gaussian, MC dropout) is trained by its likelihood. From there it goes on by the likelihood (plain), by
the likelihood and the gain (calibrated), or by the cost alone (direct: a pinball loss is quantile regression). The
first two take their Bayes decision, the third puts out its decision.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stakes.decisions import decide
from stakes.inputs import Inputs
from stakes.mixtures import Mixture
from stakes.objectives import LossCalibrated, Objective, Standard
from stakes.paper.amounts.accuracy import predicted
from stakes.paper.amounts.data import Standardised
from stakes.paper.amounts.networks import Schedule, make_posterior, train
from stakes.posteriors.base import Posterior
from stakes.predictors import QuantileTrees
from stakes.utility import Linex, Newsvendor
from stakes.utility.amounts import AmountUtility

RATE = 0.05
SHARES = {"pinball .1": 0.1, "pinball .5": 0.5, "pinball .9": 0.9}
LINEX, LINEX_C = "LINEX", 1.0
ALMOST_REAL = 1e-9
COSTS: dict[str, AmountUtility] = {  # of errors in standard deviations of the training labels
    **{name: Newsvendor(share, 1 - share) for name, share in SHARES.items()},
    LINEX: Linex(LINEX_C),
}
METHODS = ("plain", "calibrated", "direct")


class DirectCost(Objective):
    """The cost of the decision that the network puts out, its location, under what happened: no likelihood."""

    def __init__(self, utility: AmountUtility) -> None:
        self.utility = utility

    def losses(self, posterior: Posterior, x: Inputs, labels: Tensor, index: Tensor | None) -> Tensor:
        outcomes = posterior.likelihood.outcomes(posterior.outputs(x))
        assert isinstance(outcomes, Mixture)
        choice = outcomes.location.squeeze(-1)  # (S, B, ...)
        return self.utility.cost(choice, labels.to(choice)).mean(0)


def run_networks(
    problems: Sequence[Standardised],
    numbers: Sequence[int],
    scale: str,
    start: Schedule,
    more: Schedule,
    samples: int,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(split, row)``: the test costs of each method under each cost."""
    trains = [one.train for one in problems]
    inputs = trains[0].x.shape[1]  # type: ignore[union-attr]
    begun = [make_posterior("dropout", inputs, number, rate=RATE, scale=scale) for number in numbers]
    train(begun, Standard(), trains, start, numbers)
    plain = copy.deepcopy(begun)
    train(plain, Standard(), trains, more, numbers)
    said = [predicted(p, one.test.x, samples, n) for p, one, n in zip(plain, problems, numbers, strict=True)]  # type: ignore[arg-type]
    for name, utility in COSTS.items():
        direct = copy.deepcopy(begun)
        train(direct, DirectCost(utility), trains, more, numbers)
        for place, (one, number) in enumerate(zip(problems, numbers, strict=True)):
            x: Tensor = one.test.x  # type: ignore[assignment]
            limited = with_limit_of(utility, begun[place], one, samples, number)
            calibrated = copy.deepcopy(begun[place])
            train([calibrated], LossCalibrated(limited, start="network"), [one.train], more, [number])
            mixtures = {"plain": said[place], "calibrated": predicted(calibrated, x, samples, number)}
            for method, mixture in mixtures.items():
                scored = score_choices(utility, decide(mixture, utility).choice, one.test.labels)
                row = {"cost_name": name, "method": method, **scored}
                row["spread"] = round(float(mixture.variance().sqrt().mean()), 5)
                yield number, row | ({"limit": round(limited.span, 6)} if method == "calibrated" else {})
            choice = predicted(direct[place], x, samples, number).location.mean(-1)
            yield number, {"cost_name": name, "method": "direct", **score_choices(utility, choice, one.test.labels)}


def run_trees(problems: Sequence[Standardised], numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(split, row)``: the test costs of boosted trees of the quantiles, trained with their defaults."""
    for one, number in zip(problems, numbers, strict=True):
        said = QuantileTrees.fit(one.train, None, number)(one.test.x).mixture()
        for name in SHARES:
            choice = decide(said, COSTS[name]).choice
            yield number, {"cost_name": name, "method": "trees", **score_choices(COSTS[name], choice, one.test.labels)}


def with_limit_of(
    utility: AmountUtility, posterior: Posterior, problem: Standardised, samples: int, number: int
) -> AmountUtility:
    """The utility with a limit from the losses of a plain model on its training rows."""
    mixture = predicted(posterior, problem.train.x, samples, number)  # type: ignore[arg-type]
    losses = -utility.realised(decide(mixture, utility).choice, problem.train.labels)
    return utility.with_limit(losses)


def predicted_spread(variance: float, limit: float, name: str) -> float:
    """The standard deviation that calibration makes of a right one: where the likelihood and the linear gain balance.

    With the decision held, 1 / s - v / s^3 + slope(s) / limit = 0, and the slope of the expected cost in s is phi(z_t)
    for a quantile, c^2 s for LINEX.
    """
    if name in SHARES:
        from scipy.special import ndtri  # it takes a tenth of a second to import

        slope = math.exp(-(float(ndtri(SHARES[name])) ** 2) / 2) / math.sqrt(2 * math.pi) / limit
        roots = np.roots([slope, 1.0, 0.0, -variance])
        return float(max(root.real for root in roots if abs(root.imag) < ALMOST_REAL))
    ratio = limit / LINEX_C**2
    return float(np.sqrt(ratio * (np.sqrt(1 + 4 * variance / ratio) - 1) / 2))


def score_choices(utility: AmountUtility, choice: Tensor, labels: Tensor) -> dict[str, float]:
    """The mean cost on test rows, and the share of outcomes that lie below the decision."""
    covered = (labels.double() <= choice).double().mean()
    cost = float(-torch.from_numpy(utility.realised(choice, labels)).mean())
    return {"cost": round(cost, 6), "covered": round(float(covered), 5)}
