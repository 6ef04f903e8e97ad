"""Batch ensemble: q is a set of networks that share most of their weights (Wen et al. 2020).

    KL(q || p) ~ mean_m  ||W_m||^2 / (2 prior_sd^2)      up to a constant, as of an `Ensemble`;

W_m are the weights of member m, most of them those of the others, too; scales and biases are not among them.
"""

from collections.abc import Iterator
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from stakes import inputs, seeds
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.outcomes import Footprint, Outcomes
from stakes.posteriors._sampling.layers import without_dropout
from stakes.posteriors._sampling.probe import Probe
from stakes.posteriors.base import FrozenDraws, Posterior, families, require_samples
from stakes.posteriors.ensemble import probe_members, warn_of_dropout


@runtime_checkable
class MemberNetwork(Protocol):
    """A network that gives the outputs of all its ``members`` in one pass: ``(members, B, C, ...)``, as `TabM` does."""

    members: int

    def squared_norm(self) -> Tensor:
        """The sum of squares of a member's weights, the mean over members."""


@families.register("batch_ensemble")
class BatchEnsemble(Posterior):
    """Every member is trained on every batch; a draw is a member, so there are no more draws than members."""

    def __init__(self, network: nn.Module, likelihood: Likelihood | None = None, *, prior_sd: float = 1.0) -> None:
        super().__init__(likelihood)
        if not isinstance(network, MemberNetwork):
            raise StakesError(
                f"expected a network with members and squared_norm(), as TabM, but got a {type(network).__name__}: use "
                "Ensemble.of for members that are networks of their own"
            )
        self.network: nn.Module = network
        self.prior_sd = prior_sd
        warn_of_dropout(network)

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        """All the members, whatever ``samples`` is: each has to learn from each batch."""
        require_samples(samples)
        return _outputs(self.network, x)

    def kl(self) -> Tensor:
        return cast(MemberNetwork, self.network).squared_norm() / (2 * self.prior_sd**2)

    def draw(self, samples: int, seed: int) -> "BatchEnsembleDraws":
        """``samples`` members without repetition, or all of them if there are no more than that."""
        require_samples(samples)
        order = torch.randperm(_members(self.network), generator=seeds.generator(seed, "members"))
        return BatchEnsembleDraws(self.network, order[:samples].sort().values, self.likelihood)

    def settings(self) -> dict[str, Any]:
        return {"prior_sd": self.prior_sd}


class BatchEnsembleDraws(FrozenDraws):
    """Each draw is one member, as it was when it was drawn, without its dropout."""

    def __init__(self, network: nn.Module, chosen: Tensor, likelihood: Likelihood) -> None:
        super().__init__(without_dropout(network), likelihood, len(chosen), seed=0)
        self._chosen = None if len(chosen) == _members(network) else chosen

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        self._plan(x)
        outputs = _outputs(self._network, x)
        if self._chosen is None:
            return outputs[first:last]
        return outputs[self._chosen[first:last]]

    def draw_blocks(self, x: Inputs, size: int, first: int = 0, last: int | None = None) -> Iterator[Outcomes]:
        """All of them at once: one pass gives all members, and blocks of some would repeat it."""
        yield self.outcomes(x, first, self.samples if last is None else last)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        probed = probe_members(self._network, x, check)
        # What it saw go through the network are all members.
        shared, all_members = probed.footprint
        return probed._replace(footprint=Footprint(shared, -(-all_members // _members(self._network))))


def _members(network: nn.Module) -> int:
    return cast(MemberNetwork, network).members


def _outputs(network: nn.Module, x: Inputs) -> Tensor:
    outputs, members = inputs.call(network, x), _members(network)
    rows = inputs.tensors_of(x)[0].shape[0]
    if outputs.ndim < 3 or outputs.shape[:2] != (members, rows):
        raise StakesError(
            f"expected outputs of {members} members for {rows} inputs, ({members}, {rows}, C, ...), but the network "
            f"returned {tuple(outputs.shape)}"
        )
    return outputs
