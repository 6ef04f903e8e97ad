"""Corrections after training: the shift and its coverage, vector scaling, decision calibration, all saved."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from stakes import (
    MLP,
    Gaussian,
    MCDropout,
    Newsvendor,
    Outcomes,
    SampledPosterior,
    SavedModel,
    StakesError,
    Utility,
    decide,
)
from stakes.calibration import Calibrated, DecisionCalibration, Shift, Temperature, VectorScaling, calibrators
from stakes.mixtures import GaussianMixture, LogNormalMixture

COSTS = Utility.from_costs([[0, 4, 9], [5, 0, 6], [2, 2, 1], [8, 3, 0]], outcomes=["a", "b", "c"])

NORMAL = GaussianMixture(torch.zeros(3, 1), torch.ones(3, 1))


# Numbers -----------------------------------------------------------------------------------------------


def test_a_shift_covers_its_share_exactly_whatever_the_model_is() -> None:
    rows, share, trials = 19, 0.75, 4000
    y = torch.randn(trials, rows + 1, generator=torch.Generator().manual_seed(0)).double().exp()
    wrong = GaussianMixture(torch.full((rows, 1), -5.0), torch.full((rows, 1), 0.3))
    quantile = wrong.quantile(share)
    covered = 0
    for labels in y:
        shift = Shift.fit(wrong, labels[:rows], share)
        covered += int(labels[rows] <= quantile[0] + shift.by)
    expected = np.ceil((rows + 1) * share) / (rows + 1)
    assert covered / trials == pytest.approx(expected, abs=4 * (expected * (1 - expected) / trials) ** 0.5)


def test_the_shift_is_the_smallest_of_the_right_rank_and_moves_decisions_by_it() -> None:
    mixture = LogNormalMixture(torch.zeros(9, 2), torch.tensor([0.3, 0.6]).expand(9, 2))
    labels = torch.arange(9.0).double()
    utility = Newsvendor(3, 7)
    shift = Shift.fit(mixture, labels, float(utility.share))
    assert shift.by == pytest.approx(2 - mixture.quantile(0.3)[0].item()), "the third smallest of 9 at .3"
    torch.testing.assert_close(decide(shift(mixture), utility).choice, decide(mixture, utility).choice + shift.by)
    atoms = Outcomes(mixture.weights, values=mixture.values)
    torch.testing.assert_close(shift(atoms).values, atoms.values + shift.by)


def test_a_shifted_model_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    posterior = MCDropout(MLP(2, 2), Gaussian.for_labels(torch.tensor([5.0, 9.0]), scale="input"))
    shifted, x = Calibrated(SampledPosterior(posterior, samples=10), Shift(1.5)), torch.randn(6, 2)
    utility = Newsvendor(2, 1)
    decisions = decide(shifted(x), utility)
    torch.testing.assert_close(decisions.choice, decide(shifted.predictor(x), utility).choice + 1.5)
    SavedModel(shifted, utility).save(tmp_path / "model")
    torch.testing.assert_close(SavedModel.load(tmp_path / "model").decide(x).choice, decisions.choice)


# Classes -----------------------------------------------------------------------------------------------


def skewed(count: int, seed: int = 0) -> tuple[Outcomes, torch.Tensor]:
    """Predictions whose log-odds are off by a scale and an offset for each class."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(count, 3, generator=generator, dtype=torch.float64).mul(1.5).log_softmax(-1)
    true = (log_probs * torch.tensor([0.5, 1.0, 1.4]) + torch.tensor([0.6, -0.4, 0.0])).softmax(-1)
    return Outcomes(log_weights=log_probs), torch.multinomial(true, 1, generator=generator)[:, 0]


def nll(outcomes: Outcomes, labels: torch.Tensor) -> float:
    return -outcomes.log_weights.gather(-1, labels.unsqueeze(-1)).mean().item()


