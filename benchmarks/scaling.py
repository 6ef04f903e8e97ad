"""How the time of sampling grows with draws, inputs and classes: ``benchmarks/scaling.png``, and the slopes."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import Claim, seconds
from stakes import MLP, MCDropout
from stakes.paper.figures import COLOURS, DASHES, MARKERS, figure

AXES = {
    "draws": (10, 30, 100, 300, 1000),
    "inputs": (300, 1_000, 3_000, 10_000, 30_000),
    "classes": (3, 10, 30, 100, 300),
}
USUAL = {"draws": 100, "inputs": 3_000, "classes": 10}
FIGURE = Path(__file__).parent / "scaling.png"


def measure() -> list[Claim]:
    torch.manual_seed(0)
    times = {axis: [_time(**{**USUAL, axis: value}) for value in values] for axis, values in AXES.items()}
    slopes = {axis: _slope(AXES[axis], found) for axis, found in times.items()}
    _draw(times, slopes)
    return [
        Claim(f"growth of sampling time with {axis}, log-log slope of the upper half", "linear growth", slope, "<= 1.1")
        for axis, slope in slopes.items()
    ]


def _time(draws: int, inputs: int, classes: int) -> float:
    posterior = MCDropout(MLP(784, classes, hidden=(100,), dropout=0.2))
    x = torch.randn(inputs, 784)
    (best,) = seconds(lambda: posterior.draw(draws, seed=0)(x).mean_probs(), rounds=3)
    return best


def _slope(values: tuple[int, ...], times: list[float]) -> float:
    upper = slice(len(values) // 2, None)  # below, fixed costs make it flatter
    return float(np.polyfit(np.log(values[upper]), np.log(times[upper]), 1)[0])


def _draw(times: dict[str, list[float]], slopes: dict[str, float]) -> None:
    with figure(FIGURE, 4.6, 3.4) as drawn:
        axes = drawn.subplots()
        for place, (axis, found) in enumerate(times.items()):
            values = np.array(AXES[axis]) / USUAL[axis]
            style = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[place], "markersize": 4}
            axes.loglog(values, 1e3 * np.array(found), label=f"{axis}: slope {slopes[axis]:.2f}", **style)
        axes.set_xlabel("times as many as " + ", ".join(f"{value:,} {axis}" for axis, value in USUAL.items()))
        axes.set_ylabel("milliseconds, one thread")
        axes.legend(fontsize=8)
