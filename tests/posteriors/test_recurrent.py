"""Recurrent networks: their draws are folded into the batch, and are those of a loop over masks."""

import pytest
import torch
from torch import Tensor, nn

from stakes import MCDropout
from stakes.posteriors._sampling.masks import ActiveMasks, active


class Sequences(nn.Module):
    """Dropout before, between and after recurrent layers, on inputs of either order and on folded ones."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.before, self.after, self.last = nn.Dropout(0.3), nn.Dropout(0.4), nn.Dropout(0.2)
        self.layers = kind(4, 6, num_layers=2, dropout=0.25, batch_first=batch_first)
        self.tokens, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x if self.batch_first else x.transpose(0, 1))
        h = self.after(self.layers(h)[0])
        h = h if self.batch_first else h.transpose(0, 1)
        folded = self.last(self.tokens(h).flatten(0, 1))  # (B T, 5)
        return self.out(folded.view(len(x), -1, 5).mean(1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_draws_folded_into_the_batch_are_those_of_one_mask_after_the_other(
    kind: type[nn.RNNBase], batch_first: bool
) -> None:
    torch.manual_seed(0)
    draws = MCDropout(Sequences(kind, batch_first)).draw(12, seed=0)
    x = torch.randn(5, 7, 4)
    together = draws.outputs(x, 0, 12)
    assert draws._over_draws.recurrent
    plan = draws._plan(x)
    for draw in range(12):
        masks = {key: value[0] for key, value in plan.masks(draw, draw + 1).items()}
        with torch.no_grad(), active(ActiveMasks(masks, plan.layouts, len(x))):
            torch.testing.assert_close(together[draw], draws._network(x), atol=1e-6, rtol=1e-5)
    assert len(together.flatten(1).unique(dim=0)) == 12


def test_training_decides_with_balanced_masks() -> None:
    torch.manual_seed(0)
    posterior = MCDropout(Sequences(nn.LSTM, True)).eval()
    x = torch.randn(3, 7, 4)
    with torch.no_grad():
        outputs = posterior.shared_outputs(x, 10)
    assert outputs.shape == (10, 3, 3)
    assert len(outputs.flatten(1).unique(dim=0)) == 10
