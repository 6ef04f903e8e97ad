"""How a network is run for many draws, and what differs between them is kept."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesWarning
from stakes.inputs import Inputs
from stakes.posteriors._sampling.fusion import FusedNetwork
from stakes.posteriors._sampling.masks import ActiveMasks, MaskLayout, active

# Masks or weights of all draws are kept between blocks up to this size, and made again beyond it.
KEPT_BYTES = 128 * 2**20
EQUAL_ROWS, ODD_DRAWS = 64, 7  # folded with their draws, a sort that is not stable exchanges some


class OverDraws:
    """Runs a network for every draw, in one of three ways, chosen by what the network is, never by a clock:

    - under `torch.func.vmap`, where whatever does not depend on the draw is computed once;
    - with the draws folded into the batch, if it has recurrent layers, which vmap cannot run, and its draws differ
      in masks alone;
    - one by one, if a block has one draw only, or if vmap cannot run the network (in-place sums, control flow on
      values): slower, and the same answer.
    """

    def __init__(self, network: nn.Module) -> None:
        self.recurrent = self.one_by_one = any(isinstance(part, nn.RNNBase) for part in network.modules())
        self._keeps_order: bool | None = None  # whether inputs stay in place where a network sorts; not known yet
        # The first layers of a sequence are computed once for several blocks of draws, if vmap tells which.
        self._shares = isinstance(network, FusedNetwork) and network.has_prefix

    def masked(
        self,
        network: nn.Module,
        x: Inputs,
        masks: Mapping[str, Tensor],
        layouts: Mapping[str, MaskLayout],
        sorts: bool = False,
    ) -> Tensor:
        """``(S, B, C, ...)`` the outputs of ``network`` under the masks of each draw; it ``sorts`` or not."""
        rows = inputs.count(x)
        if self.recurrent and all(layout.axis is not None for layout in layouts.values()):
            if sorts and self._keeps_order is None:
                self._keeps_order = _keeps_order(network, x, masks, layouts)
            if not sorts or self._keeps_order:
                return _folded(network, x, masks, layouts)

        def one(masks: Mapping[str, Tensor]) -> Tensor:
            with active(ActiveMasks(masks, layouts, rows)):
                return inputs.call(network, x)

        return self(one, masks)

    def __call__(self, function: Callable[[Mapping[str, Tensor]], Tensor], stacked: Mapping[str, Tensor]) -> Tensor:
        """``function`` of every slice of ``stacked`` along its first axis, results stacked again."""
        reason, count = "", len(next(iter(stacked.values())))
        one_by_one = self.one_by_one or (count == 1 and not self._shares)
        if not one_by_one:
            try:
                with without_performance_warnings():
                    return torch.func.vmap(function, randomness="different")(dict(stacked))
            except RuntimeError as error:
                reason = str(error)
                # Autocast passes over what vmap has wrapped: operations meet tensors of two precisions.
                autocast = torch.is_autocast_enabled(next(iter(stacked.values())).device.type)
                if not autocast and not any(sign in reason for sign in _VMAP_CANNOT):
                    raise
        draws = [{key: value[s] for key, value in stacked.items()} for s in range(count)]
        results = torch.stack([function(draw) for draw in draws])
        if not one_by_one:
            self.one_by_one = True
            warnings.warn(
                "draws are computed one by one, which is slower and gives the same answer: torch.func.vmap cannot run "
                f"this network ({reason.splitlines()[0][:120]})",
                StakesWarning,
                stacklevel=3,
            )
        return results

    def repeat(self, network: nn.Module, x: Inputs, samples: int) -> Tensor:
        """``network(x)`` with fresh randomness ``samples`` times, stacked."""
        if samples == 1:
            return inputs.call(network, x).unsqueeze(0)
        # Statistics that a pass updates (of batch norm, say) have to be updated by each.
        updates = any(part.training and any(True for _ in part.buffers(recurse=False)) for part in network.modules())
        if updates:
            return torch.stack([inputs.call(network, x) for _ in range(samples)])
        return self(lambda _: inputs.call(network, x), {"draw": torch.empty(samples)})


def _folded(network: nn.Module, x: Inputs, masks: Mapping[str, Tensor], layouts: Mapping[str, MaskLayout]) -> Tensor:
    """``(S, B, C, ...)``: all draws in one batch, those of an input beside each other, as lengths may be in order."""
    rows, samples = inputs.count(x), len(next(iter(masks.values())))
    repeated = inputs.map_tensors(lambda each: each.unsqueeze(1).expand(-1, samples, *each.shape[1:]).flatten(0, 1), x)
    with active(ActiveMasks(masks, layouts, samples * rows)):
        out = inputs.call(network, repeated)
    return out.reshape(rows, samples, *out.shape[1:]).transpose(0, 1)


@torch.no_grad()
def _keeps_order(network: nn.Module, x: Inputs, masks: Mapping[str, Tensor], layouts: Mapping[str, MaskLayout]) -> bool:
    """Whether many copies of one input, folded with their draws, have the answers that it has alone: a network that
    sorts them by length exchanges them, and with them the draws that stand in one batch.
    """
    one, generator = inputs.rows(x, slice(1)), torch.Generator().manual_seed(0)
    some = {
        key: torch.randint(2, (ODD_DRAWS, *mask.shape[1:]), generator=generator).to(mask) for key, mask in masks.items()
    }
    together = _folded(network, inputs.cat([one] * EQUAL_ROWS), some, layouts)
    for draw, out in enumerate(together):
        alone = _folded(network, one, {key: mask[draw : draw + 1] for key, mask in some.items()}, layouts)
        if not torch.allclose(out, alone[0].expand_as(out), rtol=1e-3, atol=1e-4, equal_nan=True):
            return False
    return True


# In the messages of vmap for what it cannot do. Errors of a network that say the same come again one by one.
_VMAP_CANNOT = (
    "vmap",
    "Batching rule not implemented",
    "got a batched tensor",
    "doesn't match the broadcast shape",  # a sum in place
    "Cannot access data pointer of Tensor that doesn't have storage",  # numpy(), tolist()
    "view size is not compatible",
    "Could not run 'aten::",  # sparse tensors
    "BatchedTensorImpl",  # untyped_storage()
)
_counting = threading.Lock()
_running = 0


@contextmanager
def without_performance_warnings() -> Iterator[None]:
    """Keep vmap from warning of operations that it loops over. The setting is the process's: the last thread out
    restores it.
    """
    global _running
    with _counting:
        _running += 1
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _counting:
            _running -= 1
            torch._C._functorch._set_vmap_fallback_warning_enabled(_running == 0)  # type: ignore[attr-defined]


class DrawTensors:
    """The random tensors of many draws, stacked: kept if they are small, made again if not."""

    def __init__(self, make: Callable[[int, int], dict[str, Tensor]], samples: int) -> None:
        self._make, self._samples = make, samples
        size = sum(tensor.nbytes for tensor in make(0, 1).values())
        self._kept = make(0, samples) if size * samples <= KEPT_BYTES else None

    def kept(self) -> "DrawTensors":
        """A copy that keeps them all, whatever their size."""
        kept = copy.copy(self)
        kept._kept = self(0, self._samples)
        return kept

    def __call__(self, first: int, last: int) -> dict[str, Tensor]:
        """``{name: (last - first, ...)}``."""
        if self._kept is None:
            return self._make(first, last)
        return {key: value[first:last] for key, value in self._kept.items()}
