"""Frozen draws as a program of PyTorch alone, which runs where stakes is not installed."""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from stakes import inputs
from stakes.errors import StakesError
from stakes.inputs import Inputs

if TYPE_CHECKING:
    from stakes.posteriors.base import FrozenDraws


class Program(nn.Module):
    """What is exported: all draws of a batch at once, called as the network is."""

    def __init__(self, draws: "FrozenDraws", x: Inputs, mean: bool) -> None:
        super().__init__()
        self._draws, self._mean, self._one_tensor = draws, mean, isinstance(x, Tensor)
        self.network = draws._network  # where its weights are found

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        x: Inputs = args[0] if self._one_tensor else kwargs or args
        # In the usual order in memory: to choose an order by the strides would fix the number of inputs.
        outputs = self._draws.outputs(x, 0, self._draws.samples).contiguous()
        probs = self._draws.likelihood.outcomes(outputs).weights
        return probs.mean(0) if self._mean else probs


@torch.no_grad()
def export(draws: "FrozenDraws", x: Inputs, mean: bool) -> ExportedProgram:
    x = inputs.cast(inputs.rows(x, slice(2)), draws.device, draws.dtype)
    x = inputs.cat([x, x]) if inputs.count(x) == 1 else x  # a batch of one would be taken for all that there is
    if draws.outcomes(x, 0, 1).values is not None:
        raise StakesError("expected draws over classes, but these are over numbers, which cannot be exported yet")
    reasons = []
    # vmap gives the smaller program, but some of its operations (convolutions) fix the number of inputs.
    for one_by_one in (False, True):
        fixed = draws.fixed(x, one_by_one)
        args = (x,) if isinstance(x, Tensor) else x if isinstance(x, tuple) else ()
        kwargs = dict(x) if not isinstance(x, Tensor | tuple) else {}
        batch = {0: Dim("batch", min=1)}
        shapes: Any = {"args": tuple(batch for _ in args), "kwargs": {key: batch for key in kwargs}}
        try:
            program = torch.export.export(Program(fixed, x, mean), args, kwargs, dynamic_shapes=shapes)
            break
        except Exception as error:  # of any kind: it runs the network in ways of its own
            reasons.append((str(error).splitlines() or [type(error).__name__])[0][:200])
    else:
        raise StakesError(f"torch.export cannot export these draws: {reasons[-1]}")
    expected = draws(x).mean_probs() if mean else draws(x).probs()
    if not torch.allclose(program.module()(*args, **kwargs), expected, rtol=1e-3, atol=1e-5):
        raise StakesError(
            "the exported program does not give the numbers of these draws: the network may choose its steps by values"
        )
    return program
