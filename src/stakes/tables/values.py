"""What the values of a table mean: one text for each number however it was read, and labels as indices."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError, listing, quoted, typed
from stakes.utility import FormulaUtility, TableUtility, Utility

FloatArray = npt.NDArray[np.float64]
# Named here and not left to pandas, which cannot exempt the columns that are carried through untouched.
MOST_OUTCOMES = 20  # of more values, it is not their names that are wrong
MISSING_TEXTS = ["", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NULL", "null", "NaN", "nan", "-nan", "None"]
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def as_text(series: "pd.Series[Any]") -> "pd.Series[Any]":
    """The canonical text of every value, missing (and blank) ones as None.

    Numbers are compared as numbers, so that 1, 1.0, "1" and "1.0" are all "1": what was read as an
    integer in training is found again when it is read as text.
    """
    codes, texts = text_codes(series)
    values = np.array([*texts, None], dtype=object)[codes]
    return pd.Series(values, index=series.index, name=series.name, dtype=object)


def row_number(index: "pd.Index[Any]", position: int) -> int:
    """The row of the file, counted from 1 after the header, if the index still knows it."""
    label = index[position]
    return int(label) + 1 if isinstance(label, int | np.integer) else position + 1


def numbers(series: "pd.Series[Any]") -> FloatArray:
    """A column as float64: NaN for missing, 1 for true; text that is no number is an error."""
    if pd.api.types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    codes, uniques = factorize(series)
    parsed = [_number(value) for value in uniques]
    for code, (value, number) in enumerate(zip(uniques, parsed, strict=True)):
        if number is None:
            row = row_number(series.index, int(np.argmax(codes == code)))
            raise StakesError(
                f"column {series.name!r}: expected a number, but row {row} has {quoted(value)}; "
                "correct it, or leave it empty if the value is missing"
            )
    return np.array([*parsed, np.nan], dtype=np.float64)[codes]


@overload
def utility_of_rows(utility: TableUtility | FormulaUtility, frame: pd.DataFrame) -> TableUtility: ...


@overload
def utility_of_rows(utility: Utility, frame: pd.DataFrame) -> Utility: ...


def utility_of_rows(utility: Utility, frame: pd.DataFrame) -> Utility:
    """The costs of each row, from the columns that they depend on; those of all rows, if they depend on none."""
    if not utility.columns:
        return utility
    columns = {name: numbers(frame[name]) if name in utility.columns else frame[name] for name in frame.columns}
    numbered = pd.api.types.is_integer_dtype(frame.index.dtype)
    return utility.for_rows(columns, (frame.index + 1).tolist() if numbered else None)


def encode_labels(
    values: "pd.Series[Any]", outcomes: Sequence[str], *, renames: Mapping[str, str] | None = None, name: str
) -> npt.NDArray[np.int64]:
    """The index into ``outcomes`` of every label, after ``renames`` from raw text to outcome name.

    ``name`` is the column, for messages. Outcomes and labels are compared as ``as_text`` writes them.
    """
    if values.dtype == object and values.map(pd.api.types.is_list_like).any():
        raise StakesError(
            f"column {name!r}: expected one label in every row, but it holds lists or records; choose another target, "
            "or make one label of each"
        )
    codes, texts = text_codes(values)
    blank = np.array([text is None for text in [*texts, None]])[codes]
    if blank.any():
        raise StakesError(
            f"column {name!r}: expected a label in every row, but {int(blank.sum())} of {len(blank)} have none, "
            f"first in row {row_number(values.index, int(np.argmax(blank)))} (empty, NA and None count as "
            "missing); fill them in, or drop those rows"
        )
    new = {_text(old): outcome for old, outcome in (renames or {}).items()}
    index = {_text(outcome): i for i, outcome in enumerate(outcomes)}
    if len(index) != len(outcomes):
        raise StakesError(f"expected different outcomes, but some of {listing(outcomes)} mean the same; rename them")
    label_of_text = np.array([index.get(_text(new.get(text, text)), -1) for text in texts], dtype=np.int64)
    labels: npt.NDArray[np.int64] = label_of_text[codes]
    if (labels < 0).any():
        unknown = [new.get(text, text) for text, label in zip(texts, label_of_text, strict=True) if label < 0]
        advice = "add it to the costs, or drop those rows"
        if any(text in new for text, label in zip(texts, label_of_text, strict=True) if label < 0):
            advice = "correct --labels, or the costs"
        elif len(set(unknown)) > MOST_OUTCOMES:
            advice = "is it the right column? Where the outcome is a number, give --under and --over, not --costs"
        elif (labels < 0).all():  # nothing matches: the names differ, not the classes
            pairs = ",".join(f"{text}=..." for text in dict.fromkeys(unknown))
            advice = f"name the values with --labels {pairs}; in the costs, outcomes are columns and decisions rows"
        raise StakesError(
            f"column {name!r}: expected the outcomes {listing(outcomes)}, but {int((labels < 0).sum())} rows "
            f"have {listing(dict.fromkeys(unknown))}; {advice}"
        )
    return labels


def check_renames(values: "pd.Series[Any]", renames: Mapping[str, str], name: str) -> None:
    """Every value that is renamed must be there: one that is not was misspelt."""
    texts = [text for text in text_codes(values)[1] if text is not None]
    absent = [old for old in renames if _text(old) not in texts]
    if absent:
        raise StakesError(
            f"--labels: expected values of column {name!r}, which are {listing(sorted(texts))}, but got "
            f"{listing(absent)}; check the spelling"
        )


def check_classes(labels: npt.NDArray[np.int64], outcomes: Sequence[str], name: str) -> None:
    """Every outcome must occur in the data: nothing can be learnt of one that does not."""
    counts = np.bincount(labels, minlength=len(outcomes))
    present = [outcome for outcome, count in zip(outcomes, counts, strict=True) if count]
    if len(present) < 2:
        raise StakesError(
            f"column {name!r}: expected at least two classes, but every row has {listing(present)}; "
            "there is nothing to decide, so check the column and the rows"
        )
    absent = [outcome for outcome in outcomes if outcome not in present]
    if absent:
        raise StakesError(
            f"column {name!r}: expected every outcome of the costs to occur, but {listing(absent)} never does "
            f"(the data has {listing(present)}); remove it from the costs, or add rows that have it"
        )


def text_codes(series: "pd.Series[Any]") -> tuple[npt.NDArray[np.intp], list[str | None]]:
    """The texts of the different values, and for every row which one it has; -1 is missing."""
    codes, uniques = factorize(series)
    return codes, [_text(value) for value in uniques]


def factorize(series: "pd.Series[Any]", use_na_sentinel: bool = True) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """As `pd.factorize`; a column of lists, records or dates is an error that names it."""
    if kind_of(series).startswith(("date", "time", "period", "interval")):
        raise StakesError(
            f"column {series.name!r}: expected numbers or text, but it holds dates or times; "
            f"derive numbers from them (such as an age in days), or drop it with {typed('--drop', series.name)}"
        )
    try:
        codes, uniques = pd.factorize(series, use_na_sentinel=use_na_sentinel)
    except TypeError:
        raise StakesError(
            f"column {series.name!r}: expected single values, but it holds lists or records; "
            f"drop it with {typed('--drop', series.name)}"
        ) from None
    return codes, list(uniques)


def kind_of(series: "pd.Series[Any]") -> str:
    """The type of a column's values, as pandas calls it."""
    return pd.api.types.infer_dtype(series, skipna=True) if series.dtype == object else str(series.dtype)


def holds_dates(series: "pd.Series[Any]") -> bool:
    """Whether they are dates, and not texts."""
    return kind_of(series).startswith("date")


def holds_numbers(series: "pd.Series[Any]") -> bool:
    if isinstance(series.dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_numeric_dtype(series.dtype):
        return True
    inferred = pd.api.types.infer_dtype(series, skipna=True)
    return inferred in {"boolean", "integer", "floating", "mixed-integer-float", "decimal"}


def _text(value: Any) -> str | None:
    text = str(value).strip()
    if text.lower() in {"true", "false"}:  # pandas takes any of these spellings for a truth value
        return text.capitalize()
    if not _NUMBER.fullmatch(text):
        return text or None
    number = float(text)
    # 15 digits, for the reader of text files may differ from Python in the 17th.
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else f"{number:.15g}"


def _number(value: Any) -> float | None:
    if not isinstance(value, str):
        try:
            return float(value) if isinstance(value, SupportsFloat) else None
        except OverflowError:  # an integer of 309 digits or more
            return math.inf
    text = value.strip().lower()
    if text in {"true", "false"}:
        return float(text == "true")
    return float(text) if _NUMBER.fullmatch(text) else math.nan if not text else None
