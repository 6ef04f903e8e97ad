"""What decisions met: confusion as counts and money, claims against what happened, reliability."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.decisions import decide
from stakes.evaluation import metrics
from stakes.report.alternatives import is_chosen
from stakes.report.html import Html, cell, joined, table, tag
from stakes.report.svg import reliability_plot
from stakes.report.words import PER, RULE_NAMES, bracketed, number, numbers, share, with_unit
from stakes.tables.run import TableResult

ERRORS_WITHIN = 2  # a margin within so many Monte-Carlo standard errors could be the draws' doing


def confusions(result: TableResult) -> Html:
    chosen, seeds = result.comparison.chosen, result.settings["seeds"]
    others = [
        tag(
            "details",
            tag("summary", f"{row.model}, deciding by {RULE_NAMES[row.rule]}"),
            _confusion(result, row.model, row.rule),
        )
        for row in result.comparison.rows
        if not is_chosen(row, result)
    ]
    note = f" All {seeds} seeds are counted: every test row stands for {seeds} decisions." if seeds > 1 else ""
    lead = f"How often each decision of the {chosen} model met each outcome, and what that cost.{note}"
    rest = tag("div", tag("h3", "The other models"), *others, class_="others")
    return joined([tag("p", lead), _confusion(result, chosen, "optimal"), rest])


def _confusion(result: TableResult, model: str, rule: str) -> Html:
    utility = result.cases.utility
    counts = np.sum([row["confusion"] for row in result.scores_of(model, rule)], axis=0)
    money = counts * utility.costs
    return tag(
        "div", _cells(result, counts, "Cases"), _cells(result, money, f"Cost{bracketed(utility)}"), class_="pair"
    )


def _cells(result: TableResult, values: NDArray[Any], caption: str) -> Html:
    """Rows are decisions, columns outcomes; the larger a number, the darker its cell."""
    utility, most = result.cases.utility, float(values.max())
    rows = []
    for name, row in zip(utility.decisions, values, strict=True):
        levels = [int(np.ceil(4 * value / most)) if value > 0 else 0 for value in row]
        shaded = [cell(_count(value), f"heat-{level}") for value, level in zip(row, levels, strict=True)]
        rows.append([name, *shaded, cell(_count(row.sum()), "sum")])
    foot = ["sum", *map(_count, values.sum(0)), cell(_count(values.sum()), "sum")]
    return table(caption, ["decision / outcome", *utility.outcomes, "sum"], rows, foot=foot)


def _count(value: float) -> str:
    return f"{value:z,.0f}" if value == round(value) else number(float(value))


def claims(result: TableResult) -> Html:
    utility, comparison = result.cases.utility, result.comparison
    models = list(dict.fromkeys(row.model for row in comparison.rows))
    rows = [[model, *_claim(result, model)] for model in models]
    place = models.index(comparison.chosen)
    _, expected, actual, _ = rows[place]
    lead = (
        f"The {comparison.chosen} model expected its decisions to cost {with_unit(expected, utility)} per {PER}; "
        f"they did cost {with_unit(actual, utility)}. Where a model's expectations are far from what happens, do not "
        "trust it with costs that it was not tested on."
    )
    caption = (
        f"Claimed against realised: cost per {PER} decisions{bracketed(utility)}, deciding by {RULE_NAMES['optimal']}"
    )
    heads = ["model", "expected", "actual", "margin within Monte-Carlo error"]
    note = (
        f"The last column is the share of decisions that beat the runner-up by less than {ERRORS_WITHIN} standard "
        "errors of the draws. More draws (--samples) could turn these; the rest are settled. "
        "It is not known of a model that has no draws, or one."
    )
    diagonal = "On the grey diagonal a model is right as often as it is sure. Below it, it is too sure of itself."
    parts = [
        tag("p", lead),
        table(caption, heads, rows, chosen=[place]),
        tag("p", note, class_="note"),
        tag("h3", "Does it mean what it says?"),
        tag("p", diagonal),
        reliability_plot({_labelled(result, model): _reliability(result, model) for model in models}, place),
    ]
    return joined(parts)


def _claim(result: TableResult, model: str) -> list[str]:
    """Expected and actual cost, and the share of decisions that are within Monte-Carlo error."""
    scores, cost_of = result.scores_of(model, "optimal"), result.cases.utility.cost_of
    costs = [PER * cost_of(float(np.mean([row[key] for row in scores]))) for key in ("claimed_utility", "utility")]
    within = within_error(result, model)
    return [*numbers(*costs), "not known" if within is None else share(within)]


def within_error(result: TableResult, model: str) -> float | None:
    """The share of a model's decisions whose margin is within Monte-Carlo error; None if it has no draws."""
    shares = []
    for run in result.runs_of(model):
        if run.margin_error is None:
            return None
        margin = decide(run.probs, result.cases.utility).margin
        shares.append(float((margin < ERRORS_WITHIN * run.margin_error).double().mean()))
    return float(np.mean(shares))


def _labelled(result: TableResult, model: str) -> str:
    """With the error of the table above: the mean over seeds, which a curve of all seeds together does not have."""
    return f"{model} (calibration error {result.comparison.row(model, 'optimal').ece:.3f})"


def _reliability(result: TableResult, model: str) -> metrics.Reliability:
    probs = torch.cat([run.probs for run in result.runs_of(model)])
    return metrics.reliability(probs, result.cases.labels.repeat(len(probs) // len(result.cases.labels)))
