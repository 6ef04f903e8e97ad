"""Numbers, rules and verdicts as people read them."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from typing import Any, Literal

from stakes.evaluation.metrics import Interval

Verdict = Literal["more", "less", "unclear", "same"]


def split_sentence(rows: Mapping[str, Any]) -> str:
    """How many rows there were, and how they were divided."""
    folds = f"in {rows['folds']} folds"
    if rows["tested"] == "cv":
        return f"{rows['train']:,} rows, each a test row once; the others {folds}"
    test = {"share": "to test on", "latest": "to test on, the latest", "file": "to test on, of another file"}
    return f"{rows['train']:,} rows to learn from, {folds}, and {rows['test']:,} {test[rows['tested']]}"


def verdict(difference: Interval) -> Verdict:
    """What an interval of a paired difference says."""
    if difference.low == difference.high == 0:
        return "same"
    return "more" if difference.low > 0 else "less" if difference.high < 0 else "unclear"


def numbers(*values: float, sign: bool = False) -> list[str]:
    """With decimals that suit the largest of them: none from 1,000 on, two from 1 on, else three digits."""
    largest = max(abs(value) for value in values)
    digits = 0 if largest >= 1000 or largest == 0 else 2 if largest >= 1 else min(12, 2 - floor(log10(largest)))
    return [f"{value:{'+' if sign and value > 0 else ''}z,.{digits}f}" for value in values]  # z: no -0.00


def number(value: float) -> str:
    return numbers(value)[0]


def interval(value: Interval, *, digits: int | None = None, sign: bool = False) -> str:
    """``12.40 (8.10 to 16.90)``; with as many decimals as suit the numbers, unless ``digits`` says how many."""
    fixed = f"{'+' if sign else ''}.{digits}f"
    mean, low, high = numbers(*value, sign=sign) if digits is None else [format(part, fixed) for part in value]
    return f"{mean} ({low} to {high})"


def number_of(number: int, noun: str) -> str:
    """``1 decision``, ``1,200 decisions``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
