"""Draws from elsewhere, and what knowing more is worth: against enumeration of outcomes and of finite weight sets."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from stakes import (
    MLP,
    Ensemble,
    Gaussian,
    MCDropout,
    Newsvendor,
    Outcomes,
    Predictor,
    Range,
    Squared,
    StakesError,
    TableUtility,
    Utility,
    decide,
    value_of_information,
)
from stakes.mixtures import GaussianMixture

COSTS = {
    "treat": {"ill": 0, "well": 40},
    "send home": {"ill": 500, "well": 0},
    "test more": {"ill": 60, "well": 15},
}
UTILITY = Utility.from_costs(COSTS, unit="£")


def random_draws(samples: int = 6, count: int = 40, classes: int = 2) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(classes), size=(samples, count))


def enumerated(draws: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By loops over inputs, draws, decisions and outcomes: ``(B,)`` each."""
    outcome, weights = [], []
    for row in range(draws.shape[1]):
        mean = draws[:, row].mean(0)
        least = min(sum(p * c for p, c in zip(mean, decision, strict=True)) for decision in costs)
        outcome.append(least - sum(p * min(costs[:, y]) for y, p in enumerate(mean)))
        each = [min(sum(p * c for p, c in zip(draw, h, strict=True)) for h in costs) for draw in draws[:, row]]
        weights.append(least - sum(each) / len(each))
    return np.array(outcome), np.array(weights)


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_both_parts_are_those_of_enumeration(scale: float) -> None:
    draws = random_draws()
    utility = Utility.from_costs(COSTS, scale=scale, best=2.0)
    found = value_of_information(Predictor.from_samples(probs=draws), utility)
    outcome, weights = enumerated(draws, UTILITY.costs)
    np.testing.assert_allclose(found.outcome, outcome, atol=1e-4)
    np.testing.assert_allclose(found.weights, weights, atol=1e-4)
    assert (found.weights <= found.outcome).all()
    assert (found.weights >= 0).all()


def test_each_row_may_have_its_own_costs() -> None:
    draws = random_draws(count=4)
    tables = np.random.default_rng(1).uniform(0, 100, size=(4, 3, 2))
    found = value_of_information(Predictor.from_samples(probs=draws), TableUtility(-tables, "abc", "xy"))
    for row, table in enumerate(tables):
        outcome, weights = enumerated(draws[:, row : row + 1], table)
        assert found.outcome[row].item() == pytest.approx(outcome[0], abs=1e-4)
        assert found.weights[row].item() == pytest.approx(weights[0], abs=1e-4)


def test_as_many_tables_as_rows() -> None:
    utility = TableUtility(-np.random.default_rng(1).uniform(0, 100, size=(5, 3, 2)), "abc", "xy")
    for said in ([[0.5, 0.5]] * 3, Predictor.from_samples(probs=[[[0.5, 0.5]] * 3] * 2)):
        with pytest.raises(StakesError, match="expected 5 examples"):
            value_of_information(said, utility)


def test_what_is_not_known_is_refused() -> None:
    logits = np.zeros((2, 3, 2))
    logits[1, 1] = np.nan
    with pytest.raises(StakesError, match="1 of 3 inputs, the first at index 1, are NaN"):
        value_of_information(Predictor.from_samples(logits=logits), UTILITY)


def test_the_error_is_that_of_many_repetitions() -> None:
    """Over ensembles of 20 draws, the spread of the result is what each of them says."""
    generator = np.random.default_rng(2)
    results, errors = [], []
    for _ in range(400):
        p = generator.beta(2, 20, size=(20, 1))
        found = value_of_information(Predictor.from_samples(probs=np.stack([p, 1 - p], -1)), UTILITY)
        results.append([found.outcome.item(), found.weights.item()])
        errors.append([found.outcome_error.item(), found.weights_error.item()])
    np.testing.assert_allclose(np.std(results, 0), np.mean(errors, 0), rtol=0.35)


def test_where_all_draws_agree_on_one_outcome_nothing_is_worth_knowing() -> None:
    found = value_of_information(Predictor.from_samples(probs=np.tile([[1.0, 0.0]], (5, 1, 1))), UTILITY)
    assert found.outcome.tolist() == found.weights.tolist() == [0]


def test_one_draw_has_no_weights() -> None:
    for said in ([[0.5, 0.5]], Outcomes(torch.tensor([[0.5, 0.5]])), Predictor.from_samples(probs=[[[0.5, 0.5]]])):
        found = value_of_information(said, UTILITY)
        assert found.outcome.item() == pytest.approx(20)
        assert found.outcome_error is None
        with pytest.raises(StakesError, match="this model has one"):
            found.weights  # noqa: B018


