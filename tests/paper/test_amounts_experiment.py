"""The amounts experiment: its data, its arithmetic against independent ones, and all of it on small stand-ins."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch import nn

from stakes import Ensemble, Gaussian, StakesError
from stakes.mixtures import GaussianMixture
from stakes.paper.amounts import orders
from stakes.paper.amounts.accuracy import SCALES, Setting, best_scale, scores
from stakes.paper.amounts.costs import COSTS, DirectCost, predicted_spread, score_choices
from stakes.paper.amounts.data import (
    DAYS,
    Split,
    Standardised,
    read_days,
    read_split,
    standardised,
    waves,
    waves_spread,
    with_outliers,
)
from stakes.paper.amounts.experiment import Amounts
from stakes.paper.amounts.intervals import BLOCK, Orders, block_means, change, student_interval
from stakes.paper.amounts.networks import OneScale, Schedule, make_posterior, train
from stakes.paper.report import summary, write_report
from stakes.paper.sweep import Result, run
from stakes.training.examples import TensorExamples
from stakes.utility import Linex, Newsvendor


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the form of the real ones: two splits of 60 rows, and days whose demand follows the weekday."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    place = folder / "regression" / "yacht"
    place.mkdir(parents=True)
    x = generator.standard_normal((60, 3))
    np.savetxt(place / "data.txt", np.column_stack([x, x @ [1, 2, 0] + 0.1 * generator.standard_normal(60)]))
    np.savetxt(place / "index_features.txt", [0, 1, 2], fmt="%d")
    np.savetxt(place / "index_target.txt", [3], fmt="%d")
    for split in range(2):
        order = generator.permutation(60)
        np.savetxt(place / f"index_train_{split}.txt", order[:50], fmt="%d")
        np.savetxt(place / f"index_test_{split}.txt", order[50:], fmt="%d")
    (folder / "newsvendor").mkdir()
    made_days().to_csv(folder / "newsvendor" / "yaz.csv", index=False)
    return folder


def made_days() -> pd.DataFrame:
    generator = np.random.default_rng(1)
    date = pd.date_range("2013-10-04", periods=DAYS)
    days = pd.DataFrame({"date": date, "weekday": date.strftime("%a").str.upper()})
    days["month"], days["year"] = date.strftime("%b").str.upper(), date.year
    for name in ("is_holiday", "is_closed"):
        days[name] = 0
    days["weekend"] = (date.day_of_week >= 5).astype(int)
    for name in ("wind", "clouds", "rain", "sunshine", "temperature"):
        days[name] = generator.random(DAYS)
    for product in ("calamari", "fish", "lamb", "steak"):
        days[product] = generator.poisson(10 + 10 * days["weekend"])
    return days


def test_all_of_it_on_stand_ins(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("linear quantiles", "nearest past")
    monkeypatch.setattr(orders, "learners", lambda known=orders.learners: {name: known()[name] for name in chosen})
    methods = (
        orders.PAST,
        orders.WEEKDAY,
        *(f"{n}, {p}" for p in (orders.RAW, orders.LAGGED) for n in chosen),
        orders.BLEND,
    )
    for module in ("orders", "intervals", "report", "charts"):
        monkeypatch.setattr(f"stakes.paper.amounts.{module}.METHODS", methods)
    monkeypatch.setattr("stakes.paper.amounts.data.MADE_ROWS", (60, 40))
    settings = {"sets": ("yacht",), "products": ("steak",), "conditions": ("outliers",), "splits": 2}
    experiment = Amounts(
        str(stand_in), **settings, steps=30, start_steps=30, more_steps=10, test_samples=10, cost_samples=5
    )
    result = run(experiment, tmp_path)
    networks, trees = 2 * 2 * 4 * 3, 2 * 2 * 3  # sets, splits, costs, methods
    assert len(result.rows) == 2 * 3 + networks + trees + len(methods) * 3
    assert run(experiment, tmp_path).rows == result.rows, "known rows are not run again"
    files = write_report(result, tmp_path)
    assert [file.name for file in files] == ["accuracy.png", "costs.png", "orders.png", "tables.md", "report.html"]
    assert all(file.stat().st_size < 200_000 for file in files[:3])
    tables = files[3].read_text()
    plain = result.values(
        "cost", part="costs", data="yacht", condition="outliers", cost_name="pinball .9", method="plain"
    )
    assert f"| yacht | pinball .9 | {plain.mean():.4f} |" in tables
    steak = result.values("cost", part="orders", method=orders.WEEKDAY, share=0.75)[0]
    assert f"| past quantile by weekday | {2 * steak:.4f} |" in tables
    assert "cheaper beyond chance" in summary(result)
    assert "The amounts experiment" in files[4].read_text()


# Golden numbers ------------------------------------------------------------------------------------


def test_the_published_costs_of_the_past_are_reproduced_to_every_digit(data_folder: Path) -> None:
    days, cut = read_days(data_folder), orders.FIRST_TEST
    sold = days["steak"].to_numpy(dtype=float, copy=True)
    utility = Newsvendor(15, 5)
    past = np.full(DAYS - cut, orders.past_quantile(sold[:cut], 0.75))
    assert f"{-utility.realised(past, sold[cut:]).mean():.4f}" == "59.9479"
    weekday = orders.weekday_quantiles(days, "steak", cut, DAYS, 0.75)
    assert f"{-utility.realised(weekday, sold[cut:]).mean():.4f}" == "52.0573"
    assert 2 * orders.cost_of(past, sold[cut:], 0.75).mean() == pytest.approx(59.947916666, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "rows", "features"),
    [
        ("boston", 506, 13),
        ("concrete", 1030, 8),
        ("energy", 768, 8),
        ("power", 9568, 4),
        ("wine", 1599, 11),
        ("yacht", 308, 6),
    ],
)
def test_published_splits_are_read(data_folder: Path, name: str, rows: int, features: int) -> None:
    for number in (0, 4):
        split = read_split(data_folder, name, number)
        assert split.x.shape == (len(split.y), features)
        assert len(split.y) + len(split.test_y) == rows
        assert len(split.test_y) == pytest.approx(rows / 10, abs=1)


# Data ----------------------------------------------------------------------------------------------


def test_standardised_by_training_rows_alone() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(3, 2, (50, 2)), generator.normal(7, 5, 50)
    split = Split(np.column_stack([x, np.ones(50)]), y, np.ones((4, 3)), np.array([7.0, 8, 9, 1000]))
    problem = standardised(split)
    assert problem.train.labels.mean().item() == pytest.approx(0, abs=1e-6)
    assert problem.test.labels[-1].item() == pytest.approx((1000 - y.mean()) / y.std(), rel=1e-5)
    assert problem.train.x[:, 2].eq(0).all(), "a column that does not vary is 0, not NaN"
    inner = split.before(0.8)
    np.testing.assert_array_equal(inner.test_y, y[40:])


def test_a_tenth_of_the_labels_are_outliers() -> None:
    examples = TensorExamples(torch.zeros(2000, 1), torch.zeros(2000))
    moved = with_outliers(examples, 3).labels
    assert int(moved.ne(0).sum()) == 200
    assert float(moved[moved != 0].std()) == pytest.approx(5, rel=0.15)
    assert examples.labels.eq(0).all()


def test_the_made_set_is_what_it_says() -> None:
    split = waves(0)
    z = (split.y - np.sin(2 * split.x[:, 0])) / waves_spread(split.x[:, 0])
    assert stats.kstest(z, "norm").pvalue > 0.01


def test_features_of_a_day_never_know_its_demand_or_later_ones() -> None:
    days = made_days()
    before = orders.matrix(days, "steak", lags=True)[0]
    later = days.copy()
    later.loc[600:, "steak"] += 50
    after = orders.matrix(later, "steak", lags=True)[0]
    np.testing.assert_array_equal(before[:601], after[:601])
    assert after[601, len(orders.COLUMNS)] == before[601, len(orders.COLUMNS)] + 50, "the lag of a day"
    assert before[600, len(orders.COLUMNS) + 1] == days["steak"][593]
    known = orders.days_between(later, "steak", True, 573, 600)
    assert len(known.train) == 573 - max(orders.LAGS)
    assert torch.equal(known.train.labels, torch.tensor(days["steak"].to_numpy()[14:573], dtype=torch.float32))
    assert torch.equal(known.x, orders.days_between(days, "steak", True, 573, 600).x)


def test_data_that_is_missing_or_damaged(tmp_path: Path, stand_in: Path) -> None:
    with pytest.raises(StakesError, match="point --data or STAKES_DATA"):
        read_split(tmp_path, "yacht", 0)
    with pytest.raises(StakesError, match="point --data or STAKES_DATA"):
        read_days(tmp_path)
    place = tmp_path / "regression" / "yacht"
    place.mkdir(parents=True)
    for file in (stand_in / "regression" / "yacht").iterdir():
        (place / file.name).write_text(file.read_text())
    (place / "index_test_0.txt").write_text((place / "index_train_0.txt").read_text())
    with pytest.raises(StakesError, match="both of its sides"):
        read_split(tmp_path, "yacht", 0)
    (place / "index_test_0.txt").write_text("60\n")
    with pytest.raises(StakesError, match="not in it"):
        read_split(tmp_path, "yacht", 0)
    (place / "data.txt").write_text("1 two\n")
    with pytest.raises(StakesError, match="expected numbers"):
        read_split(tmp_path, "yacht", 0)
    (tmp_path / "newsvendor").mkdir()
    made_days()[:100].to_csv(tmp_path / "newsvendor" / "yaz.csv", index=False)
    with pytest.raises(StakesError, match="expected 765 days"):
        read_days(tmp_path)
    with pytest.raises(StakesError, match=r"sets of .*boston.*'moon'"):
        Amounts(sets=("moon",))


# Arithmetic ----------------------------------------------------------------------------------------


def problem_of(labels: np.ndarray, unit: float) -> Standardised:
    examples = TensorExamples(torch.zeros(len(labels), 1), torch.from_numpy(labels))
    return Standardised(examples, examples, unit)


def test_scores_and_the_best_scale_are_those_of_scipy() -> None:
    generator = np.random.default_rng(0)
    location, labels, unit = generator.normal(0, 0.3, (40, 7)), generator.normal(0, 0.5, 40), 3.0
    mixture, problem = GaussianMixture(torch.from_numpy(location), torch.tensor(0.4)), problem_of(labels, unit)
    density = stats.norm.pdf(unit * labels[:, None], unit * location, unit * 0.4).mean(1)
    found = scores(mixture, problem)
    assert found["log_likelihood"] == pytest.approx(np.log(density).mean(), abs=1e-5)
    assert found["rmse"] == pytest.approx(unit * np.sqrt(((location.mean(1) - labels) ** 2).mean()), abs=1e-5)
    densities = (stats.norm.logpdf(labels[:, None], location, s) for s in SCALES)
    by_hand = [(logsumexp(density, axis=1) - np.log(7)).mean() for density in densities]
    chosen = best_scale(mixture, problem, Setting(rate=0.1))
    assert chosen.scale == pytest.approx(unit * SCALES[int(np.argmax(by_hand))])
    assert chosen.log_likelihood == pytest.approx(max(by_hand))


@pytest.mark.parametrize("name", COSTS)
def test_direct_training_finds_the_decision_of_lowest_cost(name: str) -> None:
    """Of a network that puts out one number, whatever the input: the quantile, or LINEX's optimum, of the labels."""
    labels = torch.from_numpy(np.random.default_rng(0).normal(0, 1, 200)).float()
    posterior = Ensemble([nn.Linear(1, 1), nn.Linear(1, 1)], Gaussian.for_labels(labels, scale=1.0))
    examples = TensorExamples(torch.zeros(200, 1), labels)
    objective, optimizer = DirectCost(COSTS[name]), torch.optim.Adam(posterior.parameters(), lr=0.1)
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.985**step
        optimizer.zero_grad()
        objective(posterior, examples.x, labels).backward()
        optimizer.step()
    with torch.no_grad():
        found = posterior.likelihood.outcomes(posterior.outputs(examples.x[:1])).location.mean().item()
    utility, grid = COSTS[name], np.linspace(-3, 3, 3001)
    cost = [-utility.realised(torch.full((200,), float(h)), labels).mean() for h in grid]
    ours = -utility.realised(torch.full((200,), found), labels).mean()
    assert ours == pytest.approx(min(cost), rel=2e-3)
    closed = np.log(np.exp(labels.double().numpy()).mean()) if isinstance(utility, Linex) else None
    assert closed is None or found == pytest.approx(closed, abs=0.02)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize(("variance", "limit"), [(2.8, 0.3), (0.2, 1.5)])
