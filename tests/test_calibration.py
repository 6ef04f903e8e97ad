from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from stakes import MLP, MCDropout, SampledPosterior, SavedModel, StakesError, Utility, decide
from stakes.calibration import Calibrated, Calibrator, Temperature, calibrators
from stakes.outcomes import Outcomes, Predictor


def overconfident(count: int, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that say too much by a known power, and labels drawn from the true ones."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return (sharpness * logits).softmax(-1), labels


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_the_temperature_is_what_scipy_finds_and_what_was_put_in(sharpness: float) -> None:
    probs, labels = overconfident(20_000, sharpness)
    found = Temperature.fit(Outcomes(probs), labels).temperature
    table = probs.numpy()

    def nll(log_temperature: float) -> float:
        powered = table ** np.exp(-log_temperature)
        return -np.log((powered / powered.sum(1, keepdims=True))[np.arange(len(labels)), labels]).mean()

    best = minimize_scalar(nll, bounds=(-2, 2), method="bounded", options={"xatol": 1e-9})
    assert found == pytest.approx(np.exp(best.x), rel=1e-4)
    assert found == pytest.approx(sharpness, rel=0.05)


def test_a_temperature_keeps_the_order_of_outcomes_and_sums_to_one() -> None:
    probs, labels = overconfident(50, 3.0)
    cooled = Temperature.fit(Outcomes(probs), labels)(Outcomes(probs)).weights
    assert torch.equal(cooled.argsort(-1), probs.argsort(-1))
    torch.testing.assert_close(cooled.sum(-1), torch.ones(50, dtype=torch.float64))


def test_rows_that_are_all_right_do_not_ask_for_infinity() -> None:
    probs, _ = overconfident(50, 1.0)
    assert 0 < Temperature.fit(Outcomes(probs), probs.argmax(-1)).temperature < 1
    certain = torch.eye(3).double()
    assert Temperature.fit(Outcomes(certain), torch.tensor([0, 1, 2])).temperature > 0


def test_nonsense_is_refused_and_settings_bring_it_back() -> None:
    with pytest.raises(StakesError, match="above 0"):
        Temperature(0.0)
    with pytest.raises(StakesError, match="a class for each"):
        Temperature.fit(Outcomes(torch.ones(2, 2) / 2), torch.tensor([0]))
    outcomes = Outcomes(torch.ones(2, 2) / 2)
    for labels in ([0, 2], [-1, 0], [0.0, 1.0]):
        with pytest.raises(StakesError, match="integers from 0 to 1"):
            Temperature.fit(outcomes, torch.tensor(labels))
    int32 = torch.tensor([0, 1], dtype=torch.int32)
    assert Temperature.fit(outcomes, int32) == Temperature.fit(outcomes, int32.long())
    assert calibrators["temperature"](**Temperature(1.5).settings()) == Temperature(1.5)


def test_the_posterior_of_a_temperature_is_that_of_its_definition() -> None:
    """By integration over the logarithm of the temperature, with SciPy's normal prior."""
    for rows, sharpness in ((0, 1.0), (12, 0.5), (60, 3.0), (2_000, 1.3)):
        probs, labels = overconfident(rows + 5, sharpness)
        counts = torch.tensor([1.0] * rows + [0.0] * 5)
        if rows:
            found = Temperature.posterior(Outcomes(probs), labels, counts * 7)
        else:  # a row that says nothing
            found = Temperature.posterior(Outcomes(torch.full((1, 4), 0.25)), torch.tensor([0]))
        table, chosen = probs[:rows].numpy(), labels[:rows].numpy()

        def density(log_temperature: float, table: np.ndarray = table, chosen: np.ndarray = chosen) -> float:
            powered = table ** np.exp(-log_temperature)
            relative = (powered / powered.sum(1, keepdims=True))[np.arange(len(chosen)), chosen] * 4
            return float(np.log(relative).sum() + norm.logpdf(log_temperature, scale=0.2))

        shift = max(map(density, np.linspace(-1, 1, 201)))
        moments = [
            quad(lambda t, k, shift: t**k * np.exp(density(t) - shift), -1.2, 1.2, args=(k, shift), limit=500)[0]
            for k in range(3)
        ]
        zeroth, first, second = moments
        center = first / zeroth
        assert found.temperature == pytest.approx(np.exp(center), rel=1e-3)
        assert found.spread == pytest.approx(np.sqrt(second / zeroth - center**2), rel=0.02)
    assert found.temperature == pytest.approx(1.3, rel=0.1)


@pytest.mark.parametrize("sharpness", [0.1, 8.0])
def test_many_rows_outweigh_the_prior(sharpness: float) -> None:
    probs, labels = overconfident(20_000, sharpness)
    found = Temperature.posterior(Outcomes(probs), labels)
    assert found.temperature == pytest.approx(Temperature.fit(Outcomes(probs), labels).temperature, rel=0.02)
    assert 0.003 < found.spread < 0.03


def test_a_spread_is_a_mean_over_temperatures() -> None:
    probs, _ = overconfident(20, 1.0)
    draws = 0.7 * np.exp(0.2 * norm.ppf((np.arange(20_000) + 0.5) / 20_000))
    powered = probs.numpy()[:, None] ** (1 / draws[:, None])
    mean = (powered / powered.sum(-1, keepdims=True)).mean(1)
    np.testing.assert_allclose(Temperature(0.7, 0.2)(Outcomes(probs)).weights, mean, atol=2e-5)
    assert Temperature(0.7)(Outcomes(probs)).weights.numpy() != pytest.approx(mean, abs=1e-3)
    with pytest.raises(StakesError, match="spread"):
        Temperature(1.0, -0.1)


class Amounts(Predictor):
    samples = 2

    def outcomes(self, x: torch.Tensor, first: int, last: int) -> Outcomes:
        shape = (last - first, len(x), 3)
        return Outcomes(torch.full(shape, 1 / 3), values=torch.arange(3.0).expand(shape))


class Shift(Calibrator):
    def __call__(self, outcomes: Outcomes) -> Outcomes:
        return Outcomes(outcomes.weights, values=outcomes.values + 1)

    def settings(self) -> dict:
        return {}


def test_numbers_keep_their_values_or_are_refused() -> None:
    x = torch.zeros(4, 2)
    shifted = Calibrated(Amounts(), Shift())(x).mixture()
    assert torch.equal(shifted.values, Amounts()(x).mixture().values + 1)
    with pytest.raises(StakesError, match="named outcomes"):
        Calibrated(Amounts(), Temperature(2.0))(x).mixture()


def test_a_calibrated_predictor_decides_on_tempered_probabilities_and_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    predictor = SampledPosterior(MCDropout(MLP(3, 2, hidden=(8,), dropout=0.3)), samples=20)
    calibrated = Calibrated(predictor, Temperature(2.0))
    x, utility = torch.randn(50, 3), Utility.from_costs([[0, 4], [9, 0], [2, 1]])
    probs = predictor(x).mean_probs().sqrt()
    expected = decide(probs / probs.sum(-1, keepdim=True), utility)
    decisions = decide(calibrated(x), utility)
    torch.testing.assert_close(decisions.utilities, expected.utilities, atol=1e-5, rtol=1e-5)
    assert decisions.margin_error is None
    SavedModel(calibrated, utility).save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model").decide(x)
    torch.testing.assert_close(again.utilities, decisions.utilities)


def test_a_weight_counts_as_so_many_copies() -> None:
    generator = torch.Generator().manual_seed(3)
    probs = torch.rand(60, 3, generator=generator, dtype=torch.float64).softmax(-1)
    labels = torch.randint(3, (60,), generator=generator)
    counts = torch.randint(1, 4, (60,), generator=generator)
    weighted = Temperature.fit(Outcomes(probs), labels, counts.float() * 7)
    copies = torch.arange(60).repeat_interleave(counts)
    repeated = Temperature.fit(Outcomes(probs[copies]), labels[copies])
    assert weighted.temperature == pytest.approx(repeated.temperature, rel=1e-9)
    assert weighted.temperature != pytest.approx(Temperature.fit(Outcomes(probs), labels).temperature, rel=1e-4)