@pytest.mark.parametrize("utility", [Squared(2.0), Newsvendor(3.0, 1.0), Newsvendor(3, 1, at_least=0, at_most=1)])
def test_amounts(utility: Squared | Newsvendor) -> None:
    """Squared: what is not known is the variance, and of it the weights are that of the means. Others by sampling."""
    torch.manual_seed(0)
    posterior = Ensemble([nn.Linear(2, 1) for _ in range(4)], likelihood=Gaussian.for_labels(torch.randn(50)))
    x = torch.randn(7, 2)
    found = value_of_information(posterior.draw(4, seed=0)(x), utility)
    means = torch.cat([draw.location.detach() for draw in posterior.draw(4, seed=0)(x).blocks()], 1)[..., 0]  # (4, 7)
    sd = next(iter(posterior.draw(4, seed=0)(x).blocks())).scale.flatten()[0].item()
    if isinstance(utility, Squared):
        torch.testing.assert_close(found.weights, 2 * means.var(0, unbiased=False), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.outcome, 2 * (means.var(0, unbiased=False) + sd**2), rtol=1e-5, atol=1e-6)
        return
    y = means[..., None] + sd * torch.randn(4, 7, 50_000, generator=torch.Generator().manual_seed(1))  # (S, B, n)
    candidates = torch.linspace(-4, 4, 401)
    if utility.at_least == 0:
        candidates = torch.linspace(0, 1, 101)
    expected = torch.stack(
        [utility.cost(torch.full_like(y, float(h)), y).mean(-1) for h in candidates], -1
    )  # (S, B, D)
    least = expected.mean(0).amin(-1)
    foreseen = utility.cost(y.clamp(utility.at_least, utility.at_most), y).mean((0, 2))
    torch.testing.assert_close(found.weights, least - expected.amin(-1).mean(0), rtol=0.05, atol=0.01)
    torch.testing.assert_close(found.outcome, least - foreseen, rtol=0.03, atol=0.01)
    assert (found.weights <= found.outcome).all()


def test_curves() -> None:
    utility = Utility.from_curves({"service": 400, "run on": [(30, 2000), (30, 0)]})
    outcomes = Outcomes(torch.tensor([[0.5, 0.5]]), values=torch.tensor([[10.0, 50.0]]))
    assert value_of_information(outcomes, utility).outcome.item() == pytest.approx(400 - 200)
    jump = Utility.from_curves({"a": [(0, 100), (0, 0)], "c": 20})
    for mean in (0.005, 0.02, -0.02):
        normal = GaussianMixture(torch.tensor([[mean]]).double(), torch.tensor([[0.02]]).double())
        below = norm.cdf(0, mean, 0.02)
        exact = min(100 * below, 20) - 20 * below
        assert value_of_information(normal, jump).outcome.item() == pytest.approx(exact, rel=1e-6)


def test_a_function_of_a_wide_range() -> None:
    function = Utility.from_function(lambda h, y: (h - y).abs(), Range(0, 1000))
    values = torch.linspace(100, 125, 11).double()
    found = value_of_information(Outcomes(torch.full((1, 11), 1 / 11).double(), values=values[None]), function)
    assert found.outcome.item() == pytest.approx(float((values - 112.5).abs().mean()), rel=1e-4)


def test_blocks_of_a_large_batch_give_the_same() -> None:
    posterior, x = MCDropout(MLP(3, 2, hidden=(16,), dropout=0.3)), torch.randn(3_000, 3)
    utility = TableUtility(-UTILITY.costs, UTILITY.decisions, UTILITY.outcomes)
    draws = posterior.draw(40, seed=1)
    found, part = value_of_information(draws(x), utility), value_of_information(draws(x[:50]), utility)
    torch.testing.assert_close(found.outcome[:50], part.outcome, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.weights[:50], part.weights, rtol=1e-3, atol=1e-3)


# Draws from elsewhere ------------------------------------------------------------------------------