def test_the_predicted_spread_is_where_the_objective_is_flat(name: str, variance: float, limit: float) -> None:
    """With the decision held at the best for N(0, s^2), no other s near it has a lower expected objective."""
    spread, utility = predicted_spread(variance, limit, name), COSTS[name]

    def normal(scale: float) -> GaussianMixture:
        return GaussianMixture(torch.zeros(1, 1), torch.full((1, 1), scale).double())

    choice = utility.best_choice(normal(spread))
    scales = spread * np.linspace(0.98, 1.02, 41)
    costs = [utility.expected_cost(normal(scale), choice).item() for scale in scales]
    objective = np.log(scales) + variance / (2 * scales**2) + np.array(costs) / limit
    assert scales[objective.argmin()] == pytest.approx(spread, rel=1e-3)
    assert spread < variance**0.5


def test_costs_and_coverage_of_choices() -> None:
    found = score_choices(Newsvendor(0.9, 0.1), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0]))
    assert found == {"cost": pytest.approx((0.1 + 1.8) / 2), "covered": 0.5}


def test_a_network_with_one_scale_says_the_same_one_of_every_input() -> None:
    posterior = make_posterior("dropout", 2, 0, rate=0.1, scale="one")
    assert isinstance(posterior.network, OneScale)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator)
    y = x[:, 0] + (0.1 + x[:, 1].abs()) * torch.randn(300, generator=generator)
    train([posterior], DirectCost(COSTS["pinball .5"]), [TensorExamples(x, y)], Schedule(64, 0.01, steps=20), [0])
    mixture = posterior.draw(5, 0)(x).mixture()
    assert mixture.scale.std() < 1e-9
    assert mixture.location.std() > 0.1


