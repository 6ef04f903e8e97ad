"""The multilayer perceptron for tables."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from stakes.errors import StakesError

HIDDEN, DROPOUT = (128, 64), 0.1  # defaults, here and of a `Recipe`
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class MLP(nn.Sequential):
    """Linear layers, each but the last followed by an activation and dropout.

    >>> MLP(3, 2, hidden=(8,), dropout=0.2)
    MLP(
      (0): Linear(in_features=3, out_features=8, bias=True)
      (1): ReLU()
      (2): Dropout(p=0.2, inplace=False)
      (3): Linear(in_features=8, out_features=2, bias=True)
    )
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = HIDDEN,
        dropout: float = DROPOUT,
        activation: str = "relu",
    ) -> None:
        sizes = (inputs, *hidden, outputs)
        if not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise StakesError(f"expected layer sizes of at least 1, but got {sizes}")
        if not 0 <= dropout < 1:
            raise StakesError(f"expected a dropout rate in [0, 1), but got {dropout}")
        if activation not in ACTIVATIONS:
            raise StakesError(f"expected an activation of {sorted(ACTIVATIONS)}, but got {activation!r}")
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes[:-1]):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation](), nn.Dropout(dropout)]
        super().__init__(*layers, nn.Linear(sizes[-2], outputs))
        self.inputs, self.outputs = inputs, outputs
        self.settings: dict[str, Any] = {
            "inputs": inputs,
            "outputs": outputs,
            "hidden": list(hidden),
            "dropout": dropout,
            "activation": activation,
        }

    def __getitem__(self, index: slice | int) -> nn.Module:
        """A layer; or some of them, as a plain nn.Sequential: they are not an MLP."""
        return nn.Sequential(*list(self)[index]) if isinstance(index, slice) else super().__getitem__(index)

    def spec(self) -> dict[str, Any]:
        """Its kind and settings in JSON types."""
        return {"kind": "mlp", **self.settings}
