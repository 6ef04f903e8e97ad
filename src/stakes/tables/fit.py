"""``stakes fit``: a table, its costs, and the alternatives trained and compared."""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from stakes._io.files import atomic
from stakes._io.parallel import Report, side_by_side
from stakes.decisions import decide
from stakes.errors import StakesError, StakesWarning, listing
from stakes.evaluation.comparison import Predictions, best_seed, compare, score
from stakes.saved_model import SavedModel
from stakes.seeds import derive
from stakes.tables.encode import TableEncoder
from stakes.tables.models import Problem, model
from stakes.tables.read import read_table
from stakes.tables.run import Run, RunFolder
from stakes.tables.split import duplicate_groups, split
from stakes.tables.task import Fit, TableTask, check
from stakes.tables.values import check_classes, encode_labels, utility_of_rows
from stakes.training.config import Epoch
from stakes.training.examples import TensorExamples
from stakes.utility import FormulaUtility, TableUtility, Utility

FEW_ROWS = 5

# What happens to a fit: it was found finished, has started, came through an epoch, is done.
Event = Literal["found", "started", "done"] | Epoch
Listener = Callable[[Fit, Event], None]


@dataclass(frozen=True, eq=False)
class PreparedTable:
    """The table as a problem, and the encoder that made it one."""

    problem: Problem
    test: TensorExamples
    test_utility: TableUtility
    utility: TableUtility | FormulaUtility  # as the costs state it: what a saved model decides by
    encoder: TableEncoder
    rows: Mapping[str, int]  # how many train, validation, test
    repeated: int  # rows that repeat another; copies never stand on both sides of a split
    test_places: NDArray[np.int64]  # (N,) where the test rows stand in their file, counted from 0


def prepare(task: TableTask) -> PreparedTable:
    """Read, check, split and encode; statistics come from the training part only."""
    utility = Utility.from_csv(task.costs, unit=task.unit)
    frame, labels = _labelled(task.data, task, utility)
    tables = _tables(task.data, frame, utility)  # before columns are dropped as features
    frame = frame.drop(columns=_present(task.data, task.drop, frame))
    if frame.columns.empty:
        raise StakesError(f"{task.data}: expected columns to learn from beside the target, but none is left")
    check_classes(labels, utility.outcomes, task.target)
    rows = np.arange(len(frame))
    groups = duplicate_groups(frame)
    if isinstance(task.test, Path):
        test_frame, test_labels = _labelled(task.test, task, utility)
        test_utility = _tables(task.test, test_frame, utility)
        held_out = np.arange(len(test_frame))
    else:
        rows, held_out = split(labels, groups, task.test, derive(task.seed, "test"))
        test_frame, test_labels, test_utility = frame.iloc[held_out], labels[held_out], tables.rows(held_out)
    kept, chosen = split(labels[rows], groups[rows], task.validation, derive(task.seed, "validation"))
    train, validation = rows[kept], rows[chosen]
    encoder = TableEncoder.fit(frame.iloc[train], categorical=task.categorical)

    def examples(part: pd.DataFrame, values: np.ndarray[Any, np.dtype[np.int64]]) -> TensorExamples:
        return TensorExamples(torch.from_numpy(encoder.transform(part)), torch.from_numpy(values))

    problem = Problem(
        examples(frame.iloc[train], labels[train]),
        examples(frame.iloc[validation], labels[validation]),
        tables.rows(train),
        tables.rows(validation),
    )
    test = examples(test_frame, test_labels)
    check_classes(labels[train], utility.outcomes, f"{task.target} (training part)")
    for part, values in (("validation", labels[validation]), ("test", test_labels)):
        _warn_of_few(part, values, utility)
    counts = {"train": len(train), "validation": len(validation), "test": len(test_labels)}
    repeated = len(groups) - len(np.unique(groups))
    return PreparedTable(problem, test, test_utility, utility, encoder, counts, repeated, held_out)


