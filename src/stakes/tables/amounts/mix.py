"""Mixes of quantiles: a blend by pinball loss."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.mixtures import LEVELS, Quantiles
from stakes.outcomes import Predictor
from stakes.predictors import QuantileBlend, quantile_weights
from stakes.tables.amounts.models import AMOUNT_MODELS
from stakes.tables.mix import HeldOut, Mix, blended_weights
from stakes.utility import Newsvendor


class AmountMix(Mix):
    """The weighted mean of quantiles."""

    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        return QuantileBlend(*self.shares(parts))


class HeldOutAmounts(HeldOut):
    """Predictions are quantiles, ``(n, 99)``."""

    mix, catalogue, loss_name = AmountMix, AMOUNT_MODELS, "cost"

    def worth(self, predictions: Tensor) -> NDArray[np.float64]:
        realised = self.utility.realised(decide(Quantiles(predictions), self.utility).choice, self.labels)
        return -np.asarray(self.utility.cost_of(realised))

    def loss(self, predictions: Tensor) -> float:
        return -self.mean(self.worth(predictions))

    def blend(self, members: Mapping[str, Mix]) -> AmountMix:
        """Weights by the pinball loss of the rows held out."""
        fitted = [1 / len(members)] * len(members)
        if len(self.labels):
            quantiles = [mix.predictions(self.predictions) for mix in members.values()]
            fitted = quantile_weights(quantiles, self.labels, self.weights, emphasis=self.emphasis).tolist()
        weights, trained = blended_weights(members, fitted)
        return AmountMix(trained, details={"weights": weights})

    @property
    def emphasis(self) -> Tensor | None:
        """(n, 99) what each level counts: half of it all alike, half of it the one that a row's own costs ask for."""
        if not isinstance(self.utility, Newsvendor):
            return None
        shares = torch.as_tensor(self.utility.share).expand(len(self.labels)).contiguous()
        nearest = (shares[:, None] - LEVELS).abs().argmin(1)
        counts = torch.full((len(self.labels), len(LEVELS)), 0.5 / len(LEVELS), dtype=torch.float64)
        return counts.scatter_add_(1, nearest[:, None], torch.full((len(nearest), 1), 0.5, dtype=torch.float64))
