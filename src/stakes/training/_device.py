"""Where training runs: on one CPU process, or wherever Lightning Fabric runs."""

import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stakes._io.tensors import read_tensors, write_tensors
from stakes.errors import StakesError
from stakes.posteriors.base import Posterior
from stakes.training.config import Epoch, History

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

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor, gradient: Tensor | None) -> None:
        loss.backward(gradient)  # type: ignore[no-untyped-call]

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool
    ) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def broadcast(self, obj: T, src: int = 0) -> T:
        return obj


Train = Callable[["OneCPU | Fabric", Posterior], History]


def launch(
    train: Train, posterior: Posterior, accelerator: str, devices: int, strategy: str, precision: Any
) -> History:
    """``train`` the posterior in this process with these settings of Fabric, or with its stand-in for the defaults; or,
    where the strategy starts processes of its own, in those.
    """
    if (accelerator, devices, strategy, precision) == ("cpu", 1, "auto", None):
        return train(OneCPU(), posterior)
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    if on_cpu and str(precision) in ("16", "16-mixed"):
        raise StakesError('precision="16-mixed" needs a GPU: use "bf16-mixed" on a CPU')
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=precision)
    launcher = fabric.strategy.launcher
    if launcher is None or isinstance(launcher, _SubprocessScriptLauncher):
        fabric.launch()
        return train(fabric, posterior)
    return _in_new_processes(fabric, train, posterior)


def _in_new_processes(fabric: "Fabric", train: Train, posterior: Posterior) -> History:
    """Train copies of the posterior in processes that are spawned or forked, and give it the weights of the first."""
    from torch.multiprocessing.spawn import ProcessRaisedException

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trained.safetensors"
        try:
            fabric.launch(_train_and_write, posterior, train, file)  # type: ignore[arg-type]
        except ProcessRaisedException as error:
            message = re.search(r"StakesError: (.*)", str(error))  # in the traceback of the process
            if message is None:
                raise
            raise StakesError(message[1]) from None
        except (AttributeError, PicklingError, TypeError) as error:
            if "pickle" not in str(error).lower():
                raise
            raise StakesError(
                f"all that fit is given is sent to the processes that this strategy spawns, but some of it cannot be "
                f'({error}): define functions and classes at the top of a module, or use strategy="ddp"'
            ) from None
        state, metadata = read_tensors(file)
    for name, tensor in [*posterior.named_parameters(), *posterior.named_buffers()]:
        if name in state:
            tensor.data = tensor.data.to(state[name].dtype)  # a precision of Fabric's changes that of the weights
    posterior.load_state_dict(state)
    posterior.eval()
    epochs = tuple(Epoch(**epoch) for epoch in metadata["epochs"])
    return History(epochs, metadata["best"], metadata["select"])


def _train_and_write(fabric: "Fabric", posterior: Posterior, train: Train, file: Path) -> None:
    history = train(fabric, posterior)
    if fabric.is_global_zero:
        write_tensors(file, posterior.state_dict(), asdict(history))
