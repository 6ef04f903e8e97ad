"""Only as many draws as a decision needs: `decide` with `settle`, against all draws, on the tables of examples/."""

import torch

from benchmarks.timing import Claim, seconds
from benchmarks.trained import TABLES, tables_are_there, trained_on_table
from stakes import decide

DRAWS, CONFIDENCE, TIMED = 100, 0.99, "credit_default"
SEEDS = range(10)  # of draws: one in a thousand decisions could not be seen on the 205 test rows of maternal_risk


def measure() -> list[Claim]:
    if not tables_are_there():
        print("  (no tabular/ in STAKES_DATA: settled decisions are not measured)")
        return []
    return [claim for name in TABLES for claim in _claims(name)]


def _claims(name: str) -> list[Claim]:
    posterior, x, utility = trained_on_table(name)
    assert utility is not None
    same, taken = [], []
    for seed in SEEDS:
        draws = posterior.draw(DRAWS, seed)
        settled = decide(draws(x), utility, settle=CONFIDENCE)
        assert settled.taken is not None
        same.append((settled.choice == decide(draws(x), utility).choice).double())
        taken.append(settled.taken.double())
    what = f"`decide` with settle={CONFIDENCE}, {name}, {len(x):,} rows, {torch.cat(taken).mean():.0f} draws a row"
    share = 100 * float(torch.cat(same).mean())
    claims = [Claim(f"{what}: % of decisions that are the same", f"all {DRAWS} draws", share, ">= 99.9")]
    if name == TIMED:
        slow, fast = seconds(
            lambda: decide(draws(x), utility), lambda: decide(draws(x), utility, settle=CONFIDENCE), rounds=10
        )
        claims.append(Claim(f"{what}: times faster", f"all {DRAWS} draws", slow / fast, ">= 3"))
    return claims
