"""A table with its labels, costs and features: a file read, its columns understood, and what is wrong with any said."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stakes.errors import Refusals, StakesError, StakesWarning, listing
from stakes.tables.date_format import DateFormat
from stakes.tables.encode import check_frame
from stakes.tables.formats import Formats
from stakes.tables.read import read_table
from stakes.tables.suspects import identifiers, leaks, many_texts
from stakes.tables.task import TableTask
from stakes.tables.values import check_renames, encode_labels, text_codes, utility_of_rows
from stakes.utility import FormulaUtility, TableUtility
from stakes.utility.checks import swapped


class LabelledTable(NamedTuple):
    """All rows of a file."""

    features: pd.DataFrame  # as the formats have cleaned them
    labels: NDArray[np.int64]
    utility: TableUtility  # one for all rows, or one for each
    columns: pd.DataFrame  # all of them, as they are in the file
    formats: Formats


def read_labelled(
    path: Path, task: TableTask, stated: TableUtility | FormulaUtility, formats: Formats | None = None
) -> LabelledTable:
    """Read a file, with the formats of another one or its own; what is wrong with any column is said at once."""
    columns = read_table(path)
    present(path, [task.target], columns)
    if task.target in stated.columns:
        raise StakesError(
            f"the costs depend on the target {task.target!r}, which is not known when a decision is taken"
        )
    if path == task.data:
        present(path, task.drop, columns)
    features = columns.drop(columns=list(roles(task)), errors="ignore")
    if features.columns.empty:
        raise StakesError(f"{path}: expected columns to learn from beside the target, but none is left")
    refusals = Refusals()
    with refusals.gather():
        labels = _labels(columns[task.target], task, stated, first=formats is None)
    with refusals.gather():
        if formats is None:
            check_frame(features, task.categorical)
            priced = [name for name in stated.columns if name in columns and name not in features]
            formats = Formats.fit(columns[[*features, *priced]], categorical=task.categorical)
        clean = formats.clean(columns)
        try:
            utility = utility_of_rows(stated, clean)
        except StakesError as error:
            raise StakesError(f"{path}: {error}") from None
    refusals.refuse()
    used = [name for name in clean.columns if formats.sources.get(name, name) in features]
    return LabelledTable(clean[used], labels, utility, columns, formats)


def roles(task: TableTask) -> dict[str, str]:
    """The columns that are no features, and what they are."""
    named = {task.group: "group", task.time: "time", task.id: "id"}
    return {
        **dict.fromkeys(task.drop, "dropped"),
        **{name: role for name, role in named.items() if name is not None},
        task.target: "target",
    }


def _labels(
    values: "pd.Series[Any]", task: TableTask, stated: TableUtility | FormulaUtility, first: bool
) -> NDArray[np.int64]:
    if first and task.renames:
        check_renames(values, task.renames, task.target)
    try:
        return encode_labels(values, stated.outcomes, renames=task.renames, name=task.target)
    except StakesError:
        texts = {task.renames.get(text, text) for text in text_codes(values)[1] if text is not None}
        if message := swapped(texts, stated.decisions, stated.outcomes):
            raise StakesError(f"column {task.target!r}: {message}") from None
        raise


def warn_of_suspects(task: TableTask, table: LabelledTable) -> None:
    """Say which columns should probably not be used."""
    dates = [name for name, kind in table.formats.columns.items() if isinstance(kind, DateFormat)]
    found = identifiers(table.features, skip={*dates, *table.formats.sources})
    for message in [
        *found.values(),
        *many_texts(table.features, categorical=task.categorical, skip=found),
        *leaks(table.features, table.labels, table.utility.outcomes),
    ]:
        warnings.warn(message, StakesWarning, stacklevel=3)


def present(path: Path, names: Sequence[str], frame: pd.DataFrame) -> Sequence[str]:
    """The names, all of which must be columns."""
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise StakesError(f"{path}: expected the columns {listing(absent)}, but the file has {listing(frame.columns)}")
    return names
