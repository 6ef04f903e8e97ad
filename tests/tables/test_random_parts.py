"""The Monte-Carlo error of decisions by a blend with random parts, against the spread over many seeds."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from in_use import UTILITY, logistic_model, patients

from stakes import Decider, SavedModel
from stakes.calibration import Calibrated, Temperature
from stakes.decisions import decide
from stakes.networks import MLP
from stakes.outcomes import Predictor
from stakes.posteriors import Ensemble, MCDropout
from stakes.predictors import Blend, SampledPosterior
from stakes.tables.random_parts import RandomBlend


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return patients(200)


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> SavedModel:
    return logistic_model(frame)


def networks(features: int) -> list[MCDropout]:
    torch.manual_seed(0)
    return [MCDropout(MLP(features, 2, hidden=(16,), dropout=0.5)).eval() for _ in range(2)]


def blend_of(model: SavedModel, posteriors: list[MCDropout], seed: int = 0, samples: int = 100) -> Predictor:
    draws = [SampledPosterior(each, samples, seed + place) for place, each in enumerate(posteriors)]
    return Calibrated(Blend([model.predictor, *draws], [0.2, 0.5, 0.3]), Temperature(0.5))


def test_errors_are_those_of_other_seeds_and_decisions_those_of_the_blend(
    frame: pd.DataFrame, model: SavedModel
) -> None:
    assert model.encoder is not None
    x = torch.from_numpy(model.encoder.transform(frame))
    posteriors = networks(x.shape[1])
    plain = decide(blend_of(model, posteriors)(x), UTILITY)
    gaps, errors = [], []
    for seed in range(0, 240, 2):
        predictor = blend_of(model, posteriors, seed)
        random = RandomBlend.of(predictor)
        assert random is not None
        decisions = random.decide(x, UTILITY)
        if seed == 0:
            assert torch.equal(decisions.choice, plain.choice)
            assert torch.allclose(decisions.probs, plain.probs, atol=1e-6)
        assert decisions.margin_error is not None
        errors.append(decisions.margin_error)
        gaps.append(UTILITY.advantage(predictor(x).mixture().repeat(1), plain.choice, plain.runner_up)[0])
    spread, expected = torch.stack(gaps).std(0), torch.stack(errors).mean(0)
    ratio = (expected / spread).mean()
    assert 0.9 < ratio < 1.3, ratio  # a little wider, for few groups


def test_settled_is_told_of_dropout_and_is_true_of_ensembles(
    frame: pd.DataFrame, model: SavedModel, tmp_path: Path
) -> None:
    assert model.encoder is not None
    replace(model, predictor=blend_of(model, networks(model.encoder.width), samples=10)).save(tmp_path / "dropout")
    decided = Decider(tmp_path / "dropout")(frame)
    near, far = (decided[decided["settled"] == state]["margin"].median() for state in (False, True))
    assert near < far
    members = Ensemble([MLP(model.encoder.width, 2, hidden=(8,), dropout=0.0) for _ in range(4)]).eval()
    ensemble = Blend([model.predictor, SampledPosterior(members)], [0.5, 0.5])
    assert RandomBlend.of(ensemble) is None
    assert RandomBlend.of(model.predictor) is None
    replace(model, predictor=ensemble).save(tmp_path / "ensemble")
    assert Decider(tmp_path / "ensemble")(frame)["settled"].all()
