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
from stakes.training.config import Epoch, History, Training
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
    best_before: dict[str, Tensor] | None = None  # a last epoch that is scored only because it is the last

    def __post_init__(self) -> None:
        if self.validation is not None and self.utility is None:
            raise StakesError("expected a utility to choose the best epoch on validation with: pass utility=")
        if self.validation is not None and not self.validation.indexed and self.utility and self.utility.per_example:
            raise StakesError(
                "a utility with a table for each example needs their index, and the examples of an IterableDataset "
                "have none: validate on a map-style dataset"
            )
        self._keep()

    def add(self, epoch: Epoch, planned: bool = True) -> None:
        """Add an epoch; ``planned`` says whether it would be validated even if more epochs followed."""
        self.best_before = None if planned or epoch.utility is None else self.best
        self.history = self.history.with_epoch(epoch)
        if self.history.best == epoch.number:
            self._keep()

    def restore_best(self) -> None:
        """Give the posterior the weights of its best epoch, in eval mode."""
        self.posterior.load_state_dict(self.best)
        self.posterior.eval()

    def _keep(self) -> None:
        self.best = {key: value.detach().clone() for key, value in self.posterior.state_dict().items()}


MAY_CHANGE = ("epochs", "patience", "checkpoint_seconds")  # between two parts of one run


class Checkpoint:
    """The file of a run: ``settings`` say which run it is, ``seconds`` pass at least between two saves."""

    def __init__(self, path: Path, settings: dict[str, Any], seconds: float) -> None:
        self.path, self.settings, self.seconds = path, settings, seconds
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._saved >= self.seconds

    def save(
        self,
        model: ModelState,
        optimizer: Optimizer,
        objectives: Sequence[Mapping[str, Tensor]],
        loop: Mapping[str, Any],
    ) -> None:
        """Write all that changes in training; ``objectives`` are the states of the objective in every process, ``loop``
        is that of the training loop.
        """
        state = optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        slots = flatten({"state": state["state"], "groups": dict(enumerate(groups))})
        tensors = {key: value for key, value in slots.items() if isinstance(value, Tensor)}
        numbers = {key: value for key, value in slots.items() if key not in tensors}  # and flags, None, ...
        _require_json(numbers, type(optimizer).__name__, "an optimizer whose state is tensors and plain numbers")
        _require_json(loop, "the scheduler", "one whose state is plain numbers")
        tree = {
            "posterior": model.posterior.state_dict(),
            "best": model.best,
            "best_before": model.best_before or {},
            "optimizer": tensors,
            "objective": dict(enumerate(objectives)),
        }
        epochs = [asdict(epoch) for epoch in model.history.epochs]
        metadata = {
            "run": self.settings,
            "epochs": epochs,
            "best": model.history.best,
            "optimizer": numbers,
            "loop": loop,
        }
        write_tensors(self.path, flatten(tree), metadata)
        self._saved = time.monotonic()

    def load(
        self, model: ModelState, optimizer: Optimizer, objective: Objective, process: int
    ) -> Mapping[str, Any] | None:
        """Set everything back to what `save` wrote, and return the state of the loop."""
        flat, metadata = read_tensors(self.path)
        self._require_same_run(metadata)
        tree = unflatten(flat)
        slots = unflatten(flatten(tree.get("optimizer", {})) | metadata["optimizer"])
        try:
            model.posterior.load_state_dict(tree["posterior"])
            _load_optimizer(optimizer, slots.get("state", {}), slots["groups"])
        except (IndexError, KeyError, RuntimeError, ValueError) as error:
            raise StakesError(f"{self.path}: the checkpoint is of another network ({error})") from None
        objective.load_state_dict(tree.get("objective", {}).get(str(process), {}))
        model.best = tree["best"]
        epochs = tuple(Epoch(**epoch) for epoch in metadata["epochs"])
        model.history = History(epochs, metadata["best"], model.history.select)
        if "best_before" in tree and self.settings["epochs"] > len(epochs):
            # Without an interruption, the epoch would not have been scored.
            model.history = model.history.without_last_score()
            model.best = tree["posterior" if model.history.best == len(epochs) else "best_before"]
        return metadata.get("loop")

    def _require_same_run(self, metadata: Mapping[str, Any]) -> None:
        saved = {**asdict(Training()), **metadata.get("run", {})}  # one of an earlier version has fewer settings
        now, epochs = self.settings, len(metadata.get("epochs", ()))
        saved.setdefault("validation", now["validation"])  # which an earlier version did not write down
        other = [key for key in {**saved, **now} if key not in MAY_CHANGE and saved.get(key) != now.get(key)]
        if other:
            wanted, found = ({key: run.get(key) for key in other} for run in (now, saved))
            raise StakesError(
                f"{self.path}: expected the checkpoint of a run with {wanted}, but it is of {found}: remove the file, "
                "or train without resume"
            )
        if now["schedule"] != "constant" and saved["epochs"] != now["epochs"]:
            raise StakesError(
                f"{self.path}: the learning rates of schedule={now['schedule']!r} follow the number of epochs, which "
                f"was {saved['epochs']} and is {now['epochs']} now: resume with {saved['epochs']}, or start with "
                'schedule="constant"'
            )
        if epochs > now["epochs"]:
            raise StakesError(
                f"{self.path}: expected a checkpoint of at most {now['epochs']} epochs, but it has {epochs}: resume "
                "with more epochs"
            )


def restored(saved: Any, like: Any) -> Any:
    """Convert JSON values back to the types of ``like``: dict keys and tuples."""
    if isinstance(like, Mapping):
        restored_items = {key: restored(saved[str(key)], value) for key, value in like.items() if str(key) in saved}
        added = {key: value for key, value in saved.items() if key not in {str(key) for key in like}}
        return type(like)({**restored_items, **added})  # type: ignore[call-arg]
    if isinstance(like, tuple | list):
        values = [restored(*pair) for pair in zip(saved, like, strict=True)] if len(saved) == len(like) else saved
        return type(like)(values)
    return saved


def _require_json(state: Mapping[str, Any], owner: str, better: str) -> None:
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StakesError(
            f"the state of {owner} cannot be written to a checkpoint ({error}): use {better}, or train without "
            "checkpoint="
        ) from None


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
