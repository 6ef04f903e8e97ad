"""What it would be worth to know more before deciding: the outcome itself, or the weights of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stakes import inputs
from stakes.decisions.rules import blocks_of, monte_carlo_error, refuse_nan
from stakes.errors import StakesError
from stakes.outcomes import Outcomes, Predictive
from stakes.utility import TableUtility, Utility


@dataclass(frozen=True, eq=False)
class ValueOfInformation:
    """What `value_of_information` says of each input, in the unit of the costs.

    Attributes
    ----------
    outcome : Tensor of shape (B, ...)
        The expected value of perfect information: of knowing the outcome before deciding.
    weights : Tensor of shape (B, ...)
        Of knowing the weights of the model, the part that more data could take away; never above ``outcome``.
    outcome_error, weights_error : Tensor of shape (B, ...) or None
        Their Monte-Carlo standard errors; None for a model of one draw.
    """

    outcome: Tensor
    outcome_error: Tensor | None = None
    _weights: Tensor | None = None
    weights_error: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        if self._weights is None:
            raise StakesError(
                "expected several draws, by which weights differ, but this model has one: what knowing its weights is "
                "worth cannot be told"
            )
        return self._weights


@torch.no_grad()
def value_of_information(
    predictive: Predictive | Outcomes | Tensor | ArrayLike, utility: Utility, *, classes: Sequence[Any] | None = None
) -> ValueOfInformation:
    """What knowing more before each decision is expected to be worth, at most.

    With the outcome y, the weights w, and decisions h: ``outcome`` is ``E_y max_h u(h, y) - max_h E u(h, y)``, and
    ``weights`` is ``E_w max_h E[u(h, y) | w] - max_h E u(h, y)``, both under the model's own probabilities.

    Parameters
    ----------
    predictive : Predictive, Outcomes or array of shape (n, C)
        What is known of the outcomes, as `decide` takes it.
    utility : Utility
        What each decision is worth under each outcome.
    classes : sequence, optional
        The names of the columns of an array.

    Returns
    -------
    ValueOfInformation

    Examples
    --------
    >>> utility = Utility.from_costs({"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}})
    >>> value_of_information([[0.5, 0.5]], utility).outcome  # treated without need in half of the cases
    tensor([20.], dtype=torch.float64)
    """
    if isinstance(predictive, Predictive):
        utility.require_examples(inputs.count(predictive.x))
    group = predictive.predictor.group if isinstance(predictive, Predictive) else 1
    parts: list[list[Tensor]] = []
    first = 0
    for draws in blocks_of(predictive, utility, classes):  # (S, b, ..., K)
        last = first + draws.shape[1]
        gains = [each * utility.scale for each in _gains(draws, utility.rows(slice(first, last)))]
        refuse_nan(gains[0].sum(0))
        errors = [monte_carlo_error(each, group) for each in gains] if draws.shape[0] > 1 else []
        parts.append([*(each.mean(0) for each in gains), *errors])
        first = last
    outcome, weights, *both = (torch.cat(each) for each in zip(*parts, strict=True))
    return ValueOfInformation(outcome, both[0], weights, both[1]) if both else ValueOfInformation(outcome)


def _gains(draws: Outcomes, utility: Utility) -> tuple[Tensor, Tensor]:
    """``(S, b, ...)`` by how much the decision of all draws is worse than that by the outcome, and by each draw."""
    common = utility.best_choice(draws.mixture())
    if isinstance(utility, TableUtility) and utility.values.ndim == 2:
        known, foreseen = utility.expected(draws).amax(-1), utility.foreseen(draws)
    else:
        each = [draws.rows(torch.tensor([number])).mixture() for number in range(draws.shape[0])]
        known = torch.stack([utility.expected_of(draw, utility.best_choice(draw)) for draw in each])
        foreseen = torch.stack([utility.foreseen(draw) for draw in each])
    taken = utility.expected_of(draws, common)
    return (foreseen - taken).clamp_min(0), (known - taken).clamp_min(0)  # but for rounding they are
