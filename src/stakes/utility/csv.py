"""Cost tables as files.

Wide, to be filled in by hand: the first column names the decisions, the header the outcomes, and the corner
says what the numbers are, ``cost``, ``cost [£]``, ``£`` or ``utility`` (any other word is taken for a name of the
decisions, and the numbers for costs)::

    cost [£],healthy,mild,severe
    healthy,0,50,100

Long, a line for each cell: the columns ``decision``, ``outcome`` and ``cost [£]`` (or ``utility``).

A cell is a number, or a formula over columns of the data such as ``=0.45 * amount + 20``: see `stakes.utility.formula`.

Curves, for outcomes that are numbers: the corner says ``cost curve [£]``, and the header has outcomes in order, one
twice where a cost jumps. A row is what one action costs at each; an empty cell is no point of its curve::

    cost curve [€],0,30,30
    service now,400,,
    run on,2000,2000,0
"""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from stakes._io.files import read_csv_rows, write_text
from stakes.errors import StakesError, listing
from stakes.utility.checks import refuse_repeats
from stakes.utility.formula import parse_cell

_UNIT = r"\s*(?:[\[(](?P<unit>[^\[\]()]*)[\])])?"
_QUANTITY = re.compile(rf"(?P<kind>costs?|utility|utilities){_UNIT}", re.IGNORECASE)
_CURVES = re.compile(rf"(?:costs?\s+)?curves?{_UNIT}", re.IGNORECASE)
CURRENCY = r"[$£€¥₹₽₩]|AUD|CAD|CHF|CNY|EUR|GBP|INR|JPY|NOK|SEK|USD"
_CURRENCY = re.compile(rf"[\[(]\s*(?P<unit>{CURRENCY})\s*[\])]")  # after any word: Kosten (€)
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_OTHER_SIGN = re.compile(r"utilit|profit|gain|reward|benefit|payoff|revenue", re.IGNORECASE)  # more is better

Cells = dict[str, dict[str, float | str]]


def read_cost_file(path: str | PathLike[str]) -> tuple[Literal["cost", "utility"], str, Cells]:
    """What the numbers are (cost or utility), their unit, and the cells. Errors do not name the file."""
    rows, delimiter = read_csv_rows(path)
    header = {name.lower() for name in rows[0]}
    kind, unit, cells = (_read_long if {"decision", "outcome"} <= header else _read_wide)(rows, delimiter)
    return ("cost" if kind.startswith("cost") else "utility"), unit, cells


def holds_curves(path: str | PathLike[str]) -> bool:
    """Whether a file has cost curves over outcomes that are numbers; one that cannot be read does not."""
    try:
        return _CURVES.fullmatch(read_csv_rows(path)[0][0][0].strip()) is not None
    except StakesError:
        return False


def read_curve_file(path: str | PathLike[str]) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """The unit, and the points (outcome, cost) of each action. Errors do not name the file."""
    rows, delimiter = read_csv_rows(path)
    (corner, *header), *body = rows
    match = _CURVES.fullmatch(corner.strip())
    if match is None:
        raise StakesError(f"expected 'cost curve', with a unit in brackets, in the corner, but got {corner!r}")
    if not header or not body:
        raise StakesError("expected actions in the first column and outcomes in the header, but got no cells")
    _refuse_grouped_thousands([*header, *(cell for row in body for cell in row[1:])], delimiter)
    outcomes = [_number(text, "an outcome in the header") for text in header]
    refuse_repeats([row[0] for row in body], "action")
    curves = {}
    for name, *cells in body:
        if len(cells) != len(outcomes):
            raise StakesError(f"expected {len(outcomes)} cells for action {name!r}, but got {len(cells)}")
        points = [
            (outcome, _number(cell, f"the cost of {name!r} at {outcome:g}"))
            for outcome, cell in zip(outcomes, cells, strict=True)
            if cell.strip()
        ]
        if not points:
            raise StakesError(f"expected at least one cost for action {name!r}, but its row is empty")
        curves[name] = points
    return (match["unit"] or "").strip(), curves