def test_vector_scaling_finds_what_was_put_in_and_is_no_worse_than_a_temperature() -> None:
    outcomes, labels = skewed(20_000)
    fitted = VectorScaling.fit(outcomes, labels)
    np.testing.assert_allclose(fitted.scales, [0.5, 1.0, 1.4], atol=0.1)
    np.testing.assert_allclose(np.subtract(fitted.offsets, fitted.offsets[2]), [0.6, -0.4, 0.0], atol=0.15)
    fresh, fresh_labels = skewed(5000, seed=1)
    tempered = Temperature.fit(outcomes, labels)
    assert nll(fitted(fresh), fresh_labels) < nll(tempered(fresh), fresh_labels) - 0.01
    assert calibrators["vector"](**fitted.settings()) == fitted
    # Any linear map of the same log-probabilities is at least as good on its own rows; not by much.
    whole = LogisticRegression(C=1e4).fit(outcomes.log_weights.numpy(), labels.numpy())
    probs = torch.from_numpy(whole.predict_proba(outcomes.log_weights.numpy()))
    assert nll(Outcomes(probs), labels) - 1e-5 <= nll(fitted(outcomes), labels) < nll(Outcomes(probs), labels) + 2e-3


def test_decision_calibration_makes_claims_honest() -> None:
    outcomes, labels = skewed(4000)
    fitted = DecisionCalibration.fit(outcomes, labels, COSTS)
    calibrated = fitted(outcomes)
    torch.testing.assert_close(calibrated.weights.sum(-1), torch.ones(4000).double())
    decisions = decide(calibrated, COSTS)
    claimed, realised = decisions.expected_utility.mean().item(), COSTS.realised(decisions.choice, labels).mean()
    before = decide(outcomes, COSTS)
    gap = abs(before.expected_utility.mean().item() - COSTS.realised(before.choice, labels).mean())
    assert abs(claimed - realised) < 0.01 < gap
    for decision in decisions.choice.unique():  # no group would rather have had another decision
        group = decisions.choice == decision
        worths = [COSTS.realised(torch.full((int(group.sum()),), d), labels[group]).mean() for d in range(4)]
        assert worths[int(decision)] >= max(worths) - 0.05
    again = DecisionCalibration.fit(calibrated, labels, COSTS)
    assert len(again.corrections) == 0, "what is calibrated stays"
    scaled = Utility.from_costs(3 * COSTS.costs + 7, COSTS.decisions, COSTS.outcomes)
    torch.testing.assert_close(DecisionCalibration.fit(outcomes, labels, scaled)(outcomes).weights, calibrated.weights)


def test_decision_calibration_is_saved(tmp_path: Path) -> None:
    outcomes, labels = skewed(1500)
    fitted = DecisionCalibration.fit(outcomes, labels, COSTS)
    torch.manual_seed(0)
    predictor = Calibrated(SampledPosterior(MCDropout(MLP(2, 3)), samples=10), fitted)
    SavedModel(predictor, COSTS).save(tmp_path / "model")
    x = torch.randn(50, 2)
    again = SavedModel.load(tmp_path / "model").predictor
    torch.testing.assert_close(again(x).mean_probs(), predictor(x).mean_probs())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shift(float("inf")), "finite"),
        (
            lambda: Shift.fit(NORMAL, torch.zeros(3), 0.9),
            "at least 9 rows",
        ),
        (lambda: Shift.fit(NORMAL, torch.zeros(2), 0.5), "for each of"),
        (lambda: Shift.fit(NORMAL, torch.zeros(3), 1.0), "below 1"),
        (lambda: Shift(1.0)(skewed(3)[0]), "named classes"),
        (lambda: VectorScaling.fit(*skewed(299)), "at least 300 rows"),
        (lambda: VectorScaling((1.0,), (0.0, 1.0)), "for each class"),
        (lambda: VectorScaling((1.0, 1.0), (0.0, 1.0))(skewed(3)[0]), "2 classes"),
        (lambda: DecisionCalibration.fit(*skewed(999), COSTS), "at least 1000 rows"),
        (lambda: DecisionCalibration(COSTS, [])(NORMAL), "use a Shift"),
    ],
)
def test_nonsense_is_refused(make, message: str) -> None:
    with pytest.raises(StakesError, match=message):
        make()