def test_an_array_of_draws_is_decided_as_its_mean_and_has_an_error() -> None:
    draws = random_draws()
    for given in (
        {"probs": draws},
        {"log_probs": np.log(draws)},
        {"logits": torch.from_numpy(np.log(draws) + 3)},
    ):
        decisions = decide(Predictor.from_samples(**given), UTILITY)
        assert decisions.choice.tolist() == decide(draws.mean(0), UTILITY).choice.tolist()
        assert (decisions.margin_error > 0).all()
    advantage = draws @ UTILITY.values.T
    best, second = np.argsort(advantage.mean(0), -1)[:, :-3:-1].T
    gaps = np.take_along_axis(advantage, best[None, :, None], -1) - np.take_along_axis(
        advantage, second[None, :, None], -1
    )
    ratio = decisions.margin_error.numpy() / (gaps[..., 0].std(0, ddof=1) / np.sqrt(len(draws)))
    assert np.ptp(ratio) < 1e-5
    assert 1 < ratio[0] < 1.5, "wider, for there are few draws"


def test_functions_are_a_predictor() -> None:
    weights = torch.randn(5, 3, 2)
    predictor = Predictor.from_samples(logits=[lambda x, w=w: x @ w for w in weights])
    x = torch.randn(9, 3)
    expected = torch.einsum("bi,sic->sbc", x, weights).softmax(-1)
    torch.testing.assert_close(predictor(x).probs(), expected)
    assert predictor.samples == 5


def test_classes_name_the_columns() -> None:
    draws = random_draws()
    named = Predictor.from_samples(probs=draws[..., ::-1].copy(), classes=["well", "ill"])
    assert decide(named, UTILITY).choice.tolist() == decide(draws.mean(0), UTILITY).choice.tolist()
    torch.testing.assert_close(
        value_of_information(named, UTILITY).outcome,
        value_of_information(Predictor.from_samples(probs=draws), UTILITY).outcome,
    )
    with pytest.raises(StakesError, match="expected the classes"):
        decide(Predictor.from_samples(probs=draws, classes=["ill", "dead"]), UTILITY)


def test_images() -> None:
    draws = np.random.default_rng(0).dirichlet(np.ones(2), size=(3, 2, 4, 5))  # (S, B, H, W, C)
    decisions = decide(Predictor.from_samples(probs=np.moveaxis(draws, -1, 2)), UTILITY)
    assert decisions.choice.shape == (2, 4, 5)
    assert torch.equal(decisions.choice, decide(Outcomes.from_probs(draws.mean(0)), UTILITY).choice)


def test_a_bare_array_is_not_guessed() -> None:
    for shape in ((3, 4, 2), (2,)):
        with pytest.raises(StakesError, match=r"Predictor\.from_samples"):
            decide(np.full(shape, 0.5), UTILITY)
    for given in ({}, {"probs": [[[1.0]]], "logits": [[[1.0]]]}):
        with pytest.raises(StakesError, match="one of"):
            Predictor.from_samples(**given)
    with pytest.raises(StakesError, match="sum to 1"):
        decide(Predictor.from_samples(probs=np.ones((2, 3, 2))), UTILITY)
    with pytest.raises(StakesError, match="the draws first"):
        Predictor.from_samples(probs=[[0.5, 0.5]])
    for wrong in (lambda x: x, [[[0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]], np.full((2, 3, 2), 0.5 + 0j)):
        with pytest.raises(StakesError, match="expected draws"):
            Predictor.from_samples(probs=wrong)
    with pytest.raises(StakesError, match="one for each name"):
        Predictor.from_samples(probs=np.full((2, 3, 2), 0.5), classes=["x", "y", "z"])
    one_answer = Predictor.from_samples(probs=[lambda x: torch.full((1, 2), 0.5)] * 2)
    with pytest.raises(StakesError, match="each of 3 inputs"):
        decide(one_answer(torch.rand(3, 2)), UTILITY)


def test_natural_inputs() -> None:
    x, networks = torch.randn(4, 3), nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])
    of_networks = decide(Predictor.from_samples(logits=networks)(x), UTILITY)
    of_tensors = decide(Predictor.from_samples(logits=[network(x) for network in networks]), UTILITY)
    assert torch.equal(of_networks.choice, of_tensors.choice)
    torch.testing.assert_close(of_networks.margin_error, of_tensors.margin_error)


def test_the_shortest_sentences() -> None:
    decisions = decide([[0.5, 0.5], [0.01, 0.99]], UTILITY)
    np.testing.assert_allclose(decisions.expected_cost, [20, 5])
    assert UTILITY.mean_cost(decisions.choice, [1, 0]) == (40 + 500) / 2
    assert decide([[0.5, 0.5]], Utility.from_costs(COSTS, best=2, scale=50)).expected_cost.item() == pytest.approx(20)