def test_a_schedule_by_steps_and_one_by_epochs() -> None:
    by_steps, by_epochs = Schedule(128, 0.01, steps=2000).training(455), Schedule(128, 1e-3, epochs=4000).training(455)
    assert (by_steps.epochs, by_steps.schedule) == (500, "cosine")
    assert (by_epochs.epochs, by_epochs.schedule) == (4000, "constant")


# Intervals -----------------------------------------------------------------------------------------


def test_intervals_over_splits_are_students() -> None:
    values = np.array([1.0, 2, 4, 3, 7])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = student_interval(values)
    assert found == pytest.approx((3.4, expected.low, expected.high))
    assert student_interval(values[:1]).high == np.inf


def test_changes_are_paired_by_split() -> None:
    keys = {"part": "costs", "data": "yacht", "condition": "as it is", "cost_name": "LINEX"}
    costs = {"plain": (1.0, 10.0, 100.0), "calibrated": (1.1, 10.9, 111.0)}
    rows = tuple(
        {**keys, "method": m, "seed": s, "cost": c} for m, all_of in costs.items() for s, c in enumerate(all_of)
    )
    found = change(Result({}, rows), "yacht", "as it is", "LINEX", "calibrated")
    assert found.mean == pytest.approx(10)
    assert found.high - found.low < 6, "in per cent of each split, or the largest would drown the others"


