"""Numbers, rules and verdicts as people read them."""

from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import Literal

from stakes.evaluation.metrics import Interval
from stakes.utility import Utility

PER = 100  # Costs are reported per 100 decisions.
RULE_NAMES = {"optimal": "lowest expected cost", "argmax": "highest probability"}

Verdict = Literal["more", "less", "unclear", "same"]
VERDICTS: dict[Verdict, str] = {
    "more": "worth more",
    "less": "worth less",
    "unclear": "cannot be told apart",
    "same": "the same",
}


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


def interval(value: Interval, *, digits: int | None = None, sign: bool = False, unit: str = "") -> str:
    """``12.40 (8.10 to 16.90)``; with as many decimals as suit the numbers, unless ``digits`` says how many."""
    fixed = f"{'+' if sign else ''}.{digits}f"
    mean, low, high = numbers(*value, sign=sign) if digits is None else [format(part, fixed) for part in value]
    return f"{mean}{unit and ' '}{unit} ({low} to {high})"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def with_unit(text: str, utility: Utility) -> str:
    return f"{text} {utility.unit}" if utility.unit else text


def bracketed(utility: Utility) -> str:
    return f" [{utility.unit}]" if utility.unit else ""


def saved_cost(difference: Interval, utility: Utility) -> Interval:
    """A difference of mean utilities, as the cost that 100 decisions save."""
    return Interval(*(PER * utility.scale * value for value in difference))


def as_cost(mean: Interval, utility: Utility) -> Interval:
    """A mean utility, as the cost of 100 decisions."""
    return Interval(*(PER * utility.cost_of(value) for value in (mean.mean, mean.high, mean.low)))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
