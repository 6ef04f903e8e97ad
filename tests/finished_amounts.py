"""Finished runs about amounts, made without training: for tests of what is saved and shown."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stakes.evaluation.amounts import AmountPredictions, compare, score
from stakes.evaluation.comparison import Choice
from stakes.mixtures import LEVELS, GaussianMixture, Quantiles
from stakes.tables.amounts.run import AmountRun
from stakes.tables.date_format import ISO
from stakes.tables.task import TableTask
from stakes.utility import Newsvendor, NumberUtility, Utility

DAY = 86_400.0
UTILITY = Newsvendor(under=15.0, over=5.0, unit="€", at_least=0.0, step=1.0)


def demand(days: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Means that change with the weekday, and what is drawn around them."""
    generator = torch.Generator().manual_seed(seed)
    means = 30 + 8 * torch.sin(torch.arange(days) * 2 * torch.pi / 7).double()
    return means, (means + 6 * torch.randn(days, generator=generator, dtype=torch.double)).round()


def normal_quantiles(means: Tensor, scale: float) -> Tensor:
    return Quantiles.of(GaussianMixture(means.unsqueeze(-1), torch.full_like(means, scale).unsqueeze(-1))).at_levels


def _task(path: Path, seeds: int, timed: bool) -> TableTask:
    data = path / "demand.csv"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("a\n")
    return TableTask(data, "steak", under="15", over="5", unit="€", time="date" if timed else None, seeds=seeds)


def amount_run(
    path: Path,
    *,
    days: int = 140,
    seeds: int = 1,
    utility: NumberUtility = UTILITY,
    timed: bool = True,
    settings: dict[str, Any] | None = None,
    **fields: Any,
) -> AmountRun:
    """The blend says exactly what amounts are drawn from, boosting half of it, and the constant nothing of the day."""
    means, outcomes = demand(days)
    said = {
        "constant": torch.quantile(outcomes, LEVELS).expand(days, -1),
        "boosting": normal_quantiles((means + 30) / 2, 8.0),
        "blend": normal_quantiles(means, 6.0),
    }
    scored = [
        score(AmountPredictions(model, seed, quantiles.float(), 40.0 + seed, {}), outcomes, utility)
        for seed in range(seeds)
        for model, quantiles in said.items()
    ]
    start = np.datetime64("2015-05-01")
    dates = (start + np.arange(days)).astype("datetime64[s]")
    times = torch.from_numpy(dates.astype(np.float64)) if timed else None
    choice = Choice("blend", "it is the test's")
    run = AmountRun(
        _task(path, seeds, timed).settings() | (settings or {}),
        outcomes,
        torch.arange(days) + 574,
        utility,
        {
            "train": 573,
            "test": days,
            "folds": 5,
            "tested": "latest" if timed else "share",
            "time_pattern": ISO if timed else None,
        },
        0,
        9,
        {"Python": "3.11", "stakes": "0.1.0"},
        tuple(scored),
        compare(scored, choice, seed=0, times=None if times is None else times.numpy()),
        times=times,
        time_texts=tuple(str(date)[:10] for date in dates) if timed else None,
        **fields,
    )
    run.save(path)
    return run


def menu_run(path: Path, **options: Any) -> AmountRun:
    """Two actions instead of numbers: a small stock, which may run out, or a large one."""
    curves = {"small": [(0, 0), (30, 0), (60, 300)], "large": 80}
    return amount_run(path, utility=Utility.from_curves(curves, unit="€"), **options)
