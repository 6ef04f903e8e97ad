"""The common style of the paper's figures, readable in grey."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from stakes._io.files import atomic
from stakes.paper.sweep import ALL_MODELS

# Markers and dashes tell the lines apart first, colours (Okabe and Ito's palette) second.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "savefig.dpi": 150,
}


def line_style(model: str) -> dict[str, Any]:
    """The style of a model's line, the same in every figure."""
    index = ALL_MODELS.index(model)
    return {"color": COLOURS[index], "marker": MARKERS[index], "linestyle": DASHES[index], "markersize": 4, "lw": 1.1}


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure in the common style, written to ``path`` when the block ends."""
    with mpl.rc_context(_STYLE):
        canvas = Figure(figsize=(width, height), layout="constrained")
        yield canvas
        with atomic(path) as temporary:
            canvas.savefig(temporary, metadata={"Software": None})
