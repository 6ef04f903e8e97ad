"""The decision explorer: the numbers that it computes with in the browser, and which test rows they are of."""

import base64
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.evaluation.comparison import best_seed
from stakes.report.amounts import BEFORE_NUMBER, AmountFormat
from stakes.seeds import numpy_generator
from stakes.tables.run import FinishedRun, Run

SCRIPTS = ("decisions.js", "dom.js", "explorer.js", "sliders.js")
MOST_ROWS, MOST_NUMBERS = 10_000, 100_000  # in one page: more would be slow to mail and to redraw


def explorer(run: Run) -> dict[str, Any]:
    """What the browser computes with: the mean probabilities of the saved model, exactly; and what stands around it.

    That is the cells to edit, the cost that is varied at first (the largest), and which rows the page is about.
    """
    utility, amounts = run.utility, AmountFormat.of(run.utility)
    kept = kept_rows(run, max(1, min(MOST_ROWS, MOST_NUMBERS // len(utility.outcomes))))
    predictions = best_seed(run.predictions, run.comparison.chosen)
    # Without the noise of a conversion from utilities: 0.1, and not 0.09999999999999998.
    stated = [[float(f"{value:.15g}") for value in row] for row in np.asarray(utility.stated(utility.values)).tolist()]
    data = {
        **shared_data(run, kept),
        "noun": amounts.noun,
        "decisions": list(utility.decisions),
        "outcomes": list(utility.outcomes),
        "stated": stated,
        "probs": packed(predictions.probs[kept], "<f4"),
        "labels": packed(run.labels[kept], "<i4"),
    }
    return {
        "data": data,
        "inputs": [[str(int(cell)) if cell == int(cell) else repr(cell) for cell in row] for row in stated],
        "largest": divmod(int(np.abs(stated).argmax()), len(utility.outcomes)),
        "name": run.settings["id"] or "row",
        "scope": scope(
            run, f"mean probabilities of the {predictions.model} model", predictions.seed, len(kept), run.settings["id"]
        ),
    }


def shared_data(run: FinishedRun, kept: torch.Tensor) -> dict[str, Any]:
    """What every explorer is told: the unit, and by what a row is known."""
    return {
        "unit": run.utility.unit,
        "unitFirst": run.utility.unit in BEFORE_NUMBER,
        "rows": packed(run.row_numbers[kept], "<i4"),
        **({} if run.ids is None else {"ids": [run.ids[row] for row in kept.tolist()]}),
    }


def kept_rows(run: FinishedRun, most: int) -> torch.Tensor:
    """The indices of the test rows in the page, in order: all, or a random sample."""
    count = len(run.labels)
    if count <= most:
        return torch.arange(count)
    sample = numpy_generator(run.settings["seed"], "explorer").choice(count, most, replace=False)
    return torch.from_numpy(np.sort(sample))


def scope(run: FinishedRun, what: str, seed: int, kept: int, name: str | None) -> str:
    """What the numbers are, of which rows, and by what these are known."""
    settings, count = run.settings, len(run.labels)
    which = f"the {count:,} test rows"
    if kept < count:
        which = f"{kept:,} of {which}, drawn at random (seed {settings['seed']}) to keep this page small"
    which_seed = f" (seed {seed}, the one in model/)" if settings["seeds"] > 1 else ""
    file = PurePath(settings["test"] if run.rows["tested"] == "file" else settings["data"]).name
    identified_by = f"the column {name}" if name else f"their row in {file}, the first row under the header being 1"
    return f"Computed in this page from the {what}{which_seed} for {which}. Cases are named by {identified_by}."


def packed(values: torch.Tensor, kind: str) -> str:
    array: NDArray[Any] = values.numpy().astype(kind)
    return base64.b64encode(array.tobytes()).decode()
