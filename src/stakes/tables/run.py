"""What a run left in its folder, read back: all that its reports are made from, without the data or a model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stakes._io.files import read_json
from stakes._io.tensors import read_tensors, write_tensors
from stakes.errors import StakesError
from stakes.evaluation.comparison import Comparison, Run
from stakes.tables.folder import RunFolder
from stakes.tables.task import Fit, planned_fits
from stakes.utility import Utility


@dataclass(frozen=True, eq=False)
class Cases:
    """The test rows as reports need them, and how the table was cut."""

    labels: torch.Tensor  # (N,) what happened
    numbers: torch.Tensor  # (N,) each row's place in its file, the first row under the header being 1
    utility: Utility
    rows: Mapping[str, int]  # how many train, validation, test
    repeated: int  # rows that repeat another
    features: int
    versions: Mapping[str, str]  # of what trained the models

    def write(self, folder: RunFolder) -> None:
        notes = {key: getattr(self, key) for key in ("rows", "repeated", "features", "versions")}
        tensors = {"labels": self.labels, "numbers": self.numbers}
        write_tensors(folder.cases_file, tensors, {**notes, "utility": self.utility.to_dict()})

    @classmethod
    def read(cls, folder: RunFolder) -> "Cases":
        tensors, notes = read_tensors(folder.cases_file)
        utility = Utility.from_dict(notes.pop("utility"))
        return cls(labels=tensors["labels"], numbers=tensors["numbers"], utility=utility, **notes)


@dataclass(frozen=True, eq=False)
class TableResult:
    """A finished run: what was asked for, the test rows, what each model said of them, and what came of it."""

    settings: Mapping[str, Any]
    cases: Cases
    runs: tuple[Run, ...]
    comparison: Comparison
    scores: tuple[Mapping[str, Any], ...]  # a row for each run and rule

    @classmethod
    def load(cls, folder: RunFolder) -> "TableResult":
        _refuse_unfinished(folder)
        settings = read_json(folder.settings_file)
        try:
            fits = planned_fits(settings["models"], settings["seeds"], settings["seed"])
            scores = tuple(json.loads(line) for line in folder.results_file.read_text(encoding="utf-8").splitlines())
            comparison = Comparison.from_dict(read_json(folder.summary_file))
            return cls(settings, Cases.read(folder), tuple(read_runs(folder, fits)), comparison, scores)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StakesError):
                raise
            raise StakesError(
                f"{folder.path}: expected the results of `stakes fit`, but they are damaged ({error!r}); "
                "`stakes fit ... --resume` writes them again"
            ) from None

    def runs_of(self, model: str) -> list[Run]:
        """By seed."""
        return sorted((run for run in self.runs if run.model == model), key=lambda run: run.seed)

    def scores_of(self, model: str, rule: str) -> list[Mapping[str, Any]]:
        return [row for row in self.scores if (row["model"], row["rule"]) == (model, rule)]


def read_runs(folder: RunFolder, fits: Sequence[Fit]) -> list[Run]:
    """What each finished fit left in the folder."""
    runs = []
    for fit in fits:
        tensors, metadata = read_tensors(folder.predictions_file(fit.model, fit.seed))
        details, validation = metadata["details"], metadata["validation_utility"]
        runs.append(Run(fit.model, fit.seed, tensors["probs"], validation, details, tensors.get("margin_error")))
    return runs


def _refuse_unfinished(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise StakesError(f"{folder.path}: expected the folder of a run, the --out of `stakes fit`, but there is none")
    if not folder.settings_file.exists():
        raise StakesError(
            f"{folder.path}: expected the folder of a run, the --out of `stakes fit`, but it holds no run.json"
        )
    absent = [file.name for file in folder.result_files if not file.exists()]
    if absent:
        raise StakesError(
            f"{folder.path}: expected a finished run, but it has no {', '.join(absent)} yet; "
            "`stakes fit` with the same options and --resume goes on with it"
        )
