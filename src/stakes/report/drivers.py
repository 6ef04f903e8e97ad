"""What drives the decisions: by how much they get worse when one column is shuffled."""

from typing import Any

from stakes.report.amounts import AmountFormat
from stakes.tables.run import FinishedRun

MOST_SHOWN = 15


def drivers(run: FinishedRun) -> dict[str, Any] | None:
    """The columns that matter most, with intervals; None where no model was chosen, or nothing was measured."""
    if not run.importance:
        return None
    amounts = AmountFormat.of(run.utility)
    measured = run.importance["columns"]
    loss = {name: amounts.gain(interval) for name, interval in measured.items()}
    ordered = sorted(loss, key=lambda name: -loss[name].mean)
    clear = [name for name in ordered if loss[name].low > 0]
    scale = min(0.0, *(each.low for each in loss.values())), max(0.0, *(each.high for each in loss.values()))
    if not clear:
        sentence = "No column alone makes a difference beyond chance: others tell the same, or these rows are too few."
    else:
        first = loss[clear[0]]
        more = amounts.mean(first)
        sentence = (
            f"{clear[0]} matters most: without what it tells, decisions {amounts.verb} {more} {amounts.worse} "
            f"each. {len(clear)} of {len(loss)} columns make a difference beyond chance."
        )
    shown = ordered[:MOST_SHOWN]
    return {
        "rows": [(name, loss[name]) for name in shown],
        "scale": scale,
        "said": sentence,
        "left_out": len(ordered) - len(shown),
        "not_measured": run.importance["not_measured"],
        "cases": run.importance["rows"],
    }
