"""Predictors of numbers: against scikit-learn's own and against brute force; saved, loaded, and refused if damaged."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import QuantileRegressor
from sklearn.neighbors import NearestNeighbors

from stakes import Newsvendor, Posterior, StakesError, decide
from stakes.evaluation.metrics import crps, pinball
from stakes.features import Features
from stakes.likelihoods import Gaussian
from stakes.mixtures import LEVELS, Quantiles
from stakes.networks import MLP
from stakes.outcomes import Predictor
from stakes.predictors import (
    ForestPast,
    LinearQuantiles,
    MeanTrees,
    NearestPast,
    PastQuantiles,
    QuantileBlend,
    QuantileTrees,
    SampledPosterior,
    load,
    number_trees,
    past,
    quantile_regression,
    quantile_weights,
    spec_of,
)
from stakes.predictors._amounts import TRAINED_LEVELS, interpolated, levels_with, standard_of, standardised
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

KINDS = (PastQuantiles, LinearQuantiles, NearestPast, ForestPast, QuantileTrees, MeanTrees)
ROWS = (LinearQuantiles, NearestPast, ForestPast, QuantileTrees, MeanTrees)


def examples(rows: int, seed: int = 0, *, unit: float = 1.0, weights: torch.Tensor | None = None) -> TensorExamples:
    """y = 100 + 20 x0 + 5 (1 + |x1|) noise, in a unit."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    y = 100 + 20 * x[:, 0] + 5 * (1 + np.abs(x[:, 1])) * generator.normal(size=rows)
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(unit * y), weights)


def said(predictor: Predictor, rows: TensorExamples) -> torch.Tensor:
    return Quantiles.of(predictor(rows.x).mixture()).at_levels


def mean_crps(predictor: Predictor, rows: TensorExamples) -> float:
    return float(crps(said(predictor, rows), rows.labels).mean())


@pytest.fixture(scope="module")
def fitted() -> dict[type, Any]:
    train, held_out = examples(400), examples(150, 1)
    return {kind: kind.fit(train, held_out, 3) for kind in KINDS}


# Of all kinds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_says_quantiles_of_rows_alone_as_together_and_after_loading(kind: type, fitted: dict[type, Any]) -> None:
    predictor, test = fitted[kind], examples(30, 2)
    together = said(predictor, test)
    assert together.shape == (30, 99)
    assert bool((together.diff(dim=-1) >= 0).all())
    alone = torch.cat([said(predictor, test.subset(row)) for row in torch.arange(30).split(1)])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-9)
    again = load(spec_of(predictor), predictor.state_dict())
    assert type(again) is kind
    assert torch.equal(said(again, test), together)
    assert predictor(test.x).samples == 1
    assert predictor.classes is None


@pytest.mark.parametrize("kind", ROWS)
def test_beats_the_past(kind: type, fitted: dict[type, Any]) -> None:
    test = examples(1000, 2)
    assert mean_crps(fitted[kind], test) < 0.8 * mean_crps(fitted[PastQuantiles], test)


