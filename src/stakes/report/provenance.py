"""How a run was made: data, splits, seeds, versions, and the command that makes it again."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from stakes.report.html import Html, joined, tag
from stakes.tables.command import command
from stakes.tables.run import TableResult

_DIGEST = 12  # characters of a file's hash that are shown; all of it stands in the settings


def how_it_was_made(result: TableResult) -> Html:
    settings = result.settings
    return joined([
        facts(_facts(result)),
        tag("h3", "The command"),
        tag("pre", tag("code", command(settings))),
        everything(settings),
    ])  # fmt: skip


def facts(pairs: Mapping[str, str]) -> Html:
    return tag(
        "dl", *(part for name, what in pairs.items() for part in (tag("dt", name), tag("dd", what))), class_="facts"
    )


def everything(settings: Mapping[str, Any]) -> Html:
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    return tag("details", tag("summary", "Every setting"), tag("pre", tag("code", text)))


def _facts(result: TableResult) -> dict[str, str]:
    settings, cases = result.settings, result.cases
    rows = cases.rows
    copies = f"; {cases.repeated:,} repeat another row, and stayed on its side of the split" if cases.repeated else ""
    held_out = (
        f"the test rows are {_file(settings, 'test')}"
        if isinstance(settings["test"], str)
        else f"{settings['test']:.0%} of the rows were held out to test on"
    )
    seeds = settings["seeds"]
    seeded = f"{settings['seed']} to {settings['seed'] + seeds - 1}" if seeds > 1 else str(settings["seed"])
    recipe, training = settings["recipe"], settings["recipe"]["training"]
    return {
        "Data": f"{_file(settings, 'data')}, target {settings['target']}{copies}",
        "Costs": _file(settings, "costs"),
        "Splits": f"{rows['train']:,} rows to learn from, {rows['validation']:,} to choose the epoch and the model by, "
        f"{rows['test']:,} to test on: {held_out}",
        "Columns": f"{cases.features} features"
        + (f", without {', '.join(settings['drop'])}" if settings["drop"] else ""),
        "Models": f"{', '.join(settings['models'])}; {recipe['posterior']['family']} posterior, "
        f"hidden layers {', '.join(map(str, recipe['hidden'])) or 'none'}, {recipe['samples']} draws each",
        "Training": f"at most {training['epochs']} epochs, learning rate {training['learning_rate']:g}, "
        "the same for every model",
        "Seeds": seeded,
        "Versions": ", ".join(f"{name} {number}" for name, number in cases.versions.items()),
    }


def _file(settings: Mapping[str, Any], key: str) -> str:
    return f"{PurePath(settings[key]).name} (SHA-256 {settings[f'{key}_sha256'][:_DIGEST]}…)"
