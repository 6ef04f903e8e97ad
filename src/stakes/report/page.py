"""``report.html``: a run as one file that can be mailed to those who own the costs."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stakes._io.files import write_text
from stakes.errors import StakesError
from stakes.report import decided
from stakes.report.alternatives import alternatives
from stakes.report.amounts import AmountFormat
from stakes.report.caveats import caveats
from stakes.report.claims import claims
from stakes.report.drivers import drivers
from stakes.report.explorer import SCRIPTS, explorer
from stakes.report.groups import subgroups
from stakes.report.headline import claimed_sentence, headline
from stakes.report.numbers.sections import sections
from stakes.report.promises import promise_of_run
from stakes.report.provenance import provenance
from stakes.report.ratio import by_ratio
from stakes.tables.amounts.run import AmountRun
from stakes.tables.run import FinishedRun, Run


def write_page(run: FinishedRun, path: Path, worst: float | None = None) -> None:
    """Write the report of a finished run; nothing is trained, and no data are read.

    ``worst`` is the most that a decision can cost, for a promise: see `stakes.evaluation.promises`.
    """
    promised = promise_of_run(run, worst)
    if isinstance(run, AmountRun):
        write_text(path, render("amounts.html", promised=promised, **sections(run)))
    elif isinstance(run, Run):
        write_text(path, _page_of_classes(run, promised))
    else:
        raise StakesError(f"expected a run about classes or amounts, but got a {type(run).__name__}")


def _page_of_classes(run: Run, promised: str) -> str:
    parts: dict[str, Any] = {
        "promised": promised,
        "amounts": AmountFormat.of(run.utility),
        "headline": headline(run),
        "claimed": claimed_sentence(run),
        "caveats": caveats(run),
        "alternatives": alternatives(run),
        "confusions": decided.confusions(run),
        "recall": decided.recall(run),
        "thresholds": decided.thresholds(run),
        "ratio": by_ratio(run),
        "groups": subgroups(run),
        "drivers": drivers(run),
        "claims": claims(run),
        "made": provenance(run),
    }
    if run.utility.per_example:  # one cost to change needs one table for all rows
        return render("run.html", run=run, explorer=None, **parts)
    shown = explorer(run)
    return render("run.html", scripts=SCRIPTS, data=shown["data"], run=run, explorer=shown, **parts)


def render(template: str, *, scripts: Sequence[str] = (), data: Any = None, **context: Any) -> str:
    """A page of its own. Scripts and style are named by their hashes; nothing else runs, nothing is fetched."""
    style, *sources = (
        files("stakes.report").joinpath("assets", name).read_text(encoding="utf-8") for name in ("page.css", *scripts)
    )
    policy = (
        f"default-src 'none'; style-src {_hashes([style])}; script-src {_hashes(sources)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = {"policy": policy, "style": Markup(style), "scripts": [Markup(source) for source in sources], "data": data}
    return _environment().get_template(template).render(**page, **context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stakes.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _hashes(sources: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