def test_block_means_resample_runs_of_days_the_same_for_all_methods() -> None:
    day = np.arange(70.0)
    resampled = block_means(np.stack([day, day + 1]))
    np.testing.assert_allclose(resampled[:, 1] - resampled[:, 0], 1)
    assert resampled[:, 0].mean() == pytest.approx(34.5, abs=0.5)
    # The mean of a block varies as a block does: far more than the mean of as many days apart.
    blocks = np.array([[(start + k) % 70 for k in range(BLOCK)] for start in range(70)]).mean(1)
    assert resampled[:, 0].std() == pytest.approx(blocks.std() / np.sqrt(70 / BLOCK), rel=0.1)


def made_orders(earlier: dict[str, float]) -> Result:
    generator = np.random.default_rng(0)
    level = {orders.PAST: 20.0, orders.BLEND: 5.0}
    rows = tuple(
        {
            "part": "orders", "data": "steak", "method": method, "share": 0.5, "seed": 0,
            "earlier_cost": earlier.get(method, 50.0),
            "days": (level.get(method, 10.0) + generator.random(192)).tolist(),
        }
        for method in orders.METHODS
    )  # fmt: skip
    return Result({"products": ["steak"]}, rows)


def test_a_model_is_chosen_on_earlier_days_only() -> None:
    found = Orders(made_orders({orders.WEEKDAY: 1.0}), 0.5)
    assert found.choice == {"steak": orders.WEEKDAY}, "not the blend, which is cheapest on the test days"
    assert found.best_in_hindsight() == orders.BLEND
    assert found.difference(orders.CHOSEN, orders.BLEND).low > 4
    costs = found.costs
    prescriptiveness = found.prescriptiveness(orders.BLEND)
    assert prescriptiveness.mean == pytest.approx(1 - costs[orders.BLEND].mean() / costs[orders.PAST].mean())
    assert prescriptiveness.low < prescriptiveness.mean < prescriptiveness.high
    assert found.prescriptiveness(orders.PAST) == (0, 0, 0)
    short = made_orders({})
    with pytest.raises(StakesError, match="run the sweep to its end"):
        Orders(Result(short.config, short.rows[:-1]), 0.5)