def write_template(path: Path, outcomes: Sequence[str], decisions: Sequence[str], unit: str = "") -> None:
    """A wide cost table to fill in: 0 where a decision names the outcome, empty elsewhere."""
    if len(outcomes) < 2 or not decisions:
        raise StakesError(f"expected at least two outcomes and one decision, but got {listing(outcomes) or 'none'}")
    refuse_repeats(outcomes, "outcome")
    refuse_repeats(decisions, "decision")
    if any(mark in unit for mark in "[]()\n"):
        raise StakesError(f"expected a unit without brackets, but got {unit!r}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"cost [{unit}]" if unit else "cost", *outcomes])
    writer.writerows([name, *("0" if name == outcome else "" for outcome in outcomes)] for name in decisions)
    write_text(path, text.getvalue())


def _read_wide(rows: list[list[str]], delimiter: str) -> tuple[str, str, Cells]:
    (corner, *outcomes), *body = rows
    if not outcomes or not body:
        raise StakesError("expected decisions in the first column and outcomes in the header, but got no cells")
    quantity = _quantity(corner)
    if quantity is None and _OTHER_SIGN.search(corner):
        raise StakesError(f"expected 'cost' or 'utility', with a unit in brackets, in the corner, but got {corner!r}")
    _refuse_grouped_thousands([cell for row in body for cell in row[1:]], delimiter)
    currency = _CURRENCY.search(corner)
    kind, unit = quantity or ("cost", currency["unit"] if currency else corner if _is_currency(corner) else "")
    refuse_repeats(outcomes, "outcome")
    refuse_repeats([row[0] for row in body], "decision")
    cells: Cells = {}
    for row in body:
        if len(row) != len(outcomes) + 1:
            raise StakesError(f"expected {len(outcomes)} numbers for decision {row[0]!r}, but got {len(row) - 1}")
        cells[row[0]] = {name: _cell(text, row[0], name) for name, text in zip(outcomes, row[1:], strict=True)}
    return kind, unit, cells


def _read_long(rows: list[list[str]], delimiter: str) -> tuple[str, str, Cells]:
    header = [name.lower() for name in rows[0]]
    quantities = [(position, match) for position, name in enumerate(rows[0]) if (match := _quantity(name))]
    if len(quantities) != 1:
        raise StakesError(f"expected the columns decision, outcome and cost (or utility), but got {listing(rows[0])}")
    (position, (kind, unit)) = quantities[0]
    _refuse_grouped_thousands([row[position] for row in rows[1:] if len(row) > position], delimiter)
    cells: Cells = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise StakesError(f"expected {len(header)} fields, but row {number} has {len(row)}")
        decision, outcome = row[header.index("decision")], row[header.index("outcome")]
        if outcome in cells.setdefault(decision, {}):
            raise StakesError(f"decision {decision!r} under outcome {outcome!r} stands twice: again in row {number}")
        cells[decision][outcome] = _cell(row[position], decision, outcome)
    return kind, unit, cells


def _quantity(heading: str) -> tuple[str, str] | None:
    """``cost [£]`` -> ("cost", "£")."""
    match = _QUANTITY.fullmatch(heading.strip())
    return (match["kind"].lower(), (match["unit"] or "").strip()) if match else None


def _is_currency(text: str) -> bool:
    return len(text) == 1 and unicodedata.category(text) == "Sc"


def _refuse_grouped_thousands(cells: Sequence[str], delimiter: str) -> None:
    """Where semicolons stand between cells, commas are decimal marks, and 1.500 may be 1500, unless another number of
    the file, such as 0.5, shows that points are.
    """
    if delimiter != ";":
        return
    with_point = [text for text in map(str.strip, cells) if _WITH_POINT.fullmatch(text)]
    if all(map(_GROUPED.fullmatch, with_point)):
        for text in with_point:
            raise StakesError(
                f"expected plain numbers, but {text!r} could mean two: write {text.replace('.', '')}, or {text}0"
            )


def _cell(text: str, decision: str, outcome: str) -> float | str:
    """A number, or the text of a formula with columns."""
    formula = parse_cell(text, decision, outcome)
    return formula.text if formula.columns else formula.constant


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise StakesError(f"expected {what} as a number, but got {text!r}") from None
