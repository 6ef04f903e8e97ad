"""The numbers and words of each section of a run's page. Everything comes from the `Run`; nothing is decided here."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.decisions import Rule
from stakes.evaluation import metrics
from stakes.evaluation.comparison import advantage, select
from stakes.report.charts import reliability_chart
from stakes.report.words import PER, as_cost, divided, number, numbers, saved_cost, share, verdict
from stakes.tables.run import Run
from stakes.tables.task import command

ERRORS_WITHIN = 2  # a margin within so many Monte-Carlo standard errors is not settled by the draws
_DIGEST = 12  # characters of a file's hash that are shown; all of it stands in the settings


def answer(run: Run) -> dict[str, Any]:
    """What the chosen model is worth: first against deciding by highest probability, as without costs."""
    chosen, reference = run.comparison.chosen, run.comparison.reference

    def gain_on(model: str, rule: Rule) -> metrics.Interval:
        difference = advantage(run.scored, (chosen, "optimal"), (model, rule), run.settings["seed"])
        return saved_cost(difference, run.utility)

    others: dict[tuple[str, Rule], str] = {}
    if chosen != reference:
        others[reference, "optimal"] = f"the {reference} model, deciding by the costs too"
        others[chosen, "argmax"] = f"the {chosen} model itself, deciding by highest probability"
    for model in run.comparison.models:
        if model != chosen:
            others[model, "optimal"] = f"the {model} model, deciding by the costs too"
    gain = gain_on(reference, "argmax")
    gains = {name: gain_on(*other) for other, name in others.items()}
    return {
        "gain": gain,
        "numbers": numbers(abs(gain.mean), gain.low, gain.high),
        "verdict": verdict(gain),
        "others": [(name, each, verdict(each)) for name, each in gains.items()],
    }


def alternatives(run: Run) -> dict[str, Any]:
    """Every model under every rule: its cost, and what it saves against the reference; with the scales of both."""
    rows, utility = run.comparison.rows, run.utility
    costs = [(row, as_cost(row.utility, utility)) for row in rows]
    saved = [(row, saved_cost(row.difference, utility)) for row in rows if row.difference is not None]
    return {
        "costs": costs,
        "cost_scale": (min(cost.low for _, cost in costs), max(cost.high for _, cost in costs)),
        "saved": [(row, each, verdict(each)) for row, each in saved],
        "saved_scale": (min([0.0, *(each.low for _, each in saved)]), max([0.0, *(each.high for _, each in saved)])),
    }


def confusions(run: Run) -> list[dict[str, Any]]:
    """How often each decision met each outcome, and what that cost; the chosen model first."""
    tables = []
    for row in sorted(run.comparison.rows, key=lambda row: not run.comparison.is_chosen(row)):
        scored = select(run.scored, row.model, row.rule)
        counts = np.sum([item.counts for item in scored], axis=0)
        if run.utility.per_example:
            money = np.zeros(counts.shape)
            for item in scored:
                np.add.at(money, (item.choice.numpy(), run.labels.numpy()), run.utility.cost_of(item.utilities))
        else:
            money = counts * run.utility.costs
        tables.append({"row": row, "counts": _shaded(counts), "money": _shaded(money)})
    return tables


def _shaded(values: NDArray[Any]) -> dict[str, Any]:
    """Cells with a level of shading from 0 to 4, the larger the darker, and sums."""

    def text(value: float) -> str:
        return f"{value:z,.0f}" if value == round(value) else number(float(value))

    most = float(values.max())
    rows = [[(text(value), int(np.ceil(4 * value / most)) if value > 0 else 0) for value in row] for row in values]
    return {
        "rows": list(zip(rows, map(text, values.sum(1)), strict=True)),
        "sums": [*map(text, values.sum(0)), text(values.sum())],
    }


def claims(run: Run) -> dict[str, Any]:
    """Expected against actual cost, the share of decisions within Monte-Carlo error, and reliability."""
    models = run.comparison.models
    rows, curves = {}, {}
    for model in models:
        scored = select(run.scored, model, "optimal")
        means = [float(np.mean([item.scores[key] for item in scored])) for key in ("claimed_utility", "utility")]
        within = within_error(run, model)
        costs = numbers(*(PER * run.utility.cost_of(mean) for mean in means))
        rows[model] = (*costs, "not known" if within is None else share(within))
        probs = torch.cat([item.predictions.probs for item in scored])
        # With the error of the table above: the mean over seeds, which a curve of all seeds together does not have.
        label = f"{model} (calibration error {run.comparison.row(model, 'optimal').ece:.3f})"
        curves[label] = metrics.reliability(probs, run.labels.repeat(len(scored)))
    return {
        "rows": rows,
        "errors_within": ERRORS_WITHIN,
        "chart": reliability_chart(curves, models.index(run.comparison.chosen)),
    }


def within_error(run: Run, model: str) -> float | None:
    """The share of a model's decisions whose margin is within Monte-Carlo error; None if it has no draws."""
    shares = []
    for item in select(run.scored, model, "optimal"):
        error = item.predictions.margin_error
        if error is None:
            return None
        shares.append(float((item.margin < ERRORS_WITHIN * error).double().mean()))
    return float(np.mean(shares))


def provenance(run: Run) -> dict[str, Any]:
    """How a run was made: data, splits, seeds, versions, and the command that makes it again."""
    settings, rows = run.settings, run.rows
    copies = f"; {run.repeated:,} repeat another row, and stayed on its side of the split" if run.repeated else ""
    seed, seeds = settings["seed"], settings["seeds"]
    recipe, training = settings["recipe"], settings["recipe"]["training"]
    facts = {
        "Data": f"{_file(settings, 'data')}, target {settings['target']}{copies}",
        "Costs": _file(settings, "costs"),
        "Splits": divided(rows) + (f": {_file(settings, 'test')}" if rows["tested"] == "file" else ""),
        "Columns": f"{run.features} features"
        + (f", without {', '.join(settings['drop'])}" if settings["drop"] else ""),
        "Models": f"{', '.join(run.comparison.models)}; networks are {_network(recipe)}",
        "Training": f"at most {training['epochs']} epochs, learning rate {training['learning_rate']:g}, "
        "the same for every model",
        "Seeds": f"{seed} to {seed + seeds - 1}" if seeds > 1 else str(seed),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return {"facts": facts, "command": command(settings), "settings": settings_text(settings)}


def _network(recipe: Mapping[str, Any]) -> str:
    if recipe["network"] == "tabm":
        return "TabMs, whose members are their draws"
    layers = ", ".join(map(str, recipe["hidden"])) or "none"
    return f"MLPs, {recipe['posterior']['family']} posterior, hidden layers {layers}, {recipe['samples']} draws each"


def settings_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False)


def _file(settings: Mapping[str, Any], key: str) -> str:
    return f"{PurePath(settings[key]).name} (SHA-256 {settings[f'{key}_sha256'][:_DIGEST]}…)"
