"""What can be seen by letting one input through a network: its sizes, and whether it draws random numbers."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stakes.outcomes import Footprint
from stakes.posteriors.base import slow_attention


class Trial(NamedTuple):
    """What one input let through a network has shown: what it takes, and whether the network draws numbers itself."""

    footprint: Footprint
    draws_numbers: bool


def trial(
    network: nn.Module,
    x: Tensor,
    observer: object = None,
    start: Callable[[], None] = lambda: None,
    is_random: Callable[[], bool] = lambda: True,
) -> Trial:
    """Let ``x`` through a copy of ``network`` on the meta device, where nothing is computed, if it can do without.

    ``observer`` is not copied. ``start`` is called before, and ``is_random`` says whether what a layer puts out
    depends on the draw.
    """
    # A copy, for the network may keep something of what it has seen; of its tensors, only the shapes.
    known: dict[int, Any] = {id(tensor): tensor.to("meta") for tensor in [*network.parameters(), *network.buffers()]}
    try:
        empty = copy.deepcopy(network, {**known, id(observer): observer})
        return _watched(empty, x.to("meta"), x.nbytes, start, is_random)
    except Exception:  # whatever it needs values, or a device, for: what is wrong with it is said below
        return _watched(network, x, x.nbytes, start, is_random)


def _watched(
    network: nn.Module, x: Tensor, size: int, start: Callable[[], None], is_random: Callable[[], bool]
) -> Trial:
    before, after = [size], [1]

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        (after if is_random() else before).extend([output.nbytes] if isinstance(output, Tensor) else [])

    handles = [module.register_forward_hook(record) for module in network.modules()]
    start()
    try:
        with torch.no_grad(), slow_attention(), _RandomCalls() as calls:
            network(x)
    finally:
        for handle in handles:
            handle.remove()
    return Trial(Footprint(max(before), max(after)), calls.any)


class _RandomCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices whether any operation inside may draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
