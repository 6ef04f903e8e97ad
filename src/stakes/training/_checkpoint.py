"""The state of a training run, and its checkpoint on disk."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stakes._io.tensors import flatten, read_tensors, unflatten, write_tensors
from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training.config import Epoch, History
from stakes.training.examples import Examples
from stakes.utility import Utility


@dataclass
class ModelState:
    """A posterior in training, its examples, its epochs so far, and the weights of the best of them."""

    posterior: Posterior
    examples: Examples
    validation: Examples | None
    utility: Utility | None
    seed: int
    history: History
    best: dict[str, Tensor] = field(init=False)  # before the first epoch: the initial weights

    def __post_init__(self) -> None:
        if self.validation is not None and self.utility is None:
            raise StakesError("expected a utility to choose the best epoch on validation with: pass utility=")
        self._keep()

    def add(self, epoch: Epoch) -> None:
        self.history = self.history.with_epoch(epoch)
        if self.history.best == epoch.number:
            self._keep()

    def restore_best(self) -> None:
        """Give the posterior the weights of its best epoch, in eval mode."""
        self.posterior.load_state_dict(self.best)
        self.posterior.eval()

    def _keep(self) -> None:
        self.best = {key: value.detach().clone() for key, value in self.posterior.state_dict().items()}


class Checkpoint:
    """The file of a run: ``settings`` say which run it is, ``seconds`` pass at least between two saves."""

    def __init__(self, path: Path, settings: dict[str, Any], seconds: float) -> None:
        self.path, self.settings, self.seconds = path, settings, seconds
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._saved >= self.seconds

    def save(self, model: ModelState, optimizer: Optimizer, objectives: Sequence[Mapping[str, Tensor]]) -> None:
        """Write all that changes in training; ``objectives`` are the states of the objective in every process."""
        state = optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        slots = flatten({"state": state["state"], "groups": dict(enumerate(groups))})
        tensors = {key: value for key, value in slots.items() if isinstance(value, Tensor)}
        numbers = {key: value for key, value in slots.items() if key not in tensors}  # and flags, None, ...
        try:
            json.dumps(numbers, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StakesError(
                f"the state of {type(optimizer).__name__} cannot be written to a checkpoint ({error}): use an "
                "optimizer whose state is tensors and plain numbers, or train without checkpoint="
            ) from None
        tree = {
            "posterior": model.posterior.state_dict(),
            "best": model.best,
            "optimizer": tensors,
            "objective": dict(enumerate(objectives)),
        }
        epochs = [asdict(epoch) for epoch in model.history.epochs]
        metadata = {"run": self.settings, "epochs": epochs, "best": model.history.best, "optimizer": numbers}
        write_tensors(self.path, flatten(tree), metadata)
        self._saved = time.monotonic()

    def load(self, model: ModelState, optimizer: Optimizer, objective: Objective, process: int) -> None:
        """Set everything back to what `save` wrote."""
        flat, metadata = read_tensors(self.path)
        if metadata.get("run") != self.settings:
            raise StakesError(
                f"{self.path}: expected the checkpoint of a run with {self.settings}, but it is of "
                f"{metadata.get('run')}: remove the file, or train without resume"
            )
        tree = unflatten(flat)
        slots = unflatten(flatten(tree.get("optimizer", {})) | metadata["optimizer"])
        try:
            model.posterior.load_state_dict(tree["posterior"])
            _load_optimizer(optimizer, slots.get("state", {}), slots["groups"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise StakesError(f"{self.path}: the checkpoint is of another network ({error})") from None
        objective.load_state_dict(tree.get("objective", {}).get(str(process), {}))
        model.best = tree["best"]
        epochs = tuple(Epoch(**epoch) for epoch in metadata["epochs"])
        model.history = History(epochs, metadata["best"], model.history.select)


def _load_optimizer(optimizer: Optimizer, state: dict[str, dict[str, Any]], groups: dict[str, dict[str, Any]]) -> None:
    current = optimizer.state_dict()["param_groups"]
    loaded = [{**group, **groups[str(index)]} for index, group in enumerate(current)]
    optimizer.load_state_dict({"state": {int(index): slots for index, slots in state.items()}, "param_groups": loaded})
    # PyTorch casts every tensor to the precision of its parameter; counters and float32 moments keep theirs.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, slots in state.items():
        state_now = optimizer.state[parameters[int(index)]]
        for key, value in slots.items():
            if isinstance(value, Tensor) and state_now[key].dtype != value.dtype:
                state_now[key] = value.to(state_now[key].device)
