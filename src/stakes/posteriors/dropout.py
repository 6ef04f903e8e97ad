"""Monte-Carlo dropout: q is a Bernoulli mask over units (Gal and Ghahramani 2016).

    KL(q || p) ~ sum_l  lengthscale^2 (1 - p) / 2  ||W_l||^2      up to a constant,

with p the mean rate of the network's dropout layers. `fit` divides it by the number of examples: the weight
decay of a standard dropout network.
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from stakes import inputs
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.outcomes import Outcomes
from stakes.posteriors._sampling.fusion import FusedNetwork
from stakes.posteriors._sampling.layers import dropout_layers, dropout_on, dropout_rate, frozen
from stakes.posteriors._sampling.masks import ActiveMasks, active, mask_shape, masked, reusing_prefixes
from stakes.posteriors._sampling.probe import Probe, batch_is_first, blank, probe
from stakes.posteriors.base import (
    FrozenDraws,
    OverDraws,
    Posterior,
    families,
    require_samples,
    squared_norm,
    weight_like,
    weight_matrices,
)


@families.register("dropout")
class MCDropout(Posterior):
    """Dropout layers stay random: in training a fresh mask for every example, in a draw one for all.

    ``network`` is trained in place. ``lengthscale`` is the prior's, the paper's is 0.01.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood | None = None, *, lengthscale: float = 0.1) -> None:
        super().__init__(likelihood)
        rates = [dropout_rate(layer) for layer in dropout_layers(network)]
        if not rates:
            raise StakesError(
                f"expected a network with dropout layers, but {type(network).__name__} has none that can be "
                "seen: put nn.Dropout(p) modules with p > 0 into it (calls of F.dropout cannot be "
                "controlled), or use Ensemble or MeanField"
            )
        self.network = network
        self.lengthscale = lengthscale
        self._keep = 1 - sum(rates) / len(rates)
        self._over_draws = OverDraws()
        self._batch_first: dict[Hashable, bool] = {}
        self._checked: set[Hashable] = set()

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        require_samples(samples)
        with dropout_on(self.network):
            return self._over_draws.repeat(self.network, x, samples)

    def shared_outputs(self, x: Inputs, samples: int) -> Tensor:
        """A draw is one thinned network, as in `draw`: a mask for all examples, so that few numbers are random."""
        require_samples(samples)
        if not self._shares_masks(x):
            return self.outputs(x, samples)
        with dropout_on(self.network), _one_mask_each(self.network):
            return self._over_draws.repeat(self.network, x, samples)

    def kl(self) -> Tensor:
        return self.lengthscale**2 * self._keep / 2 * squared_norm(weight_matrices(self.network))

    def draw(self, samples: int, seed: int) -> "DropoutDraws":
        require_samples(samples)
        draws = DropoutDraws(self.network, self.likelihood, samples, seed)
        draws.checked = self._checked
        return draws

    def check(self, x: Inputs) -> None:
        self.draw(1, seed=0).footprint(x)

    def settings(self) -> dict[str, Any]:
        return {"lengthscale": self.lengthscale}

    def _shares_masks(self, x: Inputs) -> bool:
        """Whether masks can be shared by all examples as they are made here: if the batch is on axis 0."""
        key = inputs.signature(x)
        if key not in self._batch_first:
            try:
                network = frozen(blank(self.network))
                device = weight_like(network).device
                row = inputs.map_tensors(lambda tensor: torch.zeros_like(tensor[:1], device=device), x)
                self._batch_first[key] = batch_is_first(network, row)
            except Exception:  # it cannot be told without values: masks for each example are always right
                self._batch_first[key] = False
        return self._batch_first[key]


class DropoutDraws(FrozenDraws):
    """Each draw is one thinned network: a mask for each call of a dropout layer, shared by all inputs of one shape.

    Inputs of another shape have other masks. Where each batch is padded to its own longest sentence, a draw of a
    sentence is thus another one in a batch of another length: as random, but not the same. For the same answer in any
    batch, pad to one length.
    """

    _network: FusedNetwork

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int) -> None:
        super().__init__(FusedNetwork(frozen(network)), likelihood, samples, seed)

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        plan, rows = self._plan(x), inputs.count(x)

        def one(masks: Mapping[str, Tensor]) -> Tensor:
            with active(ActiveMasks(masks, plan.layouts, rows)):
                return inputs.call(self._network, x)

        masks = plan.masks(first, last)
        return self._network.with_layout_fallback(lambda: self._over_draws(one, masks))

    def draw_blocks(self, x: Inputs, size: int) -> Iterator[Outcomes]:
        with reusing_prefixes():
            yield from super().draw_blocks(x, size)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        shown = self._network.with_layout_fallback(lambda: probe(self._network, x, check=check))
        shown.refuse_randomness()
        if not shown.layouts:
            raise StakesError(
                "expected the network to call its dropout layers, but it did not for this input: its draws "
                "would all be equal"
            )
        return shown


@contextmanager
def _one_mask_each(network: nn.Module) -> Iterator[None]:
    """Inside, each call of a dropout layer draws one fresh mask for all examples, which are on axis 0."""

    def forward(layer: _DropoutNd, x: Tensor) -> Tensor:
        return masked(layer, x, torch.rand(mask_shape(layer, x.shape)[1:], device=x.device) >= layer.p)

    layers = [layer for layer in dropout_layers(network) if isinstance(layer, _DropoutNd)]
    for layer in layers:
        layer.__dict__["forward"] = partial(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
