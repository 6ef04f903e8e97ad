"""Costs that are a user's function of the decision and the outcome; expectations are sums over atoms."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.utility.amounts import AmountUtility
from stakes.utility.menu import MenuUtility

GRID = 41  # numbers that a search begins with
MOST_STEPS = 500  # decisions that are all tried
GOLDEN = (math.sqrt(5) - 1) / 2
REFINEMENTS = 40  # of an interval, to 1e-8 of it
ATOMS_AT_ONCE = 2**17  # of some rows, which stay in the cache while decisions are tried


@dataclass(frozen=True, eq=False)
class FunctionUtility(AmountUtility):
    """Decisions are numbers between two bounds: see `Utility.from_function`.

    All steps are tried, if they are at most 500; else the best of 41 numbers is made precise by a golden-section
    search around it.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.at_least) and math.isfinite(self.at_most)):
            raise StakesError("expected bounds of the decisions to search between: Range(at_least, at_most)")

    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        return _as_costs(self.function(choice, outcome), torch.broadcast_shapes(choice.shape, outcome.shape))  # type: ignore[no-untyped-call]

    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        return (outcomes.weights * self._atom_costs(outcomes, choice)).sum(-1)

    def unavoidable(self, outcome: Tensor) -> Tensor | None:
        with torch.no_grad():  # the best decision for an outcome that is certain
            values = outcome.unsqueeze(-1)
            best = self.best_choice(Outcomes(torch.ones_like(values), values=values))
        return self.cost(best, outcome)

    def best_choice(self, outcomes: Outcomes) -> Tensor:
        rows = torch.arange(outcomes.shape[0], device=outcomes.weights.device)
        size = max(1, ATOMS_AT_ONCE // max(1, outcomes.shape[1:].numel()))
        return torch.cat([self._best_of_rows(outcomes.rows(block)) for block in torch.split(rows, size)])

    def _best_of_rows(self, outcomes: Outcomes) -> Tensor:
        low, top = self.at_least, self.range.top
        steps = math.inf if self.step is None else round((top - low) / self.step) + 1
        if steps <= MOST_STEPS:
            return self._first_best(outcomes, torch.linspace(low, top, int(steps), dtype=torch.float64))
        return super().best_choice(outcomes)

    def optimum(self, outcomes: Outcomes) -> Tensor:
        grid = torch.linspace(self.at_least, self.at_most, GRID, dtype=torch.float64)
        middle, reach = self._first_best(outcomes, grid), float(grid[1] - grid[0])
        low, high = (middle - reach).clamp_min(self.at_least), (middle + reach).clamp_max(self.at_most)
        inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_inner, at_outer = self.expected_cost(outcomes, inner), self.expected_cost(outcomes, outer)
        for _ in range(REFINEMENTS):
            left = at_inner < at_outer  # the best lies left of the outer point
            low, high = torch.where(left, low, inner), torch.where(left, outer, high)
            kept, at_kept = torch.where(left, inner, outer), torch.where(left, at_inner, at_outer)
            new = torch.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
            at_new = self.expected_cost(outcomes, new)
            inner, outer = torch.where(left, new, kept), torch.where(left, kept, new)
            at_inner, at_outer = torch.where(left, at_new, at_kept), torch.where(left, at_kept, at_new)
        return self._best_of(outcomes, [middle, (low + high) / 2])

    def _first_best(self, outcomes: Outcomes, numbers: Tensor) -> Tensor:
        """The best of some numbers, the first of equals, one after the other to save memory."""
        best = torch.full(outcomes.shape[:-1], float(numbers[0]), dtype=numbers.dtype, device=outcomes.weights.device)
        cost = self.expected_cost(outcomes, best)
        for number in numbers[1:]:
            candidate = torch.full_like(best, float(number))
            new = self.expected_cost(outcomes, candidate)
            best, cost = torch.where(new < cost, candidate, best), torch.minimum(new, cost)
        return best

    def to_dict(self) -> dict[str, Any]:
        raise _not_saved()

    __eq__, __hash__ = object.__eq__, object.__hash__


@dataclass(frozen=True, eq=False)
class FunctionMenu(MenuUtility):
    """Decisions are names: see `Utility.from_function`."""

    function: Callable[[str, Tensor], Tensor]
    decisions: tuple[str, ...]

    def costs(self, outcome: Tensor) -> Tensor:
        costs = [_as_costs(self.function(name, outcome), outcome.shape) for name in self.decisions]
        return torch.stack(costs, -1)

    def expected_costs(self, outcomes: Outcomes) -> Tensor:
        if outcomes.values is None:
            raise StakesError("expected outcomes that are numbers, but got named classes: use a table of costs")
        costs = [_as_costs(self.function(name, outcomes.values), outcomes.values.shape) for name in self.decisions]
        return torch.stack([(outcomes.weights * cost).sum(-1) for cost in costs], -1)

    def to_dict(self) -> dict[str, Any]:
        raise _not_saved()

    __eq__, __hash__ = object.__eq__, object.__hash__


def _as_costs(costs: Any, shape: torch.Size) -> Tensor:
    """What the function returned, checked and in the shape of the outcomes."""
    tensor = torch.as_tensor(costs).double()
    try:
        tensor = tensor.expand(shape)
    except RuntimeError:
        raise StakesError(
            f"expected the function to return a cost for each outcome, {tuple(shape)}, but got {tuple(tensor.shape)}"
        ) from None
    if bool(tensor.isnan().any()):
        raise StakesError("expected the function to return costs, but some are NaN")
    return tensor


def _not_saved() -> StakesError:
    return StakesError(
        "a function cannot be saved with a model: give the costs as points with Utility.from_curves, or as a "
        "Newsvendor, Squared or Linex, or register a utility of your own"
    )
