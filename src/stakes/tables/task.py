"""What ``stakes fit`` is asked for, and whether that can be done."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stakes.errors import StakesError, listing
from stakes.tables.models import Recipe, model, model_names

CHECKPOINT_SECONDS = 1.0  # a checkpoint of a network for tables takes milliseconds


@dataclass(frozen=True)
class Fit:
    """One model with one seed, still to be trained."""

    model: str
    seed: int


@dataclass(frozen=True)
class TableTask:
    """What to decide, from which data."""

    data: Path
    target: str
    costs: Path
    test: Path | float = 0.2  # a file, or the share of rows to hold out
    validation: float = 0.2  # the share of the remaining rows that choose the epoch and the model
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    models: tuple[str, ...] = model_names(noise=None)
    recipe: Recipe = field(default_factory=Recipe)
    seeds: int = 1
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """All of it in JSON types, with the contents of the files: two runs with equal settings are equal."""
        files = {"data": self.data, "costs": self.costs}
        files |= {"test": self.test} if isinstance(self.test, Path) else {}
        plain = json.loads(json.dumps(asdict(self), default=str))
        digests = {f"{key}_sha256": hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items()}
        return {**plain, **digests, "stakes": version("stakes")}

    def fits(self) -> list[Fit]:
        """Every model with every seed."""
        return [Fit(model, self.seed + number) for number in range(self.seeds) for model in self.models]


def check(task: TableTask) -> None:
    """Refuse what no table could make right, before anything is read or written."""
    if not task.models:
        raise StakesError("expected at least one model to train, but got none")
    if len(set(task.models)) < len(task.models):
        raise StakesError(f"expected each model once, but got {listing(task.models)}")
    if task.seeds < 1:
        raise StakesError(f"expected at least one seed, but got {task.seeds}")
    if isinstance(task.test, Path) and task.test.exists() and task.data.exists() and task.test.samefile(task.data):
        raise StakesError(
            f"{task.test}: expected other rows to test on than those to learn from, but it is the same file"
        )
    if task.target in task.drop:
        raise StakesError(f"cannot drop the target {task.target!r}: it is what the models learn")
    for name, share in (("test", task.test), ("validation", task.validation)):
        if isinstance(share, float) and not 0 < share < 1:
            raise StakesError(f"expected the {name} share to lie between 0 and 1, but got {share:g}")
    for name in task.models:
        model(name).check(task.recipe)
