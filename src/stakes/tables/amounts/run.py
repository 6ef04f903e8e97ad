"""Run: a finished comparison of decisions about outcomes that are numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes._io.tensors import read_tensors, write_tensors
from stakes.errors import StakesError
from stakes.evaluation.amounts import AmountComparison, AmountPredictions, AmountScored
from stakes.tables.run import FinishedRun
from stakes.tables.run_folder import RunFolder
from stakes.utility import Utility
from stakes.utility.amounts import NumberUtility

_DECISIONS = ("choice", "expected_costs", "costs")  # (lines of results.jsonl, N)
_COSTS = ("under", "over")  # (N,) of a newsvendor whose rows have their own


@dataclass(frozen=True, eq=False)
class AmountRun(FinishedRun):
    """A finished comparison; what is there to be shown of it is all in here.

    ``labels`` are amounts in float64. ``scored`` has for each model and seed the quantiles ``(N, 99)`` of the test rows
    in float32, at the levels of `stakes.mixtures.LEVELS`, its decisions, what it expected them to cost, and what they
    did cost. Test rows are in the order of their file, which need not be that of their ``times``.
    """

    utility: NumberUtility
    scored: tuple[AmountScored, ...]
    comparison: AmountComparison
    time_texts: tuple[str, ...] | None = None  # (N,) as they are in the file

    kind = "amounts"

    @property
    def dates(self) -> NDArray[np.datetime64] | None:
        """(N,) the times of the test rows, if they are dates."""
        if self.times is None or self.rows.get("time_pattern") is None:
            return None
        return self.times.numpy().astype("datetime64[s]")

    def _prediction_tensors(self) -> dict[str, Tensor]:
        return {f"quantiles of {item.model}": item.predictions.quantiles for item in self.scored}

    def _write_predictions(self, folder: RunFolder) -> None:
        for item in self.scored:
            predictions = item.predictions
            metadata = {"validation_cost": predictions.validation_cost, "details": dict(predictions.details)}
            tensors = {"quantiles": predictions.quantiles.float()}
            write_tensors(folder.predictions_file(predictions.model, predictions.seed), tensors, metadata)

    def _stored_utility(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        utility = self.utility.to_dict()
        if not self.utility.per_example:
            return utility, {}
        return utility, {name: torch.tensor(utility.pop(name)) for name in _COSTS}

    def _case_tensors(self) -> dict[str, Tensor]:
        return {key: torch.stack([torch.as_tensor(getattr(item, key)) for item in self.scored]) for key in _DECISIONS}

    def _details(self) -> dict[str, Any]:
        return {"time_texts": self.time_texts}

    @classmethod
    def _restored(
        cls,
        folder: RunFolder,
        tensors: Mapping[str, Tensor],
        notes: Mapping[str, Any],
        details: Mapping[str, Any],
        lines: Sequence[Mapping[str, Any]],
        summary: Mapping[str, Any],
    ) -> dict[str, Any]:
        costs = {name: tensors[name].numpy() for name in _COSTS if name in tensors}
        utility = Utility.from_dict({**notes["utility"], **costs})
        if not isinstance(utility, NumberUtility):
            raise StakesError(f"expected costs of amounts, but got a {type(utility).__name__}")
        scored = tuple(
            AmountScored.from_dict(line, _read_predictions(folder, line["model"], line["seed"]), *decisions)
            for line, *decisions in zip(lines, *(tensors[key] for key in _DECISIONS), strict=True)
        )
        texts = details["time_texts"]
        return {
            "utility": utility,
            "scored": scored,
            "comparison": AmountComparison.from_dict(summary),
            "time_texts": None if texts is None else tuple(texts),
        }


def _read_predictions(folder: RunFolder, model: str, seed: int) -> AmountPredictions:
    tensors, metadata = read_tensors(folder.predictions_file(model, seed))
    return AmountPredictions(model, seed, tensors["quantiles"], metadata["validation_cost"], metadata["details"])
