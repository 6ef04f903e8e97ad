"""Half precision: every objective learns, and what decisions are taken from stays in single precision."""

import pytest
import torch
from torch import Tensor

from stakes import (
    MLP,
    Ensemble,
    LossCalibrated,
    MCDropout,
    MeanField,
    StakesError,
    Standard,
    Training,
    Utility,
    Weighted,
    decide,
    fit,
)  # fmt: skip
from stakes.objectives import Objective
from stakes.posteriors import Posterior

UTILITY = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]], ["a", "b", "c"], ["a", "b", "c"])
CONFIG = Training(epochs=6, batch_size=16, learning_rate=0.03, samples=4, accumulate=2, clip_norm=5.0)
OBJECTIVES = {
    "standard": Standard(),
    "weighted": Weighted([1, 2, 3]),
    **{refresh: LossCalibrated(UTILITY, refresh=refresh, samples=4) for refresh in ("step", "epoch", "running")},
}


def data(count: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=generator)
    return torch.eye(3)[labels] + 0.3 * torch.randn(count, 3, generator=generator), labels


def build(family: str) -> Posterior:
    torch.manual_seed(0)
    networks = [MLP(3, 3, hidden=(16,), dropout=0.1 if family == "dropout" else 0.0) for _ in range(2)]
    if family == "ensemble":
        return Ensemble(networks)
    return MeanField(networks[0]) if family == "mean field" else MCDropout(networks[0])


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("family", ["dropout", "mean field", "ensemble"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_objectives_learn_in_half_precision(objective: Objective, family: str, precision: str) -> None:
    posterior = build(family)
    history = fit(
        posterior, objective, data(), data(), utility=UTILITY, config=CONFIG, precision=precision, progress=False
    )
    assert torch.tensor([epoch.loss for epoch in history.epochs]).isfinite().all()
    assert history.best_utility > -12, "deciding at random costs 33"
    stored = torch.float32 if precision == "bf16-mixed" else torch.bfloat16
    assert {parameter.dtype for parameter in posterior.parameters()} == {stored}
    probs = posterior.draw(4, seed=0)(data()[0]).mean_probs()
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(-1), torch.ones(96), atol=1e-6, rtol=0)
    choice = decide(posterior.draw(4, seed=0)(data()[0]), UTILITY).choice
    assert UTILITY.realised(choice, data()[1]).mean() > -12


def test_losses_and_decisions_in_mixed_precision_are_taken_in_single() -> None:
    """The network's products are in half precision, what is computed from its outputs is not."""
    kinds: set[torch.dtype] = set()

    class Watching(LossCalibrated):
        def losses(self, posterior: MCDropout, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
            losses = super().losses(posterior, x, labels, index)
            kinds.add(losses.dtype)
            kinds.add(posterior.mixture(x, 2).weights.dtype)
            assert posterior.outputs(x).dtype == torch.bfloat16
            return losses

    torch.manual_seed(0)
    posterior = MCDropout(MLP(3, 3, hidden=(16,), dropout=0.1))
    fit(posterior, Watching(UTILITY), data(), config=CONFIG, precision="bf16-mixed", progress=False)
    assert kinds == {torch.float32}


@pytest.mark.parametrize("precision", ["16-mixed", 16])
def test_float16_in_mixed_precision_needs_a_gpu(precision: str | int) -> None:
    posterior = MCDropout(MLP(3, 3, hidden=(4,), dropout=0.1))
    with pytest.raises(StakesError, match=r"needs a GPU: use \"bf16-mixed\" on a CPU"):
        fit(posterior, Standard(), data(), config=CONFIG, precision=precision, progress=False)
