"""The cost of what `stakes fit` chooses against the best alternative in hindsight, on ten splits of small tables.

    python -m benchmarks.tables [--save] [--splits 10] [names of tables]

The alternatives are scikit-learn's, trained on the same rows with the same encoding, all of them deciding by the lowest
expected cost: logistic regression, gradient boosting as it comes and calibrated by folds, and a random forest. The best
in hindsight is the one whose mean test cost over all splits is lowest, which nobody can know beforehand. Each split is
written to .cache/tables.jsonl as it is finished; a run that was interrupted goes on from there.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.trained import table_task
from stakes._io.parallel import one_thread
from stakes.decisions import decide
from stakes.evaluation.comparison import select
from stakes.report.words import markdown_table
from stakes.tables.fit import fit_table
from stakes.tables.prepare import prepare
from stakes.tables.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
ROWS, RESULTS = ROOT / ".cache" / "tables.jsonl", Path(__file__).parent / "TABLES.md"
# The share of rows to test on. Of the larger table 2,000 rows are learnt from, as of many a table, and the rest tested.
SHARES = {"maternal_risk": 0.2, "fetal_health": 0.2, "telco_churn": 0.716}
PROMISED = 0.97


def alternatives(seed: int) -> dict[str, Any]:
    boosting = HistGradientBoostingClassifier(random_state=seed)
    return {
        "logistic regression": LogisticRegression(max_iter=5_000),
        "gradient boosting": boosting,
        "gradient boosting, calibrated": CalibratedClassifierCV(boosting, method="sigmoid", cv=5),
        "random forest": RandomForestClassifier(500, random_state=seed),
    }


def measure(name: str, seed: int) -> dict[str, Any]:
    """The mean test cost of every model of ours and of every alternative, on one split."""
    task = table_task(name, test=SHARES[name], seed=seed)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        run = fit_table(task, RunFolder(Path(folder) / "run"))
    ours = {model: select(run.scored, model, "optimal")[0].scores["cost"] for model in run.comparison.models}
    prepared = prepare(task)
    (division,) = prepared.divisions
    examples, utility = division.problem.examples, prepared.test_utility
    theirs = {}
    for label, model in alternatives(seed).items():
        model.fit(examples.x.numpy(), examples.labels.numpy())
        probs = torch.from_numpy(model.predict_proba(division.test_x.numpy()))
        worth = utility.realised(decide(probs, utility).choice, prepared.test_labels)
        theirs[label] = utility.cost_of(float(worth.mean()))
    details = {item.model: dict(item.predictions.details) for item in run.scored if item.rule == "optimal"}
    return {
        "table": name, "seed": seed, "rows": prepared.rows["train"], "chosen": run.comparison.chosen, "ours": ours,
        "theirs": theirs, "details": details,
    }  # fmt: skip


def measured(names: Sequence[str], splits: int) -> Iterator[dict[str, Any]]:
    """All rows, those that are not there yet measured now."""
    ROWS.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    for name in names:
        for seed in range(splits):
            row = next((row for row in known if (row["table"], row["seed"]) == (name, seed)), None)
            if row is None:
                row = measure(name, seed)
                with ROWS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            print(f"{name}, split {seed}: {row['chosen']} {row['ours'][row['chosen']]:.4g}, {_brief(row)}", flush=True)
            yield row


def _brief(row: dict[str, Any]) -> str:
    return ", ".join(f"{label} {cost:.4g}" for label, cost in row["theirs"].items())


def summary(rows: Sequence[dict[str, Any]]) -> tuple[list[str], float]:
    """The line of a table, and the ratio of the chosen model to the best alternative in hindsight."""
    chosen = np.array([row["ours"][row["chosen"]] for row in rows])
    theirs = {label: np.array([row["theirs"][label] for row in rows]) for label in rows[0]["theirs"]}
    best = min(theirs, key=lambda label: theirs[label].mean())
    saved = theirs[best] - chosen
    # Splits share rows, so that their spread understates what another table of this kind would show.
    error = 2.26 * saved.std(ddof=1) / math.sqrt(len(saved)) if len(saved) > 1 else math.nan
    ratio = float(chosen.mean() / theirs[best].mean())
    own = ", ".join(f"{name} {np.mean([row['ours'][name] for row in rows]):.4g}" for name in rows[0]["ours"])
    others = ", ".join(f"{label} {costs.mean():.4g}" for label, costs in theirs.items())
    return [
        rows[0]["table"], f"{rows[0]['rows']:,}", f"{chosen.mean():.4g}", f"{best}: {theirs[best].mean():.4g}",
        f"{ratio:.3f}", f"{saved.mean():+.3g} ± {error:.2g}", own, others,
    ], ratio  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(SHARES)}; all by default")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--save", action="store_true", help="write benchmarks/TABLES.md")
    options = parser.parse_args()
    rows = list(measured(options.tables or [*SHARES], options.splits))
    lines, ratios = [], []
    for name in dict.fromkeys(row["table"] for row in rows):
        line, ratio = summary([row for row in rows if row["table"] == name])
        lines.append(line)
        ratios.append(ratio)
    mean = math.exp(np.mean(np.log(ratios)))
    headings = (
        "table", "rows learnt from", "chosen, mean cost", "best alternative in hindsight", "ratio",
        "saved a decision (95 % over splits)", "ours, by model", "theirs",
    )  # fmt: skip
    text = markdown_table(headings, lines)
    verdict = f"Geometric mean of the ratios: **{mean:.3f}** (promised at most {PROMISED}; below 1 we are cheaper)."
    print(f"\n{text}\n\n{verdict}")
    if options.save:
        title = f"# Cost against the best alternative in hindsight, {options.splits} splits\n"
        RESULTS.write_text(f"{title}\n{(__doc__ or '').strip()}\n\n{text}\n\n{verdict}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
