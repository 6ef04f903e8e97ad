"""What one would type to get a run, from the settings that it was saved with."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stakes.tables import arguments
from stakes.tables.models import Recipe
from stakes.tables.task import TableTask
from stakes.training.config import Training

_TASK_DEFAULTS = {name: getattr(TableTask, name) for name in ("test", "validation", "unit", "seeds", "seed")}
_RECIPE, _TRAINING = Recipe(), Training()


def command(settings: Mapping[str, Any], out: str = "run") -> str:
    """The line of `stakes fit` for the settings of a `TableTask`; what is at its default is left out."""
    recipe = settings["recipe"]
    options: dict[str, Any] = {"target": settings["target"], "costs": settings["costs"]}
    options |= {name: settings[name] for name, default in _TASK_DEFAULTS.items() if settings[name] != default}
    options |= {name: _joined(settings[name]) for name in ("drop", "categorical") if settings[name]}
    if settings["renames"]:
        options["labels"] = _joined([f"{old}={new}" for old, new in settings["renames"].items()])
    if tuple(settings["models"]) != arguments.models("", recipe["noise"]):
        options["models"] = _joined(settings["models"])
    options |= _of_recipe(recipe) | {"out": out}
    words = [settings["data"]]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        # A value that begins with a dash would be taken for an option of its own.
        words += [f"{option}={value}"] if str(value).startswith("-") else [option, str(value)]
    return shlex.join(["stakes", "fit", *words])


def _of_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    posterior, training = recipe["posterior"], recipe["training"]
    if posterior["family"] != _RECIPE.posterior["family"]:
        options["posterior"] = posterior["family"]
    if "members" in posterior:
        options["members"] = posterior["members"]
    if tuple(recipe["hidden"]) != _RECIPE.hidden:
        options["hidden"] = ",".join(map(str, recipe["hidden"]))
    options |= {name: recipe[name] for name in ("dropout", "samples") if recipe[name] != getattr(_RECIPE, name)}
    if recipe["noise"] is not None:
        options["label_noise"] = recipe["noise"]
    asked = ("epochs", "patience", "batch_size", "learning_rate")
    return options | {name: training[name] for name in asked if training[name] != getattr(_TRAINING, name)}


def _joined(names: Sequence[str]) -> str:
    """``a,b``, with quotation marks around a name that has a comma in it: what `arguments.split` takes apart."""
    return ",".join('"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name for name in names)
