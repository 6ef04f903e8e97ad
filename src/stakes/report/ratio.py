"""What if one mistake cost more, or less? The cost of every model, and of deciding alike, against a ratio of costs."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stakes.decisions import decide
from stakes.evaluation.comparison import select
from stakes.report.amounts import AmountFormat
from stakes.report.charts import line_chart
from stakes.report.explorer import kept_rows
from stakes.report.words import number
from stakes.tables.run import Run
from stakes.utility import TableUtility

FACTORS = np.geomspace(0.1, 10, 41)  # of the cost that is varied
MOST_ROWS = 10_000
LEVEL = 1e-9  # costs that are nearer to each other count as equal


class Mistake(NamedTuple):
    decision: int
    outcome: int
    regret: float  # what it costs more than the right decision


def by_ratio(run: Run) -> dict[str, Any] | None:
    """The chart and its words; None where there is no one table of costs, or there are no two mistakes to weigh."""
    one_table = run.utility.given == "cost" and not run.utility.per_example
    mistakes = two_mistakes(run.utility) if one_table else None
    if mistakes is None:
        return None
    first, second = mistakes
    utility, amounts = run.utility, AmountFormat.of(run.utility)
    models, constants = mean_costs(run, first)
    best_constant = np.min(list(constants.values()), axis=0)
    ratio = first.regret / second.regret
    names = [f"“{utility.decisions[m.decision]}” when it is {utility.outcomes[m.outcome]}" for m in mistakes]
    curves = models | {f"“{name}” for everybody": values for name, values in constants.items()}
    bottom = min(0.0, *(float(values.min()) for values in curves.values()))
    highest = max(float(best_constant.max()), *(float(values.max()) for values in models.values()))
    top = highest + 0.05 * (highest - bottom)
    chart = line_chart(
        list(ratio * FACTORS),
        {name: list(values) for name, values in curves.items()},
        thick=run.comparison.chosen,
        thin=[name for name in curves if name not in models],
        at=ratio,
        bottom=bottom,
        top=top,
        words=axis_words(amounts, ratio, bottom, top, "ratio of the two costs"),
    )
    sentences = where_it_wins(models[run.comparison.chosen], constants, ratio)
    return {
        "chart": chart,
        "first": names[0],
        "second": names[1],
        "said": sentences,
        "others": other_models(models, run.comparison.chosen),
    }


def axis_words(amounts: AmountFormat, ratio: float, bottom: float, top: float, what: str) -> dict[str, str]:
    """What stands beside the axes of a chart over `FACTORS` of a ratio, which is called ``what``."""
    return {
        "label": f"Cost per decision against the {what}",
        "x": f"{what} (logarithmic)",
        "y": f"cost per decision{amounts.bracketed}",
        "left": ratio_text(ratio * FACTORS[0]),
        "at": f"{ratio_text(ratio)} (as given)",
        "right": ratio_text(ratio * FACTORS[-1]),
        "bottom": number(bottom),
        "top": number(top),
    }


def two_mistakes(utility: TableUtility) -> tuple[Mistake, Mistake] | None:
    """The costliest mistake, and the costliest one about another outcome."""
    regret = (utility.values.max(0) - utility.values) * utility.scale  # (D, C)
    worst = sorted(
        (Mistake(int(regret[:, c].argmax()), c, float(regret[:, c].max())) for c in range(regret.shape[1])),
        key=lambda mistake: -mistake.regret,
    )
    return (worst[0], worst[1]) if len(worst) > 1 and worst[1].regret > 0 else None


def mean_costs(run: Run, varied: Mistake) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """At each of `FACTORS` of one cost: of every model, deciding by the costs; of each decision for everybody."""
    rows = kept_rows(run, MOST_ROWS)
    labels = run.labels[rows]
    counts = np.bincount(labels.numpy(), minlength=len(run.utility.outcomes)) / len(labels)
    chosen = run.comparison.chosen  # the constant is among the decisions for everybody, unless it was chosen
    models: dict[str, list[float]] = {m: [] for m in run.comparison.models if m != "constant" or m == chosen}
    constants: dict[str, list[float]] = {name: [] for name in run.utility.decisions}
    probs = {model: [item.predictions.probs[rows] for item in select(run.scored, model, "optimal")] for model in models}
    for factor in FACTORS:
        utility = with_factor(run.utility, varied, float(factor))
        for d, name in enumerate(utility.decisions):
            constants[name].append(float(utility.costs[d] @ counts))
        for model, of_seeds in probs.items():
            worth = [utility.realised(decide(each, utility).choice, labels).mean() for each in of_seeds]
            models[model].append(float(utility.cost_of(np.mean(worth))))
    first, second = ({name: np.array(values) for name, values in each.items()} for each in (models, constants))
    return first, second


def with_factor(utility: TableUtility, mistake: Mistake, factor: float) -> TableUtility:
    """The same table, but one mistake costs ``factor`` times as much more than the right decision."""
    values = np.array(utility.values)
    values[mistake.decision, mistake.outcome] -= (factor - 1) * mistake.regret / utility.scale
    return replace(utility, values=values)


def where_it_wins(model: NDArray[np.float64], constants: dict[str, NDArray[np.float64]], ratio: float) -> list[str]:
    """For each range of the ratio, in words: whether the chosen model costs less than every constant decision."""
    names = list(constants)
    costs = np.array(list(constants.values()))  # (D, F)
    best = costs.argmin(0)
    wins = model < costs.min(0) - LEVEL
    sentences, start = [], 0
    kinds = [-1 if win else int(constant) for win, constant in zip(wins, best, strict=True)]
    for end in range(1, len(kinds) + 1):
        if end < len(kinds) and kinds[end] == kinds[start]:
            continue
        where = f"From {ratio_text(ratio * FACTORS[start])} to {ratio_text(ratio * FACTORS[end - 1])}"
        if kinds[start] < 0:
            sentences.append(f"{where} the model costs less than any one decision for everybody.")
        else:
            sentences.append(f"{where} deciding “{names[kinds[start]]}” for everybody costs no more than the model.")
        start = end
    return sentences


def other_models(models: dict[str, NDArray[np.float64]], chosen: str) -> str:
    """Where another model would have been cheaper than the chosen one."""
    if chosen not in models or len(models) == 1:
        return ""
    others = {
        name: float((values < models[chosen] - LEVEL).mean()) for name, values in models.items() if name != chosen
    }
    name = max(others, key=lambda name: others[name])
    if not others[name]:
        return f"No other model costs less than {chosen} at any of these ratios, on the test rows."
    part = f"{100 * others[name]:.0f} %"
    return f"Of the other models, {name} costs less than {chosen} over the widest part of the ratios: {part}."


def ratio_text(value: float) -> str:
    return f"{value:,.3g} : 1" if value >= 1 else f"1 : {1 / value:,.3g}"
