"""Named actions for outcomes that are numbers: service now, at the next stop, or run on."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.utility.amounts import NumberUtility
from stakes.utility.checks import refuse_repeats, require_choices


@dataclass(frozen=True, eq=False, kw_only=True)
class MenuUtility(NumberUtility):
    """A cost for each of D named decisions, of an outcome that is a number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decisions or not all(isinstance(name, str) and name.strip() for name in self.decisions):
            raise StakesError(f"expected the names of the decisions, but got {self.decisions!r}")
        refuse_repeats(self.decisions, "decision")

    @abstractmethod
    def costs(self, outcome: Tensor) -> Tensor:
        """``(...) -> (..., D)``: what each decision costs under each outcome."""

    @abstractmethod
    def expected_costs(self, outcomes: Outcomes) -> Tensor:
        """``(..., K) -> (..., D)``."""

    def unavoidable(self, outcome: Tensor) -> Tensor | None:
        return self.costs(outcome).amin(-1)

    def realised(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        require_choices(torch.as_tensor(choice).cpu().numpy(), tuple(np.shape(outcome)), len(self.decisions))
        return super().realised(choice, outcome)

    def expected(self, outcomes: Outcomes) -> Tensor:
        return self.best - self.expected_costs(outcomes)

    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        return _chosen(self.costs(outcome), choice)

    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        return _chosen(self.expected_costs(outcomes), choice)


def _chosen(costs: Tensor, choice: Tensor) -> Tensor:
    """``(..., D), (...) -> (...)``, where the choice broadcasts."""
    return costs.gather(-1, choice.to(costs.device).expand(costs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
