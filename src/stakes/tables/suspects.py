"""Columns that can be used but should probably not be: identifiers, too many texts, one value only, and what gives the
outcome away.

All take columns that ``stakes.tables.formats`` has cleaned, and answer in words.
"""

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import listing, typed
from stakes.seeds import derive, numpy_generator
from stakes.tables.columns import ranked_levels
from stakes.tables.values import as_text, holds_numbers, numbers, text_codes

IntArray = npt.NDArray[np.int64]
IDENTIFIER_ROWS = 50
NEARLY = 0.95  # of the rows have a value of their own
REPEATS = 10  # so many expected by chance, and a tenth of them found: the values were given out, not measured
RARE_SHARE = 0.3
LEAK_ROWS = 20_000  # looked at, of more
LEAK_ACCURACY = 0.995
LEAK_CASES = 10  # held-out rows with another outcome than the most frequent
PURE_ROWS = 20
SHOWN = 8  # reasons in a message
SUBJECTS = 20  # different values, each of which has a few rows
MOST_ROWS_EACH = 50
SAME_OUTCOME = 0.9  # of pairs of rows with one value; where chance would have it at most
BY_CHANCE = 0.8
FLAG_LEVELS = 10  # more different values than this are an amount, of which some may well be pure
_SUBJECT_NAME = re.compile(
    r"(^|[\W_])(?i:patient|subject|customer|client|user|person|member|household|family|account|device|participant|case)"
    r"([\W_]*(?i:id|key|code|name|number|num|nr|no))?$"
)
_ID_NAME = re.compile(r"(^|[\W_])(?i:id|udi|uuid|guid|key|index|idx|number|num|nr|no)$|[a-z](ID|Id|Key|Nr|No|Number)$")


def identifiers(clean: pd.DataFrame, *, skip: Collection[str] = ()) -> dict[str, str]:
    """A warning for each column that looks like the identifier of a row; ``skip`` are dates, which are no suspects."""
    messages = {}
    for name in clean.columns:
        reason = None if name in skip else _identifier_reason(clean[name])
        if reason:
            messages[name] = (
                f"column {name!r} looks like a row identifier ({reason}), which says nothing about new rows; "
                f"drop it with {typed('--drop', name)}"
            )
    return messages


def _identifier_reason(series: "pd.Series[Any]") -> str | None:
    present = series.dropna()
    if len(present) < IDENTIFIER_ROWS or pd.api.types.is_bool_dtype(series.dtype):
        return None
    distinct = int(present.nunique())
    if distinct < NEARLY * len(present):
        return None
    extent = "all" if distinct == len(present) else "nearly all"
    if not holds_numbers(series):
        return f"its values are {extent} different"
    values = numbers(present)
    if (values != np.floor(values)).any():
        return None  # measurements differ as well
    if (np.diff(values) > 0).all() or (np.diff(values) < 0).all():
        return "its whole numbers are all different and in sequence"
    # Numbers that are measured repeat by chance: at least this often, for an even spread has the fewest repeats.
    by_chance = len(values) * (len(values) - 1) / (2 * (np.ptp(values) + 1))
    given_out = by_chance >= REPEATS and len(values) - distinct <= by_chance / 10
    if given_out or _ID_NAME.search(str(series.name).strip()):
        return f"its whole numbers are {extent} different"
    return None


def many_texts(clean: pd.DataFrame, *, categorical: Collection[str] = (), skip: Collection[str] = ()) -> list[str]:
    """A warning for each column with more texts than are told apart; ``skip`` are those that were warned of already."""
    messages = []
    for name in clean.columns:
        if name in skip or (name not in categorical and holds_numbers(clean[name])):
            continue
        counts = as_text(clean[name]).value_counts()
        kept = ranked_levels({str(text): int(count) for text, count in counts.items()})
        lost = 1 - counts[list(kept)].sum() / max(1, counts.sum())
        if lost > RARE_SHARE:
            messages.append(
                f"column {name!r} has {len(counts)} different texts, of which the {len(kept)} most frequent are told "
                f"apart; {lost:.0%} of the rows have others, which are all alike to the models: derive numbers or "
                f"groups from it; if it only names rows, leave it out with {typed('--drop', name)}"
            )
    return messages


def unchanging(clean: pd.DataFrame, *, skip: Collection[str] = ()) -> list[str]:
    """A warning that names the columns with one value in all rows; that one is empty is said elsewhere."""
    looked_at = [name for name in clean.columns if name not in skip and clean[name].notna().all()]
    names = [name for name in looked_at if clean[name].nunique() == 1]
    if not names or len(clean) == 1:
        return []
    what = f"column {names[0]!r} has" if len(names) == 1 else f"columns {listing(names)} each have"
    return [f"{what} the same value in every row: nothing is learnt from that"]


