"""Cost curves through points, one for each named decision; their expectations are exact under every likelihood.

A curve that begins at the cost c is a sum of jumps and bends at the outcomes x of its points:

    cost(y) = c + sum_x jump_x [y > x] + bend_x max(y - x, 0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.mixtures import numbers
from stakes.outcomes import Outcomes
from stakes.utility.base import utilities
from stakes.utility.checks import ever_best
from stakes.utility.menu import MenuUtility

Points = Sequence[tuple[float, float]]  # (outcome, cost)
LARGEST_EXPONENT = 700.0  # whose exponential is finite
LEAST_CHANGE = -1 + 1e-12  # of an expected gain, which stays above 0


@utilities.register("curves")
@dataclass(frozen=True, eq=False)
class CurveUtility(MenuUtility):
    """A cost curve for each decision: see `Utility.from_curves`. At a jump, the first cost holds."""

    curves: Mapping[str, float | Points]
    decisions: tuple[str, ...] = field(init=False)
    _points: dict[str, NDArray[np.float64]] = field(init=False, repr=False)  # (P, 2) each
    _knots: Tensor = field(init=False, repr=False)  # (U,) all outcomes at which a curve jumps or bends
    _parts: Tensor = field(init=False, repr=False)  # (D, 1 + 2 U) where it begins, its jumps, and its bends

    def __post_init__(self) -> None:
        object.__setattr__(self, "decisions", tuple(self.curves))
        object.__setattr__(self, "_points", {name: _points(curve, name) for name, curve in self.curves.items()})
        super().__post_init__()
        knots = np.unique(np.concatenate([points[:, 0] for points in self._points.values()]))  # (U,)
        parts = [[points[0, 1], *_jumps_and_bends(points, knots).flatten()] for points in self._points.values()]
        object.__setattr__(self, "_knots", torch.tensor(knots))
        object.__setattr__(self, "_parts", torch.tensor(parts))

    def costs(self, outcome: Tensor) -> Tensor:
        above = outcome.double().unsqueeze(-1) - self._knots.to(outcome.device)  # (..., U)
        return self._sum((above > 0).double(), above.clamp_min(0))

    def expected_costs(self, outcomes: Outcomes) -> Tensor:
        distribution = numbers(outcomes)
        knots = self._knots.to(outcomes.weights.device).unbind()
        beyond = torch.stack([1 - distribution.cdf(knot) for knot in knots], -1)  # (..., U)
        return self._sum(beyond, torch.stack([distribution.shortfall(knot) for knot in knots], -1))

    def _sum(self, beyond: Tensor, excess: Tensor) -> Tensor:
        parts = torch.cat([torch.ones_like(beyond[..., :1]), beyond, excess], -1)  # (..., 1 + 2 U)
        return parts @ self._parts.to(beyond).T

    def at_points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(P,) all outcomes at which a curve jumps or bends, those of jumps twice, and (D, P) the costs there."""
        knots = np.unique(np.concatenate([points[:, 0] for points in self._points.values()]))
        jumps = {x for points in self._points.values() for x in points[1:, 0][np.diff(points[:, 0]) == 0]}
        points = np.array(sorted([*knots, *jumps]))
        after = np.r_[False, np.diff(points) == 0]  # the second of a pair: what holds beyond the jump
        beyond = np.where(after, np.nextafter(points, np.inf), points)
        return points, self.costs(torch.from_numpy(beyond)).numpy().T

    @property
    def _all_costs(self) -> NDArray[np.float64]:
        return np.concatenate([points[:, 1] for points in self._points.values()])

    @property
    def cost_limits(self) -> tuple[float, float]:
        """Curves are constant before their first point and after their last."""
        return float(self._all_costs.min()), float(self._all_costs.max())

    @property
    def span(self) -> float:
        return super().span if self.limit else float(np.ptp(self._all_costs)) or 1.0

    def _least_at_atoms(self, outcomes: Outcomes, choice: Tensor) -> Tensor | None:
        return None  # `bounded` has taken it out of the curves

    def foreseen(self, outcomes: Outcomes) -> Tensor:
        points, costs = self._with_crossings()
        lowest = CurveUtility({"the best": list(zip(points, costs.min(0), strict=True))})
        return self.best - lowest.expected_costs(outcomes).squeeze(-1)

    def bounded(self, margin: float) -> Self:
        """The curves above the lowest of all, which are curves too: see `Utility.bounded`.

        The highest of those that are the best for some probabilities of the outcomes is worth ``margin``, as in a
        table, unless there is a limit; all others are as high whatever happens.
        """
        points, costs = self._with_crossings()
        regrets = costs - costs.min(0)  # (D, P)
        taken = ever_best(-regrets, exact=True)
        worst = float(regrets[taken].max())
        regrets[~taken] = worst
        curves = {name: list(zip(points, row, strict=True)) for name, row in zip(self.decisions, regrets, strict=True)}
        return replace(self, curves=curves, best=worst + margin * (worst or 1.0))

    def _with_crossings(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `at_points`, and also where two curves cross."""
        points, costs = self.at_points()
        first, second = np.triu_indices(len(costs), k=1)
        gaps = costs[first] - costs[second]  # (pairs, P)
        pair, place = np.nonzero(gaps[:, :-1] * gaps[:, 1:] < 0)
        share = gaps[pair, place] / (gaps[pair, place] - gaps[pair, place + 1])
        crossings = points[place] + share * (points[place + 1] - points[place])
        every = np.unique(crossings[~np.isin(crossings, points)])
        at_crossings = np.array([np.interp(every, points, row) for row in costs]).reshape(len(costs), -1)
        order = np.argsort(np.concatenate([points, every]), kind="stable")
        return np.concatenate([points, every])[order], np.concatenate([costs, at_crossings], 1)[:, order]

    def log_gain(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        return super().log_gain(outcomes, choice) if self.limit else self.expected_of(outcomes, choice).log()

    def _log_mean_exp(self, outcomes: Outcomes, choice: Tensor, rate: float) -> Tensor:
        """By the atoms, and for each jump by the share of outcomes beyond it, of which atoms know too little.

        They are apart: by them alone, a decision whose cost only jumps would have no gradient.
        """
        by_atoms = super()._log_mean_exp(outcomes, choice, rate)  # (S, B, ...)
        jumps = self._parts[:, 1 : 1 + len(self._knots)]  # (D, U)
        jumping = jumps.any(0)
        if outcomes.values is None or not jumping.any():
            return by_atoms
        knots, distribution = self._knots[jumping].to(by_atoms), numbers(outcomes)
        before = self.costs(knots).T  # (D, J), for at a jump the first cost holds
        after = before + jumps[:, jumping].to(by_atoms)
        first, then = (  # (S, B, ..., J) of the gain, as shares of that by atoms
            (-rate * costs[choice] - by_atoms.unsqueeze(-1)).clamp_max(LARGEST_EXPONENT).exp()
            for costs in (before, after)
        )
        beyond = torch.stack([1 - distribution.cdf(knot) for knot in knots], -1)
        beyond_by_atoms = [(outcomes.weights * (outcomes.values > knot)).sum(-1) for knot in knots]
        missed = ((then - first) * (beyond - torch.stack(beyond_by_atoms, -1))).sum(-1)
        return by_atoms + missed.clamp_min(LEAST_CHANGE).log1p()

    def to_dict(self) -> dict[str, Any]:
        curves = {name: points.tolist() for name, points in self._points.items()}
        return {"kind": "curves", "curves": curves, **self._shared_fields()}


def _points(curve: Any, name: str) -> NDArray[np.float64]:
    """``(P, 2)``, checked."""
    try:
        points = np.array([(0.0, curve)] if np.ndim(curve) == 0 else curve, dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 2 or not (len(points) and np.isfinite(points).all()):
        raise StakesError(
            f"expected a cost, or points (outcome, cost) of finite numbers, for the decision {name!r}, but got "
            f"{curve!r}"
        )
    if (np.diff(points[:, 0]) < 0).any() or (np.unique(points[:, 0], return_counts=True)[1] > 2).any():
        raise StakesError(
            f"expected the points of the decision {name!r} in the order of their outcomes, each outcome at most twice "
            f"(a jump), but got {points[:, 0].tolist()}"
        )
    return points


def _jumps_and_bends(points: NDArray[np.float64], knots: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(2, U)``: how much the curve jumps, and its slope changes, at each knot."""
    changes = np.zeros((2, len(knots)))
    slope = 0.0
    for number, (x, cost) in enumerate(points):
        knot = np.searchsorted(knots, x)
        following = points[number + 1] if number + 1 < len(points) else None
        if following is not None and following[0] == x:
            changes[0, knot] = following[1] - cost
            continue
        new = 0.0 if following is None else (following[1] - cost) / (following[0] - x)
        changes[1, knot] = new - slope
        slope = new
    return changes
