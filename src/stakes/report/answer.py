"""The answer first: what the chosen model is worth, against what, and whether that is beyond chance."""

from stakes.decisions import Rule
from stakes.evaluation.comparison import REFERENCE, advantage
from stakes.evaluation.metrics import Interval
from stakes.report.html import Html, joined, tag
from stakes.report.words import PER, Verdict, in_money, numbers, span, verdict, with_unit
from stakes.tables.run import TableResult

_SAID: dict[Verdict, tuple[str, str]] = {
    "more": ("That is beyond chance.", "The whole interval lies above 0, on {rows} test rows."),
    "less": (
        "That is beyond chance, and it is a loss.",
        "On these {rows} test rows deciding by the highest probability did better.",
    ),
    "unclear": (
        "That is not beyond chance.",
        "The interval includes 0: these {rows} test rows cannot tell the two apart.",
    ),
    "same": ("They came to the same.", "On these {rows} test rows one cost exactly as much as the other."),
}
_BRIEFLY: dict[Verdict, str] = {
    "more": "beyond chance",
    "less": "beyond chance, and a loss",
    "unclear": "not beyond chance",
    "same": "the same on every row",
}


def answer(result: TableResult) -> Html:
    """Against deciding by highest probability, which is what everybody does who has no costs."""
    comparison, utility = result.comparison, result.cases.utility
    gain = in_money(_gain(result, (comparison.reference, "argmax")), utility)
    mean, low, high = numbers(abs(gain.mean), gain.low, gain.high)
    amount = f"{with_unit(mean, utility)} {'more' if gain.mean > 0 else 'less'}"
    against = "" if comparison.chosen == comparison.reference else f" with the {comparison.reference} model"
    headline = tag(
        "p",
        tag("em", comparison.chosen.capitalize()),
        " is worth ",
        tag("strong", amount if gain.mean else "the same"),
        f" per {PER} decisions {'than' if gain.mean else 'as'} deciding by highest probability{against} "
        f"(95\N{NO-BREAK SPACE}% interval {low} to {high}).",
        class_="headline",
    )
    kind = verdict(gain)
    short, long = _SAID[kind]
    rows = f"{result.cases.rows['test']:,}"
    return joined(
        [
            headline,
            tag("p", tag("b", short), " ", long.format(rows=rows), class_=f"verdict {kind}"),
            tag("p", f"In the same terms, per {PER} decisions and with 95\N{NO-BREAK SPACE}% intervals, it is worth:"),
            tag("ul", *_others(result)),
        ]
    )


def _others(result: TableResult) -> list[Html]:
    """How much of the answer is the training, how much the way of deciding, and what boosting makes of it."""
    chosen, reference = result.comparison.chosen, result.comparison.reference
    others: dict[tuple[str, Rule], str] = {}
    if chosen != reference:
        others[reference, "optimal"] = f"the {reference} model, deciding by the costs too"
        others[chosen, "argmax"] = f"the {chosen} model itself, deciding by highest probability"
    others[REFERENCE, "optimal"] = "gradient boosting, deciding by the costs too"
    items = []
    for other, name in others.items():
        gain = in_money(_gain(result, other), result.cases.utility)
        worth = span(gain, sign=True, unit=result.cases.utility.unit)
        items.append(tag("li", f"against {name}: {worth}, {_BRIEFLY[verdict(gain)]}."))
    return items


def _gain(result: TableResult, other: tuple[str, Rule]) -> Interval:
    cases = result.cases
    ours: tuple[str, Rule] = (result.comparison.chosen, "optimal")
    return advantage(result.runs, ours, other, cases.labels, cases.utility, result.settings["seed"])
