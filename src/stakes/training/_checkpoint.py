"""What training has come to, its way to disk and back after a kill."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stakes._io.tensors import flatten, read_tensors, unflatten, write_tensors
from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training.config import Epoch, History


class TrainingState:
    """All that changes during training, and its way to disk and back."""

    def __init__(self, posterior: Posterior, optimizer: Optimizer, objective: Objective, run: dict[str, Any]) -> None:
        self.posterior, self.optimizer, self.objective, self.run = posterior, optimizer, objective, run
        self.best: dict[str, Tensor] = {}
        self._saved = time.monotonic()

    def keep_if_best(self, history: History) -> None:
        if history.best == len(history.epochs):
            self.best = {key: value.detach().clone() for key, value in self.posterior.state_dict().items()}

    def restore_best(self) -> None:
        if self.best:
            self.posterior.load_state_dict(self.best)

    def save_if_due(self, path: Path, history: History, seconds: float) -> None:
        """Save, unless that was done less than ``seconds`` ago."""
        if time.monotonic() - self._saved >= seconds:
            self.save(path, history)
            self._saved = time.monotonic()

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
        return History(tuple(Epoch(**epoch) for epoch in metadata["epochs"]), metadata["best"], self.run["select"])
