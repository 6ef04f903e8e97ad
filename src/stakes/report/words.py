"""Numbers as people read them, and what an interval says in words."""

from math import floor, log10
from typing import Literal

from stakes.evaluation.metrics import Interval
from stakes.utility import Utility

PER = 100  # decisions that money is told for
RULE_NAMES = {"optimal": "lowest expected cost", "argmax": "highest probability"}

Verdict = Literal["more", "less", "unclear", "same"]


def numbers(*values: float) -> list[str]:
    """With decimals that suit the largest of them: none from 1,000 on, two from 1 on, else three digits."""
    largest = max(abs(value) for value in values)
    digits = 0 if largest >= 1000 or largest == 0 else 2 if largest >= 1 else min(12, 2 - floor(log10(largest)))
    return [f"{value:z,.{digits}f}" for value in values]  # z: no -0.00


def number(value: float) -> str:
    return numbers(value)[0]


def span(value: Interval, sign: bool = False, unit: str = "") -> str:
    """``12.40 (8.10 to 16.90)``."""
    mean, low, high = numbers(value.mean, value.low, value.high)
    return f"{'+' if sign and value.mean > 0 else ''}{mean}{unit and ' '}{unit} ({low} to {high})"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def with_unit(text: str, utility: Utility) -> str:
    return f"{text} {utility.unit}" if utility.unit else text


def bracketed(utility: Utility) -> str:
    return f" [{utility.unit}]" if utility.unit else ""


def in_money(difference: Interval, utility: Utility) -> Interval:
    """A difference of mean utilities, as money for so many decisions."""
    return Interval(*(PER * utility.scale * value for value in (difference.mean, difference.low, difference.high)))


def as_cost(worth: Interval, utility: Utility) -> Interval:
    """A mean utility, as the cost of so many decisions."""
    return Interval(*(PER * utility.cost_of(value) for value in (worth.mean, worth.high, worth.low)))


def verdict(difference: Interval) -> Verdict:
    if difference.low == difference.high == 0:
        return "same"
    return "more" if difference.low > 0 else "less" if difference.high < 0 else "unclear"
