"""From files to problems: a table read, checked, divided and encoded."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError, StakesWarning
from stakes.seeds import derive
from stakes.tables.encode import TableEncoder
from stakes.tables.labelled import LabelledTable, present, read_labelled, roles, warn_of_suspects
from stakes.tables.problem import Problem
from stakes.tables.profile import TableProfile
from stakes.tables.split import IntArray, duplicate_groups, folds, forward_folds, latest, linked, split
from stakes.tables.summary import DataSummary, collected
from stakes.tables.task import CV, TableTask
from stakes.tables.values import as_text, check_classes, numbers
from stakes.training.examples import TensorExamples
from stakes.utility import FormulaUtility, TableUtility, Utility

FEW_ROWS = 5
SMALL_TABLE = 1_000  # rows: of a smaller table every row is a test row once
MOST_FOLDS, MANY_ROWS, FEWER_FOLDS = 5, 20_000, 3  # by default: fewer folds where rows are many
ALL = "all"  # the name of a division without test rows


@dataclass(frozen=True, eq=False)
class Division:
    """Rows to make models from, encoded and in folds, and rows to test them on."""

    name: str
    problem: Problem
    encoder: TableEncoder
    test_x: Tensor  # (n, F)
    tested: IntArray  # (n,) which of all the test rows these are


@dataclass(frozen=True, eq=False)
class PreparedTable:
    """A table as problems to solve, and what the solutions are tested on."""

    divisions: tuple[Division, ...]  # the model that is saved comes from the last
    utility: TableUtility | FormulaUtility  # as the costs state it: what a saved model decides by
    test_labels: Tensor  # (N,)
    test_utility: TableUtility  # one for all test rows, or one for each
    test_places: IntArray  # (N,) where the test rows stand in their file, counted from 0
    rows: Mapping[str, Any]  # how many there are to learn from and to test on, how many folds, and how it was divided
    repeated: int  # rows that repeat another; copies never stand on both sides of a split
    test_texts: Mapping[str, tuple[str, ...]]  # of the columns that --id and --by name, by column: (N,) texts
    profile: TableProfile  # of the rows that the saved model is made from
    data: DataSummary  # the table to learn from, as it was read, and what was warned of


class _Cut(NamedTuple):
    """Rows to make models from, and rows of the test table to test them on."""

    kept: IntArray
    tested: IntArray


def prepare(task: TableTask) -> PreparedTable:
    """Read, check, divide and encode; what is known of columns is learnt from rows that are not tested on."""
    with collected() as notices:
        prepared = _prepare(task)
    return replace(prepared, data=replace(prepared.data, notices=tuple(notices)))


def _prepare(task: TableTask) -> PreparedTable:
    stated = Utility.from_csv(task.costs, unit=task.unit)
    table = read_labelled(task.data, task, stated)
    check_classes(table.labels, stated.outcomes, task.target)
    copies = duplicate_groups(table.features)
    groups, times = copies, None
    if task.group is not None:
        (column,) = present(task.data, [task.group], table.columns)
        groups = linked(copies, pd.factorize(table.columns[column], use_na_sentinel=False)[0])
    if task.time is not None:
        (column,) = present(task.data, [task.time], table.columns)
        times = _times(table.columns[column])
    test = read_labelled(task.test, task, stated, table.formats) if isinstance(task.test, Path) else table
    warn_of_suspects(task, table)
    scheme, cuts = _cuts(task, table.labels, groups, times, len(test.labels))
    places = np.unique(np.concatenate([cut.tested for cut in cuts]))
    divisions = tuple(_divisions(task, table, test, groups, times, cuts, places))
    _warn_of_few(test.labels[places], stated.outcomes)
    problem = divisions[-1].problem
    return PreparedTable(
        divisions=divisions,
        utility=stated,
        test_labels=torch.from_numpy(test.labels[places]),
        test_utility=test.utility.rows(places),
        test_places=places,
        rows={"train": len(problem.examples), "test": len(places), "folds": len(problem.folds), "tested": scheme},
        repeated=len(copies) - len(np.unique(copies)),
        test_texts=_texts(task, test.columns.iloc[places]),
        profile=TableProfile.fit(divisions[-1].encoder, table.features.iloc[cuts[-1].kept], task.seed),
        data=DataSummary.of(task.data.name, table.columns, table.formats, roles(task), task.categorical),
    )


def _cuts(
    task: TableTask, labels: NDArray[np.int64], groups: IntArray, times: NDArray[np.float64] | None, test_rows: int
) -> tuple[str, list[_Cut]]:
    """How the rows are divided, in a word, and the divisions; the last is the one whose model is saved."""
    everything = np.arange(len(labels))
    if isinstance(task.test, Path):
        return "file", [_Cut(everything, np.arange(test_rows))]
    if times is not None:
        return "latest", [_Cut(*latest(times, task.share))]
    if task.test == CV or (task.test is None and len(labels) < SMALL_TABLE):
        outer = folds(labels, groups, MOST_FOLDS, derive(task.seed, "test"))
        return CV, [*(_Cut(*fold) for fold in outer), _Cut(everything, everything[:0])]
    return "share", [_Cut(*split(labels, groups, task.share, derive(task.seed, "test")))]


def _divisions(
    task: TableTask,
    table: LabelledTable,
    test: LabelledTable,
    groups: IntArray,
    times: NDArray[np.float64] | None,
    cuts: Sequence[_Cut],
    places: IntArray,
) -> Iterator[Division]:
    count = task.folds or (MOST_FOLDS if len(cuts[-1].kept) < MANY_ROWS else FEWER_FOLDS)
    for number, (kept, tested) in enumerate(cuts, 1):
        labels, features = table.labels[kept], table.features.iloc[kept]
        check_classes(labels, table.utility.outcomes, f"{task.target} (rows to learn from)")
        with warnings.catch_warnings():
            if number > 1:  # it was said of the first
                warnings.simplefilter("ignore", StakesWarning)
            encoder = TableEncoder.fit_clean(features, table.formats, categorical=task.categorical)
        if times is None:
            own_folds = folds(labels, groups[kept], count, derive(task.seed, "folds"))
        else:
            own_folds = forward_folds(times[kept], count)
        examples = TensorExamples(torch.from_numpy(encoder.encode(features)), torch.from_numpy(labels))
        problem = Problem(examples, own_folds, table.utility.rows(kept), encoder.features)
        test_x = torch.from_numpy(encoder.encode(test.features.iloc[tested]))
        yield Division(str(number) if len(tested) else ALL, problem, encoder, test_x, np.searchsorted(places, tested))


def _texts(task: TableTask, rows: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """What the columns that name and group rows say of the test rows; a gap is an empty text."""
    names = [name for name in (task.id, task.by) if name is not None]
    path = task.test if isinstance(task.test, Path) else task.data
    return {name: tuple(as_text(rows[name]).fillna("")) for name in present(path, names, rows)}


def _times(series: "pd.Series[Any]") -> NDArray[np.float64]:
    """Dates, texts that are dates, or numbers, as numbers that grow with time."""
    if pd.api.types.is_numeric_dtype(series.dtype):
        values = numbers(series)
    else:
        parsed = pd.to_datetime(series, errors="coerce", format="mixed", utc=True)
        values = np.asarray((parsed - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), dtype=np.float64)
    if np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        text = "none" if pd.isna(series.iloc[row]) else repr(str(series.iloc[row]))
        raise StakesError(
            f"column {series.name!r}: expected a date or a number in every row to order them by, but row {row + 1} has "
            f"{text}; correct it, or drop the row"
        )
    return values


def _warn_of_few(labels: NDArray[np.int64], outcomes: Sequence[str]) -> None:
    counts = zip(outcomes, np.bincount(labels, minlength=len(outcomes)), strict=True)
    few = [f"{name} {count}" for name, count in counts if count < FEW_ROWS]
    if few:
        message = f"the test rows have few cases of some outcomes ({', '.join(few)}): their results are uncertain"
        warnings.warn(message, StakesWarning, stacklevel=3)
