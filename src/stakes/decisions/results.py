"""What is decided for each input, and how clearly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.mixtures.atoms import interval
from stakes.outcomes import Outcomes


@dataclass(frozen=True, eq=False)
class Decisions:
    """What `decide` says about each input."""

    names: tuple[str, ...]  # the D decisions
    choice: Tensor  # (B, ...) of integers into names
    utilities: Tensor  # (B, ..., D) expected utility of every decision
    outcomes: Outcomes  # (B, ..., K) the mixture over draws
    best: float = 0.0  # the utility of a cost of nothing, and the cost of one unit of utility
    scale: float = 1.0
    margin_error: Tensor | None = None  # (B, ...) Monte-Carlo standard error of the margin, if there were draws
    taken: Tensor | None = None  # (B,) of integers: how many draws each input took, if there were draws

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
    def expected_cost(self) -> Tensor:
        """(B, ...) what the choice is expected to cost, in the unit of the costs."""
        return (self.best - self.expected_utility) * self.scale

    def interval(self, share: float = 0.9) -> tuple[Tensor, Tensor]:
        """(B, ...) two numbers between which the outcome lies with probability ``share``, as much beyond either."""
        return interval(self.outcomes, share)

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


@dataclass(frozen=True, eq=False)
class AmountDecisions(Decisions):
    """What `decide` says where decisions are numbers: there is no list of them, so ``names`` is empty.

    The ``choice`` is the number, and ``utilities`` (B, ..., D) are those of the choice and of the next best step; only
    of the choice where decisions have no steps.
    """

    next_best: Tensor | None = None  # (B, ...) the next best step, if there are steps
    utility_error: Tensor | None = None  # (B, ...) Monte-Carlo standard error of the expected utility

    @property
    def chosen_names(self) -> NDArray[np.str_]:
        """(B, ...) each number as text."""
        return np.vectorize("{:.15g}".format, otypes=[np.str_])(self.choice.cpu().numpy())  # type: ignore[no-any-return]

    @property
    def expected_utility(self) -> Tensor:
        return self.utilities[..., 0]

    @property
    def runner_up(self) -> Tensor:
        """(B, ...) the next best step; the choice itself if there are no steps."""
        return self.choice if self.next_best is None else self.next_best

    @property
    def margin(self) -> Tensor:
        """(B, ...) by how much the choice beats the next best step; 0 if there are no steps."""
        return self.utilities[..., 0] - self.utilities[..., -1]


def rows_of(decisions: Decisions, index: Tensor) -> Decisions:
    """Those for some inputs."""
    return _mapped([decisions], lambda tensors: tensors[0][index], lambda outcomes: outcomes[0].rows(index))


def joined(parts: Sequence[Decisions]) -> Decisions:
    return parts[0] if len(parts) == 1 else _mapped(parts, torch.cat, Outcomes.cat)


def _mapped(
    parts: Sequence[Decisions],
    of_tensors: Callable[[list[Tensor]], Tensor],
    of_outcomes: Callable[[list[Outcomes]], Outcomes],
) -> Decisions:
    """Decisions made of the fields of all parts; a field that is None in the first is None."""
    changed: dict[str, Any] = {}
    for name, value in vars(parts[0]).items():
        values = [getattr(part, name) for part in parts]
        if isinstance(value, Tensor):
            changed[name] = of_tensors(values)
        elif isinstance(value, Outcomes):
            changed[name] = of_outcomes(values)
    return replace(parts[0], **changed)
