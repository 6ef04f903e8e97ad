"""What a reader has to know before relying on a report, in sentences; none where there is nothing."""

from stakes.evaluation.few_cases import FEW_CASES, UNSEEN, cases_and_stakes, counted
from stakes.report.amounts import AmountFormat
from stakes.report.words import verdict
from stakes.tables.run import FinishedRun, Run

FEW_ROWS = 50  # test rows
COSTLY = 0.1  # an outcome is costly if its cases make up this share of all that is at stake


def caveats(run: Run) -> list[str]:
    """All of them: of the test rows, of the choice, and what was said when the data were read."""
    return [*of_test_rows(run), *close_choice(run), *of_data(run)]


def of_test_rows(run: Run) -> list[str]:
    return [*few_rows(run), *_few_cases(run)]


def of_data(run: FinishedRun) -> tuple[str, ...]:
    return run.data.notices if run.data else ()


def few_rows(run: FinishedRun) -> list[str]:
    count = len(run.labels)
    if count >= FEW_ROWS:
        return []
    rows = "one test row" if count == 1 else f"{count} test rows"
    return [f"All of this rests on {rows}: another {'one' if count == 1 else count} may say something else."]


def _few_cases(run: Run) -> list[str]:
    counts, stakes = cases_and_stakes(run.utility, run.labels.numpy(), run.groups)
    everything = float(counts @ stakes) or 1.0
    rare = [
        counted(name, count)
        for name, count, each in zip(run.utility.outcomes, counts.tolist(), stakes, strict=True)
        if count < FEW_CASES and (count + UNSEEN) * each >= COSTLY * everything
    ]
    if not rare:
        return []
    noun = AmountFormat.of(run.utility).noun
    return [
        f"{', '.join(rare)} among {len(run.labels):,} test rows: what is said of the {noun} of mistakes about them is "
        "uncertain, more than the intervals show."
    ]


def close_choice(run: FinishedRun) -> list[str]:
    choice, amounts = run.comparison.choice, AmountFormat.of(run.utility)
    if choice.lead is None or choice.rival is None or verdict(choice.lead) == "more":
        return []
    if verdict(choice.lead) == "same":
        return [f"{choice.model} and {choice.rival} decided alike on the rows that the choice was made by."]
    gain = amounts.gain(choice.lead)
    if gain.mean < 0:
        return [
            f"On the rows that the choice was made by, {choice.rival} was the better one: the decisions of "
            f"{choice.model} {amounts.verb} {amounts.difference(gain)} each (95 % interval {amounts.range(gain)}), "
            f"{'beyond chance' if gain.high < 0 else 'not beyond chance'}."
        ]
    return [
        f"{choice.model} was chosen over {choice.rival} by a hair: on the rows that the choice was made by, its "
        f"decisions {amounts.verb} {amounts.difference(gain)} each (95 % interval {amounts.range(gain)})."
    ]
