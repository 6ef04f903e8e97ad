"""`decide` where decisions are numbers, or named actions for a number: what it says, its errors, in blocks, saved."""

import numpy as np
import pytest
import torch
from torch import Tensor

from stakes import AmountDecisions, Newsvendor, Outcomes, Predictor, StakesError, Utility, decide
from stakes.mixtures import GaussianMixture


class Demand(Predictor):
    """Draws of a normal distribution whose mean and width are random."""

    def __init__(self, samples: int = 40) -> None:
        self.samples = samples
        self.noise = torch.randn(samples, 2, 1, generator=torch.Generator().manual_seed(0))

    def outcomes(self, x: Tensor, first: int, last: int) -> Outcomes:
        mean, log_scale = self.noise[first:last].unbind(1)  # (S, 1)
        location = 50 + 10 * x[:, 0] + 3 * mean
        return GaussianMixture(location.unsqueeze(-1), (1 + 0.2 * log_scale).exp().expand(location.shape).unsqueeze(-1))


X = torch.linspace(-1, 1, 30).unsqueeze(1)
UTILITY = Newsvendor(15, 5, unit="€")


def test_numbers_have_a_cost_an_error_and_an_interval() -> None:
    decisions = decide(Demand()(X), UTILITY)
    assert isinstance(decisions, AmountDecisions)
    mixture = Demand()(X).mixture()
    torch.testing.assert_close(decisions.choice, mixture.quantile(0.75))
    torch.testing.assert_close(decisions.expected_utility, UTILITY.expected_of(mixture, decisions.choice))
    draws = next(iter(Demand()(X).blocks()))
    by_draw = UTILITY.expected_of(draws, decisions.choice)
    torch.testing.assert_close(by_draw.mean(0), decisions.expected_utility)
    ratio = decisions.utility_error / (by_draw.std(0) / 40**0.5)
    assert ((ratio > 1) & (ratio < 1.05)).all(), "widened a little for 40 draws"
    low, high = decisions.interval(0.8)
    torch.testing.assert_close(mixture.cdf(high) - mixture.cdf(low), torch.full((30,), 0.8).double())
    assert (decisions.names, len(decisions), decisions.taken.tolist()) == ((), 30, [40] * 30)
    assert (decisions.margin == 0).all()
    assert decisions.margin_error is None
    assert torch.equal(decisions.runner_up, decisions.choice)
    assert float(decisions.chosen_names[0]) == pytest.approx(decisions.choice[0].item(), rel=1e-14)


def test_steps_have_a_margin_and_its_error() -> None:
    utility = Newsvendor(15, 5, at_least=45, at_most=55, step=2.5)
    decisions = decide(Demand()(X), utility)
    assert set(decisions.choice.tolist()) <= {45.0, 47.5, 50.0, 52.5, 55.0}
    mixture = Demand()(X).mixture()
    worth = utility.expected_of(mixture, decisions.choice) - utility.expected_of(mixture, decisions.runner_up)
    torch.testing.assert_close(decisions.margin, worth)
    assert (decisions.margin >= 0).all()
    assert ((decisions.runner_up - decisions.choice).abs() == 2.5).all()
    draws = next(iter(Demand()(X).blocks()))
    spread = utility.advantage(draws, decisions.choice, decisions.runner_up).std(0) / 40**0.5
    torch.testing.assert_close(decisions.margin_error, spread * (decisions.margin_error / spread).mean())


def test_blocks_of_inputs_and_of_draws_change_nothing() -> None:
    for utility in (UTILITY, Newsvendor(np.linspace(1, 20, 30), 5.0, step=1.0)):
        whole, parts = decide(Demand()(X), utility), decide(Demand()(X, memory=2000), utility)
        for name in ("choice", "utilities", "utility_error", "taken"):
            torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
        torch.testing.assert_close(parts.interval(), whole.interval())


def test_a_mixture_and_plain_atoms_are_decided_on_too() -> None:
    mixture = Demand()(X).mixture()
    torch.testing.assert_close(decide(mixture, UTILITY).choice, decide(Demand()(X), UTILITY).choice)
    assert decide(mixture, UTILITY).utility_error is None
    past = torch.tensor([3.0, 9.0, 4.0, 7.0])
    history = Outcomes(torch.full((1, 4), 0.25), values=past)
    assert decide(history, UTILITY).choice.item() == 7.0, "the .75 quantile of the past"


def test_named_actions_for_a_number() -> None:
    utility = Utility.from_curves({"wait": [(40, 0), (60, 100)], "act": 45, "call": [(50, 30), (50, 60)]})
    decisions = decide(Demand()(X), utility)
    y = Demand()(X).mixture()
    expected = utility.expected(y)
    torch.testing.assert_close(decisions.utilities, expected)
    assert set(decisions.chosen_names) == {"wait", "act", "call"}
    assert (decisions.margin_error > 0).all()
    low, high = decisions.interval()
    assert (low < high).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(StakesError, match="named outcomes"):
        decide(Demand()(X), UTILITY, "argmax")
    with pytest.raises(StakesError, match="settle= is for named outcomes"):
        decide(Demand()(X), UTILITY, settle=0.9)
    with pytest.raises(StakesError, match="30 examples"):
        decide(Demand()(X[:3]), Newsvendor(np.ones(30), 5.0))
    with pytest.raises(StakesError, match="share"):
        decide(Demand()(X), UTILITY).interval(1.0)
    with pytest.raises(StakesError, match="named classes"):
        decide(torch.tensor([[0.5, 0.5]]), UTILITY)
    with pytest.raises(StakesError, match="named classes"):
        decide(torch.tensor([[0.5, 0.5]]), Utility.from_costs([[0, 1], [1, 0]])).interval()
