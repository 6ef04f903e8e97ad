"""Run: what a finished comparison holds, and the folder that keeps it: one run, resumed only as it was started.

run.json                  what was asked for
parts/<division>/<model>-<seed>/<fold>/   checkpoint while it trains; then model/, and predictions.safetensors
predictions/<model>-<seed>.safetensors    what the models that are compared say of the test rows
model/                    the chosen model
cases.safetensors         the test rows: outcomes, row numbers, their costs if they have their own, and for each line
                          of results.jsonl the decisions
details.json              names and groups of the test rows, what drives the decisions, the data as read
results.jsonl             the scores of every model, seed and rule
summary.json              the comparison
report.html
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stakes._io.files import read_json, write_json, write_text
from stakes._io.tensors import read_tensors, write_tensors
from stakes.errors import StakesError
from stakes.evaluation.comparison import Comparison, Predictions, Scored
from stakes.evaluation.metrics import Interval
from stakes.tables.summary import DataSummary
from stakes.utility import FormulaUtility, TableUtility, Utility

_RESULTS = (
    "cases.safetensors",
    "details.json",
    "results.jsonl",
    "summary.json",
)  # of a finished run, in the order of writing
_ENTRIES = ("run.json", "parts", "predictions", "model", *_RESULTS, "report.html")
_DECISIONS = ("choice", "margin", "utilities")  # (lines of results.jsonl, N)
_TABLES = "utility_values"  # (N, D, C), where each test row has its own
_COUNTS = ("rows", "repeated", "features", "versions")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished comparison: what was asked for, the test rows, every model's decisions, and what they came to."""

    settings: Mapping[str, Any]  # of the `TableTask`
    labels: Tensor  # (N,) the outcomes of the test rows
    row_numbers: Tensor  # (N,) where they stand in their file, the first row under the header being 1
    utility: TableUtility  # of the test rows, if each has its own
    rows: Mapping[str, Any]  # how many to learn from and to test on, and how they were divided
    repeated: int  # rows that repeat another
    features: int
    versions: Mapping[str, str]  # of the software that trained the models
    scored: tuple[Scored, ...]
    comparison: Comparison
    formulas: FormulaUtility | None = None  # of costs that depend on the row
    data: DataSummary | None = None  # the table as it was read; None in runs that were saved before it was kept
    ids: tuple[str, ...] | None = None  # (N,) the names of the test rows
    by: tuple[str, ...] | None = None  # (N,) the groups that costs are shown by
    importance: Mapping[str, Any] | None = None  # of columns: see `stakes.tables.importance`

    @property
    def predictions(self) -> list[Predictions]:
        return [item.predictions for item in self.scored if item.rule == "optimal"]

    def save(self, path: Path) -> None:
        """Write all but the models into a folder; the comparison, which marks the run as finished, comes last."""
        folder = RunFolder(path)
        write_json(folder.settings_file, self.settings)
        for predictions in self.predictions:
            folder.write_predictions(predictions)
        tensors = {"labels": self.labels, "row_numbers": self.row_numbers}
        for key in _DECISIONS:
            tensors[key] = torch.stack([torch.as_tensor(getattr(item, key)) for item in self.scored])
        counts = {key: getattr(self, key) for key in _COUNTS}
        utility = self.utility.to_dict()
        if self.utility.per_example:  # too many numbers for JSON
            tensors[_TABLES] = torch.tensor(self.utility.values)
            del utility["values"]
        formulas = None if self.formulas is None else self.formulas.to_dict()
        notes = {**counts, "utility": utility, **({"formulas": formulas} if formulas else {})}
        notes |= {} if self.data is None else {"data": self.data.to_dict()}
        write_tensors(path / "cases.safetensors", tensors, notes)
        details = {"ids": self.ids, "by": self.by, "importance": self.importance}
        write_json(path / "details.json", details)
        lines = [json.dumps(item.to_dict(), ensure_ascii=False, allow_nan=False) for item in self.scored]
        write_text(path / "results.jsonl", "".join(f"{line}\n" for line in lines))
        write_json(path / "summary.json", self.comparison.to_dict(self.utility) | {"rows_used": dict(self.rows)})

    @classmethod
    def load(cls, path: Path) -> "Run":
        folder = RunFolder(path)
        folder.refuse_unfinished()
        try:
            tensors, notes = read_tensors(path / "cases.safetensors")
            details = read_json(path / "details.json")
            lines = [json.loads(line) for line in (path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
            fits = dict.fromkeys((line["model"], line["seed"]) for line in lines)
            predictions = {fit: folder.read_predictions(*fit) for fit in fits}
            scored = tuple(
                Scored.from_dict(line, predictions[line["model"], line["seed"]], *decisions)
                for line, *decisions in zip(lines, *(tensors[key] for key in _DECISIONS), strict=True)
            )
            tables = {"values": tensors[_TABLES].numpy()} if _TABLES in tensors else {}
            utility = Utility.from_dict({**notes["utility"], **tables})
            formulas = Utility.from_dict(notes["formulas"]) if "formulas" in notes else None
            if not isinstance(utility, TableUtility) or not isinstance(formulas, FormulaUtility | None):
                raise TypeError(f"expected a table of utilities, but got a {type(utility).__name__}")
            return cls(
                settings=read_json(folder.settings_file),
                labels=tensors["labels"],
                row_numbers=tensors["row_numbers"],
                utility=utility,
                **{key: notes[key] for key in _COUNTS},
                scored=scored,
                comparison=Comparison.from_dict(read_json(path / "summary.json")),
                formulas=formulas,
                data=DataSummary.from_dict(notes["data"]) if "data" in notes else None,
                ids=None if details["ids"] is None else tuple(details["ids"]),
                by=None if details["by"] is None else tuple(details["by"]),
                importance=details["importance"] and _with_intervals(details["importance"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StakesError):
                raise
            raise StakesError(
                f"{path}: expected the results of `stakes fit`, but they are damaged ({error!r}); "
                "`stakes fit ... --resume` writes them again"
            ) from None


def _with_intervals(importance: Mapping[str, Any]) -> dict[str, Any]:
    """In JSON an interval is a list."""
    return {**importance, "columns": {name: Interval(*ends) for name, ends in importance["columns"].items()}}


class RunFolder:
    """Where a run keeps its files, from the first fit on."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings_file = path, path / "run.json"
        self.model, self.page = path / "model", path / "report.html"

    def part(self, model: str, seed: int, division: str, fold: int) -> Path:
        return self.path / "parts" / division / f"{model}-{seed}" / str(fold)

    def predictions_file(self, model: str, seed: int) -> Path:
        return self.path / "predictions" / f"{model}-{seed}.safetensors"

    def write_predictions(self, predictions: Predictions) -> None:
        tensors = {"probs": predictions.probs}
        if predictions.margin_error is not None:
            tensors["margin_error"] = predictions.margin_error
        metadata = {"validation_utility": predictions.validation_utility, "details": dict(predictions.details)}
        write_tensors(self.predictions_file(predictions.model, predictions.seed), tensors, metadata)

    def read_predictions(self, model: str, seed: int) -> Predictions:
        tensors, metadata = read_tensors(self.predictions_file(model, seed))
        details, validation = metadata["details"], metadata["validation_utility"]
        return Predictions(model, seed, tensors["probs"], validation, details, tensors.get("margin_error"))

    def claim(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        """Make the folder this run's own, or say why it cannot be. Files of other kinds in it are left alone."""
        self.refuse_if_taken(settings, resume=resume, force=force)
        entries = sorted(self._entries(), key=lambda entry: entry == self.settings_file)  # the claim goes last
        # Beside the entries, the temporary files of a run that was killed while it wrote them.
        temporary = [file for name in _ENTRIES for file in self.path.glob(f".{name}.*")]
        for entry in [*(entries if force else ()), *temporary, *self.path.glob("parts/*/*/*/.*")]:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings_file, settings)

    def refuse_if_taken(self, settings: Mapping[str, Any] | None, *, resume: bool, force: bool) -> None:
        """``settings`` are those that a resumed run has to have; None if they are not known yet."""
        if resume and force:
            raise StakesError("expected --resume, to go on with a run, or --force, to replace it, but got both")
        if self.path.exists() and not self.path.is_dir():
            raise StakesError(f"{self.path}: expected a directory for the results, but it is a file")
        entries = self._entries()
        if entries and not self.settings_file.exists():
            names = ", ".join(entry.name for entry in entries)
            raise StakesError(f"{self.path}: holds {names}, but not from a run of stakes; choose another --out")
        if not entries or force:
            return
        if not resume:
            raise StakesError(
                f"{self.path}: holds a run already: --resume goes on with it, --force replaces it, "
                "or choose another --out"
            )
        if settings is None:
            return
        before = read_json(self.settings_file)
        if not isinstance(before, dict):
            raise StakesError(f"{self.settings_file}: damaged; --force starts again")
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        if changed:
            first = changed[0]
            raise StakesError(
                f"{self.path}: cannot resume another run; different: {', '.join(changed)} "
                f"({first} was {before.get(first)!r}, now {settings.get(first)!r})"
            )

    def refuse_unfinished(self) -> None:
        if not self.settings_file.exists():
            reason = "it holds no run.json" if self.path.is_dir() else "there is none"
            raise StakesError(f"{self.path}: expected the folder of a run, the --out of `stakes fit`, but {reason}")
        absent = [name for name in _RESULTS if not (self.path / name).exists()]
        if absent:
            raise StakesError(
                f"{self.path}: expected a finished run, but it has no {', '.join(absent)} yet; "
                "`stakes fit` with the same options and --resume goes on with it"
            )

    def _entries(self) -> list[Path]:
        return [self.path / name for name in _ENTRIES if (self.path / name).exists()]
