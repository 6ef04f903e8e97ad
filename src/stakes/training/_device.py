"""Where training runs: on one CPU process, or wherever Lightning Fabric runs."""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class OneCPU:
    """No-op stand-in for Fabric on one CPU process.

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

    def broadcast(self, obj: T, src: int = 0) -> T:
        return obj


def launch(accelerator: str, devices: int, strategy: str, precision: Any) -> "OneCPU | Fabric":
    """Return a launched Fabric with these settings, or its stand-in where they are the defaults."""
    if (accelerator, devices, strategy, precision) == ("cpu", 1, "auto", None):
        return OneCPU()
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric
