"""What can be seen by letting one input through a network: its sizes, and whether it draws random numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stakes.posteriors.base import Footprint, slow_attention


class Trial(NamedTuple):
    """What one input let through a network has shown: what it takes, and whether the network draws numbers itself."""

    footprint: Footprint
    draws_numbers: bool


def trial(
    network: nn.Module,
    x: Tensor,
    start: Callable[[], None] = lambda: None,
    is_random: Callable[[], bool] = lambda: True,
) -> Trial:
    """Let ``x`` through ``network``: on the meta device, where nothing is computed, if the network can do without.

    ``start`` is called before, and ``is_random`` says whether what a layer puts out depends on the draw.
    """
    state = {name: tensor.to("meta") for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
    try:
        return _watched(network, lambda: torch.func.functional_call(network, state, x.to("meta")), x, start, is_random)
    except (RuntimeError, TypeError):  # the values of tensors matter to it
        return _watched(network, lambda: network(x), x, start, is_random)


def _watched(
    network: nn.Module, run: Callable[[], Any], x: Tensor, start: Callable[[], None], is_random: Callable[[], bool]
) -> Trial:
    before, after = [x.nbytes], [1]

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        (after if is_random() else before).extend([output.nbytes] if isinstance(output, Tensor) else [])

    handles = [module.register_forward_hook(record) for module in network.modules()]
    start()
    try:
        with torch.no_grad(), slow_attention(), _RandomCalls() as calls:
            run()
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