@pytest.mark.parametrize("kind", KINDS)
def test_covers_what_it_says(kind: type, fitted: dict[type, Any]) -> None:
    test = examples(2000, 3)
    values = said(fitted[kind], test)
    inside = (test.labels >= values[:, 9]) & (test.labels <= values[:, 89])
    assert float(inside.double().mean()) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_unit_of_labels_does_not_matter(kind: type) -> None:
    test = examples(20, 2)
    small, large = (kind.fit(examples(150, unit=unit), examples(60, 1, unit=unit), 0) for unit in (1.0, 2.0**30))
    torch.testing.assert_close(said(large, test) / 2**30, said(small, test), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_does_without_rows_held_out_and_the_same_seed_says_the_same(kind: type) -> None:
    train, test = examples(120), examples(20, 2)
    first, second = (kind.fit(train, None, 5) for _ in range(2))
    assert torch.equal(said(first, test), said(second, test))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_weight_do_not_count(kind: type) -> None:
    train, test = examples(300), examples(200, 2)
    wrong = torch.cat([train.labels, train.labels + 1000])
    weights = torch.cat([torch.ones(300), torch.zeros(300)])
    both = TensorExamples(torch.cat([train.x, train.x]), wrong, weights)
    predictor = kind.fit(both, None, 0)
    assert abs(float(said(predictor, test)[:, 49].mean()) - 100) < 15


@pytest.mark.parametrize("kind", KINDS)
def test_rows_count_by_their_weight_and_do_so_after_loading(kind: type) -> None:
    """Half of the outcomes are about 0, half about 10; those about 0 count nine times: then 70 % are about 0."""
    generator = np.random.default_rng(0)
    low = generator.random(800) < 0.5
    labels = torch.from_numpy(np.where(low, 0.0, 10.0) + generator.normal(size=800))
    rows = torch.from_numpy(generator.normal(size=(800, 2)).astype(np.float32))
    weighed = TensorExamples(rows, labels, torch.from_numpy(np.where(low, 9.0, 1.0)))
    train, held_out = weighed.subset(torch.arange(600)), weighed.subset(torch.arange(600, 800))
    plain = kind.fit(TensorExamples(train.x, train.labels), TensorExamples(held_out.x, held_out.labels), 0)
    assert said(plain, held_out)[:, 69].mean() > 7
    predictor = kind.fit(train, held_out, 0)
    assert said(predictor, held_out)[:, 69].mean() < 2.5
    again = kind.load(predictor.spec(), predictor.state_dict())
    assert torch.equal(said(again, held_out), said(predictor, held_out))


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_no_numbers_are_refused(kind: type) -> None:
    x = torch.zeros(3, 2)
    for labels in (torch.tensor([0, 1, 2]), torch.tensor([0.0, 1.0, float("nan")]), torch.zeros(3, 2)):
        with pytest.raises(StakesError, match="labels that are finite numbers"):
            kind.fit(TensorExamples(x, labels), None, 0)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_another_width_are_refused(kind: type, fitted: dict[type, Any]) -> None:
    with pytest.raises(StakesError, match="rows of 4 features"):
        fitted[kind](torch.zeros(2, 5)).mixture()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_labels_are_learnt(kind: type) -> None:
    train = TensorExamples(examples(60).x, torch.full((60,), 7.0))
    values = said(kind.fit(train, TensorExamples(train.x[:20], train.labels[:20]), 0), train)
    torch.testing.assert_close(values, torch.full_like(values, 7.0), atol=0.05, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused(kind: type, fitted: dict[type, Any]) -> None:
    """Whatever tensor is missing, of another type, of another length, or not finite."""
    predictor = fitted[kind]
    spec, tensors = spec_of(predictor), predictor.state_dict()
    for name, tensor in tensors.items():
        changed: list[torch.Tensor | None] = [None, tensor.to(torch.int16), tensor[:-1], tensor.unsqueeze(0)]
        if tensor.is_floating_point():
            changed += [torch.full_like(tensor, float("nan")), torch.full_like(tensor, float("inf"))]
        else:
            changed += [torch.full_like(tensor, -5)] if tensor.dtype != torch.bool else []
        for other in changed:
            damaged = {key: value for key, value in tensors.items() if key != name}
            damaged |= {} if other is None else {name: other}
            with pytest.raises(StakesError, match="damaged"):
                load(spec, damaged)
    with pytest.raises(StakesError, match="damaged"):
        load(spec, {**tensors, "another": torch.zeros(1)})


def test_scikit_learn_is_not_needed_to_predict(fitted: dict[type, Any]) -> None:
    for module in (number_trees, past, quantile_regression):
        assert not [name for name in vars(module) if "sklearn" in getattr(vars(module)[name], "__module__", "")]


# Between levels ------------------------------------------------------------------------------------


def test_interpolation_is_exact_for_normal_distributions_and_beyond_the_outermost_level() -> None:
    levels = levels_with([0.7333])
    assert 0.7333 in levels.tolist()
    assert len(levels_with([0.75, 0.7501])) == len(TRAINED_LEVELS)
    values = stats.norm(3, 2).ppf(levels.numpy())[None]
    np.testing.assert_allclose(interpolated(values, levels)[0], stats.norm(3, 2).ppf(LEVELS.numpy()))
    with pytest.raises(StakesError, match="levels above 0"):
        levels_with([1.0])


# Trees ---------------------------------------------------------------------------------------------


def test_trees_predict_as_scikit_learns(fitted: dict[type, Any]) -> None:
    train, held_out, test = examples(200), examples(80, 1), examples(50, 2)
    standard = standard_of(train, "")
    ours = QuantileTrees.fit(train, held_out, 7)
    train, held_out = standardised(train, standard), standardised(held_out, standard)
    for number, level in enumerate(TRAINED_LEVELS):
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            **number_trees.SETTINGS,
            max_iter=number_trees.ITERATIONS,
            early_stopping=True,
            random_state=derive(derive(7, "level", number), "boosting") % 2**32,
        )
        model.fit(train.x.numpy(), train.labels.numpy(), X_val=held_out.x.numpy(), y_val=held_out.labels.numpy())
        losses = [
            float(pinball(staged[:, None], held_out.labels, [level]).mean())
            for staged in model.staged_predict(held_out.x.numpy())
        ]
        best, on_held_out = (list(model.staged_predict(each.x.numpy()))[np.argmin(losses)] for each in (test, held_out))
        moved = np.quantile(held_out.labels.numpy() - on_held_out, level) * 80 / (80 + number_trees.FEW_ROWS)
        np.testing.assert_allclose(ours.scores(test.x.double().numpy())[:, number], best + moved, atol=1e-9)


def test_categories_and_gaps_are_as_in_a_table() -> None:
    generator = np.random.default_rng(0)
    features = Features(1, missing=(0,), levels=(3,))

    def table(rows: int) -> TensorExamples:
        level, gap = generator.integers(3, size=rows), generator.random(rows) < 0.3
        number = np.where(gap, 0, generator.normal(size=rows))
        y = np.array([0.0, 50.0, 10.0])[level] + np.where(gap, 20, number) + generator.normal(size=rows)
        x = np.column_stack([number, gap, np.eye(3)[level]]).astype(np.float32)
        return TensorExamples(torch.from_numpy(x), torch.from_numpy(y))

    train, held_out, test = table(400), table(150), table(300)
    for kind in (QuantileTrees, MeanTrees, LinearQuantiles):
        predictor = kind.fit(train, held_out, 0, features)
        again = load(spec_of(predictor), predictor.state_dict())
        assert torch.equal(said(again, test), said(predictor, test))
        assert mean_crps(predictor, test) < 1.0
    with pytest.raises(StakesError, match="5 columns"):
        QuantileTrees.fit(train, held_out, 0, Features(4))


def test_a_level_of_the_users_own_is_trained_for() -> None:
    trees = QuantileTrees.fit(examples(100), examples(50, 1), 0, levels=[0.8])
    assert 0.8 in trees.arrays["levels"].tolist()
    assert len(trees.arrays["baseline"]) == len(TRAINED_LEVELS) + 1


def test_trees_never_say_what_never_was(fitted: dict[type, Any]) -> None:
    train, test = examples(400), examples(300, 2)
    for kind in (QuantileTrees, MeanTrees):
        values = said(fitted[kind], test)
        assert float(values.min()) >= float(train.labels.min())
        assert float(values.max()) <= float(train.labels.max())


# Linear regression ---------------------------------------------------------------------------------


def test_linear_regression_is_as_good_as_the_linear_program() -> None:
    train = examples(300)
    standard = standard_of(train, "")
    x, labels = train.x.double().numpy(), standardised(train, standard).labels.numpy()
    problem = quantile_regression._Pinball(x, labels, None, np.array(TRAINED_LEVELS), 0)
    ours = problem.solve(0.0)
    for number, level in enumerate(TRAINED_LEVELS):
        theirs = QuantileRegressor(quantile=level, alpha=0, solver="highs").fit(x, labels)
        losses = [
            float(pinball((x @ slopes + bias)[:, None], labels, [level]).mean())
            for slopes, bias in ((ours[number, :-1], ours[number, -1]), (theirs.coef_, theirs.intercept_))
        ]
        assert losses[1] <= losses[0] + 1e-12 <= losses[1] * 1.01 + 1e-12


def test_the_rounded_pinball_loss_has_the_gradient_that_it_says() -> None:
    train = examples(40)
    standard = standard_of(train, "")
    problem = quantile_regression._Pinball(
        train.x.double().numpy(), standardised(train, standard).labels.numpy(), None, np.array([0.1, 0.75]), 0
    )
    point = np.random.default_rng(0).normal(size=10)
    gradient = problem._loss(point, 0.3, 0.1)[1]
    for index in range(10):
        step = 1e-6 * np.eye(10)[index]
        slope = (problem._loss(point + step, 0.3, 0.1)[0] - problem._loss(point - step, 0.3, 0.1)[0]) / 2e-6
        assert gradient[index] == pytest.approx(slope, abs=1e-6)


def test_columns_of_any_scale_and_constant_ones_are_taken() -> None:
    train, held_out, test = examples(200), examples(80, 1), examples(50, 2)
    scale = torch.tensor([1e4, 1e-4, 1.0, 0.0])
    plain, scaled = (
        LinearQuantiles.fit(*(TensorExamples(each.x * factor, each.labels) for each in (train, held_out)), 0)
        for factor in (torch.tensor([1.0, 1.0, 1.0, 0.0]), scale)
    )
    ours = said(scaled, TensorExamples(test.x * scale, test.labels))
    torch.testing.assert_close(
        ours, said(plain, TensorExamples(test.x * torch.tensor([1.0, 1, 1, 0]), test.labels)), rtol=1e-3, atol=0.05
    )


def test_gaps_that_are_not_encoded_are_refused() -> None:
    train = examples(50)
    gaps = train.x.clone()
    gaps[3, 1] = float("nan")
    for kind in (LinearQuantiles, NearestPast):
        with pytest.raises(StakesError, match="encode gaps first"):
            kind.fit(TensorExamples(gaps, train.labels), None, 0)
        with pytest.raises(StakesError, match="encode gaps first"):
            kind.fit(train, None, 0)(gaps).mixture()


# The past ------------------------------------------------------------------------------------------


def test_the_past_is_numpys() -> None:
    labels = torch.tensor([3.0, 1.0, 2.0, 9.0])
    predictor = PastQuantiles.fit(TensorExamples(torch.zeros(4, 1), labels))
    assert predictor.values[74] == np.quantile(labels, 0.75)
    weighted = PastQuantiles.fit(TensorExamples(torch.zeros(4, 1), labels, torch.tensor([0.0, 3.0, 1.0, 0.0])))
    assert [float(weighted.values[k]) for k in (49, 73, 76)] == [1.0, 1.0, 2.0]
    for x in (torch.zeros(3, 7), {"ids": torch.zeros(3, 5)}):
        assert predictor(x).mixture().at_levels.shape == (3, 99)


def test_neighbours_are_scikit_learns(fitted: dict[type, Any]) -> None:
    train, test = examples(400), examples(25, 2)
    predictor = fitted[NearestPast]
    assert predictor.neighbours in past.NEIGHBOURS
    index = NearestNeighbors(n_neighbors=predictor.neighbours).fit(train.x).kneighbors(test.x, return_distance=False)
    theirs = np.quantile(train.labels.numpy()[index], LEVELS - 1e-9, axis=1, method="inverted_cdf").T
    np.testing.assert_allclose(said(predictor, test), theirs)


def test_weights_of_a_forest_are_those_of_shared_leaves(fitted: dict[type, Any]) -> None:
    from sklearn.ensemble import RandomForestRegressor

    train, test = examples(400), examples(10, 2)
    model = RandomForestRegressor(
        past.TREES,
        min_samples_leaf=past.SMALLEST_LEAF,
        max_leaf_nodes=past.MOST_LEAVES,
        max_features=1 / 3,
        max_samples=400,
        random_state=derive(3, "forest") % 2**32,
    ).fit(train.x, train.labels)
    ours = fitted[ForestPast].weights(test.x.double().numpy())
    torch.testing.assert_close(ours.sum(1), torch.ones(10).double())
    order = np.argsort(train.labels.numpy(), kind="stable")
    there, here = model.apply(train.x)[order], model.apply(test.x)
    for row in range(10):
        shared = there == here[row]  # (N, T)
        np.testing.assert_allclose(ours[row], (shared / shared.sum(0)).mean(1), atol=1e-12)


@pytest.mark.parametrize("kind", [NearestPast, ForestPast])
def test_shares_of_the_past_that_are_no_shares_are_refused(kind: type) -> None:
    weights = torch.arange(1, 61, dtype=torch.float64)
    predictor = kind.fit(examples(60, weights=weights), None, 0)
    tensors = predictor.state_dict()
    assert sorted(tensors["shares"].tolist()) == weights.tolist()
    for shares in (tensors["shares"][1:], -tensors["shares"], tensors["shares"].float()):
        with pytest.raises(StakesError, match="damaged"):
            kind.load(predictor.spec(), {**tensors, "shares": shares})


def test_of_a_long_past_a_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "MOST_ROWS", 50)
    for kind in (NearestPast, ForestPast):
        predictor = kind.fit(examples(200), None, 0)
        assert len(predictor.past) == 50
        assert bool(said(predictor, examples(20, 2)).isfinite().all())


