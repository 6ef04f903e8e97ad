"""Why a decision: which columns moved it, by Shapley values against training rows.

What is explained is how much more the runner-up is expected to cost than the decision taken, at the costs of the row. A
coalition of columns has the values of the row, the other columns those of a training row; its worth is the mean
difference over the training rows that are saved with the model. The values of all columns sum to the difference of
the row (its margin, from all draws) less the mean difference of these training rows, at the same decisions and costs.

Up to `ENUMERATED` columns all coalitions are enumerated. With more, columns are exchanged one by one in a random order
and in its reverse, once for each of the training rows: the same sum, exactly, and no bias.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.outcomes import Outcomes, Predictor
from stakes.saved_model import SavedModel
from stakes.seeds import numpy_generator

ENUMERATED = 8  # columns
NEGLIGIBLE = 1e-6  # of what the two decisions differ by at most: what rounding leaves
Measure = Callable[[Outcomes], Tensor]  # (n, ...) -> (n,)
_NUMBERS = 4_000_000  # of features that are evaluated at once


class Explainer:
    """Shapley values of decisions, by the raw columns of a table; the same row has the same values, always."""

    def __init__(self, model: SavedModel, enumerated: int = ENUMERATED) -> None:
        background = None if model.profile is None else model.profile.background_frame
        if model.encoder is None or background is None:
            raise StakesError(
                "the saved model keeps no training rows to explain decisions against, as models of older versions do "
                "not: fit it again, or leave out --why"
            )
        self._predictor: Predictor = model.predictor
        self.names, self._sources = model.encoder.names, torch.from_numpy(model.encoder.sources)
        self._background = torch.from_numpy(model.encoder.encode(background))  # (B, F)
        self._enumerate = len(self.names) <= enumerated

    def values(self, x: Tensor, gaps: Tensor) -> NDArray[np.float64]:
        """``(N, F), (N, C) -> (N, K)``: Shapley values of ``gaps @ p(x)``, p being the probabilities of outcomes."""
        return self.values_of(x, [partial(_expected, gap.double()) for gap in gaps])

    def values_of(self, x: Tensor, measures: Sequence[Measure]) -> NDArray[np.float64]:
        """``(N, F) -> (N, K)``: Shapley values of each row's own measure of what the model says."""
        explain = self._enumerated if self._enumerate else self._sampled
        return np.stack([explain(row, measure).numpy() for row, measure in zip(x, measures, strict=True)])

    def baseline(self, gaps: Tensor) -> NDArray[np.float64]:
        """``(N, C) -> (N,)``: the mean of ``gaps @ p`` over the background: with it, values sum to that of the row."""
        probs = self._predictor(self._background).mean_probs().double()
        return np.asarray((probs.mean(0) @ gaps.double().T).numpy())

    def _worth(self, row: Tensor, measure: Measure, members: Tensor, background: Tensor) -> Tensor:
        """``(s, n)``: of hybrids, with the row's values in the columns ``(s, n, K)``, else those of rows ``(n, F)``."""
        step = max(1, _NUMBERS // background.numel())
        parts = []
        for first in range(0, len(members), step):
            part = members[first : first + step]
            hybrids = torch.where(part[..., self._sources], row, background)  # (s, n, F)
            outcomes = self._predictor(hybrids.flatten(0, 1)).mixture()  # all draws mixed
            parts.append(measure(outcomes).reshape(hybrids.shape[:2]))
        return torch.cat(parts)

    @cached_property
    def _coalitions(self) -> tuple[Tensor, Tensor]:
        """(2^K, K) all sets of columns, and (2^K, K) what each adds to the values, by its own worth."""
        count = len(self.names)
        members = (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1
        sizes = members.sum(1)
        # |S|! (K - |S| - 1)! / K! of a set S without the column; with it, the same of S less the column.
        weight = torch.tensor([1 / (count * math.comb(count - 1, size)) for size in range(count)], dtype=torch.double)
        within = weight[(sizes - 1).clamp_min(0)][:, None]
        without = weight[sizes.clamp_max(count - 1)][:, None]
        return members, torch.where(members, within, -without)

    def _enumerated(self, row: Tensor, measure: Measure) -> Tensor:
        members, weights = self._coalitions
        each = members[:, None, :].expand(-1, len(self._background), -1)  # (2^K, B, K)
        return self._worth(row, measure, each, self._background).mean(1) @ weights

    @cached_property
    def _orders(self) -> Tensor:
        """(2 B, K) the place of each column in an order and in its reverse, for each background row."""
        generator = numpy_generator(0, "why")
        orders = np.stack([generator.permutation(len(self.names)) for _ in range(len(self._background))])
        return torch.from_numpy(np.concatenate([orders, len(self.names) - 1 - orders]))

    def _sampled(self, row: Tensor, measure: Measure) -> Tensor:
        positions, count = self._orders, len(self.names)
        steps = torch.arange(count + 1)[:, None, None]
        worth = self._worth(row, measure, positions < steps, self._background.repeat(2, 1))  # (K + 1, 2 B)
        moves = worth.diff(dim=0).gather(0, positions.T)  # (K, 2 B) of each column
        return moves.mean(1)


def _expected(gap: Tensor, outcomes: Outcomes) -> Tensor:
    return outcomes.weights.double() @ gap


def top_columns(names: tuple[str, ...], values: NDArray[np.float64], gaps: Tensor, count: int) -> NDArray[np.object_]:
    """``(N, K), (N, C) -> (N, count)``: the columns that moved most, ``BodyTemp +3.2``; empty where there are none.

    Less than a millionth of the largest of the ``gaps`` is rounding.
    """
    texts = np.full((len(values), count), "", dtype=object)
    least = NEGLIGIBLE * gaps.abs().amax(1).numpy()
    for row, row_values in enumerate(values):
        for rank, column in enumerate(np.argsort(-np.abs(row_values), kind="stable")[:count]):
            if abs(row_values[column]) > least[row]:
                texts[row, rank] = f"{names[column]} {_signed(float(row_values[column]))}"
    return texts


def _signed(value: float) -> str:
    """With three digits, or all before the point."""
    return f"{value:+,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
