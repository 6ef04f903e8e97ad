"""``report.md``: a run in words, a table and figures."""

import json
from collections.abc import Sequence

import torch

from stakes._io.files import write_text
from stakes.cli.console import interval, verdict
from stakes.decisions import decide
from stakes.evaluation import metrics
from stakes.evaluation.comparison import Comparison, Row
from stakes.paper import figures
from stakes.report.tables import markdown_table
from stakes.tables.folder import RunFolder
from stakes.tables.run import TableResult
from stakes.utility import Utility


def write_markdown(folder: RunFolder, result: TableResult) -> None:
    """Write report.md and its figures."""
    utility, labels, comparison = result.cases.utility, result.cases.labels, result.comparison
    target, seeds = result.settings["target"], result.settings["seeds"]
    probs = {
        model: torch.cat([run.probs for run in result.runs_of(model)])
        for model in dict.fromkeys(run.model for run in result.runs)
    }
    repeated = {model: labels.repeat(len(values) // len(labels)) for model, values in probs.items()}
    curves = {model: metrics.reliability(values, repeated[model]) for model, values in probs.items()}
    chosen = decide(probs[comparison.chosen], utility)
    counts = metrics.confusion_counts(chosen.choice, repeated[comparison.chosen], utility)
    figures.comparison_figure(folder.figures / "comparison.png", comparison, utility)
    figures.confusion_figure(folder.figures / "confusion.png", counts, utility, _cases(comparison.chosen, seeds))
    figures.reliability_figure(folder.figures / "reliability.png", curves)
    claimed = metrics.claimed_utility(chosen)
    realised = metrics.realised_utility(counts, utility)
    text = [
        f"# {_safe(target)}: what decisions cost",
        _headline(comparison, utility),
        verdict(comparison),
        "## The alternatives",
        _table(comparison.rows, utility),
        "![Cost of the alternatives, and paired differences](figures/comparison.png)",
        f"Chosen: **{_safe(comparison.chosen)}** with optimal decisions, {comparison.why}.",
        "`argmax` acts on the most probable outcome; `optimal` takes the decision with the highest expected utility. "
        "Intervals are 95 % bootstrap intervals over the test rows" + (" and the seeds" if seeds > 1 else "") + "; "
        "differences are paired on the same rows. `boosting` is scikit-learn's gradient boosting, for reference.",
        f"## {_safe(comparison.chosen)}, decision by decision",
        "![Decisions against outcomes](figures/confusion.png)",
        f"It claimed a mean utility of {claimed:.4g} for its decisions, and realised {realised:.4g}.",
        "![Reliability](figures/reliability.png)",
        "## " + _safe(f"What each decision costs{_bracketed(utility)}"),
        _costs(utility),
        "## How it was made",
        _settings(result),
    ]
    write_text(folder.path / "report.md", "\n\n".join(text) + "\n")


def _cases(model: str, seeds: int) -> str:
    return f"{model}: cases" if seeds == 1 else f"{model}: cases, {seeds} seeds"


def _headline(comparison: Comparison, utility: Utility) -> str:
    best, plain = comparison.row(comparison.chosen, "optimal"), comparison.row(comparison.reference, "argmax")
    saved = 100 * (plain.cost - best.cost)
    unit = f" {_safe(utility.unit)}" if utility.unit else ""
    amount = f"{abs(saved):,.0f}" if abs(saved) >= 1000 else f"{abs(saved):.4g}"
    what = "less" if saved >= 0 else "more"
    return (
        f"**{_safe(comparison.chosen)}** with optimal decisions cost {amount}{unit} {what} per 100 test decisions than "
        f"{_safe(comparison.reference)} deciding by the highest probability. What is beyond chance:"
    )


def _table(rows: Sequence[Row], utility: Utility) -> str:
    heads = ["model", "decisions", "utility (95 %)", f"cost{_bracketed(utility)}", "accuracy", "NLL", "ECE"]
    body = []
    for row in rows:
        difference = "" if row.difference is None else interval(row.difference, sign=True)
        numbers = [f"{row.cost:.4g}", f"{row.accuracy:.3f}", f"{row.nll:.3f}", f"{row.ece:.3f}"]
        body.append([row.model, row.rule, interval(row.utility), *numbers, difference, str(row.seeds)])
    return _pipes([*heads, "difference (95 %)", "seeds"], body)


def _costs(utility: Utility) -> str:
    rows = zip(utility.decisions, utility.costs, strict=True)
    body = [[name, *(f"{cell:.6g}" for cell in cells)] for name, cells in rows]
    return _pipes(["decision / outcome", *utility.outcomes], body)


def _pipes(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return markdown_table([_safe(head) for head in heads], [[_safe(cell) for cell in cells] for cells in body])


def _bracketed(utility: Utility) -> str:
    return f" [{utility.unit}]" if utility.unit else ""


def _settings(result: TableResult) -> str:
    cases = result.cases
    rows = ", ".join(f"{count} {part}" for part, count in cases.rows.items())
    copies = f" {cases.repeated} rows repeat another, and were kept on its side of the split." if cases.repeated else ""
    settings = json.dumps(result.settings, indent=2, ensure_ascii=False)
    return f"Rows: {rows}.{copies} Features: {cases.features}.\n\n```json\n{settings}\n```"


def _safe(text: str) -> str:
    """Text from data as text in Markdown."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return " ".join("".join(f"\\{mark}" if mark in "\\|*_`[]~$#" else mark for mark in escaped).split())
