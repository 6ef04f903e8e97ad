"""Run: what a finished comparison holds, saved into the folder of `stakes.tables.run_folder`."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes._io.files import read_json, write_json, write_text
from stakes._io.tensors import read_tensors, write_tensors
from stakes.errors import StakesError
from stakes.evaluation.comparison import Comparison, Predictions, Scored
from stakes.evaluation.metrics import Interval
from stakes.tables.run_folder import CASES, RunFolder
from stakes.tables.summary import DataSummary
from stakes.utility import FormulaUtility, TableUtility, Utility

_DECISIONS = ("choice", "margin", "utilities")  # (lines of results.jsonl, N)
_TABLES = "utility_values"  # (N, D, C), where each test row has its own
_GROUPS, _TIMES = "groups", "times"  # (N,), where rows belong together or are in time
_SETTINGS = ("data", "target", "costs", "models", "recipe", "seed")  # of a `TableTask`, that results are read by
_COUNTS = ("rows", "repeated", "features", "versions")


@dataclass(frozen=True, eq=False)
class FinishedRun(ABC):
    """A finished comparison: settings, test rows, every model's decisions and their results.

    What outcomes are, classes or amounts, is the business of its kinds: `Run`, and `stakes.tables.amounts.run`.
    """

    settings: Mapping[str, Any]  # of the `TableTask`
    labels: Tensor  # (N,) the outcomes of the test rows
    row_numbers: Tensor  # (N,) where they stand in their file, the first row under the header being 1
    utility: Utility  # of the test rows, if each has its own
    rows: Mapping[str, Any]  # how many to learn from and to test on, and how they were divided
    repeated: int  # rows that repeat another
    features: int
    versions: Mapping[str, str]  # of the software that trained the models
    scored: tuple[Any, ...]
    comparison: Any
    formulas: Utility | None = None  # of costs that depend on the row
    data: DataSummary | None = None  # the table as it was read; None in runs that were saved before it was kept
    ids: tuple[str, ...] | None = None  # (N,) the names of the test rows
    by: tuple[str, ...] | None = None  # (N,) the groups that costs are shown by
    groups: NDArray[np.int64] | None = None  # (N,) what test rows belong to, where rows belong together
    times: Tensor | None = None  # (N,) seconds since 1970, or the numbers of the time column
    importance: Mapping[str, Any] | None = None  # of columns: see `stakes.tables.importance`

    kind: ClassVar[str]  # of its outcomes

    @property
    def dependence(self) -> dict[str, Any]:
        """How test rows depend on each other, as `metrics.bootstrap` takes it."""
        return {"groups": self.groups, "times": None if self.times is None else self.times.numpy()}

    def reason_against_promise(self, times: NDArray[np.float64] | None) -> str:
        """Why no mean cost of rows with these times can be promised, if they may depend on each other; or nothing."""
        group, time = self.settings["group"], self.settings["time"]
        if group is not None:
            return f"rows of one {group} belong together, and are not independent of each other"
        if time is not None and times is None:
            return f"neighbouring rows in {time} are alike, and the times of these are not known"
        return ""

    def save(self, path: Path) -> None:
        """Write all but the models into a folder; the comparison, which marks the run as finished, comes last."""
        folder = RunFolder(path)
        write_json(folder.settings_file, self.settings)
        self._write_predictions(folder)
        utility, tensors = self._stored_utility()
        tensors |= {"labels": self.labels, "row_numbers": self.row_numbers, **self._case_tensors()}
        tensors |= {} if self.groups is None else {_GROUPS: torch.from_numpy(self.groups)}
        tensors |= {} if self.times is None else {_TIMES: self.times}
        notes = {key: getattr(self, key) for key in _COUNTS} | {"kind": self.kind, "utility": utility}
        notes |= {} if self.formulas is None else {"formulas": self.formulas.to_dict()}
        notes |= {} if self.data is None else {"data": self.data.to_dict()}
        write_tensors(path / CASES, tensors, notes)
        details = {"ids": self.ids, "by": self.by, "importance": self.importance, **self._details()}
        write_json(path / "details.json", details)
        lines = [json.dumps(item.to_dict(), ensure_ascii=False, allow_nan=False) for item in self.scored]
        write_text(path / "results.jsonl", "".join(f"{line}\n" for line in lines))
        write_json(path / "summary.json", self.comparison.to_dict(self.utility) | {"rows_used": dict(self.rows)})

    @classmethod
    def load(cls, path: Path) -> Self:
        folder = RunFolder(path)
        folder.refuse_unfinished()
        try:
            tensors, notes = read_tensors(path / CASES)
            if notes.get("kind", Run.kind) != cls.kind:
                raise StakesError(f"{path}: expected a run about {cls.kind}, but it is about {notes['kind']}")
            details = read_json(path / "details.json")
            lines = [json.loads(line) for line in (path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
            run = cls(
                settings=read_json(folder.settings_file),
                labels=tensors["labels"],
                row_numbers=tensors["row_numbers"],
                **{key: notes[key] for key in _COUNTS},
                formulas=Utility.from_dict(notes["formulas"]) if "formulas" in notes else None,
                data=DataSummary.from_dict(notes["data"]) if "data" in notes else None,
                ids=None if details["ids"] is None else tuple(details["ids"]),
                by=None if details["by"] is None else tuple(details["by"]),
                groups=tensors[_GROUPS].numpy() if _GROUPS in tensors else None,
                times=tensors.get(_TIMES),
                importance=details["importance"] and _with_intervals(details["importance"]),
                **cls._restored(folder, tensors, notes, details, lines, read_json(path / "summary.json")),
            )
            run._check()
            return run
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StakesError):
                raise
            raise StakesError(
                f"{path}: expected the results of `stakes fit`, but they are damaged ({error!r}); "
                "`stakes fit ... --resume` writes them again"
            ) from None

    def _check(self) -> None:
        """Refuse parts that do not fit together: a folder may have been edited, or mixed up, by hand."""
        if not isinstance(self.settings, dict):
            raise TypeError(f"run.json is a {type(self.settings).__name__}")
        absent = set(_SETTINGS) - set(self.settings)
        if absent:
            raise ValueError(f"run.json has no {', '.join(sorted(absent))}")
        unknown = {self.comparison.chosen, self.comparison.reference} - {item.model for item in self.scored}
        if unknown:
            raise ValueError(f"there are no results of {', '.join(sorted(unknown))}")
        values_by_name = {name: getattr(self, name) for name in ("row_numbers", "ids", "by", "groups", "times")}
        values_by_name |= {f"decisions of {item.model}": item.choice for item in self.scored}
        for name, values in (values_by_name | self._prediction_tensors()).items():
            if values is not None and len(values) != len(self.labels):
                raise ValueError(f"{name}: {len(values)} for {len(self.labels)} test rows")

    @abstractmethod
    def _prediction_tensors(self) -> dict[str, Tensor]:
        """What each model says of the test rows, by what it is called in messages."""

    @abstractmethod
    def _write_predictions(self, folder: RunFolder) -> None:
        """What each model says of the test rows."""

    @abstractmethod
    def _stored_utility(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The utility in JSON types, and as tensors what would be too many numbers for JSON."""

    @abstractmethod
    def _case_tensors(self) -> dict[str, Tensor]:
        """What else there is of each test row: above all decisions, ``(lines of results.jsonl, N)``."""

    def _details(self) -> dict[str, Any]:
        """What else there is in texts, for details.json."""
        return {}

    @classmethod
    @abstractmethod
    def _restored(
        cls,
        folder: RunFolder,
        tensors: Mapping[str, Tensor],
        notes: Mapping[str, Any],
        details: Mapping[str, Any],
        lines: Sequence[Mapping[str, Any]],
        summary: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The utility, what was scored, and the comparison, by the names of their fields."""


@dataclass(frozen=True, eq=False)
class Run(FinishedRun):
    """A finished comparison of decisions about named outcomes."""

    utility: TableUtility
    scored: tuple[Scored, ...]
    comparison: Comparison
    formulas: FormulaUtility | None = None

    kind = "classes"

    @property
    def predictions(self) -> list[Predictions]:
        return [item.predictions for item in self.scored if item.rule == "optimal"]

    def _prediction_tensors(self) -> dict[str, Tensor]:
        return {f"predictions of {each.model}": each.probs for each in self.predictions}

    def _write_predictions(self, folder: RunFolder) -> None:
        for predictions in self.predictions:
            metadata = {"validation_utility": predictions.validation_utility, "details": dict(predictions.details)}
            write_tensors(
                folder.predictions_file(predictions.model, predictions.seed), {"probs": predictions.probs}, metadata
            )

    def _stored_utility(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        utility = self.utility.to_dict()
        if not self.utility.per_example:
            return utility, {}
        del utility["values"]
        return utility, {_TABLES: torch.tensor(self.utility.values)}

    def _case_tensors(self) -> dict[str, Tensor]:
        return {key: torch.stack([torch.as_tensor(getattr(item, key)) for item in self.scored]) for key in _DECISIONS}

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
        fits = dict.fromkeys((line["model"], line["seed"]) for line in lines)
        predictions = {fit: _read_predictions(folder, *fit) for fit in fits}
        scored = tuple(
            Scored.from_dict(line, predictions[line["model"], line["seed"]], *decisions)
            for line, *decisions in zip(lines, *(tensors[key] for key in _DECISIONS), strict=True)
        )
        tables = {"values": tensors[_TABLES].numpy()} if _TABLES in tensors else {}
        utility = Utility.from_dict({**notes["utility"], **tables})
        if not isinstance(utility, TableUtility):
            raise TypeError(f"expected a table of utilities, but got a {type(utility).__name__}")
        return {"utility": utility, "scored": scored, "comparison": Comparison.from_dict(summary)}


def _with_intervals(importance: Mapping[str, Any]) -> dict[str, Any]:
    """In JSON an interval is a list."""
    columns = {name: Interval(*ends) for name, ends in importance["columns"].items()}
    if not columns:
        raise ValueError("importance of no columns")
    return {"columns": columns, "rows": int(importance["rows"]), "not_measured": int(importance["not_measured"])}


def _read_predictions(folder: RunFolder, model: str, seed: int) -> Predictions:
    tensors, metadata = read_tensors(folder.predictions_file(model, seed))
    details, validation = metadata["details"], metadata["validation_utility"]
    return Predictions(model, seed, tensors["probs"], validation, details)