# Blends --------------------------------------------------------------------------------------------


def test_a_blend_is_the_mean_of_quantiles_and_no_worse_than_the_mean_of_losses(fitted: dict[type, Any]) -> None:
    parts, test = [fitted[kind] for kind in ROWS], examples(300, 4)
    weights = [0.1, 0.2, 0.3, 0.4, 0.0]
    blend = QuantileBlend(parts, weights)
    values = said(blend, test)
    expected = sum(weight * said(part, test) for weight, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(values, expected)
    losses = [weight * pinball(said(part, test), test.labels) for weight, part in zip(weights, parts, strict=True)]
    assert (pinball(values, test.labels) <= sum(losses) + 1e-9).all()
    again = load(spec_of(blend), blend.state_dict())
    assert torch.equal(said(again, test), values)
    assert (blend.features, blend.classes, blend.samples) == (4, None, 1)
    assert decide(blend(test.x), Newsvendor(15, 5)).choice.shape == (300,)


def test_a_blend_takes_draws_of_a_network(fitted: dict[type, Any]) -> None:
    test = examples(20, 4)
    likelihood = Gaussian.for_labels(test.labels, scale="input")
    posterior = Posterior.from_spec({"family": "dropout"}, lambda: MLP(4, 2, (8,), 0.2), likelihood, 0)
    network = SampledPosterior(posterior.eval(), 12, 0)
    blend = QuantileBlend([network, fitted[PastQuantiles]], [0.5, 0.5])
    torch.testing.assert_close(said(blend, test), (said(network, test) + said(fitted[PastQuantiles], test)) / 2)
    again = load(spec_of(blend), blend.state_dict())
    assert torch.equal(said(again, test), said(blend, test))


def test_weights_of_a_blend_minimise_its_crps() -> None:
    generator = np.random.default_rng(0)
    rows, z = 400, torch.from_numpy(stats.norm.ppf(LEVELS.numpy()))
    center = torch.from_numpy(generator.normal(size=rows))
    labels = center + torch.from_numpy(generator.normal(size=rows))
    values = [center[:, None] + shift + scale * z for shift, scale in ((1.0, 1.0), (-0.5, 1.2), (0.0, 3.0))]
    weights = quantile_weights(values, labels, penalty=0.0)
    grid = torch.tensor([[a, b, 100 - a - b] for a in range(101) for b in range(101 - a)]).double() / 100
    losses = [float(crps(sum(w * v for w, v in zip(row, values, strict=True)), labels).mean()) for row in grid]
    np.testing.assert_allclose(weights, grid[int(np.argmin(losses))], atol=0.025)
    pulled = quantile_weights(values, labels, penalty=1e6)
    torch.testing.assert_close(pulled, torch.full((3,), 1 / 3).double(), atol=1e-3, rtol=0)
    assert quantile_weights(values[:1], labels).tolist() == [1.0]
    only_first = quantile_weights(values, center + 1.0, torch.ones(rows), penalty=0.0)
    assert float(only_first[1]) < 0.4
    with pytest.raises(StakesError, match="of each model"):
        quantile_weights([values[0][:5]], labels)
