"""What `stakes evaluate` found: in sentences, and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stakes._io.files import write_json, write_text
from stakes.errors import StakesError, listing
from stakes.evaluation.few_cases import FEW_CASES, FewCases, few_cases_clause
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import AmountFormat
from stakes.report.charts import reliability_chart
from stakes.report.page import render
from stakes.report.promises import promise_sentence
from stakes.report.words import number_of, verdict
from stakes.tables.amounts.evaluate import AmountEvaluation
from stakes.tables.drift import Drift
from stakes.tables.evaluate import FEW_ROWS, Due, Evaluation, Reason

SHOWN_COLUMNS = 12  # of those that drifted most
UNKNOWN_LAST_TEST = (
    "What the decisions of the last test {would} is not known: these costs depend on columns of the rows, which a run "
    "does not keep."
)
BY_ROW = "by the costs of each row alone"  # without a model, where no decision is the best for everybody
_VERB = {"cost": ("cost", "would have cost"), "utility": ("were worth", "would have been worth")}


def sentences(evaluation: Evaluation) -> list[str]:
    """All that matters, the question of retraining last."""
    parts = [_realised(evaluation), _without_model(evaluation), _before(evaluation), _claims(evaluation)]
    parts += [promise_sentence(evaluation.promise, evaluation.utility)] if evaluation.promise.bound is not None else []
    return [*parts, *drift_sentences(evaluation.drift), retraining(evaluation)]


def drift_sentences(drift: Drift | None) -> list[str]:
    """Whether rows are like those of training, in sentences."""
    if drift is not None:
        return drift.sentences()
    return ["Drift is unknown: the columns of these rows, or of the training rows, are not available."]


def retraining(evaluation: Evaluation) -> str:
    """Whether it is due, and why."""
    dearer = "cost more" if evaluation.utility.given == "cost" else "are worth less"
    off = listing([each.name for each in evaluation.outcomes if each.off])
    return retraining_sentence(evaluation.due, evaluation.reasons, evaluation.rows, dearer, off)


def retraining_sentence(
    due: Due, because: Sequence[Reason], rows: int, dearer: str = "cost more", off: str = ""
) -> str:
    """Whether retraining is due, in a sentence."""
    verb: dict[Reason, str] = {
        "last test": f"the decisions {dearer} than in the last test",
        "claim": f"the decisions {dearer} than the model claims",
        "constant": "deciding the same for everybody would have been better",
        "outcomes": f"the model is wrong about how often {off} happens",
        "shifted": "the rows are no longer distributed like the training rows",
        "unusual": "many rows are unlike any training row",
    }
    reasons = ", and ".join(verb[reason] for reason in because)
    return {
        "yes": f"Retraining is due: {reasons}, beyond chance.",
        "watch": f"Retraining may be due soon: {reasons}; the decisions are not worse for it so far.",
        "no": "Retraining is not due: nothing is worse beyond chance.",
        "unknown": f"{number_of(rows, 'row')} cannot tell whether retraining is due: wait for at least {FEW_ROWS}.",
    }[due]


def write_evaluation(evaluation: Evaluation, run: Path, out: Path | None = None) -> Path:
    """Write evaluation.json and evaluation.html into a folder, by default a new one of the run; returns the folder."""
    out, words = new_folder(run, out), sentences(evaluation)
    write_json(out / "evaluation.json", {**evaluation.to_dict(), "in_words": words})
    write_text(out / "evaluation.html", render("evaluation.html", **_page(evaluation, words)))
    return out


def new_folder(run: Path, out: Path | None) -> Path:
    """Where to write an evaluation: ``out``, or a new folder of the run."""
    if out is None:
        number = 1
        while (run / f"evaluation-{number}").exists():
            number += 1
        out = run / f"evaluation-{number}"
    if out.exists() and not out.is_dir():
        raise StakesError(f"{out}: expected a folder for the report, but it is a file")
    return out


# Private -------------------------------------------------------------------------------------------


def _amount(worth: Interval, evaluation: Evaluation) -> str:
    amounts = AmountFormat.of(evaluation.utility)
    return amounts.interval(amounts.level(worth))


def _difference(difference: Interval, evaluation: Evaluation, few: Sequence[FewCases] = ()) -> str:
    """Of mean utilities, in words; above 0 is better. ``few`` are cases that could turn it."""
    amounts = AmountFormat.of(evaluation.utility)
    gain = amounts.gain(difference)
    if verdict(gain) == "same":
        return "the same"
    chance = "not beyond chance" if verdict(gain) == "unclear" else "beyond chance"
    if few and verdict(gain) != "unclear":
        chance = f"but whether that is chance cannot be told: {few_cases_clause(few)}"
    return f"{amounts.difference(gain)} (95 % interval {amounts.range(gain)}), {chance}"


def _realised(evaluation: Evaluation) -> str:
    did, _ = _VERB[evaluation.utility.given]
    amounts = AmountFormat.of(evaluation.utility)
    level = amounts.level(evaluation.worth)
    amount = f"{amounts.mean(level)} each (95 % interval {amounts.ends(level)})"
    other = evaluation.files.get("costs")
    at = f"At the costs of {other}, " if other else ""
    lost = ", ".join(f"{reason} ({count:,})" for reason, count in evaluation.left_out.items())
    cases = zip(evaluation.utility.outcomes, evaluation.counts.sum(0), strict=True)
    few = ", ".join(f"{name} {count}" for name, count in cases if count < FEW_CASES)
    return (
        f"{at}{number_of(evaluation.rows, 'decision')} {did} {amount}.{lost and f' Left out: {lost}.'}"
        f"{few and f' Some outcomes have few cases ({few}): what is said to be beyond chance may not be.'}"
    )


def _without_model(evaluation: Evaluation) -> str:
    did, would = _VERB[evaluation.utility.given]
    amount = _amount(evaluation.constant_worth, evaluation)
    gain = _difference(evaluation.against_constant, evaluation, evaluation.few)
    way = BY_ROW if evaluation.constant is None else f"the same for everybody ({evaluation.constant})"
    return f"Deciding {way} {would} {amount}: the decisions {did} {gain}."


def _before(evaluation: Evaluation) -> str:
    did, would = _VERB[evaluation.utility.given]
    if evaluation.last_worth is None or evaluation.against_last is None:
        return UNKNOWN_LAST_TEST.format(would=would)
    amount, change = _amount(evaluation.last_worth, evaluation), _difference(evaluation.against_last, evaluation)
    verb = would if "costs" in evaluation.files else did
    return f"In the last test, of {evaluation.last_rows:,} rows, decisions {verb} {amount}: now {change}."


def _claims(evaluation: Evaluation) -> str:
    if evaluation.claimed is None or evaluation.against_claim is None or evaluation.reliability is None:
        return "What the model claimed is not known: the decisions came without probabilities."
    did, _ = _VERB[evaluation.utility.given]
    amounts = AmountFormat.of(evaluation.utility)
    claimed, worth = evaluation.claimed, evaluation.worth.mean
    difference = "the same"
    if worth != claimed.mean:
        chance = "not beyond chance" if claimed.low <= worth <= claimed.high else "beyond chance"
        difference = f"{amounts.difference(amounts.gain(evaluation.against_claim))}, {chance}"
    ece, before = evaluation.reliability.ece, evaluation.last_reliability.ece
    return (
        f"The model claimed {amounts.interval(amounts.level(claimed))}, in brackets what chance makes of it in 95 % of "
        f"cases if it is right: the decisions {did} {difference}. Its calibration error is {ece:.3f}, and was "
        f"{before:.3f} in the last test."
    )


def _page(evaluation: Evaluation, words: list[str]) -> dict[str, Any]:
    given, shown = evaluation.utility.given, AmountFormat.of(evaluation.utility)
    way = BY_ROW if evaluation.constant is None else f"the same for everybody: {evaluation.constant}"
    amounts = {
        "the decisions": _amount(evaluation.worth, evaluation),
        way: _amount(evaluation.constant_worth, evaluation),
    }
    if evaluation.last_worth is not None:
        amounts["the last test"] = _amount(evaluation.last_worth, evaluation)
    if evaluation.claimed is not None:
        amounts["as the model claimed"] = shown.interval(shown.level(evaluation.claimed))
    curves = {f"the last test ({evaluation.last_reliability.ece:.3f})": evaluation.last_reliability}
    if evaluation.reliability is not None:
        curves = {f"now ({evaluation.reliability.ece:.3f})": evaluation.reliability} | curves
    return shared_parts(evaluation, words, amounts, {"decisions": "Decision by decision"}) | {
        "quantity": f"{given} of a decision",
        "chart": reliability_chart(curves, next(iter(curves))),
    }


def shared_parts(
    evaluation: Evaluation | AmountEvaluation,
    words: Sequence[str],
    amounts: Mapping[str, str],
    decided: Mapping[str, str],  # the sections about single decisions
    notes: Sequence[str] = (),  # on the amounts
) -> dict[str, Any]:
    """The context of ``evaluated.html``: what the page has for classes and for amounts."""
    drift, promised = evaluation.drift, evaluation.promise
    withheld = [promise_sentence(promised, evaluation.utility)] if promised.bound is None else []
    return {
        "title": f"What decisions about {evaluation.target} came to",
        "parts": {
            "amounts": "What the decisions came to",
            **decided,
            "claims": "Can the model still be believed?",
            "drift": "Are the rows still the same?",
        },
        "evaluation": evaluation,
        "sentences": words,
        "shown": AmountFormat.of(evaluation.utility),
        "amounts": amounts,
        "notes": [*notes, *withheld],
        "columns": sorted(drift.columns, key=lambda column: -column.psi)[:SHOWN_COLUMNS] if drift else [],
    }