def fit_table(
    task: TableTask,
    folder: RunFolder,
    *,
    resume: bool = False,
    force: bool = False,
    workers: int = 1,
    on_prepared: Callable[[PreparedTable], None] = lambda prepared: None,
    on_progress: Listener = lambda fit, event: None,
) -> Run:
    """Train and compare the alternatives; the chosen model and all results are in ``folder`` at the end."""
    check(task)
    settings = task.settings()
    folder.refuse_if_taken(settings, resume=resume, force=force)
    prepared = prepare(task)
    on_prepared(prepared)
    folder.claim(settings, resume=resume, force=force)
    waiting = []
    for fit in task.fits():
        if folder.predictions_file(fit.model, fit.seed).exists():
            on_progress(fit, "found")
        else:
            waiting.append(fit)
    work = partial(_train, task, prepared, folder)
    for finished in side_by_side(work, waiting, workers=workers, report=on_progress):
        on_progress(finished, "done")
    return _conclude(task, settings, prepared, folder)


def _warn_of_few(part: str, labels: Any, utility: TableUtility | FormulaUtility) -> None:
    counts = zip(utility.outcomes, np.bincount(labels, minlength=len(utility.outcomes)), strict=True)
    few = [f"{name} {count}" for name, count in counts if count < FEW_ROWS]
    if few:
        message = f"the {part} rows have few cases of some outcomes ({', '.join(few)}): their results are uncertain"
        warnings.warn(message, StakesWarning, stacklevel=3)


def _labelled(path: Path, task: TableTask, utility: TableUtility | FormulaUtility) -> tuple[pd.DataFrame, Any]:
    """The columns beside the target, and the encoded labels, of a file."""
    frame = read_table(path)
    target = _present(path, [task.target], frame)
    if task.target in utility.columns:
        raise StakesError(
            f"the costs depend on the target {task.target!r}, which is not known when a decision is taken"
        )
    labels = encode_labels(frame[task.target], utility.outcomes, renames=task.renames, name=task.target)
    return frame.drop(columns=target), labels


def _tables(path: Path, frame: pd.DataFrame, utility: TableUtility | FormulaUtility) -> TableUtility:
    """The table of each row of a file, or the one of all."""
    try:
        return utility_of_rows(utility, frame)
    except StakesError as error:
        raise StakesError(f"{path}: {error}") from None


def _present(path: Path, names: Sequence[str], frame: pd.DataFrame) -> list[str]:
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise StakesError(f"{path}: expected the columns {listing(absent)}, but the file has {listing(frame.columns)}")
    return list(names)


def _train(task: TableTask, prepared: PreparedTable, folder: RunFolder, fit: Fit, report: Report) -> Fit:
    """Train one model with one seed, and leave its results in the folder."""
    report("started")
    problem, own_folder = prepared.problem, folder.run(fit.model, fit.seed)
    checkpoint = own_folder / "checkpoint.safetensors"
    predictor, details = model(fit.model).train(problem, task.recipe, fit.seed, checkpoint, report)
    shutil.rmtree(own_folder / "model", ignore_errors=True)
    notes = {"target": task.target, "data": task.data.name, "model": fit.model, "seed": fit.seed}
    SavedModel(predictor, prepared.utility, prepared.encoder, notes).save(own_folder / "model")
    validation = problem.validation_utility(predictor)
    decisions = decide(predictor(prepared.test.x), prepared.test_utility)
    # The draws themselves are not kept: the error of the margins is that of the costs as they are.
    error = decisions.margin_error
    folder.write_predictions(Predictions(fit.model, fit.seed, decisions.probs, validation, details, error))
    checkpoint.unlink(missing_ok=True)
    return fit


def _conclude(task: TableTask, settings: Mapping[str, Any], prepared: PreparedTable, folder: RunFolder) -> Run:
    """Score what the fits left in the folder, choose a model, and save both."""
    labels, utility = prepared.test.labels, prepared.test_utility
    predictions = [folder.read_predictions(fit.model, fit.seed) for fit in task.fits()]
    scored = tuple(item for each in predictions for item in score(each, labels, utility))
    run = Run(
        settings,
        labels,
        torch.from_numpy(prepared.test_places + 1),
        utility,
        prepared.rows,
        prepared.repeated,
        prepared.encoder.width,
        {"Python": python_version()} | {name: version(name) for name in ("stakes", "torch", "scikit-learn")},
        scored,
        compare(scored, task.seed),
        prepared.utility if isinstance(prepared.utility, FormulaUtility) else None,
    )
    best = best_seed(predictions, run.comparison.chosen)
    with atomic(folder.model) as temporary:
        shutil.copytree(folder.run(best.model, best.seed) / "model", temporary)
    run.save(folder.path)
    return run
