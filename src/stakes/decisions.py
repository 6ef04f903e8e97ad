"""Decisions: from probabilities and a utility to what to do.

h*(x) = argmax_h  sum_c u(h, c) p(c | x)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError, listing
from stakes.posteriors.base import Predictive
from stakes.utility import Utility

Rule = Literal["optimal", "argmax"]
RULES: tuple[Rule, ...] = ("argmax", "optimal")


@dataclass(frozen=True, eq=False)
class Decisions:
    """What `decide` says about each input."""

    names: tuple[str, ...]  # the D decisions
    choice: Tensor  # (B, ...) of integers into names
    utilities: Tensor  # (B, ..., D) expected utility of every decision
    probs: Tensor  # (B, ..., C) the mean predictive
    margin_error: Tensor | None = None  # (B, ...) Monte-Carlo standard error of the margin, if there were draws

    @property
    def chosen_names(self) -> NDArray[np.str_]:
        """(B, ...) the name of each choice."""
        return np.asarray(self.names)[self.choice.cpu().numpy()]  # type: ignore[no-any-return]

    @property
    def expected_utility(self) -> Tensor:
        """(B, ...) what the choice is expected to be worth."""
        return self.utilities.gather(-1, self.choice.unsqueeze(-1)).squeeze(-1)

    @property
    def margin(self) -> Tensor:
        """(B, ...) by how much the choice beats the best of the other decisions; 0 if there is no other."""
        if len(self.names) == 1:
            return torch.zeros_like(self.expected_utility)
        others = self.utilities.scatter(-1, self.choice.unsqueeze(-1), -torch.inf)
        return self.expected_utility - others.amax(-1)

    def __len__(self) -> int:
        return len(self.choice)


def expected_utility(probs: Tensor, utility: Utility) -> Tensor:
    """``(B, ..., C) -> (B, ..., D)``: the expected utility of every decision.

    A utility with a table per example, ``(B, D, C)``, needs as many examples as there are probabilities.
    """
    # In double precision: costs may be large and the differences between decisions small.
    probs = probs if probs.device.type == "mps" else probs.double()
    table = utility.tensor(probs)
    if table.shape[-1] != probs.shape[-1]:
        raise StakesError(
            f"expected probabilities of the {table.shape[-1]} outcomes {listing(utility.outcomes)} on the last axis, "
            f"but got the shape {tuple(probs.shape)}"
        )
    if table.ndim == 2:
        return probs @ table.T
    if len(table) != len(probs):
        raise StakesError(f"expected {len(table)} examples, one for each table of the utility, but got {len(probs)}")
    return (_spread(table, probs.ndim - 2) @ probs.unsqueeze(-1)).squeeze(-1)


def chosen_rows(table: Tensor, choice: Tensor) -> Tensor:
    """``(B, ..., C)``: what each choice is worth under each outcome, from a table ``(D, C)`` or ``(B, D, C)``."""
    if table.ndim == 2:
        return table[choice]
    spread = _spread(table, choice.ndim - 1)
    return torch.take_along_dim(spread, choice[..., None, None], dim=-2).squeeze(-2)


def _spread(table: Tensor, middle: int) -> Tensor:
    """``(B, D, C) -> (B, 1, ..., 1, D, C)`` with ``middle`` axes between."""
    return table.reshape(len(table), *[1] * middle, *table.shape[1:])


def decide(
    predictive: Predictive | Tensor | ArrayLike,
    utility: Utility,
    rule: Rule = "optimal",
    *,
    classes: Sequence[Any] | None = None,
) -> Decisions:
    """The decision with the highest expected utility for each input.

    ``predictive`` is what draws say of some inputs, ``draws(x)``, or an array of probabilities with the
    outcomes last: a mean predictive, or the ``predict_proba`` of any classifier. Its columns are in the
    order of ``utility.outcomes``, unless ``classes`` names them: for scikit-learn, which sorts its
    classes, pass ``classes=model.classes_``. Only draws have a Monte-Carlo error.

    The rule ``argmax`` is for comparison: it acts as if the most probable outcome were certain.
    """
    if rule not in RULES:
        raise StakesError(f"expected a rule of {RULES}, but got {rule!r}")
    if not isinstance(predictive, Predictive):
        probs = checked_probs(predictive)
        return _decide(probs if classes is None else probs[..., _columns(classes, utility)], utility, rule)
    if classes is not None:
        raise StakesError("classes= names the columns of an array of probabilities; draws have none to be named")
    if utility.values.ndim == 3 and len(utility.values) != len(predictive.x):
        raise StakesError(
            f"expected {len(utility.values)} examples, one for each table of the utility, but got {len(predictive.x)}"
        )
    parts, first = [], 0
    for draws in predictive.blocks():  # (S, b, ..., C)
        last = first + draws.shape[1]
        parts.append(_decide_draws(draws, utility.rows(slice(first, last)), rule))
        first = last
    return _joined(parts)


def _columns(classes: Sequence[Any], utility: Utility) -> list[int]:
    """Where each outcome of the utility stands among ``classes``."""
    names = [str(name) for name in classes]
    if sorted(names) != sorted(utility.outcomes):
        raise StakesError(f"expected the classes {listing(utility.outcomes)} in some order, but got {listing(names)}")
    return [names.index(outcome) for outcome in utility.outcomes]


def checked_probs(probs: Tensor | ArrayLike) -> Tensor:
    """``probs`` as a tensor of floats, if they are probabilities over the last axis."""
    tensor = probs if isinstance(probs, Tensor) else torch.as_tensor(np.asarray(probs))
    if tensor.ndim < 2:
        raise StakesError(f"expected probabilities of shape (B, ..., C), but got {tuple(tensor.shape)}")
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    totals = tensor.sum(-1)
    if not (bool((tensor >= 0).all()) and torch.allclose(totals, torch.ones_like(totals), atol=1e-3)):
        raise StakesError(
            "expected probabilities that are not negative and sum to 1 over the last axis, but these do not: "
            "are they logits, or log-probabilities? Apply softmax, or exp, first"
        )
    return tensor


def _decide(probs: Tensor, utility: Utility, rule: Rule) -> Decisions:
    utilities = expected_utility(probs, utility)  # (B, ..., D)
    if rule == "argmax":
        choice = torch.as_tensor(utility.best_response, device=probs.device)[probs.argmax(-1)]
    else:
        choice = utilities.argmax(-1)
    return Decisions(utility.decisions, choice, utilities, probs)


def _decide_draws(draws: Tensor, utility: Utility, rule: Rule) -> Decisions:
    decisions = _decide(draws.mean(0), utility, rule)
    if len(utility.decisions) == 1 or len(draws) == 1:
        return decisions
    rival = decisions.utilities.scatter(-1, decisions.choice.unsqueeze(-1), -torch.inf).argmax(-1)
    table = utility.tensor(draws)
    gap = chosen_rows(table, decisions.choice) - chosen_rows(table, rival)  # (b, ..., C)
    error = torch.einsum("s...c,...c->s...", draws, gap).std(0) / len(draws) ** 0.5  # (b, ...)
    return replace(decisions, margin_error=error)


def _joined(parts: list[Decisions]) -> Decisions:
    errors = [part.margin_error for part in parts if part.margin_error is not None]
    return Decisions(
        parts[0].names,
        torch.cat([part.choice for part in parts]),
        torch.cat([part.utilities for part in parts]),
        torch.cat([part.probs for part in parts]),
        torch.cat(errors) if errors else None,
    )
