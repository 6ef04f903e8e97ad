"""Decisions: from what a model says of the outcomes, and a utility, to what to do.

h*(x) = argmax_h  sum_c u(h, c) p(c | x)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes import inputs
from stakes.errors import StakesError, listing
from stakes.outcomes import Outcomes, Predictive
from stakes.utility import TableUtility, Utility
from stakes.utility.table import entry_by_label

Rule = Literal["optimal", "argmax"]
RULES: tuple[Rule, ...] = ("argmax", "optimal")
FEWEST_GROUPS = 5  # of draws, whose spread is the Monte-Carlo error


@dataclass(frozen=True, eq=False)
class Decisions:
    """What `decide` says about each input."""

    names: tuple[str, ...]  # the D decisions
    choice: Tensor  # (B, ...) of integers into names
    utilities: Tensor  # (B, ..., D) expected utility of every decision
    outcomes: Outcomes  # (B, ..., K) the mixture over draws
    margin_error: Tensor | None = None  # (B, ...) Monte-Carlo standard error of the margin, if there were draws
    samples: int = 1  # draws that it took

    @property
    def probs(self) -> Tensor:
        """(B, ..., C) the mean predictive."""
        return self.outcomes.weights

    @property
    def chosen_names(self) -> NDArray[np.str_]:
        """(B, ...) the name of each choice."""
        return np.asarray(self.names)[self.choice.cpu().numpy()]  # type: ignore[no-any-return]

    @property
    def expected_utility(self) -> Tensor:
        """(B, ...) what the choice is expected to be worth."""
        return self.utilities.gather(-1, self.choice.unsqueeze(-1)).squeeze(-1)

    @property
    def runner_up(self) -> Tensor:
        """(B, ...) the best of the other decisions; the choice itself if there is no other."""
        return self.utilities.scatter(-1, self.choice.unsqueeze(-1), -torch.inf).argmax(-1)

    @property
    def margin(self) -> Tensor:
        """(B, ...) by how much the choice beats the runner-up; 0 if there is no other decision."""
        rival = self.utilities.gather(-1, self.runner_up.unsqueeze(-1)).squeeze(-1)
        return self.expected_utility - rival

    def __len__(self) -> int:
        return len(self.choice)


def decide(
    predictive: Predictive | Outcomes | Tensor | ArrayLike,
    utility: Utility,
    rule: Rule = "optimal",
    *,
    classes: Sequence[Any] | None = None,
) -> Decisions:
    """The decision with the highest expected utility for each input.

    ``predictive`` is what a predictor says of some inputs, ``draws(x)``, or an array of probabilities with the
    outcomes last: a mean predictive, or the ``predict_proba`` of any classifier. Its columns are in the
    order of ``utility.outcomes``, unless ``classes`` names them: for scikit-learn, which sorts its
    classes, pass ``classes=model.classes_``. Only draws have a Monte-Carlo error.

    The rule ``argmax`` is for comparison: it acts as if the most probable outcome were certain.
    """
    if rule not in RULES:
        raise StakesError(f"expected a rule of {RULES}, but got {rule!r}")
    if not isinstance(predictive, Predictive):
        outcomes = predictive if isinstance(predictive, Outcomes) else Outcomes.from_probs(predictive)
        if classes is not None:
            outcomes = Outcomes(outcomes.weights[..., _columns(classes, utility)])
        return _decide(outcomes, utility, rule)
    if classes is not None:
        raise StakesError("classes= names the columns of an array of probabilities; draws have none to be named")
    utility.require_examples(inputs.count(predictive.x))
    parts, first = [], 0
    for draws in predictive.blocks():  # (S, b, ..., K)
        last = first + draws.shape[1]
        parts.append(_decide_draws(draws, utility.rows(slice(first, last)), rule, predictive.predictor.group))
        first = last
    return parts[0] if len(parts) == 1 else _joined(parts)


def _columns(classes: Sequence[Any], utility: Utility) -> list[int]:
    """Where each outcome of the utility stands among ``classes``."""
    names, outcomes = [str(name) for name in classes], getattr(utility, "outcomes", ())
    if sorted(names) != sorted(outcomes):
        raise StakesError(f"expected the classes {listing(outcomes)} in some order, but got {listing(names)}")
    return [names.index(outcome) for outcome in outcomes]


def _decide(outcomes: Outcomes, utility: Utility, rule: Rule) -> Decisions:
    utilities = utility.expected(outcomes)  # (B, ..., D)
    if rule == "argmax":
        if not isinstance(utility, TableUtility):
            raise StakesError("the rule 'argmax' needs named outcomes, of which one is the most probable")
        probs = outcomes.weights
        choice = entry_by_label(torch.as_tensor(utility.best_response, device=probs.device), probs.argmax(-1))
    else:
        choice = utilities.argmax(-1)
    return Decisions(utility.decisions, choice, utilities, outcomes)


def _decide_draws(draws: Outcomes, utility: Utility, rule: Rule, group: int) -> Decisions:
    samples = draws.shape[0]
    decisions = replace(_decide(draws.mixture(), utility, rule), samples=samples)
    if len(utility.decisions) == 1 or samples == 1:
        return decisions
    margins = utility.advantage(draws, decisions.choice, decisions.runner_up)  # (S, b, ...)
    return replace(decisions, margin_error=standard_error(margins, group))


def standard_error(values: Tensor, group: int) -> Tensor:
    """``(S, ...) -> (...)``: of the mean over draws, so that the mean +- 1.96 of it covers the truth 95 times in 100.

    Groups of ``group`` draws are independent of each other, and the draws in a group balance each other: what is left
    of their noise shows in the spread between groups, widened by Student's t, for few groups say little of it. Fewer
    than five say nothing: then it is the error that as many independent draws would have, which is larger.
    """
    groups, widening = len(values) // group, 1.0
    if group > 1 and groups >= FEWEST_GROUPS:
        values = values[: groups * group].reshape(groups, group, *values.shape[1:]).mean(1)  # (groups, ...)
        widening = _widening(groups - 1)
    return values.std(0) * (widening / math.sqrt(len(values)))


@cache
def _widening(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, against that of the normal distribution."""
    from scipy.special import ndtri, stdtrit  # it takes a tenth of a second to import

    return float(stdtrit(freedom, 0.975) / ndtri(0.975))


def _joined(parts: list[Decisions]) -> Decisions:
    errors = [part.margin_error for part in parts if part.margin_error is not None]
    return Decisions(
        parts[0].names,
        torch.cat([part.choice for part in parts]),
        torch.cat([part.utilities for part in parts]),
        Outcomes.cat([part.outcomes for part in parts]),
        torch.cat(errors) if errors else None,
        parts[0].samples,
    )