def repeated_subjects(clean: pd.DataFrame, labels: IntArray, time: str | None = None) -> dict[str, str]:
    """A warning for each column that seems to name what several rows belong to: a patient with several visits, say.

    With ``time``, the column of --time, rows are not kept together by --group.
    """
    messages = {}
    for name in clean.columns:
        if _has_fractions(clean[name]):
            continue
        codes = np.asarray(pd.factorize(clean[name])[0], dtype=np.int64)
        present = codes >= 0
        counts = np.bincount(codes[present])
        counts = counts[counts > 0]
        if len(counts) < SUBJECTS or not 2 <= counts.mean() <= MOST_ROWS_EACH:
            continue
        if holds_numbers(clean[name]) and _decides_alone(clean[name], labels, *_halves(len(labels))):
            continue  # a limit of it tells the outcome: that is a leak
        alike, by_chance = _same_outcome(codes[present], labels[present])
        if _SUBJECT_NAME.search(str(name).strip()) or (alike >= SAME_OUTCOME and by_chance <= BY_CHANCE):
            messages[name] = (
                f"column {name!r} seems to name what several rows belong to ({len(counts):,} values in "
                f"{present.sum():,} rows; two rows with one value have the same outcome in {alike:.0%}, any two in "
                f"{by_chance:.0%}): with its rows on both sides of a split, models look better than they are. "
                + (
                    f"Keep them together with --group {shlex.quote(str(name))}"
                    if time is None
                    else f"With --time, later rows of one value are tested on by models that know earlier ones: if new "
                    f"ones will come, use --group {shlex.quote(str(name))} in place of --time"
                )
            )
    return messages


def _has_fractions(series: "pd.Series[Any]") -> bool:
    if not holds_numbers(series):
        return False
    values = numbers(series)
    values = values[~np.isnan(values)]
    return bool((values != np.floor(values)).any())


def _same_outcome(codes: IntArray, labels: IntArray) -> tuple[float, float]:
    """The share of pairs of rows that have the same outcome: of rows with one value, and of all rows."""

    def share(counts: IntArray) -> float:
        sums = counts.sum(-1)
        return float((counts * (counts - 1)).sum() / max(1, (sums * (sums - 1)).sum()))

    counts = np.zeros((int(codes.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (codes, labels), 1)
    return share(counts), share(counts.sum(0))


def leaks(clean: pd.DataFrame, labels: IntArray, outcomes: Sequence[str]) -> list[str]:
    """A warning that names the columns which give the outcome away: each alone, or by one of their values."""
    reasons = {}
    halves = _halves(len(labels))
    for name in clean.columns:
        if _decides_alone(clean[name], labels, *halves):
            reasons[name] = f"{name!r} alone decides it"
        elif pure := _pure_value(clean[name], labels):
            text, count, label = pure
            reasons[name] = f"{name!r} is {text} in {count} rows, all of them {outcomes[label]!r}"
    if not reasons:
        return []
    shown = [*list(reasons.values())[:SHOWN], *([f"and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else [])]
    return [
        f"the outcome leaks: {'; '.join(shown)}. What is known only once the outcome is known cannot be used to "
        f"decide; if that is so, leave it out with {typed('--drop', *reasons)}"
    ]


def _halves(rows: int) -> tuple[IntArray, IntArray]:
    """The rows that a rule is learnt from, and those that it is tried on; not all, where there are very many."""
    order = numpy_generator(derive(0, "leaks")).permutation(rows)[:LEAK_ROWS]
    return np.sort(order[::2]), np.sort(order[1::2])


def _decides_alone(series: "pd.Series[Any]", labels: IntArray, fitted: IntArray, held: IntArray) -> bool:
    """Whether a rule learnt from one column, on half of the rows, is right on (nearly) all of the other half."""
    from sklearn.tree import DecisionTreeClassifier

    counts = np.bincount(labels[fitted], minlength=int(labels.max()) + 1)
    usual = int(counts.argmax())
    others = int((labels[held] != usual).sum())
    if others < LEAK_CASES:
        return False
    if holds_numbers(series):
        values = numbers(series)
        ranks = pd.factorize(values, sort=True)[0]  # missing ones come first
        # Ranks tell numbers apart that are close to each other, values cut a gap between them in its middle.
        columns = [ranks, values / (np.nanmax(np.abs(values), initial=0) or 1)]
        tree = DecisionTreeClassifier(max_leaf_nodes=2 * len(counts), random_state=0)
        guesses = [tree.fit(each[fitted, None], labels[fitted]).predict(each[held, None]) for each in columns]
    else:
        codes = text_codes(series)[0] + 1
        table = np.zeros((int(codes.max()) + 1, len(counts)))
        table[:, usual] = 0.5  # for a text that only the other half has
        np.add.at(table, (codes[fitted], labels[fitted]), 1)
        guesses = [table.argmax(1)[codes[held]]]
    wrong = min(int((guessed != labels[held]).sum()) for guessed in guesses)
    # Of 200 rows with one case, "never" is right 99.5 % of the time: the column must find the cases.
    return wrong <= min((1 - LEAK_ACCURACY) * len(held), others / 10)


def _pure_value(series: "pd.Series[Any]", labels: IntArray) -> tuple[str, int, int] | None:
    """A value of a flag or category that occurs with one outcome only, and not with the most frequent one."""
    if series.nunique() > FLAG_LEVELS:
        return None
    codes, texts = text_codes(series)
    counts = np.zeros((len(texts), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (codes[codes >= 0], labels[codes >= 0]), 1)
    usual = int(np.bincount(labels).argmax())
    for text, row in zip(texts, counts, strict=True):
        label = int(row.argmax())
        if label != usual and row[label] == row.sum() >= PURE_ROWS:
            return str(text), int(row[label]), label
    return None
