"""The figures of the amounts experiment, from a saved Result."""

from pathlib import Path
from typing import Any

import numpy as np

from stakes.paper.amounts.accuracy import FAMILIES
from stakes.paper.amounts.costs import COSTS
from stakes.paper.amounts.data import MADE
from stakes.paper.amounts.intervals import Orders, change, moments
from stakes.paper.amounts.orders import CHOSEN, METHODS, PAST, SHARES
from stakes.paper.amounts.report import PUBLISHED
from stakes.paper.figures import COLOURS, MARKERS, figure
from stakes.paper.sweep import Result

SYMMETRIC_FROM = 10.0  # per cent: changes up to it are drawn linearly, larger ones by their logarithm


def amounts_figures(result: Result, folder: Path) -> list[Path]:
    makers = {"accuracy": accuracy_figure, "costs": cost_figure, "orders": order_figure}
    return [makers[part](result, folder / f"{part}.png") for part in result.config["parts"]]


def _style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": "none", "markersize": 4, "elinewidth": 1}


def accuracy_figure(result: Result, path: Path) -> Path:
    """RMSE and log-likelihood less the published ones, in their standard errors; better is to the right of -2."""
    sets = result.config["sets"]
    with figure(path, 7.2, 0.9 + 0.42 * len(sets)) as canvas:
        panels = canvas.subplots(1, 2, sharey=True)
        for axes, key, place, sign in zip(panels, ("rmse", "log_likelihood"), (0, 2), (-1, 1), strict=True):
            axes.axvspan(-2, 2, color="0.92", linewidth=0)
            axes.axvline(0, color="0.6", linewidth=0.8)
            for number, family in enumerate(FAMILIES):
                ours = [moments(result, key, part="accuracy", data=data, method=family) for data in sets]
                theirs = [PUBLISHED[data][place : place + 2] for data in sets]
                gaps = [sign * (mine[0] - mean) / error for mine, (mean, error) in zip(ours, theirs, strict=True)]
                errors = [mine[1] / error for mine, (_, error) in zip(ours, theirs, strict=True)]
                rows = np.arange(len(sets)) + 0.2 * (number - 1)
                axes.errorbar(gaps, rows, xerr=errors, label=family, **_style(number))
            axes.set_xscale("symlog", linthresh=4)
            low, high = axes.get_xlim()
            ticks = [tick for tick in (-100, -10, -4, -2, 0, 2, 4, 10, 100) if low <= tick <= high]
            axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set_title("RMSE" if key == "rmse" else "log-likelihood")
        panels[0].set_yticks(range(len(sets)), sets)
        panels[0].invert_yaxis()
        panels[0].legend(fontsize=7, loc="best")
        canvas.supxlabel("better than published, in its standard errors →", fontsize=9)
    return path


def cost_figure(result: Result, path: Path) -> Path:
    """By how many per cent calibration changes the cost of the plain network's decisions."""
    conditions, sets = result.config["conditions"], [*result.config["sets"], MADE]
    with figure(path, 1.2 + 2.3 * len(conditions), 1.0 + 0.5 * len(sets)) as canvas:
        panels = np.atleast_1d(canvas.subplots(1, len(conditions), sharey=True, sharex=True))
        for axes, condition in zip(panels, conditions, strict=True):
            axes.axvline(0, color="0.6", linewidth=0.8)
            for number, cost in enumerate(COSTS):
                changes = [change(result, data, condition, cost, "calibrated") for data in sets]
                means = np.array([each.mean for each in changes])
                reach = np.array([each.high - each.mean for each in changes])
                rows = np.arange(len(sets)) + 0.18 * (number - 1.5)
                axes.errorbar(means, rows, xerr=np.where(np.isfinite(reach), reach, 0), label=cost, **_style(number))
            axes.set_xscale("symlog", linthresh=SYMMETRIC_FROM)
            axes.set_xticks([-100, -10, -5, 0, 5, 10, 100], ["-100", "-10", "", "0", "", "10", "100"])
            axes.set_title(condition)
        panels[0].set_yticks(range(len(sets)), sets)
        panels[0].invert_yaxis()
        panels[-1].legend(fontsize=7, loc="best")
        canvas.supxlabel("← cheaper than plain, change in %, dearer →", fontsize=9)
    return path


def order_figure(result: Result, path: Path) -> Path:
    """The coefficient of prescriptiveness of every method, a panel for each share of demand that is to be covered."""
    methods = [method for method in (*METHODS, CHOSEN) if method != PAST]
    with figure(path, 8.6, 0.9 + 0.2 * len(methods)) as canvas:
        panels = canvas.subplots(1, len(SHARES), sharey=True, sharex=True)
        for axes, share in zip(panels, SHARES, strict=True):
            orders = Orders(result, share)
            axes.axvline(0, color="0.6", linewidth=0.8)
            for row, method in enumerate(methods):
                changes = orders.prescriptiveness(method)
                reach = [[changes.mean - changes.low], [changes.high - changes.mean]]
                axes.errorbar([changes.mean], [row], xerr=reach, **_style(1 if method == CHOSEN else 0))
            axes.set_title(f"{100 * share:.0f} % of days covered")
        panels[0].set_yticks(range(len(methods)), methods, fontsize=7)
        panels[0].invert_yaxis()
        canvas.supxlabel("share of what perfect foresight saves against the quantile of the past", fontsize=9)
    return path
