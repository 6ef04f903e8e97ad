"""The figure and tables of the digits experiment, from a saved Result."""

from pathlib import Path

import numpy as np

from stakes.paper.figures import figure, line_style
from stakes.paper.sweep import PAPER_MODELS, Result
from stakes.report.words import markdown_table

# The authors' code: 1 - utility, deciding by highest expected utility, by noise and hidden units; 10 seeds.
PUBLISHED = {
    (0.0, 20): (0.0912, 0.0916, 0.0934), (0.0, 50): (0.0784, 0.0802, 0.0785), (0.0, 100): (0.0734, 0.0743, 0.0737),
    (0.1, 20): (0.1132, 0.1170, 0.1051), (0.1, 50): (0.1002, 0.1033, 0.0931), (0.1, 100): (0.0955, 0.0985, 0.0860),
    (0.25, 20): (0.1527, 0.1659, 0.1278), (0.25, 50): (0.1356, 0.1440, 0.1101), (0.25, 100): (0.1253, 0.1370, 0.1009),
    (0.5, 20): (0.2756, 0.3216, 0.2168), (0.5, 50): (0.2398, 0.2772, 0.1655), (0.5, 100): (0.2250, 0.2586, 0.1509),
}  # fmt: skip
PAIRS = (("weighted", "standard"), ("calibrated", "standard"), ("noise", "standard"), ("noise+calibrated", "noise"))


def digits_figures(result: Result, folder: Path) -> list[Path]:
    """Figures 5 and 9: utility against width, a panel for each noise level, one standard deviation over seeds."""
    path, levels, widths = folder / "utility.png", result.config["noise"], result.config["units"]
    with figure(path, 1.4 + 1.9 * len(levels), 2.9) as canvas:
        for axes, noise in zip(np.atleast_1d(canvas.subplots(1, len(levels))), levels, strict=True):
            for name in result.config["methods"]:
                values = [result.values("utility", method=name, rule="optimal", noise=noise, units=u) for u in widths]
                means, sds = np.array([v.mean() for v in values]), np.array([v.std() for v in values])
                style = line_style(name)
                axes.plot(widths, means, label=name, **style)
                axes.fill_between(widths, means - sds, means + sds, color=style["color"], alpha=0.12, linewidth=0)
            axes.set_title(f"{round(100 * noise)} % of labels redrawn")
            axes.set_xlabel("hidden units")
        canvas.axes[0].set_ylabel("utility")
        canvas.axes[0].legend(fontsize=7)
    return [path]


def digits_tables(result: Result) -> str:
    """Loss of utility by noise and width beside the authors' numbers, and the paired gains."""
    models, widths = result.config["methods"], result.config["units"]
    pairs = [pair for pair in PAIRS if set(pair) <= set(models)]
    parts = ["## Loss of utility (1 - utility) on the test digits, deciding by highest expected utility"]
    for noise in result.config["noise"]:
        parts.append(f"### {round(100 * noise)} % of labels redrawn: mean over seeds ± sd [authors' code]")
        rows = [[str(units), *(_cell(result, name, noise, units) for name in models)] for units in widths]
        parts.append(markdown_table(["units", *models], rows))
    parts.append("## Utility gained, paired by seed (95 % interval)")
    for noise in result.config["noise"]:
        parts.append(f"### {round(100 * noise)} % of labels redrawn")
        rows = [[str(units), *(result.gain(*pair, noise=noise, units=units) for pair in pairs)] for units in widths]
        parts.append(markdown_table(["units", *(f"{ours} on {theirs}" for ours, theirs in pairs)], rows))
    return "\n\n".join(parts) + "\n"


def _cell(result: Result, model: str, noise: float, units: int) -> str:
    """Mean and standard deviation over seeds, and the published number in brackets if there is one."""
    losses = 1 - result.values("utility", method=model, rule="optimal", noise=noise, units=units)
    theirs = dict(zip(PAPER_MODELS, PUBLISHED.get((noise, units), ()), strict=False)).get(model)
    published = "" if theirs is None else f" [{theirs:.4f}]"
    return f"{losses.mean():.4f} ± {losses.std(ddof=1) if len(losses) > 1 else 0:.4f}{published}"
