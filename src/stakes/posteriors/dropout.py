"""Monte-Carlo dropout: q is a Bernoulli mask over units (Gal and Ghahramani 2016).

    KL(q || p) ~ sum_l  lengthscale^2 (1 - p) / 2  ||W_l||^2      up to a constant,

with p the mean rate of the network's dropout layers. `fit` divides it by the number of examples: the weight
decay of a standard dropout network.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError, StakesWarning, listing
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.outcomes import Outcomes
from stakes.posteriors._sampling.balance import fresh_masks, group_coverage, group_size
from stakes.posteriors._sampling.encoder import fuse_encoders, fused_encoders
from stakes.posteriors._sampling.fusion import FusedNetwork, ImageOrder
from stakes.posteriors._sampling.insert import CHILD, Where, insert_dropout
from stakes.posteriors._sampling.layers import (
    dropout_layers,
    dropout_on,
    dropout_rate,
    eager,
    frozen,
    silent_dropout,
    taking_masks,
)
from stakes.posteriors._sampling.masks import FrozenDropout, reusing_prefixes
from stakes.posteriors._sampling.over_draws import OverDraws
from stakes.posteriors._sampling.probe import Probe, Shapes, blank, probe, shapes_without_values
from stakes.posteriors._sampling.stacking import StackedLayers
from stakes.posteriors._sampling.stand_in import has_hooks
from stakes.posteriors.base import (
    FrozenDraws,
    Posterior,
    families,
    require_samples,
    squared_norm,
    weight_like,
    weight_matrices,
)
from stakes.posteriors.fresh import FreshDraws

WORTH_DIVIDING = 10**8  # multiplications and additions in all draws of a batch, a millisecond or so


@families.register("dropout")
class MCDropout(Posterior):
    """Dropout layers stay random: in training a fresh mask for every example, in a draw one for all.

    ``network`` is trained in place. ``lengthscale`` is the prior's, the paper's is 0.01.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood | None = None, *, lengthscale: float = 0.1) -> None:
        super().__init__(likelihood)
        self.network = network
        self.lengthscale = lengthscale
        self._over_draws, self._image_order = OverDraws(eager(network)), ImageOrder(eager(network))
        self._info = _NetworkInfo.of(eager(network))
        if silent := silent_dropout(eager(network)):
            warnings.warn(
                f"network.train() leaves the dropout layers {listing(silent)} in eval mode, but dropout of a posterior "
                "is random in training and in draws: set their p to 0 if they are not to drop",
                StakesWarning,
                stacklevel=2,
            )

    @classmethod
    def insert(
        cls,
        network: nn.Module,
        p: float,
        where: Where | None = None,
        likelihood: Likelihood | None = None,
        *,
        layer: Callable[[float], nn.Module] = nn.Dropout,
        lengthscale: float = 0.1,
    ) -> Self:
        """Insert ``layer(p)`` before some layers of a copy of ``network``, such as a trained one without dropout.

        >>> MCDropout.insert(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), p=0.1).network
        Sequential(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(
            in_features=8, out_features=2, bias=True
            (inserted_dropout): Dropout(p=0.1, inplace=False)
          )
        )

        ``where`` tells these layers: a type or a tuple of types, a name or several, or a function ``(name, module) ->
        bool``. Without it, they are all linear layers but the first layer that the network has, in the order in which
        it was built: raw inputs should not be dropped. Weights keep their names. A saved model is loaded with a network
        that is made the same way: ``SavedModel.load(path, network=MCDropout.insert(network, p).network)``.
        """
        return cls(insert_dropout(network, p, where, layer), likelihood, lengthscale=lengthscale)

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        require_samples(samples)
        with dropout_on(self.network):
            return self._over_draws.repeat(self.network if samples == 1 else eager(self.network), x, samples)

    def fresh_draws(self, x: Inputs, samples: int) -> FreshDraws:
        """A draw is one thinned network, as in `draw`: balanced masks, shared by all examples."""
        require_samples(samples)
        network, info = eager(self.network), self._current_info()
        shapes = info.shapes_for(x, network)
        if shapes is None:
            return super().fresh_draws(x, samples)
        layouts, work, sorts = shapes
        device = inputs.tensors_of(x)[0].device
        masks = {
            key: fresh_masks(layout.p, info.group, layout.shape, samples, device) for key, layout in layouts.items()
        }

        def outputs(x: Inputs, first: int, last: int) -> Tensor:
            some = {key: mask[first:last] for key, mask in masks.items()}
            if info.stacked is not None and info.stacked.accepts(x):
                return info.stacked(x, some)
            with taking_masks(network), fused_encoders(network):
                return self._image_order(lambda x: self._over_draws.masked(network, x, some, layouts, sorts), x)

        large = samples * inputs.count(x) * work.per_draw >= WORTH_DIVIDING
        return FreshDraws(outputs, divisible=large and 2 * work.shared <= work.per_draw)

    def kl(self) -> Tensor:
        keep = self._current_info().keep
        return self.lengthscale**2 * keep / 2 * squared_norm(weight_matrices(self.network))

    def draw(self, samples: int, seed: int) -> "DropoutDraws":
        require_samples(samples)
        draws = DropoutDraws(self.network, self.likelihood, samples, seed)
        draws.checked = self._current_info().checked
        return draws

    def check(self, x: Inputs) -> None:
        self.draw(1, seed=0).footprint(x)

    def settings(self) -> dict[str, Any]:
        return {"lengthscale": self.lengthscale}

    def _current_info(self) -> "_NetworkInfo":
        """The info of the network as it is now: its layers and rates may be changed in training."""
        if not self._info.holds_for(eager(self.network)):
            self._info = _NetworkInfo.of(eager(self.network))
        return self._info


