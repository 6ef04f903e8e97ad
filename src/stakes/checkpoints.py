"""What training has come to, and its way to disk and back after a kill."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.storage import flatten, read_tensors, unflatten, write_tensors


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data came to; without validation there is no utility."""

    number: int  # from 1
    loss: float
    utility: float | None = None  # mean on validation, under the optimal decision
    nll: float | None = None


@dataclass(frozen=True)
class History:
    """All the epochs, and the one whose weights the posterior ended with."""

    epochs: tuple[Epoch, ...] = ()
    best: int = 0  # number of the epoch; 0 before the first

    @property
    def best_utility(self) -> float | None:
        return self.epochs[self.best - 1].utility if self.best else None

    def with_epoch(self, epoch: Epoch) -> "History":
        """A tie goes to the later epoch, which has learnt for longer."""
        better = epoch.utility is None or self.best_utility is None or epoch.utility >= self.best_utility
        return History((*self.epochs, epoch), epoch.number if better else self.best)

    def stalled(self, patience: int | None) -> bool:
        """No epoch of the last ``patience`` was strictly better than all before it."""
        scores = [epoch.utility for epoch in self.epochs if epoch.utility is not None]
        if patience is None or len(scores) <= patience:
            return False
        return max(scores[-patience:]) <= max(scores[:-patience])


class TrainingState:
    """All that changes during training, and its way to disk and back."""

    def __init__(self, posterior: Posterior, optimizer: Optimizer, objective: Objective, run: dict[str, Any]) -> None:
        self.posterior, self.optimizer, self.objective, self.run = posterior, optimizer, objective, run
        self.best: dict[str, Tensor] = {}

    def keep_if_best(self, history: History) -> None:
        if history.best == len(history.epochs):
            self.best = {key: value.detach().clone() for key, value in self.posterior.state_dict().items()}

    def restore_best(self) -> None:
        if self.best:
            self.posterior.load_state_dict(self.best)

    def save(self, path: Path, history: History) -> None:
        tree = {
            "posterior": self.posterior.state_dict(),
            "best": self.best,
            "optimizer": {str(index): slots for index, slots in self.optimizer.state_dict()["state"].items()},
            "objective": self.objective.state_dict(),
        }
        epochs = [asdict(epoch) for epoch in history.epochs]
        write_tensors(path, flatten(tree), {"run": self.run, "epochs": epochs, "best": history.best})

    def load(self, path: Path) -> History:
        flat, metadata = read_tensors(path)
        if metadata.get("run") != self.run:
            raise StakesError(
                f"{path}: expected the checkpoint of a run with {self.run}, but it is of {metadata.get('run')}"
            )
        tree = unflatten(flat)
        try:
            self.posterior.load_state_dict(tree["posterior"])
            slots = {int(index): slot for index, slot in tree.get("optimizer", {}).items()}
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        except (KeyError, RuntimeError, ValueError) as error:
            raise StakesError(f"{path}: the checkpoint is of another network ({error})") from None
        self.objective.load_state_dict(tree.get("objective", {}))
        self.best = tree.get("best", {})
        return History(tuple(Epoch(**epoch) for epoch in metadata["epochs"]), metadata["best"])
