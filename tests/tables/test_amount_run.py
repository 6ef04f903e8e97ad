"""A run about amounts: what it holds is saved and loaded again, and says what the decisions came to."""

from pathlib import Path

import numpy as np
import pytest
import torch
from finished_amounts import amount_run, demand

from stakes.errors import StakesError
from stakes.evaluation import metrics
from stakes.tables.amounts.run import AmountRun
from stakes.tables.run import Run
from stakes.utility import Newsvendor, Utility


def costs(order: np.ndarray, sold: np.ndarray) -> np.ndarray:
    return 15 * np.maximum(sold - order, 0) + 5 * np.maximum(order - sold, 0)


def test_a_run_is_the_same_after_saving_and_loading(tmp_path: Path) -> None:
    run = amount_run(tmp_path, seeds=2, ids=tuple(f"day {day}" for day in range(140)))
    again = AmountRun.load(tmp_path)
    assert again.settings == run.settings
    assert again.ids == run.ids
    assert again.time_texts == run.time_texts
    assert torch.equal(again.labels, run.labels)
    assert torch.equal(again.times, run.times)
    assert again.utility == run.utility
    assert again.comparison == run.comparison
    for ours, theirs in zip(again.scored, run.scored, strict=True):
        assert ours.to_dict() == theirs.to_dict()
        assert torch.equal(ours.choice, theirs.choice)
        assert np.array_equal(ours.costs, theirs.costs)
        assert torch.equal(ours.predictions.quantiles, theirs.predictions.quantiles)
    assert str(again.dates[0]) == "2015-05-01T00:00:00"


def test_decisions_are_whole_steps_and_cost_what_they_cost(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    for item in run.scored:
        order = item.choice.numpy()
        assert (order == order.round()).all()
        assert (order >= 0).all()
        assert item.costs == pytest.approx(costs(order, run.labels.numpy()))
        assert item.scores["cost"] == pytest.approx(item.costs.mean())
        assert item.scores["share"] == 0.75
        assert item.scores["covered"] == pytest.approx((run.labels.numpy() <= order).mean())
    means, _ = demand(140)
    blend = next(item for item in run.scored if item.model == "blend")
    assert (blend.choice - (means + 0.6745 * 6)).abs().max() <= 1  # the 75 % quantile of what was drawn from


def test_the_comparison_is_paired_and_in_blocks_of_time(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    row, constant = run.comparison.row("blend"), run.comparison.row("constant")
    by_model = {item.model: item.costs for item in run.scored}
    assert row.saving.mean == pytest.approx((by_model["constant"] - by_model["blend"]).mean())
    assert constant.saving is None
    assert row.rival == "boosting"
    assert row.above_claim.low < 0 < row.above_claim.high  # it says what is so
    assert 0.7 < row.within_80 < 0.9 < 0.95 > row.within_90 - 0.05
    assert run.comparison.block == 11  # 2 * 140^(1/3)
    assert amount_run(tmp_path / "other", timed=False).comparison.block is None


def test_costs_of_each_row_are_saved_as_tensors(tmp_path: Path) -> None:
    utility = Newsvendor(under=torch.linspace(5, 20, 140).numpy(), over=5.0, unit="€")
    amount_run(tmp_path, utility=utility)
    again = AmountRun.load(tmp_path)
    assert again.utility == utility
    assert "under" not in (tmp_path / "summary.json").read_text()


def test_a_menu_of_actions(tmp_path: Path) -> None:
    curves = {"small": [(0, 0), (30, 0), (60, 300)], "large": 80}
    run = amount_run(tmp_path, utility=Utility.from_curves(curves, unit="€"))
    again = AmountRun.load(tmp_path)
    assert set(again.scored[-1].choice.tolist()) == {0, 1}
    assert run.comparison.row("blend").covered is None
    sold, choice = run.labels.numpy(), run.scored[-1].choice.numpy()
    small = np.interp(sold, [0, 30, 60], [0, 0, 300])
    assert run.scored[-1].costs == pytest.approx(np.where(choice == 0, small, 80))


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    amount_run(tmp_path)
    with pytest.raises(StakesError, match="expected a run about classes, but it is about amounts"):
        Run.load(tmp_path)


def test_blocks_of_time_widen_the_interval_of_rows_that_are_alike() -> None:
    generator = np.random.default_rng(0)
    runs = np.repeat(generator.normal(size=30), 10)  # ten days alike, again and again
    days = np.arange(300.0)
    alone, blocks = metrics.bootstrap(runs, seed=0), metrics.bootstrap(runs, seed=0, times=days)
    assert blocks.high - blocks.low > 2 * (alone.high - alone.low)
    # The standard error of 30 independent numbers is a sixth; the interval of independent days is about as before.
    assert blocks.high - blocks.low == pytest.approx(2 * 1.96 * runs.std() / 30**0.5, rel=0.25)
    noise = generator.normal(size=300)
    alone, blocks = metrics.bootstrap(noise, seed=0), metrics.bootstrap(noise, seed=0, times=days)
    assert blocks.high - blocks.low == pytest.approx(alone.high - alone.low, rel=0.2)
    assert blocks.mean == pytest.approx(noise.mean())


def test_rows_of_one_time_are_resampled_together() -> None:
    generator = np.random.default_rng(0)
    days = np.repeat(np.arange(600.0), 5)
    values = np.repeat(generator.normal(size=600), 5)  # five shops that sell alike
    interval = metrics.bootstrap(values, seed=0, times=days)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / 600**0.5, rel=0.2)
    with pytest.raises(StakesError, match="a time for each of 3000 examples"):
        metrics.bootstrap(values, seed=0, times=days[:7])
