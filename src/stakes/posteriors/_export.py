"""Frozen draws as a program of PyTorch alone, which runs where stakes is not installed."""

import warnings
from collections.abc import Mapping
from inspect import Parameter, Signature
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
        if isinstance(x, Mapping):
            self._name_arguments(*x)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        x: Inputs = args[0] if self._one_tensor else kwargs or args
        # In the usual order in memory: to choose an order by the strides would fix the number of inputs.
        outputs = self._draws.outputs(x, 0, self._draws.samples).contiguous()
        probs = self._draws.likelihood.outcomes(outputs).weights
        return probs.mean(0) if self._mean else probs

    def _name_arguments(self, *names: str) -> None:
        """torch.export takes sizes that vary only for arguments that a signature names."""
        run = self.forward

        def forward(**kwargs: Tensor) -> Tensor:
            return run(**kwargs)

        parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward


@torch.no_grad()
def export(draws: "FrozenDraws", x: Inputs, mean: bool) -> ExportedProgram:
    """See `Draws.export`."""
    x = inputs.cast(inputs.rows(x, slice(2)), draws.device, draws.dtype)
    x = inputs.cat([x, x]) if inputs.count(x) == 1 else x  # a size of 1 would be taken for the only one
    if draws.outcomes(x, 0, 1).numeric:
        raise StakesError("expected draws over classes, but these are over numbers, which cannot be exported yet")
    args = (x,) if isinstance(x, Tensor) else x if isinstance(x, tuple) else ()
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    program = _traced(draws, x, mean, args, kwargs)
    expected = draws(x).mean_probs() if mean else draws(x).probs()
    if not torch.allclose(program.module()(*args, **kwargs), expected, rtol=1e-3, atol=1e-5):
        raise StakesError(
            "the exported program does not give the numbers of these draws: the network may choose its steps by values"
        )
    return program


def _traced(
    draws: "FrozenDraws", x: Inputs, mean: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    batch = {0: Dim("batch", min=1)}
    shapes: Any = {"args": (batch,) * len(args)} if args else dict.fromkeys(kwargs, batch)
    reason = ""
    # vmap gives the smaller program, but some of its operations (convolutions) fix the number of inputs.
    for one_by_one in (False, True):
        program = Program(draws.for_export(x, one_by_one), x, mean)
        try:
            with warnings.catch_warnings():
                # Of recurrent layers, which list their weights anew where other ones are put into them.
                warnings.filterwarnings("ignore", message="The tensor attributes")
                return torch.export.export(program, args, kwargs, dynamic_shapes=shapes)
        except Exception as error:  # of any kind: it runs the network in ways of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            if "Constraints violated" in reason:
                reason += " The network fixes the number of inputs: write x.shape[0] in place of len(x), say"
    raise StakesError(f"torch.export cannot export these draws: {reason}")
