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

from stakes.errors import StakesWarning
from stakes.seeds import derive
from stakes.tables.amounts.lags import Lags
from stakes.tables.encode import TableEncoder
from stakes.tables.labelled import LabelledTable, read_labelled, require_columns, roles, warn_of_suspects
from stakes.tables.problem import Problem
from stakes.tables.profile import TableProfile
from stakes.tables.split import IntArray, duplicate_groups, folds, merge_groups, split, split_latest
from stakes.tables.summary import DataSummary, collect_warnings
from stakes.tables.task import CV, TableTask
from stakes.tables.times import TimeFormat
from stakes.tables.values import as_text
from stakes.training.examples import TensorExamples
from stakes.utility import Utility

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
    utility: Utility  # as the costs state it: what a saved model decides by
    test_labels: Tensor  # (N,) classes or amounts
    test_utility: Utility  # one for all test rows, or one for each
    test_row_index: IntArray  # (N,) where the test rows stand in their file, counted from 0
    rows: Mapping[str, Any]  # how many there are to learn from and to test on, how many folds, and how it was divided
    repeated: int  # rows that repeat another; copies never stand on both sides of a split
    test_texts: Mapping[str, tuple[str, ...]]  # of the columns that --id and --by name, by column: (N,) texts
    test_groups: IntArray | None  # (N,) what the test rows belong to, by the column that --group names
    profile: TableProfile  # of the rows that the saved model is made from
    data: DataSummary  # the table to learn from, as it was read, and what was warned of
    test_times: NDArray[np.float64] | None = None  # (N,) with --time
    lags: Lags | None = None  # with --lags


class _Cut(NamedTuple):
    """Rows to make models from, and rows of the test table to test them on."""

    kept: IntArray
    tested: IntArray


def prepare(task: TableTask) -> PreparedTable:
    """Read, check, divide and encode; what is known of columns is learnt from rows that are not tested on."""
    with collect_warnings() as notices:
        prepared = _prepare(task)
    # Not among the notices: of few cases that matter, the report says more.
    if few := task.kind.few_rows_warning(prepared.test_labels.numpy(), prepared.utility):
        warnings.warn(few, StakesWarning, stacklevel=2)
    return replace(prepared, data=replace(prepared.data, notices=tuple(notices)))


def _prepare(task: TableTask) -> PreparedTable:
    kind = task.kind
    utility = kind.read_utility(task)
    table = read_labelled(task.data, task, utility)
    kind.check_labels(table.labels, utility, task.target)
    copies = duplicate_groups(table.features)
    groups, times = copies, None
    if task.group is not None:
        (column,) = require_columns(task.data, [task.group], table.columns)
        groups = merge_groups(copies, pd.factorize(table.columns[column], use_na_sentinel=False)[0])
    if table.time_format is not None:
        times = table.time_format.times(table.columns[task.time])
    test = read_labelled(task.test, task, utility, table) if isinstance(task.test, Path) else table
    warn_of_suspects(task, table)
    scheme, cuts = _cuts(task, kind.strata(table.labels), groups, times, len(test.labels))
    test_rows = np.unique(np.concatenate([cut.tested for cut in cuts]))
    divisions = tuple(_divisions(task, table, test, groups, times, cuts, test_rows))
    problem = divisions[-1].problem
    rows = {"train": len(problem.examples), "test": len(test_rows), "folds": len(problem.model_folds), "tested": scheme}
    return PreparedTable(
        divisions=divisions,
        utility=utility,
        test_labels=torch.from_numpy(test.labels[test_rows]),
        test_utility=test.utility.rows(test_rows),
        test_row_index=test_rows,
        rows=rows | ({} if table.time_format is None else {"time_pattern": table.time_format.pattern}),
        repeated=len(copies) - len(np.unique(copies)),
        test_texts=_texts(task, test.columns.iloc[test_rows]),
        test_groups=_groups(task, test.columns.iloc[test_rows]),
        profile=TableProfile.fit(
            divisions[-1].encoder, table.features.iloc[cuts[-1].kept], task.seed, divisions[-1].problem.groups
        ),
        data=DataSummary.of(task.data.name, table.columns, table.formats, roles(task), task.categorical),
        test_times=_test_times(task, test.columns.iloc[test_rows], table.time_format),
        lags=test.lags,
    )


def _cuts(
    task: TableTask, labels: IntArray, groups: IntArray, times: NDArray[np.float64] | None, test_rows: int
) -> tuple[str, list[_Cut]]:
    """How the rows are divided, in a word, and the divisions; the last is the one whose model is saved."""
    everything = np.arange(len(labels))
    if isinstance(task.test, Path):
        return "file", [_Cut(everything, np.arange(test_rows))]
    if times is not None:
        return "latest", [_Cut(*split_latest(times, task.share))]
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
    test_rows: IntArray,
) -> Iterator[Division]:
    count = task.folds or (MOST_FOLDS if len(cuts[-1].kept) < MANY_ROWS else FEWER_FOLDS)
    for number, (kept, tested) in enumerate(cuts, 1):
        labels, features = table.labels[kept], table.features.iloc[kept]
        task.kind.check_labels(labels, table.utility, f"{task.target} (rows to learn from)")
        with warnings.catch_warnings():
            if number > 1:  # it was said of the first
                warnings.simplefilter("ignore", StakesWarning)
            encoder = TableEncoder.fit_clean(features, table.formats, categorical=task.categorical)
        seed = derive(task.seed, "folds")
        examples = TensorExamples(torch.from_numpy(encoder.encode(features)), torch.from_numpy(labels))
        own_groups = groups[kept] if task.group else None
        problem = Problem(examples, (), table.utility.rows(kept), encoder.features, groups=own_groups)
        if times is None:
            problem = replace(problem, folds=folds(task.kind.strata(labels), groups[kept], count, seed))
        else:
            problem = problem.in_time(times[kept], count, seed)
        test_x = torch.from_numpy(encoder.encode(test.features.iloc[tested]))
        yield Division(
            str(number) if len(tested) else ALL, problem, encoder, test_x, np.searchsorted(test_rows, tested)
        )


def _texts(task: TableTask, rows: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """What the columns that name, group and date rows say of the test rows; a gap is an empty text."""
    names = [name for name in (task.id, task.by) if name is not None]
    path = task.test if isinstance(task.test, Path) else task.data
    times = {task.time: tuple(rows[task.time].astype(str))} if task.time is not None and task.time in rows else {}
    return times | {name: tuple(as_text(rows[name]).fillna("")) for name in require_columns(path, names, rows)}


def _test_times(task: TableTask, rows: pd.DataFrame, time_format: TimeFormat | None) -> NDArray[np.float64] | None:
    """Those of the test rows; None without --time, or where a file of test rows does not have them."""
    return None if time_format is None or task.time not in rows else time_format.times(rows[task.time])


def _groups(task: TableTask, rows: pd.DataFrame) -> IntArray | None:
    """What the test rows belong to, as numbers; None if no column says so."""
    if task.group is None or task.group not in rows:
        return None
    return np.asarray(pd.factorize(rows[task.group], use_na_sentinel=False)[0], dtype=np.int64)
