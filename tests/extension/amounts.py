"""Outcomes that are numbers, written by a user: a Gaussian likelihood, and what a wrong order costs."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stakes import Likelihood, Outcomes, Utility

NODES, WEIGHTS = (torch.tensor(values, dtype=torch.float32) for values in np.polynomial.hermite_e.hermegauss(21))


class Gaussian(Likelihood):
    """The network puts out a mean and the logarithm of a standard deviation; atoms are the nodes of a quadrature."""

    def outcomes(self, outputs: Tensor) -> Outcomes:
        mean, log_sd = outputs.unbind(2)  # (S, B) each
        values = mean.unsqueeze(-1) + log_sd.exp().unsqueeze(-1) * NODES  # (S, B, K)
        return Outcomes((WEIGHTS / WEIGHTS.sum()).expand(values.shape), values=values)

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        mean, log_sd = outputs.unbind(2)
        return torch.distributions.Normal(mean, log_sd.exp()).log_prob(labels)


class Order(Utility):
    """How much to order: each unit too few costs ``under``, each too many ``over``, at most ``most`` in all."""

    def __init__(self, amounts: list[float], under: float, over: float, most: float = 50.0, shift: float = 0.0) -> None:
        self.amounts, self.under, self.over, self.most, self.shift = amounts, under, over, most, shift
        self.decisions = tuple(f"order {amount:g}" for amount in amounts)

    def _worth(self, gap: Tensor) -> Tensor:
        """Of the gap between demand and order; a loss beyond ``most`` counts as ``most``, so that it is bounded."""
        return self.shift - (self.under * gap.clamp_min(0) + self.over * (-gap).clamp_min(0)).clamp_max(self.most)

    def expected(self, outcomes: Outcomes) -> Tensor:
        gaps = outcomes.values.unsqueeze(-2) - torch.tensor(self.amounts).unsqueeze(-1)  # (..., D, K)
        return (self._worth(gaps) * outcomes.weights.unsqueeze(-2)).sum(-1)

    def realised(self, choice: Any, outcome: Any) -> np.ndarray:
        return self._worth(torch.as_tensor(outcome) - torch.tensor(self.amounts)[torch.as_tensor(choice)]).numpy()

    @property
    def span(self) -> float:
        return self.most

    def bounded(self, margin: float) -> Self:
        return Order(self.amounts, self.under, self.over, self.most, self.most * (1 + margin))

    def to_dict(self) -> dict[str, Any]:
        return {"amounts": self.amounts, "under": self.under, "over": self.over, "most": self.most}
