"""The answer in sentences: what deciding with the chosen model comes to, against what could be done without one."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stakes.decisions import Rule
from stakes.evaluation.claims import claimed_range
from stakes.evaluation.comparison import advantage, select
from stakes.evaluation.few_cases import FewCases, few_cases_clause, few_decisive_cases
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import AmountFormat
from stakes.report.words import Verdict, verdict
from stakes.tables.run import Run

WITHOUT_MODEL = "deciding the same for everybody"

Finding = Verdict | Literal["too_few"]  # too_few: the interval excludes 0, but rests on too few cases of an outcome


@dataclass(frozen=True)
class Contrast:
    """The decisions of one model and rule against those of another, on the same test rows."""

    gain: Interval  # in the unit of the amounts; above 0 is better
    finding: Finding
    few: tuple[FewCases, ...]  # outcomes with few cases that could turn it


@dataclass(frozen=True)
class Headline:
    """Sentences; each can stand alone."""

    finding: Finding
    sentence: str
    judgement: str
    others: tuple[str, ...]  # against highest probability, and what was expected

    @property
    def text(self) -> str:
        return " ".join([self.sentence, self.judgement, *self.others])


def headline(run: Run) -> Headline:
    amounts, comparison = AmountFormat.of(run.utility), run.comparison
    chosen_row = comparison.row(comparison.chosen, "optimal")
    if comparison.chosen == "constant":
        return _without_model(run, amounts)
    against = contrast(run, (chosen_row.model, "optimal"), (comparison.reference, "optimal"))
    rival = _rival(run)
    other = WITHOUT_MODEL if comparison.reference == "constant" else rival
    sentence = against_rival(amounts, amounts.level(chosen_row.utility), against, rival, other)
    others = (_against_probability(run, chosen_row.model, amounts), claimed_sentence(run))
    return Headline(against.finding, sentence, judgement(against, _test_rows(run)), others)


def against_rival(amounts: AmountFormat, level: Interval, against: Contrast, rival: str, other: str) -> str:
    """What decisions come to, and against what; ``other`` is what the model may not be worth more than."""
    cost = amounts.mean(level)
    does = "costs" if amounts.costs else "is worth"
    if against.finding == "same":
        return f"Deciding with this model {does} {cost} per decision, exactly as {rival}."
    if against.finding in ("more", "too_few") and against.gain.mean > 0:
        return f"Deciding with this model {does} {cost} per decision, {than(against.gain, rival, amounts)}."
    shown = "cannot be shown to be" if against.gain.mean > 0 else "is not"
    return (
        f"This model {shown} worth more than {other}: its decisions {amounts.verb} {cost} each, "
        f"{than(against.gain, rival, amounts)}."
    )


def contrast(run: Run, ours: tuple[str, Rule], theirs: tuple[str, Rule]) -> Contrast:
    stored = run.comparison.row(*ours).difference if theirs == (run.comparison.reference, "optimal") else None
    difference = stored or advantage(run.scored, ours, theirs, run.settings["seed"], **run.dependence)
    gain = AmountFormat.of(run.utility).gain(difference)
    finding: Finding = verdict(gain)
    few: tuple[FewCases, ...] = ()
    if finding != "same":
        by_row = _by_row(run, *ours) - _by_row(run, *theirs)
        few = few_decisive_cases(run.utility, run.labels.numpy(), by_row, run.groups)
    return Contrast(gain, "too_few" if few and finding in ("more", "less") else finding, few)


def judgement(against: Contrast, rows: str) -> str:
    """Whether a difference is more than chance, in a sentence."""
    few = few_cases_clause(against.few)
    return {
        "more": f"That is beyond chance, on {rows}.",
        "less": f"That is beyond chance, and it is a loss, on {rows}.",
        "unclear": f"The interval includes no difference: {rows} cannot tell the two apart.",
        "same": f"On these {rows} the two came to the same.",
        "too_few": f"Whether that is more than chance cannot be told: {few} among {rows}, and a few "
        "more or less would change it.",
    }[against.finding]


def decision_for_everybody(run: Run) -> str | None:
    """What the constant decides, if that is one decision for all test rows."""
    scored = select(run.scored, "constant", "optimal")
    chosen = {int(choice) for item in scored for choice in np.unique(item.choice.numpy())}
    return run.utility.decisions[chosen.pop()] if len(chosen) == 1 else None


def without_model(run: Run) -> str:
    """What is decided without a model: the same for everybody, unless costs of each row ask for different decisions."""
    return "the best decision without a model" if decision_for_everybody(run) is None else "one decision for everybody"


def claimed_sentence(run: Run) -> str:
    """What the chosen model expected of its decisions, and what they came to."""
    amounts, row = AmountFormat.of(run.utility), run.comparison.row(run.comparison.chosen, "optimal")
    scored = select(run.scored, row.model, "optimal")
    claims = [
        claimed_range(run.utility, item.choice, item.predictions.probs, run.labels, **run.dependence) for item in scored
    ]
    claimed, level = amounts.level(Interval(*np.mean(claims, 0).tolist())), amounts.level(row.utility)
    return expected_against_actual(amounts, claimed.mean, level, chance=claimed.low <= level.mean <= claimed.high)


def expected_against_actual(amounts: AmountFormat, claimed: float, level: Interval, *, chance: bool) -> str:
    """``chance``: whether it explains the difference."""
    digits = amounts.digits(level)
    expected, came = amounts.text(claimed, digits), amounts.text(level.mean, digits)
    did = "they cost" if amounts.costs else "they were worth"
    sentence = f"The model expected its decisions to {'cost' if amounts.costs else 'be worth'} {expected}; {did} {came}"
    if expected == came:
        return f"{sentence}."
    if chance:
        return f"{sentence}, a difference that these rows cannot tell from chance."
    return f"{sentence}, which is beyond chance: do not rely on what it expects."


def than(gain: Interval, other: str, amounts: AmountFormat) -> str:
    """``£6.90 less than deciding “treat” for everybody (95 % interval ...)``."""
    if gain.mean == 0:
        return f"as much as {other} (95 % interval {amounts.range(gain)})"
    return f"{amounts.difference(gain)} than {other} (95 % interval {amounts.range(gain)})"


# Private -------------------------------------------------------------------------------------------


def _rival(run: Run) -> str:
    if run.comparison.reference != "constant":
        return f"deciding with the {run.comparison.reference} model"
    decision = decision_for_everybody(run)
    return "the best decision without a model" if decision is None else f"deciding “{decision}” for everybody"


def _against_probability(run: Run, model: str, amounts: AmountFormat) -> str:
    against = contrast(run, (model, "optimal"), (model, "argmax"))
    if against.finding == "same":
        return f"Against {amounts.rule_names['argmax']}, with the same model: the same on every test row."
    sure = {
        "more": "beyond chance",
        "less": "beyond chance",
        "unclear": "not beyond chance",
        "too_few": "but too few cases of an outcome to tell whether that is chance",
    }[against.finding]
    gain = against.gain
    return (
        f"Against {amounts.rule_names['argmax']}, with the same model: {amounts.difference(gain)} per decision "
        f"(95 % interval {amounts.range(gain)}), {sure}."
    )


def _without_model(run: Run, amounts: AmountFormat) -> Headline:
    """No model was chosen: what deciding alike comes to, and what the best of the models would have."""
    row = run.comparison.row("constant", "optimal")
    decision = decision_for_everybody(run)
    level = amounts.level(row.utility)
    does = "costs" if amounts.costs else "is worth"
    what = (
        "the best decision without a model is taken" if decision is None else f"“{decision}” is decided for everybody"
    )
    sentence = (
        f"No model is worth more than {WITHOUT_MODEL}, so {what}: that {does} {amounts.mean(level)} per decision "
        f"(95 % interval {amounts.ends(level)})."
    )
    if row.rival is None:
        return Headline("same", sentence, "No other model was compared.", ())
    against = contrast(run, (row.rival, "optimal"), ("constant", "optimal"))
    model = f"On the test rows the best of the models, {row.rival}, "
    if against.finding == "same":
        return Headline("unclear", sentence, f"{model}took the same decisions.", ())
    came = "cost" if amounts.costs else "was worth"
    chance = {
        "more": "beyond chance: the choice, which was made on other rows, may have been wrong",
        "less": "beyond chance",
        "unclear": "not beyond chance",
        "too_few": "but too few cases of an outcome to tell whether that is chance",
    }[against.finding]
    return Headline(
        "unclear",
        sentence,
        f"{model}{came} {amounts.difference(against.gain)} (95 % interval {amounts.range(against.gain)}), {chance}.",
        (),
    )


def _test_rows(run: Run) -> str:
    rows = f"{len(run.labels):,} test rows"
    return rows if run.groups is None else f"{rows} ({len(np.unique(run.groups)):,} values of {run.settings['group']})"


def _by_row(run: Run, model: str, rule: Rule) -> NDArray[np.float64]:
    """(N,) what the decisions about each test row were worth, the mean over seeds."""
    return np.asarray(np.mean([item.utilities for item in select(run.scored, model, rule)], axis=0))