@dataclass(frozen=True, eq=False)
class _NetworkInfo:
    """What follows from the layers of a network, and from their rates of dropout."""

    layers: tuple[nn.Module, ...]
    rates: tuple[float, ...]  # of all layers; 0 for those that are no dropout
    hooked: tuple[bool, ...]  # whether each layer has hooks
    keep: float
    group: int
    stacked: StackedLayers | None
    shapes: dict[Hashable, Shapes | None] = field(default_factory=dict)
    checked: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(cls, network: nn.Module) -> "_NetworkInfo":
        layers = tuple(network.modules())
        rates = tuple(map(dropout_rate, layers))
        dropout = [rate for rate in rates if rate > 0]
        if not dropout:
            raise StakesError(
                f"expected a network with dropout layers, but {type(network).__name__} has none that can be "
                "seen: put nn.Dropout(p) modules with p > 0 into it (calls of F.dropout cannot be "
                "controlled), let MCDropout.insert(network, p) do it, or use Ensemble, MeanField or Laplace"
            )
        keep = 1 - sum(dropout) / len(dropout)
        return cls(layers, rates, tuple(map(has_hooks, layers)), keep, group_size(dropout), StackedLayers.of(network))

    def holds_for(self, network: nn.Module) -> bool:
        layers = tuple(network.modules())
        same = len(layers) == len(self.layers) and all(map(operator.is_, layers, self.layers))
        return same and tuple(map(dropout_rate, layers)) == self.rates and tuple(map(has_hooks, layers)) == self.hooked

    def shapes_for(self, x: Inputs, network: nn.Module) -> Shapes | None:
        """What is known of passes of such inputs; None if masks for all examples cannot be determined."""
        key = inputs.signature(x)
        if key not in self.shapes:
            try:
                if self.stacked is not None and self.stacked.accepts(x):
                    self.shapes[key] = Shapes(self.stacked.layouts(x)[0])
                    return self.shapes[key]
                network = frozen(blank(network))
                device = weight_like(network).device
                row = inputs.map_tensors(lambda tensor: torch.zeros_like(tensor[:1], device=device), x)
                self.shapes[key] = shapes_without_values(network, row)
            except Exception:  # it needs values: masks for each example are always right
                self.shapes[key] = None
        return self.shapes[key]


class DropoutDraws(FrozenDraws):
    """Each draw is one thinned network: a mask for each call of a dropout layer, shared by all inputs of one shape.

    Inputs of another shape have other masks. Where each batch is padded to its own longest sentence, a draw of a
    sentence is thus another one in a batch of another length: as random, but not the same. For the same answer in any
    batch, pad to one length.
    """

    _network: FusedNetwork

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int) -> None:
        rates = [dropout_rate(layer) for layer in dropout_layers(network)]
        super().__init__(FusedNetwork(fuse_encoders(frozen(network))), likelihood, samples, seed, group_size(rates))
        self.group_coverage = group_coverage(rates)
        self._stacked = StackedLayers.of_layers(self._network.layers or [], names={})

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        plan = self._plan(x)
        masks = plan.masks(first, last)
        if self._stacked is not None and self._stacked.accepts(x):
            return self._stacked(x, masks)
        return self._network.with_layout_fallback(
            lambda: self._over_draws.masked(self._network, x, masks, plan.layouts, plan.sorts)
        )

    def draw_blocks(self, x: Inputs, size: int, first: int = 0, last: int | None = None) -> Iterator[Outcomes]:
        with reusing_prefixes():
            yield from super().draw_blocks(x, size, first, last)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        if self._stacked is not None and self._stacked.accepts(x):
            layouts, footprint = self._stacked.layouts(x)
            return Probe(footprint, layouts, [], [], Counter(), [])
        probed = self._network.with_layout_fallback(lambda: probe(self._network, x, check=check))
        probed.refuse_randomness()
        if not probed.layouts:
            raise StakesError(
                "expected the network to call its dropout layers, but it did not for this input: its draws "
                "would all be equal"
            )
        called = {key.rpartition("/")[0] for key in probed.layouts}
        names = [part.name for part in self._network.modules() if isinstance(part, FrozenDropout)]
        silent = [name.removesuffix(f".{CHILD}") for name in names if name.endswith(CHILD) and name not in called]
        if silent:
            raise StakesError(
                f"expected the network to call the layers before which dropout was inserted, but it does not call "
                f"{listing(silent)} (it may read their weights instead): leave them out of where="
            )
        return probed
