"""Numbers, rules and verdicts as people read them."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from typing import Any, Literal

from stakes.evaluation.comparison import Comparison
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


def divided(rows: Mapping[str, Any]) -> str:
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
    return Interval(*(PER * value for value in cost_interval(mean, utility)))


def cost_interval(mean: Interval, utility: Utility) -> Interval:
    """A mean utility, as the cost of a decision."""
    return Interval(*(utility.cost_of(value) for value in (mean.mean, mean.high, mean.low)))


def cost_difference(difference: Interval, utility: Utility) -> Interval:
    """A difference of mean utilities, as the cost that a decision takes more."""
    return Interval(*(-utility.scale * value for value in (difference.mean, difference.high, difference.low)))


def chosen_because(comparison: Comparison, utility: Utility) -> str:
    """Why a model was chosen, and how sure that is."""
    choice = comparison.choice
    if choice.lead is None:
        return choice.why
    saved = interval(Interval(*(utility.scale * value for value in choice.lead)), unit=utility.unit)
    sure = {
        "more": "beyond chance",
        "less": "beyond chance: a loss, which the choice does not go by",
        "unclear": "not beyond chance",
        "same": "the same",
    }
    return (
        f"{choice.why}; on these rows its decisions cost {saved} less than those of {choice.rival}, "
        f"{sure[verdict(choice.lead)]}. The test rows had no part in the choice"
    )


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
