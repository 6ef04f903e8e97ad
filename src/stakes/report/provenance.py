"""How a run was made: its data and settings, and the command that makes it again."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from stakes.report.words import split_sentence
from stakes.tables.run import FinishedRun
from stakes.tables.task import command

_DIGEST = 12  # characters of a file's hash that are shown; all of it stands in the settings


def provenance(run: FinishedRun) -> dict[str, Any]:
    """How a run was made: data, splits, seeds, versions, and the command that makes it again."""
    settings, rows = run.settings, run.rows
    copies = f"; {run.repeated:,} repeat another row, and stayed on its side of the split" if run.repeated else ""
    seed, seeds = settings["seed"], settings["seeds"]
    recipe, training = settings["recipe"], settings["recipe"]["training"]
    facts = {
        "Data": f"{_file(settings, 'data')}, target {settings['target']}{copies}",
        "Costs": _costs(settings),
        "Splits": split_sentence(rows) + (f": {_file(settings, 'test')}" if rows["tested"] == "file" else ""),
        "Columns": f"{run.features} features"
        + (f", without {', '.join(settings['drop'])}" if settings["drop"] else ""),
        "Models": f"{', '.join(run.comparison.models)}; networks are {_network(recipe)}",
        "Training": f"at most {training['epochs']} epochs, learning rate {training['learning_rate']:g}, "
        "the same for every model",
        "Seeds": f"{seed} to {seed + seeds - 1}" if seeds > 1 else str(seed),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return {"facts": facts, "command": command(settings), "settings": settings_text(settings)}


def _costs(settings: Mapping[str, Any]) -> str:
    if settings.get("costs") is not None:
        return _file(settings, "costs")
    bounds = {"steps of": "step", "at least": "at_least", "at most": "at_most"}
    given = [f", {words} {settings[key]:g}" for words, key in bounds.items() if settings[key] is not None]
    return f"{settings['under']} for each unit too few, {settings['over']} for each too many{''.join(given)}"


def _network(recipe: Mapping[str, Any]) -> str:
    if recipe["network"] == "tabm":
        return "TabMs, whose members are their draws"
    layers = ", ".join(map(str, recipe["hidden"])) or "none"
    return f"MLPs, {recipe['posterior']['family']} posterior, hidden layers {layers}, {recipe['samples']} draws each"


def settings_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False)


def _file(settings: Mapping[str, Any], key: str) -> str:
    return f"{PurePath(settings[key]).name} (SHA-256 {settings[f'{key}_sha256'][:_DIGEST]}…)"
