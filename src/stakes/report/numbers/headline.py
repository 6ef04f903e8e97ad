"""The answer in sentences, and what a reader has to know before relying on it."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes.evaluation.amounts import AmountRow, select
from stakes.evaluation.metrics import Interval, block_length
from stakes.report.amounts import AmountFormat
from stakes.report.caveats import close_choice, few_rows, of_data
from stakes.report.decided import percent
from stakes.report.headline import Contrast, Finding, Headline, against_rival, expected_against_actual, judgement
from stakes.report.words import number, share, verdict
from stakes.tables.amounts.other_costs import beyond_levels
from stakes.tables.amounts.run import AmountRun
from stakes.utility import AmountUtility, Newsvendor

FEW_TIMES = 20  # rows, or times at which there are rows: with fewer, a bootstrap does not tell what could have happened
FEW_BLOCKS = 10  # stretches of time that an interval resamples
AT_BOUND = 0.05  # of the decisions: a bound that so many of them are at is told
WITHOUT_MODEL = "deciding the same every time"


def headline(run: AmountRun) -> Headline:
    amounts, chosen_row = AmountFormat.of(run.utility), run.comparison.row(run.comparison.chosen)
    if chosen_row.model == "constant":
        return _without_model(run, amounts, chosen_row)
    claimed = claimed_sentence(run)
    if chosen_row.saving is None:  # the only one, or what the others are held against
        sentence = f"Deciding with this model costs {amounts.mean(chosen_row.cost)} per decision"
        return Headline(
            "same",
            f"{sentence} (95 % interval {amounts.ends(chosen_row.cost)}).",
            "Nothing was compared with it.",
            (claimed,),
        )
    against, rival = contrast(run, chosen_row.saving), reference_words(run)
    other = WITHOUT_MODEL if run.comparison.reference == "constant" else rival
    sentence = against_rival(amounts, chosen_row.cost, against, rival, other)
    return Headline(against.finding, sentence, _judgement(run, against), (claimed,))


def contrast(run: AmountRun, saving: Interval) -> Contrast:
    """A paired difference, and what it tells: of a handful of rows it tells nothing."""
    finding: Finding = verdict(saving)
    if finding in ("more", "less") and independent_times(run) < FEW_TIMES:
        finding = "too_few"
    return Contrast(saving, finding, ())


def independent_times(run: AmountRun) -> int:
    """Rows of one time are alike, and count once."""
    return len(run.labels) if run.times is None else len(np.unique(run.times.numpy()))


def reference_words(run: AmountRun) -> str:
    """What savings are against: ``deciding 27 every time``."""
    if run.comparison.reference != "constant":
        return f"deciding with the {run.comparison.reference} model"
    decision = decision_every_time(run)
    return "the best decision without a model" if decision is None else f"deciding {decision} every time"


def decision_every_time(run: AmountRun) -> str | None:
    """What the constant decides, if that is the same for all test rows: ``27``, or ``“service now”``."""
    decided = {value for item in select(run.scored, "constant") for value in np.unique(item.choice.numpy()).tolist()}
    if len(decided) != 1:
        return None
    value = decided.pop()
    return f"“{run.utility.decisions[value]}”" if run.utility.decisions else amount(value)


def amount(value: float) -> str:
    """An amount that is decided on, or that happened: ``27``, ``27.40``."""
    return f"{value:,.0f}" if value == round(value) else number(value)


def claimed_sentence(run: AmountRun) -> str:
    """What the chosen model expected of its decisions, and what they cost."""
    row = run.comparison.row(run.comparison.chosen)
    chance = row.above_claim.low <= 0 <= row.above_claim.high
    return expected_against_actual(AmountFormat.of(run.utility), row.claimed_cost, row.cost, chance=chance)


def rule(run: AmountRun) -> str | None:
    """How a newsvendor decides, in a sentence."""
    utility = run.utility
    if not isinstance(utility, Newsvendor):
        return None
    if utility.per_example:
        low, high = (share(float(end)) for end in (utility.share.min(), utility.share.max()))
        return f"By the costs of its row, a decision covers {low} to {high} of what may happen."
    asked, bounds = percent(float(utility.share)), utility.range.to_dict()
    inside = ", within the steps and bounds that were given" if bounds else ""
    return f"At these costs, decide so much that it covers {asked} of what may happen{inside}."


def _judgement(run: AmountRun, against: Contrast) -> str:
    if against.finding == "too_few":
        rows = f"{independent_times(run):,} {'test rows' if run.times is None else 'times to test on'}"
        return f"Whether that is more than chance cannot be told: there are only {rows}."
    sentence, block = judgement(against, f"{len(run.labels):,} test rows"), run.comparison.block
    if block is None or against.finding == "same":
        return sentence
    how = f"intervals resample {block} consecutive times together, for neighbouring ones are alike"
    return f"{sentence.removesuffix('.')}; {how}."


def _without_model(run: AmountRun, amounts: AmountFormat, row: AmountRow) -> Headline:
    """No model was chosen: what the constant costs, and what the best of the models would have."""
    decision = decision_every_time(run)
    what = "the best decision without a model is taken" if decision is None else f"the decision is {decision}"
    sentence = (
        f"No model is worth more than {WITHOUT_MODEL}, so {what}: that costs {amounts.mean(row.cost)} per decision "
        f"(95 % interval {amounts.ends(row.cost)})."
    )
    if row.rival is None or row.lead is None:
        return Headline("same", sentence, "No other model was compared.", ())
    gain = row.lead.negated()
    message = {
        "more": "beyond chance: the choice, which was made on other rows, may have been wrong",
        "less": "beyond chance",
        "unclear": "not beyond chance",
        "same": "which is the same",
        "too_few": "but there are too few rows to tell whether that is chance",
    }[contrast(run, gain).finding]
    against_text = (
        f"On the test rows the best of the models, {row.rival}, cost {amounts.difference(gain)} (95 % interval "
        f"{amounts.range(gain)}), {message}."
    )
    return Headline("unclear", sentence, against_text, ())


# Before you rely on it -----------------------------------------------------------------------------


def caveats(run: AmountRun) -> list[str]:
    """All of them: of the test rows, of the choice, and what was said when the data were read."""
    return [*of_test_rows(run), *close_choice(run), *of_data(run)]


def of_test_rows(run: AmountRun) -> list[str]:
    return [*few_rows(run), *_in_time(run), *_beyond_levels(run), *_at_bounds(run)]


def _in_time(run: AmountRun) -> list[str]:
    if run.times is None:
        return []
    times = run.times.numpy()
    blocks = len(np.unique(times)) / block_length(times)
    if blocks < FEW_BLOCKS:
        return [
            f"The test covers {len(np.unique(times)):,} times, about {blocks:.0f} stretches of {block_length(times)} "
            "neighbouring ones, which may be alike: the intervals are rough."
        ]
    alike = serial_correlation(_mean_costs(run), times)
    if alike <= 2 / math.sqrt(len(np.unique(times))):
        return []
    return [
        f"Decisions of neighbouring times go wrong together (correlation {alike:.2f}): the intervals allow for that by "
        f"stretches of {block_length(times)} times, but a change that lasts longer is not in them."
    ]


def serial_correlation(costs: NDArray[np.float64], times: NDArray[np.float64]) -> float:
    """The lag-1 autocorrelation of the mean cost per time."""
    _, time_index = np.unique(times, return_inverse=True)
    means = np.bincount(time_index, costs) / np.bincount(time_index)
    before, after = means[:-1] - means.mean(), means[1:] - means.mean()
    spread = float(((means - means.mean()) ** 2).sum())
    return float(before @ after) / spread if spread else 0.0


def _mean_costs(run: AmountRun) -> NDArray[np.float64]:
    return np.mean([item.costs for item in select(run.scored, run.comparison.chosen)], axis=0)  # type: ignore[no-any-return]


def _beyond_levels(run: AmountRun) -> list[str]:
    message = beyond_levels(run.utility, len(run.labels))
    return [] if message is None else [message]


def _at_bounds(run: AmountRun) -> list[str]:
    utility = run.utility
    if not isinstance(utility, AmountUtility):
        return []
    choices: Any = np.concatenate([item.choice.numpy() for item in select(run.scored, run.comparison.chosen)])
    found = []
    for name, bound in (("lowest", utility.range.at_least), ("highest", utility.range.top)):
        at = float((choices == bound).mean()) if math.isfinite(bound) else 0.0
        if at >= AT_BOUND:
            found.append(f"{share(at)} of the decisions are the {name} that is allowed, {amount(bound)}.")
    return found
