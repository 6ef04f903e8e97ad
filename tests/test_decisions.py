import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import LogisticRegression
from torch import nn

from stakes import Ensemble, MCDropout, StakesError, Utility, decide
from stakes.decisions import rules
from stakes.outcomes import Outcomes
from stakes.utility import TableUtility

numbers = st.floats(-100, 100)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (B, C) and a table (D, C)."""
    rows, decisions, outcomes = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(2, 5))
    weights = draw(arrays(np.float64, (rows, outcomes), elements=st.floats(0.01, 1)))
    table = draw(arrays(np.float64, (decisions, outcomes), elements=numbers))
    return weights / weights.sum(1, keepdims=True), table


def named(table: np.ndarray) -> Utility:
    return TableUtility(table, tuple(map(str, range(table.shape[-2]))), tuple(map(str, range(table.shape[-1]))))


@given(cases())
def test_the_choice_is_the_best_by_enumeration(case: tuple[np.ndarray, np.ndarray]) -> None:
    probs, table = case
    decisions = decide(probs, named(table))
    for row, p in enumerate(probs):
        worth = [sum(u * q for u, q in zip(line, p, strict=True)) for line in table]
        assert worth[decisions.choice[row]] == pytest.approx(max(worth), abs=1e-9)
        np.testing.assert_allclose(decisions.utilities[row], worth, atol=1e-9)
        second = sorted(worth)[-2] if len(worth) > 1 else max(worth)
        assert float(decisions.margin[row]) == pytest.approx(max(worth) - second, abs=1e-9)


@given(cases(), st.floats(0.1, 50), numbers)
def test_a_positive_affine_map_changes_no_decision(
    case: tuple[np.ndarray, np.ndarray], scale: float, shift: float
) -> None:
    probs, table = case
    before, after = decide(probs, named(table)), decide(probs, named(scale * table + shift))
    clear = before.margin > 1e-6 * (1 + np.abs(table).max())
    assert torch.equal(before.choice[clear], after.choice[clear])


@given(cases())
def test_knowing_the_outcome_is_never_worth_less_than_guessing(case: tuple[np.ndarray, np.ndarray]) -> None:
    probs, table = case
    expected = decide(probs, named(table)).expected_utility.numpy()
    perfect = probs @ table.max(0)
    assert (expected <= perfect + 1e-9).all()


def test_with_equal_stakes_optimal_is_argmax() -> None:
    probs = torch.rand(50, 4).softmax(-1)
    utility = Utility.diagonal("abcd")
    assert torch.equal(decide(probs, utility).choice, probs.argmax(-1))
    assert torch.equal(decide(probs, utility, "argmax").choice, probs.argmax(-1))


def test_the_threshold_of_a_two_way_choice_is_the_known_one() -> None:
    """Treat if p(ill) > cost of treating the well / (that + cost of missing the ill)."""
    utility = Utility.from_costs([[0, 40], [500, 0]], ["treat", "wait"], ["ill", "well"])
    p = torch.linspace(0, 1, 1001, dtype=torch.float64)
    choice = decide(torch.stack([p, 1 - p], -1), utility).choice
    assert torch.equal(choice == 0, p > 40 / 540)


def test_segmentations_are_just_more_axes() -> None:
    probs = torch.rand(2, 3, 4, 5).softmax(-1)
    utility = named(np.random.default_rng(0).normal(size=(6, 5)))
    decisions = decide(Outcomes.from_probs(probs), utility)
    flat = decide(probs.reshape(-1, 5), utility)
    assert decisions.choice.shape == (2, 3, 4)
    assert torch.equal(decisions.choice.flatten(), flat.choice)
    torch.testing.assert_close(decisions.utilities.reshape(-1, 6), flat.utilities)


@pytest.mark.parametrize("middle", [(), (3,), (2, 3)])
def test_a_table_for_each_example(middle: tuple[int, ...]) -> None:
    tables = np.random.default_rng(1).normal(size=(4, 3, 2))
    probs = torch.rand(4, *middle, 2, dtype=torch.float64).softmax(-1)
    together = named(tables).expected(Outcomes(probs))
    for example, table in enumerate(tables):
        alone = named(table).expected(Outcomes(probs[example : example + 1]))[0]
        torch.testing.assert_close(together[example], alone)


def test_any_classifiers_probabilities_will_do() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = np.where(x[:, 0] > 0, "ill", "well")
    model = LogisticRegression().fit(x, y)
    utility = Utility.from_costs([[0, 1], [50, 0]], ["treat", "wait"], model.classes_)
    decisions = decide(model.predict_proba(x), utility)
    assert (decisions.chosen_names == "treat").mean() > (y == "ill").mean()
    assert decisions.margin_error is None
    assert len(decisions) == 60


@pytest.mark.parametrize(
    ("probs", "words"),
    [
        (torch.randn(4, 3), "softmax"),
        (torch.rand(4, 3).softmax(-1).log(), "exp"),
        (torch.ones(3), r"\(n, C\)"),
        (torch.full((4, 2), 0.5), "3 outcomes 'a', 'b', 'c'"),
        (torch.full((4, 3), torch.nan), "not negative"),
    ],
)
def test_what_is_not_a_probability_is_refused(probs: torch.Tensor, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        decide(probs, Utility.diagonal("abc"))


def test_an_unknown_rule_and_a_wrong_number_of_tables() -> None:
    with pytest.raises(StakesError, match="'best'"):
        decide(torch.full((1, 2), 0.5), Utility.diagonal("ab"), "best")  # type: ignore[arg-type]
    with pytest.raises(StakesError, match="expected 4 examples"):
        decide(torch.full((3, 2), 0.5), named(np.zeros((4, 2, 2))))


# Draws ---------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_decisions_from_draws_are_those_of_the_mean_in_blocks_of_any_size() -> None:
    draws = MCDropout(network()).draw(20, seed=0)
    x, utility = torch.randn(50, 2), named(np.random.default_rng(0).normal(size=(4, 3)))
    whole = decide(draws(x), utility)
    expected = decide(draws(x).mean_probs(), utility)
    assert torch.equal(whole.choice, expected.choice)
    torch.testing.assert_close(whole.utilities, expected.utilities, rtol=1e-5, atol=1e-6)
    small = decide(draws(x, memory=4096), utility)
    torch.testing.assert_close(small.utilities, whole.utilities, rtol=1e-5, atol=1e-6)
    assert small.margin_error is not None
    torch.testing.assert_close(small.margin_error, whole.margin_error, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("per_example", [False, True])
def test_the_error_of_the_margin_is_that_of_the_mean_over_draws(per_example: bool) -> None:
    draws = MCDropout(network()).draw(30, seed=0)
    x = torch.randn(7, 2)
    generator = np.random.default_rng(0)
    utility = named(generator.normal(size=(7, 3, 3) if per_example else (3, 3)))
    decisions = decide(draws(x), utility)
    probs = draws(x).log_probs().exp().double().numpy()  # (S, B, C)
    for row in range(7):
        table = utility.values[row] if per_example else utility.values
        gains = probs[:, row] @ table.T  # (S, D)
        best, second = np.argsort(gains.mean(0))[::-1][:2]
        gap = gains[:, best] - gains[:, second]
        # Three groups of ten are too few to tell their spread.
        low, high = scipy.stats.ttest_1samp(gap, 0).confidence_interval(0.95)
        assert 2 * 1.959964 * float(decisions.margin_error[row]) == pytest.approx(high - low, rel=1e-4)


def test_the_error_of_balanced_draws_is_that_of_the_mean_over_their_groups() -> None:
    draws = MCDropout(network()).draw(60, seed=0)
    assert draws.group == 10
    x = torch.randn(1, 2)
    decisions, probs = decide(draws(x), Utility.diagonal("abc")), draws(x).probs()[:, 0].double().numpy()  # (S, C)
    best, second = np.argsort(probs.mean(0))[::-1][:2]
    groups = (probs[:, best] - probs[:, second]).reshape(6, 10).mean(1)
    low, high = scipy.stats.ttest_1samp(groups, 0).confidence_interval(0.95)
    assert decisions.margin_error is not None
    assert 2 * 1.959964 * float(decisions.margin_error[0]) == pytest.approx(high - low, rel=1e-4)


@pytest.mark.parametrize("samples", [25, 50, 100])
def test_the_stated_error_covers_the_truth_as_often_as_it_says(samples: int) -> None:
    """The margin +- 1.96 of its error covers what 20,000 draws say; 25 draws are too few to count on their balance."""
    posterior, x = MCDropout(network()), torch.tensor([[0.3, -0.8]])
    utility = Utility.diagonal("abc")
    truth = decide(posterior.draw(20_000, seed=1)(x), utility)
    pair = [int(truth.choice), int(truth.runner_up)]
    covered = []
    for seed in range(300):
        decisions = decide(posterior.draw(samples, seed)(x), utility)
        assert decisions.margin_error is not None
        margin = decisions.utilities[0, pair[0]] - decisions.utilities[0, pair[1]]
        covered.append(abs(float(margin - truth.margin)) <= 1.96 * float(decisions.margin_error))
    share = np.mean(covered)
    assert share >= 0.92
    assert share <= 0.98 or samples < 50


@pytest.mark.parametrize("samples", [50, 55, 64, 109])
def test_the_error_is_the_spread_of_repeated_runs_with_an_unfinished_group_too(samples: int) -> None:
    posterior, x = MCDropout(network()), torch.tensor([[0.3, -0.8]])
    means, squares = [], []
    for seed in range(300):
        values = posterior.draw(samples, seed)(x).probs()[:, 0] @ torch.tensor([1.0, -1.0, 0.0])
        means.append(float(values.mean()))
        error, freedom = rules._standard_error(values, posterior.draw(samples, seed).group)
        squares.append(float(error) ** 2)
        assert freedom == samples // 10 - 1
    assert np.sqrt(np.mean(squares)) == pytest.approx(np.std(means), rel=0.12)


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 4))
def test_an_ensemble_decides_by_its_members_vote_in_probabilities(members: int) -> None:
    networks = [nn.Linear(2, 3) for _ in range(members)]
    x, utility = torch.randn(9, 2), Utility.diagonal("abc")
    mean = torch.stack([member(x).softmax(-1) for member in networks]).mean(0)
    decisions = decide(Ensemble(networks).draw(10, 0)(x), utility)
    torch.testing.assert_close(decisions.probs, mean.detach())


def test_every_pair_of_shapes_is_named_once() -> None:
    """A sanity check of the broadcasting: all choices of D and C, square or not."""
    for decisions, outcomes in itertools.product((1, 2, 3), (2, 4)):
        utility = named(np.random.default_rng(0).normal(size=(decisions, outcomes)))
        found = decide(torch.full((5, outcomes), 1 / outcomes), utility)
        assert found.utilities.shape == (5, decisions)
        assert found.margin.shape == (5,)


def test_columns_are_matched_to_outcomes_by_name() -> None:
    utility = Utility.from_costs([[0, 9], [5, 0]], ["extend", "refuse"], ["repaid", "defaulted"])
    probs = np.array([[0.9, 0.1], [0.1, 0.9]])  # as scikit-learn sorts: defaulted, repaid
    decisions = decide(probs, utility, classes=["defaulted", "repaid"])
    assert decisions.chosen_names.tolist() == ["refuse", "extend"]
    with pytest.raises(StakesError, match="'repaid', 'defaulted' in some order"):
        decide(probs, utility, classes=["yes", "no"])


def test_large_costs_do_not_drown_small_differences() -> None:
    """In single precision too, where 1e9 + 1 is 1e9."""
    probs = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    table = np.random.default_rng(0).normal(size=(4, 3))
    plain = decide(probs, named(table))
    for shift in (1e7, 1e9):
        assert torch.equal(decide(probs, named(50 * table + shift)).choice, plain.choice)
    draws = MCDropout(network()).draw(20, 0)(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
    error, shifted = (decide(draws, named(table + shift)).margin_error for shift in (0, 1e8))
    assert error is not None
    torch.testing.assert_close(shifted, error, rtol=1e-3, atol=1e-6)


def test_draws_and_tables_have_to_be_as_many() -> None:
    draws = MCDropout(network()).draw(3, 0)
    with pytest.raises(StakesError, match="expected 4 examples"):
        decide(draws(torch.randn(3, 2)), named(np.zeros((4, 2, 3))))
