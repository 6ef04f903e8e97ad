"""Several posteriors of one kind, trained as one: many small networks take one large step.

A step of a small network is nearly all overhead. Stacked, K networks share it: their weights have a leading
axis K, and the models are one more middle axis of everything else,

    x (B, K, ...)    labels (B, K)    outputs (S, B, C, K),

so that objectives need not know. The gradients of one model do not depend on the others.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stakes.errors import StakesError
from stakes.posteriors.base import Draws, Posterior


class Stack(Posterior):
    """``members`` share their memory with the stack: each can be asked and drawn from while the stack learns."""

    def __init__(self, members: Sequence[Posterior]) -> None:
        _check(members)
        super().__init__(members[0].likelihood)
        self.members = tuple(members)  # not a ModuleList: their parameters are the stack's own
        self._template = (_Template(copy.deepcopy(members[0])).to("meta"),)  # in a tuple for the same reason
        parameters, self._buffers_by_name = torch.func.stack_module_state([_Template(member) for member in members])
        self._names = tuple(parameters)
        self._stacked = nn.ParameterList(parameters.values())
        for place, member in enumerate(members):
            views = {**parameters, **self._buffers_by_name}
            for name, tensor in [*_Template(member).named_parameters(), *_Template(member).named_buffers()]:
                tensor.data = views[name].data[place]

    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        return self._each(lambda member, own: _rows_last(member.outputs(own, samples)), x, x_axis=1, out_axis=3)

    def shared_outputs(self, x: Tensor, samples: int) -> Tensor:
        return self._each(lambda member, own: _rows_last(member.shared_outputs(own, samples)), x, x_axis=1, out_axis=3)

    def kl(self) -> Tensor:
        return self._each(lambda member, _: member.kl(), torch.empty(len(self.members)), x_axis=0, out_axis=0).sum()

    def draw(self, samples: int, seed: int) -> Draws:
        raise StakesError("a stack only learns: draw from one of its members")

    def settings(self) -> dict[str, Any]:
        return {"members": [member.spec() for member in self.members]}

    def _each(self, run: Callable[[Posterior, Tensor], Tensor], x: Tensor, x_axis: int, out_axis: int) -> Tensor:
        """``run`` of every member and its slice of ``x``."""
        (template,) = self._template
        if template.training != self.training:
            template.train(self.training)
        state = {**dict(zip(self._names, self._stacked, strict=True)), **self._buffers_by_name}

        def of_one(own_state: dict[str, Tensor], own_x: Tensor) -> Tensor:
            return torch.func.functional_call(template, own_state, (run, own_x))  # type: ignore[no-any-return]

        return torch.func.vmap(of_one, (0, x_axis), out_axis, randomness="different")(state, x)


def _rows_last(outputs: Tensor) -> Tensor:
    """The same ``(S, B, C)``, its rows innermost in memory, where a softmax over the classes is fast."""
    return outputs.transpose(1, 2).contiguous().transpose(1, 2) if outputs.ndim == 3 else outputs


class _Template(nn.Module):
    """A posterior as the module that `functional_call` wants."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.posterior = posterior

    def forward(self, run: Callable[[Posterior, Tensor], Tensor], x: Tensor) -> Tensor:
        return run(self.posterior, x)


def _check(members: Sequence[Posterior]) -> None:
    shapes = {tuple((key, value.shape) for key, value in member.state_dict().items()) for member in members}
    specs = {repr((member.spec(), member.likelihood.spec())) for member in members}
    if len(shapes) != 1 or len(specs) != 1:
        raise StakesError(f"expected posteriors of one kind to stack, but got {len(specs) * len(shapes)} kinds")
    if any(isinstance(layer, _BatchNorm) for layer in members[0].modules()):
        raise StakesError("a network with batch norm cannot be stacked: its running statistics are no parameters")
    if any(True for _ in members[0].likelihood.parameters()):
        raise StakesError("a likelihood that learns cannot be stacked: fit the posteriors one by one")
