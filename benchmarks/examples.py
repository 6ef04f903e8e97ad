"""Run the commands of examples/README.md, and write what came of them into examples/RESULTS.md.

    python -m benchmarks.examples [--save] [--workers 2] [names of tables]

Runs are kept in .cache/examples; one that was interrupted goes on, and one that is finished is only read.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.trained import EXAMPLES, table_task
from stakes.report.headline import headline
from stakes.report.words import markdown_table
from stakes.tables.fit import fit_table
from stakes.tables.run import Run
from stakes.tables.run_folder import RunFolder

RUNS = EXAMPLES.parent / ".cache" / "examples"
TITLES = {
    "fetal_health": "Fetal health: cardiotocograms",
    "maternal_risk": "Maternal risk, from six measurements",
    "credit_default": "Credit default: three decisions for two outcomes",
    "telco_churn": "Customers who may leave",
    "machine_failure": "Machines that may fail",
}
RULES = {"optimal": "lowest expected cost", "argmax": "highest probability"}


def run_of(name: str, workers: int) -> tuple[Run, float]:
    """The finished run of a table, and the seconds that it took now."""
    folder, started = RUNS / name, time.perf_counter()
    if not (folder / "summary.json").exists():
        fit_table(table_task(name), RunFolder(folder), resume=folder.exists(), workers=workers)
    return Run.load(folder), time.perf_counter() - started


def section(title: str, run: Run) -> str:
    """What the report says first, and every model under both rules."""
    rows, unit = run.rows, run.utility.unit
    tested = "every row once" if rows["tested"] == "cv" else f"{rows['test']:,} rows"
    lines = [[row.model, RULES[row.rule], *_costs(row)] for row in run.comparison.rows]
    headings = (
        "model", "decides by", f"cost a decision, {unit} (95 %)", "saved against one decision for everybody (95 %)",
        "saved against the best other model (95 %)", "NLL", "ECE",
    )  # fmt: skip
    intro = f"{rows['train']:,} rows to learn from in {rows['folds']} folds; tested on {tested}."
    choice = f"Chosen: **{run.comparison.chosen}**; {run.comparison.choice.why}."
    return f"## {title}\n\n{intro} {headline(run).text}\n\n{choice}\n\n{markdown_table(headings, lines)}\n"


def _costs(row: Any) -> list[str]:
    cost = f"{-row.utility.mean:.4g} ({-row.utility.high:.4g} to {-row.utility.low:.4g})"
    saved = [
        "" if each is None else f"{each.mean:+.3g} ({each.low:.3g} to {each.high:.3g}){against}"
        for each, against in ((row.difference, ""), (row.lead, f", {row.rival}"))
    ]
    return [cost, *saved, f"{row.nll:.3f}", f"{row.ece:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TITLES)}; all by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write examples/RESULTS.md")
    options = parser.parse_args()
    sections = []
    for name in options.tables or TITLES:
        run, seconds = run_of(name, options.workers)
        sections.append(section(TITLES[name], run))
        print(f"{name}: {headline(run).text} ({seconds:.0f} s)", flush=True)
    if options.save:
        path = Path(EXAMPLES) / "RESULTS.md"
        before = path.read_text(encoding="utf-8").partition("## ")[0]  # what people wrote about them
        path.write_text(before + "\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
