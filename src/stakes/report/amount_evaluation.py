"""What `stakes evaluate` found of decisions about numbers: in sentences, and as a page."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stakes._io.files import write_json, write_text
from stakes.evaluation.amounts import shares_below
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import AmountFormat
from stakes.report.evaluation import (
    BY_ROW,
    UNKNOWN_LAST_TEST,
    drift_sentences,
    new_folder,
    retraining_sentence,
    shared_parts,
)
from stakes.report.numbers.claims import binned, bins_chart, coverage_chart, coverage_curve, coverage_sentence
from stakes.report.numbers.fan import BY_DECISION, fan_chart, shown_rows, time_ticks, which_rows
from stakes.report.numbers.models import action_rows, error_rows
from stakes.report.page import render
from stakes.report.promises import promise_sentence
from stakes.report.words import number_of, share, verdict
from stakes.tables.amounts.evaluate import AmountEvaluation
from stakes.tables.evaluate import FEW_ROWS
from stakes.utility import AmountUtility, Newsvendor, PricedNewsvendor
from stakes.utility.menu import MenuUtility


def sentences(evaluation: AmountEvaluation) -> list[str]:
    """All that matters, the question of retraining last."""
    parts = [_realised(evaluation), _without_model(evaluation), _before(evaluation), _claims(evaluation)]
    if evaluation.covered is not None and evaluation.share is not None:
        parts.append(coverage_sentence(evaluation.covered, evaluation.share, evaluation.rows, evaluation.unbounded))
    parts += [promise_sentence(evaluation.promise, evaluation.utility)] if evaluation.promise.bound is not None else []
    parts += [*evaluation.remarks, *drift_sentences(evaluation.drift)]
    return [*parts, retraining_sentence(evaluation.due, evaluation.reasons, evaluation.rows)]


def write_evaluation(evaluation: AmountEvaluation, run: Path, out: Path | None = None) -> Path:
    """Write evaluation.json and evaluation.html into a folder, by default a new one of the run; returns the folder."""
    folder, words = new_folder(run, out), sentences(evaluation)
    write_json(folder / "evaluation.json", {**evaluation.to_dict(), "in_words": words})
    write_text(folder / "evaluation.html", render("amount_evaluation.html", **_page(evaluation, words)))
    return folder


def _realised(evaluation: AmountEvaluation) -> str:
    amounts = AmountFormat.of(evaluation.utility)
    lost = ", ".join(f"{reason} ({count:,})" for reason, count in evaluation.left_out.items())
    cost = f"{amounts.mean(evaluation.cost)} each (95 % interval {amounts.ends(evaluation.cost)})"
    return f"{_at(evaluation)}{number_of(evaluation.rows, 'decision')} cost {cost}.{lost and f' Left out: {lost}.'}"


def _at(evaluation: AmountEvaluation) -> str:
    """Which other costs, if they are not those of the run."""
    other, amounts = evaluation.other, AmountFormat.of(evaluation.utility)
    if "costs" in evaluation.files:
        return f"At the costs of {evaluation.files['costs']}, "
    if isinstance(other, PricedNewsvendor):
        under, over = other.under, other.over
    elif isinstance(other, Newsvendor) and not other.per_example:
        under, over = (amounts.plain(float(np.asarray(cost))) for cost in (other.under, other.over))
    else:
        return "" if other is None else "At other costs, "
    return f"At {under} for each unit too few and {over} for each too many, "


def _without_model(evaluation: AmountEvaluation) -> str:
    amounts = AmountFormat.of(evaluation.utility)
    way = BY_ROW if evaluation.constant is None else f"the same every time ({evaluation.constant})"
    return (
        f"Deciding {way} would have cost "
        f"{amounts.interval(evaluation.constant_cost)}: the decisions cost "
        f"{_difference(evaluation.saving, evaluation)}."
    )


def _before(evaluation: AmountEvaluation) -> str:
    if evaluation.last.cost is None or evaluation.against_last is None:
        return UNKNOWN_LAST_TEST.format(would="would have cost")
    amounts, did = AmountFormat.of(evaluation.utility), "cost" if evaluation.other is None else "would have cost"
    cost, change = amounts.interval(evaluation.last.cost), _difference(evaluation.against_last, evaluation)
    return f"In the last test, of {evaluation.last.rows:,} rows, decisions {did} {cost}: now {change}."


def _claims(evaluation: AmountEvaluation) -> str:
    if evaluation.claimed_cost is None or evaluation.above_claim is None:
        return "What the model claimed is not known: the decisions came without expected costs."
    amounts, above = AmountFormat.of(evaluation.utility), evaluation.above_claim
    difference = _difference(above.negated(), evaluation)
    within = (
        "" if evaluation.within is None else f"; {share(evaluation.within)} of the outcomes were in its 90 % interval"
    )
    by = ", if the decisions were taken by these costs" if evaluation.other and "decisions" in evaluation.files else ""
    return f"The model claimed {amounts.plain(evaluation.claimed_cost)}{by}: the decisions cost {difference}{within}."


def _difference(saving: Interval, evaluation: AmountEvaluation) -> str:
    amounts = AmountFormat.of(evaluation.utility)
    if verdict(saving) == "same":
        return "the same"
    chance = "not beyond chance" if verdict(saving) == "unclear" else "beyond chance"
    if evaluation.rows < FEW_ROWS:
        chance = "too few rows to tell whether that is chance"
    return f"{amounts.difference(saving)} (95 % interval {amounts.range(saving)}), {chance}"


# The page ------------------------------------------------------------------------------------------


def _page(evaluation: AmountEvaluation, words: list[str]) -> dict[str, Any]:
    amounts = AmountFormat.of(evaluation.utility)
    way = BY_ROW if evaluation.constant is None else f"the same every time: {evaluation.constant}"
    shown = {
        "the decisions": amounts.interval(evaluation.cost),
        way: amounts.interval(evaluation.constant_cost),
    }
    if evaluation.last.cost is not None:
        shown["the last test"] = amounts.interval(evaluation.last.cost)
    if evaluation.claimed_cost is not None:
        shown["as the model claimed"] = amounts.plain(evaluation.claimed_cost)
    cases, utility, fan, mistakes, actions = evaluation.cases, evaluation.utility, None, None, None
    decided = {}
    if isinstance(utility, AmountUtility):
        fan, mistakes = _fan(evaluation), error_rows(_errors(evaluation), cases.costs, amounts)
        decided = {"fan": "Decided, and happened", "mistakes": "Too little, too much"}
    elif isinstance(utility, MenuUtility):
        choices = cases.taken.choice.numpy()
        actions = action_rows(utility, choices, cases.outcomes, cases.taken.claimed, cases.costs)
        decided = {"actions": "Action by action"}
    together = f"Intervals resample {evaluation.block} consecutive times together, for neighbouring ones are alike."
    notes = [] if evaluation.block is None else [together]
    return shared_parts(evaluation, words, shown, decided, notes) | {
        "quantity": "cost of a decision",
        "fan": fan,
        "mistakes": mistakes,
        "actions": actions,
        "claims": _claims_shown(evaluation, amounts),
    }


def _errors(evaluation: AmountEvaluation) -> Any:
    """(N,) outcomes less decisions."""
    return evaluation.cases.outcomes - evaluation.cases.taken.choice.double().numpy()


def _fan(evaluation: AmountEvaluation) -> dict[str, Any]:
    """Decisions and outcomes over time, with the interval that was claimed, where it is known."""
    cases = evaluation.cases
    taken, rows_in = cases.taken, shown_rows(cases.times, cases.taken.choice)
    rows, in_time = rows_in[0].numpy(), rows_in[1]
    which = which_rows(len(rows), evaluation.rows, "rows", in_time=in_time)
    words = {
        "label": f"{which}: what was expected, what was decided, and what happened",
        "x": cases.time if in_time and cases.time is not None else BY_DECISION,
        "y": evaluation.target,
    }
    bands = {}
    if taken.low is not None and taken.high is not None:
        bands = {"90 % of all outcomes were expected here": (taken.low[rows], taken.high[rows])}
    ticks = [] if cases.times is None or not in_time else time_ticks(cases.times[rows], dates=cases.dates)
    decided = taken.choice.double().numpy()[rows]
    return {"chart": fan_chart(bands, None, decided, cases.outcomes[rows], ticks, words), "which": which}


def _claims_shown(evaluation: AmountEvaluation, amounts: AmountFormat) -> dict[str, Any]:
    """What was expected against what came, now and in the last test, as a table and charts."""
    cases, last, digits = evaluation.cases, evaluation.last, amounts.digits(evaluation.cost)
    claimed = evaluation.claimed_cost
    rows = {
        "now": [
            "" if claimed is None else amounts.text(claimed, digits),
            amounts.text(evaluation.cost.mean, digits),
            "" if evaluation.within is None else share(evaluation.within),
        ],
        "the last test": [
            "" if last.claimed_cost is None else amounts.text(last.claimed_cost, digits),
            "" if last.cost is None else amounts.text(last.cost.mean, digits),
            share(last.within),
        ],
    }
    heads = ["expected cost", "actual cost", "in its 90\u00a0% interval"]
    if evaluation.covered is not None and evaluation.share is not None:
        heads.append(f"covered, of {share(evaluation.share)} asked for")
        rows["now"].append(share(evaluation.covered.mean))
        rows["the last test"].append("" if last.covered is None else share(last.covered))
    curves = {"the last test": coverage_curve(last.below)}
    if cases.taken.quantiles is not None:
        below = shares_below(cases.taken.quantiles, torch.from_numpy(cases.outcomes))
        curves = {"now": coverage_curve([below])} | curves
    bins = [] if cases.taken.claimed is None else binned(cases.taken.claimed, cases.costs, evaluation.seed)
    return {
        "heads": heads,
        "rows": rows,
        "coverage": coverage_chart(curves, next(iter(curves))),
        "bins": bins_chart(bins, amounts),
    }
