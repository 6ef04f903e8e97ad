"""All parts of the report of a run about amounts."""

from typing import Any

from stakes.report.amounts import AmountFormat
from stakes.report.drivers import drivers
from stakes.report.numbers.claims import claims
from stakes.report.numbers.explorer import SCRIPTS, explorer
from stakes.report.numbers.fan import fan
from stakes.report.numbers.headline import caveats, claimed_sentence, headline, rule
from stakes.report.numbers.models import actions, alternatives, mistakes, subgroups
from stakes.report.numbers.ratio import by_ratio
from stakes.report.provenance import provenance
from stakes.tables.amounts.run import AmountRun


def sections(run: AmountRun) -> dict[str, Any]:
    """The context of ``amounts.html``; with an explorer, its scripts and data as well."""
    shown = explorer(run)
    scripts: dict[str, Any] = {} if shown is None else {"scripts": SCRIPTS, "data": shown["data"]}
    return scripts | {
        "run": run,
        "amounts": AmountFormat.of(run.utility),
        "headline": headline(run),
        "claimed": claimed_sentence(run),
        "thresholds": rule(run),
        "caveats": caveats(run),
        "alternatives": alternatives(run),
        "fan": fan(run),
        "mistakes": mistakes(run),
        "actions": actions(run),
        "ratio": by_ratio(run),
        "groups": subgroups(run),
        "drivers": drivers(run),
        "claims": claims(run),
        "explorer": shown,
        "made": provenance(run),
    }
