"""Other costs than those that a model of amounts was made for. Its quantiles do not depend on costs; decisions do."""

import os
import warnings
from pathlib import Path

import numpy as np

from stakes._io.files import read_json
from stakes.errors import StakesError, StakesWarning, listing
from stakes.mixtures import LEVELS
from stakes.saved_model import SavedModel
from stakes.tables.decider import is_about_amounts, model_folder, share_for_costs
from stakes.utility import AmountUtility, Newsvendor, NumberUtility, PricedNewsvendor, Utility
from stakes.utility.priced import newsvendor

AmountCosts = NumberUtility | PricedNewsvendor
_NEAR = 1e-9  # of a share: the same but for rounding


def given_costs(
    model: str | os.PathLike[str], costs: Path | None, under: str | None, over: str | None
) -> Path | Utility | None:
    """From ``--costs``, or ``--under`` and ``--over``: a file, costs of each unit, or None for those of the model.

    Costs of each unit are numbers, columns or formulas, as in `stakes fit`; unit, steps and bounds are the model's.
    """
    given = {f"--{name}": value for name, value in (("under", under), ("over", over)) if value is not None}
    if not given:
        return costs
    if costs is not None:
        raise StakesError(
            f"expected --costs, a file, or --under and --over, but got {listing(['--costs', *given])}; leave one out"
        )
    if not is_about_amounts(model):
        raise StakesError(
            f"{listing(given)}: costs of each unit are for outcomes that are numbers, but those of {model} have names; "
            "give other costs with --costs FILE"
        )
    if under is None or over is None:
        raise StakesError(
            f"expected --under and --over together, the costs of each unit too few and too many, but got only "
            f"{listing(given)}; give the other one too, which may be 0"
        )
    description = read_json(model_folder(model) / "model.json")
    saved, target = Utility.from_dict(description["utility"]), description.get("notes", {}).get("target")
    bounds = saved.range.to_dict() if isinstance(saved, AmountUtility | PricedNewsvendor) else {}
    priced = newsvendor(under, over, unit=saved.unit, **bounds)
    if target in priced.columns:
        raise StakesError(
            f"the costs depend on the target {target!r}, which is not known when a decision is taken; use a column "
            "that is known before, such as a forecast"
        )
    return priced


def read_other_costs(costs: str | os.PathLike[str] | Utility) -> AmountCosts:
    """Read other costs from a file, or return the given utility; tables over classes are refused."""
    utility = costs if isinstance(costs, Utility) else Utility.from_csv(costs)
    if not isinstance(utility, NumberUtility | PricedNewsvendor):
        named = "" if isinstance(costs, Utility) else f"{os.fspath(costs)}: "
        raise StakesError(
            f"{named}expected cost curves of a number, which the model is about, but got a table; the corner of such a "
            "file says 'cost curve', or give --under and --over"
        )
    return utility


def made_for_others(model: SavedModel, utility: Utility) -> str | None:
    """What in a model was made for the costs of its fit, in a sentence; None where nothing was.

    Costs of each unit in the same ratio ask for the same decisions.
    """
    shares = [each.share for each in (model.utility, utility) if isinstance(each, Newsvendor) and not each.per_example]
    if len(shares) == 2 and abs(float(shares[0] - shares[1])) < _NEAR:
        return None
    several, network = len(model.notes.get("weights", ())) > 1, share_for_costs(model.notes)
    parts = [f"the calibrated network ({100 * network:.0f} % of it)"] if network else []
    parts += ["the weights of its parts"] if several else []
    if not parts:
        return None
    were = "were" if several else "was"
    return (
        f"The model was fitted for other costs: its quantiles are for any, but {' and '.join(parts)} {were} made for "
        "those; to decide by these costs for good, fit again with them."
    )


def beyond_levels(utility: Utility, rows: int) -> str | None:
    """Where costs ask for quantiles that models do not say, in a clause."""
    if not isinstance(utility, Newsvendor):
        return None
    shares = np.broadcast_to(utility.share, rows)
    beyond = (shares < float(LEVELS[0]) - _NEAR) | (shares > float(LEVELS[-1]) + _NEAR)
    if not beyond.any():
        return None
    asked = f"the costs ask for the {100 * float(shares[0]):.6g} % quantile"
    if utility.per_example:
        asked = f"the costs of {int(beyond.sum()):,} rows ask for others"
    return (
        f"Models say quantiles from 1 % to 99 %, but {asked}: beyond these they are extrapolated, as if "
        "outcomes fell off exponentially, from few rows."
    )


def warn_beyond_levels(utility: Utility, rows: int) -> None:
    if message := beyond_levels(utility, rows):
        warnings.warn(message[0].lower() + message[1:].removesuffix("."), StakesWarning, stacklevel=3)
