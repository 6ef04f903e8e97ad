"""What `stakes evaluate` found of decisions about numbers, in sentences."""

from pathlib import Path

from stakes._io.files import write_json
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import Amounts
from stakes.report.evaluation import new_folder, told_of_retraining
from stakes.report.words import share, verdict
from stakes.tables.amounts.evaluate import AmountEvaluation


def sentences(evaluation: AmountEvaluation) -> list[str]:
    """All that matters, the question of retraining last."""
    parts = [_realised(evaluation), _without_model(evaluation), _before(evaluation), _claims(evaluation)]
    if evaluation.covered is not None and evaluation.share is not None:
        parts.append(
            f"{share(evaluation.covered)} of the outcomes were at or below the decision, where the costs ask for "
            f"{share(evaluation.share)}."
        )
    if evaluation.drift is not None:
        parts += evaluation.drift.sentences()
    return [*parts, told_of_retraining(evaluation.due, evaluation.reasons, evaluation.rows)]


def write_evaluation(evaluation: AmountEvaluation, run: Path, out: Path | None = None) -> Path:
    """Write evaluation.json into a folder, by default a new one of the run; returns the folder."""
    folder = new_folder(run, out)
    write_json(folder / "evaluation.json", {**evaluation.to_dict(), "in_words": sentences(evaluation)})
    return folder


def _realised(evaluation: AmountEvaluation) -> str:
    amounts = Amounts.of(evaluation.utility)
    lost = ", ".join(f"{reason} ({count:,})" for reason, count in evaluation.left_out.items())
    cost = f"{amounts.mean(evaluation.cost)} each (95 % interval {amounts.ends(evaluation.cost)})"
    return f"{evaluation.rows:,} decisions cost {cost}.{lost and f' Left out: {lost}.'}"


def _without_model(evaluation: AmountEvaluation) -> str:
    amounts = Amounts.of(evaluation.utility)
    return (
        f"Deciding the same every time ({evaluation.constant}) would have cost "
        f"{amounts.interval(evaluation.constant_cost)}: the decisions cost "
        f"{_difference(evaluation.saving, amounts)}."
    )


def _before(evaluation: AmountEvaluation) -> str:
    amounts = Amounts.of(evaluation.utility)
    return (
        f"In the last test, of {evaluation.last_rows:,} rows, decisions cost {amounts.interval(evaluation.last_cost)}: "
        f"now {_difference(evaluation.against_last, amounts)}."
    )


def _claims(evaluation: AmountEvaluation) -> str:
    if evaluation.claimed_cost is None or evaluation.above_claim is None:
        return "What the model claimed is not known: the decisions came without expected costs."
    amounts, above = Amounts.of(evaluation.utility), evaluation.above_claim
    difference = _difference(Interval(-above.mean, -above.high, -above.low), amounts)
    within = (
        "" if evaluation.within is None else f"; {share(evaluation.within)} of the outcomes were in its 90 % interval"
    )
    return f"The model claimed {amounts.plain(evaluation.claimed_cost)}: the decisions cost {difference}{within}."


def _difference(saving: Interval, amounts: Amounts) -> str:
    if verdict(saving) == "same":
        return "the same"
    chance = "not beyond chance" if verdict(saving) == "unclear" else "beyond chance"
    return f"{amounts.difference(saving)} (95 % interval {amounts.range(saving)}), {chance}"
