"""Every model under every rule, side by side."""

from typing import Any

import numpy as np

from stakes.evaluation.metrics import block_length
from stakes.report.amounts import AmountFormat
from stakes.report.headline import contrast, without_model
from stakes.report.words import verdict
from stakes.tables.run import FinishedRun, Run
from stakes.tables.task import CV

FINDINGS = {
    "more": "better, beyond chance",
    "less": "worse, beyond chance",
    "unclear": "cannot be told apart",
    "same": "the same",
    "too_few": "too few cases to tell",
}
ABOUT = {
    "standard": "is a neural network that learns as if all mistakes were alike",
    "weighted": "gives outcomes that are costly to miss more weight",
    "calibrated": "is a neural network that learns for the decisions themselves, if that pays",
    "noise": "allows for wrong labels",
    "noise+calibrated": "allows for wrong labels, and learns for the decisions",
    "boosting": "is scikit-learn's gradient boosting of decision trees",
    "forest": "is scikit-learn's random forest",
    "logistic": "is logistic regression",
    "constant": "knows only how frequent the outcomes are: what can be had without a model",
    "blend": "weighs the others by rows that they did not train on",
}


def alternatives(run: Run) -> dict[str, Any]:
    """Rows with levels and gains over the reference, as text and on common scales."""
    amounts, comparison = AmountFormat.of(run.utility), run.comparison
    rows = []
    for row in comparison.rows:
        if row.model == "constant" and row.rule == "argmax":  # the most frequent outcome: nobody would decide so
            continue
        shown: dict[str, Any] = {"row": row, "rule": amounts.rule_names[row.rule], "level": amounts.level(row.utility)}
        shown["against"] = shown["said"] = None
        if row.difference is not None:
            shown["against"] = contrast(run, (row.model, row.rule), (comparison.reference, "optimal"))
            shown["said"] = FINDINGS[shown["against"].finding]
        rows.append(shown)
    levels, gains = [each["level"] for each in rows], [each["against"].gain for each in rows if each["against"]]
    return {
        "rows": rows,
        "level_scale": (min(level.low for level in levels), max(level.high for level in levels)),
        "gain_scale": (min([0.0, *(gain.low for gain in gains)]), max([0.0, *(gain.high for gain in gains)])),
        "together": 0 if run.groups is None else len(np.unique(run.groups)),  # what is resampled in place of rows
        "block": 0 if run.times is None else block_length(run.times.numpy()),  # times resampled together
        "reference": without_model(run) if comparison.reference == "constant" else comparison.reference,
        "about": {model: ABOUT[model] for model in comparison.models if model in ABOUT},
        "because": chosen_because(run),
    }


def chosen_because(run: FinishedRun) -> str:
    """Why a model was chosen, how sure that is, and whether calibration paid."""
    strengths = [item.predictions.details.get("strength") for item in run.scored if item.model == "calibrated"]
    if not strengths or any(strength != 0 for strength in strengths):
        return _choice_sentences(run)
    return (
        f"{_choice_sentences(run)} Learning for the decisions did not pay: calibrated is the standard network itself."
    )


def _choice_sentences(run: FinishedRun) -> str:
    choice, amounts = run.comparison.choice, AmountFormat.of(run.utility)
    if choice.lead is None or choice.rival is None:
        return f"{choice.why}."
    gain, finding = amounts.gain(choice.lead), verdict(choice.lead)
    tested = "The test rows had no part in the choice."
    if run.rows["tested"] == CV:
        tested = "Every row had a part in the choice, judged by parts of the models that did not see it."
    if finding == "same":
        return (
            f"{choice.why}. On the rows that the choice was made by, {choice.rival} took the same decisions. {tested}"
        )
    sure = {
        "more": "beyond chance",
        "less": "beyond chance: a loss, which the choice does not go by",
        "unclear": "not beyond chance",
    }[finding]
    return (
        f"{choice.why}. On the rows that the choice was made by, its decisions {amounts.verb} "
        f"{amounts.difference(gain)} each than those of {choice.rival} (95 % interval {amounts.range(gain)}), {sure}. "
        f"{tested}"
    )
