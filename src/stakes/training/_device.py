"""Where training runs: on one CPU as it is, or wherever Lightning Fabric can take it."""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class OneCPU:
    """What the training loop asks of Fabric, for one process on the CPU in full precision: there, all of it is nothing.

    Fabric takes two seconds to import, and as long for each step as a small layer.
    """

    device = torch.device("cpu")
    global_rank, world_size, is_global_zero = 0, 1, True

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return module.to(self.device), optimizer

    def to_device(self, batch: T) -> T:
        return batch

    def backward(self, loss: Tensor, gradient: Tensor | None) -> None:
        loss.backward(gradient)  # type: ignore[no-untyped-call]

    def broadcast(self, value: T) -> T:
        return value


def launched(accelerator: str, devices: int, strategy: str, precision: Any) -> "OneCPU | Fabric":
    """What these settings ask for, ready to train on."""
    if (accelerator, devices, strategy, precision) == ("cpu", 1, "auto", None):
        return OneCPU()
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric
