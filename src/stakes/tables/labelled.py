"""A table with its labels, costs and features: a file read, its columns understood, and what is wrong with any said."""

import difflib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stakes.errors import Refusals, StakesError, StakesWarning, listing
from stakes.tables.amounts.lags import Lags
from stakes.tables.date_format import DateFormat
from stakes.tables.encode import check_frame
from stakes.tables.formats import Formats, decimal_mark, read_numbers
from stakes.tables.number_format import NumberFormat
from stakes.tables.read import read_table
from stakes.tables.suspects import identifiers, many_texts, repeated_subjects, unchanging
from stakes.tables.task import TableTask
from stakes.tables.times import TimeFormat
from stakes.tables.values import utility_of_rows
from stakes.utility import TableUtility, Utility


class LabelledTable(NamedTuple):
    """All rows of a file."""

    features: pd.DataFrame  # as the formats have cleaned them
    labels: NDArray[np.int64] | NDArray[np.float64]  # classes or amounts
    utility: Utility  # one for all rows, or one for each
    columns: pd.DataFrame  # all of them, as they are in the file
    formats: Formats
    time_format: TimeFormat | None = None  # with --time
    lags: Lags | None = None  # of amounts, with the last ones of this file


def read_labelled(path: Path, task: TableTask, utility: Utility, before: LabelledTable | None = None) -> LabelledTable:
    """Read a file, with the formats of ``before`` or its own; what is wrong with any column is said at once."""
    formats = None if before is None else before.formats
    columns = read_table(path, written=() if formats is None else formats.columns)
    require_columns(path, [task.target], columns)
    if task.target in utility.columns:
        raise StakesError(
            f"the costs depend on the target {task.target!r}, which is not known when a decision is taken; "
            "use a column that is known before, such as a forecast"
        )
    if path == task.data:
        require_columns(path, task.drop, columns)
    if formats is None:
        mark = decimal_mark(columns.drop(columns=[name for name in task.categorical if name in columns]))
    written, refusals = None, Refusals()
    with refusals.gather():
        target = columns[task.target]
        written = task.kind.target_format(target, mark) if formats is None else formats.number(task.target)
        values = target if written is None else pd.Series(read_numbers(target, written), target.index, name=target.name)
        labels = task.kind.labels(values, task, utility, first=formats is None)
    if task.lags:
        refusals.refuse()  # lags are made of the target
    try:
        time_format = _time_format(columns, path, task) if before is None else before.time_format
        known = None if before is None else before.lags
        lags, extended = _with_lags(columns, path, task, time_format, written, known)
    except StakesError as error:
        raise StakesError(f"{path}: {error}") from None
    features = extended.drop(columns=list(roles(task)), errors="ignore")
    if features.columns.empty:
        raise StakesError(f"{path}: expected columns to learn from beside the target, but none is left")
    with refusals.gather():
        if formats is None:
            check_frame(features, task.categorical)
            priced = [name for name in utility.columns if name in columns and name not in features]
            formats = Formats.fit(extended[[*features, *priced]], categorical=task.categorical, decimal=mark)
            formats = formats if written is None else Formats({**formats.columns, task.target: written})
        clean = formats.clean(extended)
        try:
            of_rows = utility_of_rows(utility, clean)
        except StakesError as error:
            raise StakesError(f"{path}: {error}") from None
    refusals.refuse()
    used = [name for name in clean.columns if formats.sources.get(name, name) in features]
    return LabelledTable(clean[used], labels, of_rows, columns, formats, time_format, lags)


def _time_format(columns: pd.DataFrame, path: Path, task: TableTask) -> TimeFormat | None:
    return None if task.time is None else TimeFormat.of(columns[require_columns(path, [task.time], columns)[0]])


def _with_lags(
    columns: pd.DataFrame,
    path: Path,
    task: TableTask,
    time_format: TimeFormat | None,
    written: NumberFormat | None,
    before: Lags | None,
) -> tuple[Lags | None, pd.DataFrame]:
    """Earlier amounts as features, if they are asked for; a file of test rows looks back at the other one, too."""
    if not task.lags or task.time is None:
        return None, columns
    named = [name for name in (task.time, task.series) if name is not None]
    require_columns(path, named, columns)
    if before is not None:
        return before.extended(columns), before.add(columns)
    lags = Lags.fit(columns, task.target, task.time, task.lags, task.series, time_format, written)
    clash = [name for name in lags.names if name in columns]
    if clash:
        raise StakesError(f"--lags makes the columns {listing(clash)}, which the table has already; rename them")
    return lags, lags.add(columns, first=True)


def roles(task: TableTask) -> dict[str, str]:
    """The columns that are no features, and what they are."""
    named = {task.group: "group", task.time: "time", task.id: "id"}
    return {
        **dict.fromkeys(task.drop, "dropped"),
        **{name: role for name, role in named.items() if name is not None},
        task.target: "target",
    }


def warn_of_suspects(task: TableTask, table: LabelledTable) -> None:
    """Say which columns should probably not be used."""
    dates = [name for name, kind in table.formats.columns.items() if isinstance(kind, DateFormat)]
    id_warnings = identifiers(table.features, skip={*dates, *table.formats.sources})
    subjects = {} if task.group else repeated_subjects(table.features, task.kind.strata(table.labels), task.time)
    for message in [
        *id_warnings.values(),
        *subjects.values(),
        *many_texts(table.features, categorical=task.categorical, skip={*id_warnings, *subjects}),
        *(table.utility.warnings() if isinstance(table.utility, TableUtility) and table.utility.per_example else ()),
        *unchanging(table.features, skip=table.formats.sources),
        *task.kind.leaks(table.features.drop(columns=list(subjects)), table.labels, table.utility),
    ]:
        warnings.warn(message, StakesWarning, stacklevel=3)


def require_columns(path: Path, names: Sequence[str], frame: pd.DataFrame) -> Sequence[str]:
    """The names, all of which must be columns."""
    absent = [name for name in names if name not in frame.columns]
    if absent:
        close = difflib.get_close_matches(absent[0], list(frame.columns), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise StakesError(
            f"{path}: expected the columns {listing(absent)}, but the file has {listing(frame.columns)}{hint}"
        )
    return names
