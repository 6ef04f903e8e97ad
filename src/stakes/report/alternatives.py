"""The alternatives side by side, and their paired differences, as tables with the intervals drawn in."""

from stakes.evaluation.comparison import REFERENCE, Row
from stakes.report.html import Html, cell, joined, table, tag
from stakes.report.svg import strip
from stakes.report.words import PER, RULE_NAMES, Verdict, as_cost, bracketed, in_money, share, span, verdict
from stakes.tables.run import TableResult

_MODELS = {
    "standard": "learns as if all mistakes were alike",
    "weighted": "gives outcomes that are costly to miss more weight",
    "calibrated": "learns for the decisions themselves, at these costs",
    "noise": "allows for wrong labels",
    "noise+calibrated": "allows for wrong labels, and learns for the decisions",
    REFERENCE: "is scikit-learn's gradient boosting, for reference; it is never saved",
}
_WORDS: dict[Verdict, str] = {
    "more": "worth more",
    "less": "worth less",
    "unclear": "cannot be told apart",
    "same": "the same",
}
_DRAWN = tag("span", "the interval as a drawing", class_="unseen")
_EDGES = ((min, "low"), (max, "high"))
_READING = (
    "Filled points decide by the lowest expected cost, hollow ones act on the most probable outcome. Calibration error "
    "is the mean distance between how sure a model is and how often it is right."
)


def alternatives(result: TableResult) -> Html:
    comparison, seeds = result.comparison, result.settings["seeds"]
    over = f"the test rows and the {seeds} seeds" if seeds > 1 else "the test rows"
    models = dict.fromkeys(row.model for row in comparison.rows)
    return joined(
        [
            tag("p", tag("strong", comparison.chosen), f" was chosen: {comparison.why}."),
            _side_by_side(result),
            tag("p", f"Intervals are 95\N{NO-BREAK SPACE}% bootstrap intervals over {over}. {_READING}", class_="note"),
            _differences(result),
            tag("ul", *(tag("li", tag("strong", name), f" {_MODELS[name]}.") for name in models), class_="note"),
        ]
    )


def is_chosen(row: Row, result: TableResult) -> bool:
    return (row.model, row.rule) == (result.comparison.chosen, "optimal")


def _side_by_side(result: TableResult) -> Html:
    utility, rows = result.cases.utility, result.comparison.rows
    costs = [as_cost(row.utility, utility) for row in rows]
    low, high = min(cost.low for cost in costs), max(cost.high for cost in costs)
    body = []
    for row, cost in zip(rows, costs, strict=True):
        drawn = strip(cost, low, high, zero=False, hollow=row.rule == "argmax")
        body.append([*_who(row, result), drawn, span(cost), span(row.utility), share(row.accuracy), f"{row.ece:.3f}"])
    money = f"cost per {PER} decisions{bracketed(utility)} (95\N{NO-BREAK SPACE}%)"
    heads = [
        "model",
        "decides by",
        _DRAWN,
        money,
        "utility per decision (95\N{NO-BREAK SPACE}%)",
        "accuracy",
        "calibration error",
    ]
    caption = f"What the decisions of each model came to on {result.cases.rows['test']:,} test rows"
    return table(caption, heads, body, names=2, chosen=[i for i, row in enumerate(rows) if is_chosen(row, result)])


def _differences(result: TableResult) -> Html:
    comparison, utility = result.comparison, result.cases.utility
    compared = [(row, in_money(row.difference, utility)) for row in comparison.rows if row.difference is not None]
    low, high = (edge([0.0, *(getattr(saved, name) for _, saved in compared)]) for edge, name in _EDGES)
    body = []
    for row, saved in compared:
        drawn, kind = strip(saved, low, high, zero=True, hollow=row.rule == "argmax"), verdict(saved)
        body.append([*_who(row, result), drawn, span(saved, sign=True), cell(_WORDS[kind], kind)])
    heads = ["model", "decides by", _DRAWN, f"saved{bracketed(utility)} (95\N{NO-BREAK SPACE}%)", "beyond chance?"]
    caption = (
        f"Paired differences: what each saves per {PER} decisions against {comparison.reference}, "
        f"deciding by {RULE_NAMES['optimal']}"
    )
    chosen = [i for i, (row, _) in enumerate(compared) if is_chosen(row, result)]
    return table(caption, heads, body, names=2, chosen=chosen)


def _who(row: Row, result: TableResult) -> tuple[str, str]:
    tagged = joined([row.model, tag("span", "chosen", class_="tag")], " ")
    return tagged if is_chosen(row, result) else row.model, cell(RULE_NAMES[row.rule], "name rule")
