"""What an experiment found, in sentences, and what to see in its figures."""

from collections.abc import Mapping
from typing import Any

from stakes.evaluation.metrics import Interval
from stakes.paper.amounts.report import amounts_findings
from stakes.paper.digits.report import PAIRS
from stakes.paper.roads.report import gain_over_images
from stakes.paper.sweep import Result
from stakes.report.words import interval, verdict

BEYOND_THE_PAPER = "amounts"  # the experiment with models, axes and findings of its own
AXES = {  # that a sweep may go along, in words
    "corrupted": "{} of 50 labels redrawn",
    "noise": "{:.0%} of labels redrawn",
    "units": "{} hidden units",
    "size": "images of {}",
    "width": "width {}",
}
CAPTIONS = {  # by the name of a figure's file: what to see in it
    "patients": "Three blood tests of 15 patients: the classes differ, but not by any one test.",
    "corruption": "True class against the label on record: what lies beside the diagonal is what models learn wrongly.",
    "confusion": "Decisions against truth, in per cent of each true class: look at the row of the severely ill.",
    "transition": "From a healthy to a mild patient: look at where the decision changes, against the probabilities.",
    "sweep": "Cost against the share of wrong labels: look at how far the lines part as labels get worse.",
    "utility": "Utility against the number of hidden units, a panel for each share of wrong labels, with one standard "
    "deviation over seeds: look at the order of the lines, and how far they part from the left panel to the right.",
    "utility_maps": "Expected utility, at every pixel, of deciding for the class on the left: look at whether the "
    "bright patch covers what is white in the truth. Where all is dark, the class is missed.",
    "accuracy": "Better than published is to the right; the band is two published standard errors wide on each side.",
    "costs": "What calibration changes: look at where whiskers (95 %) do not reach the line of no change.",
    "orders": "0 is the quantile of the past, 1 is perfect foresight; whiskers are 95 % intervals.",
}


def findings(result: Result) -> list[str]:
    """In how many settings of the sweep a model is better than another, and by how much where it gains most."""
    if result.config.get("experiment") == BEYOND_THE_PAPER:
        return amounts_findings(result)
    models, settings = result.config.get("methods", []), _settings(result)
    pairs = [pair for pair in _pairs(result) if set(pair) <= set(models)]
    return [_found(result, ours, theirs, settings) for ours, theirs in pairs] if result.rows else []


def _pairs(result: Result) -> tuple[tuple[str, str], ...]:
    if result.config.get("experiment") == "digits":
        return PAIRS
    return tuple((model, "standard") for model in result.config.get("methods", []) if model != "standard")


def _found(result: Result, ours: str, theirs: str, settings: list[dict[str, Any]]) -> str:
    gains = [gain(result, ours, theirs, where) for where in settings]
    against = f"{theirs} training" if theirs == "standard" else theirs
    if len(settings) == 1:
        comparisons = {"more": "is better than", "less": "is worse than", "same": "decides as"}
        comparison = comparisons.get(verdict(gains[0]), "cannot be told apart from")
        chance = ", beyond chance" if verdict(gains[0]) in ("more", "less") else ""
        return f"{ours} {comparison} {against}{chance}: {_utility(gains[0])}."
    words = {
        "more": "better, beyond chance, in {}",
        "less": "worse, beyond chance, in {}",
        "unclear": "not to be told apart in {}",
        "same": "the same in {}",
    }
    kinds = [verdict(each) for each in gains]
    parts = [text.format(kinds.count(kind)) for kind, text in words.items() if kind in kinds]
    best = max(range(len(gains)), key=lambda place: gains[place].mean)
    most = "gains most" if gains[best].mean > 0 else "loses least"
    return (
        f"{ours} against {against}, in {len(settings)} settings: {'; '.join(parts)}. It {most} with "
        f"{_in_words(settings[best])}: {_utility(gains[best])}."
    )


def gain(result: Result, ours: str, theirs: str, where: Mapping[str, Any]) -> Interval:
    """The utility that one model gains on another in a setting, deciding by highest expected utility."""
    if result.config["experiment"] == "roads":  # whose tables resample images, too
        return gain_over_images(result, ours, theirs, rule="optimal", **where)
    return result.difference(ours, theirs, rule="optimal", **where)


def _utility(difference: Interval) -> str:
    return f"a difference in utility of {interval(difference, digits=4, sign=True)}"


def _in_words(where: Mapping[str, Any]) -> str:
    return " and ".join(AXES[name].format(value) for name, value in where.items())


def _settings(result: Result) -> list[dict[str, Any]]:
    return settings_of(result) if result.rows else []


def settings_of(result: Result) -> list[dict[str, Any]]:
    """The settings that a sweep goes through, in its order."""
    axes = [name for name in AXES if name in result.rows[0]]
    values = dict.fromkeys(tuple(row[name] for name in axes) for row in result.rows)
    return [dict(zip(axes, each, strict=True)) for each in values]
