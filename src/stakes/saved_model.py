"""A fitted model as a directory of JSON and safetensors. Loading never runs code from it.

model.json            what the model is: predictor, utility, preprocessing, versions
weights.safetensors   its numbers
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from torch import nn

from stakes import calibration, predictors  # noqa: F401 (calibrated predictors are registered)
from stakes._io.files import atomic, read_json, write_json
from stakes._io.tensors import read_tensors, write_tensors
from stakes.decisions import Decisions, decide
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Predictor
from stakes.tables.amounts.lags import Lags
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import TableProfile
from stakes.utility import FormulaUtility, TableUtility, Utility

FORMAT = 2
_JSON, _WEIGHTS = "model.json", "weights.safetensors"
_FORMAT_1 = ("posterior", "network", "likelihood", "samples", "seed")  # stood beside the utility, not in a predictor


@dataclass(frozen=True, eq=False)
class SavedModel:
    """All that it takes to decide: a predictor, the utility, and how inputs become tensors.

    ``encoder`` is None for a model whose inputs are tensors already. ``notes`` is free: where the model came from.
    ``profile`` describes the training rows, and holds a few of them; models of older versions have none.
    """

    predictor: Predictor
    utility: Utility
    encoder: TableEncoder | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    profile: TableProfile | None = None
    lags: Lags | None = None  # earlier amounts that are features

    def __post_init__(self) -> None:
        columns = None if self.encoder is None else tuple(column.name for column in self.encoder.columns)
        if self.profile and columns != self.profile.names:
            raise StakesError("expected a description of the training rows with the columns of the encoder")
        widths = {
            "features": self.encoder.width if self.encoder else None,
            "classes": len(self.utility.outcomes) if isinstance(self.utility, TableUtility | FormulaUtility) else None,
        }
        for side, width in widths.items():
            actual = getattr(self.predictor, side)
            if width is not None and actual is not None and actual != width:
                raise StakesError(f"expected a predictor with {width} {side}, but it has {actual}")

    def decide(self, x: Inputs, settle: float | None = None, utility: Utility | None = None) -> Decisions:
        """Decisions for encoded inputs; ``settle`` as in `decide`.

        Where costs depend on the row, ``utility`` is what `Utility.for_rows` makes of the rows.
        """
        return decide(self.predictor(x), self.utility if utility is None else utility, settle=settle)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory, whole or not at all; an existing one is refused."""
        target = Path(path)
        if target.exists():
            raise StakesError(f"{target}: exists already; remove it, or save elsewhere")
        description = {
            "format": FORMAT,
            "versions": {name: version(name) for name in ("stakes", "torch")},
            "predictor": predictors.spec_of(self.predictor),
            "utility": self.utility.to_dict(),
            "encoder": None if self.encoder is None else self.encoder.to_dict(),
            "notes": dict(self.notes),
            "profile": None if self.profile is None else self.profile.to_dict(),
        }
        description |= {} if self.lags is None else {"lags": self.lags.to_dict()}
        with atomic(target) as temporary:
            temporary.mkdir()
            write_tensors(temporary / _WEIGHTS, self.predictor.state_dict(), {"format": FORMAT})
            write_json(temporary / _JSON, description | {"sha256": _sha256(temporary / _WEIGHTS)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: nn.Module | None = None) -> Self:
        """Read a saved model. ``network`` gives the architecture of one that stakes does not know itself."""
        folder = Path(path)
        description = _read_description(folder)
        try:
            weights, _ = read_tensors(folder / _WEIGHTS)
            if description["sha256"] != _sha256(folder / _WEIGHTS):
                raise StakesError(f"damaged, the checksum of {_WEIGHTS} is not the one it had")
            predictor = predictors.load(description["predictor"], weights, network)
            utility = Utility.from_dict(description["utility"])
            encoder = None if description["encoder"] is None else TableEncoder.from_dict(description["encoder"])
            known = description.get("profile")  # which models of older versions do not have
            profile = None if known is None else TableProfile.from_dict(known)
            lags = Lags.from_dict(description["lags"]) if "lags" in description else None
            return cls(predictor, utility, encoder, dict(description["notes"]), profile, lags)
        except StakesError as error:
            message = str(error)
            raise StakesError(message if message.startswith(f"{folder}") else f"{folder}: {message}") from None
        except KeyError as error:
            raise StakesError(f"{folder / _JSON}: damaged, the entry {error} is missing") from None
        except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StakesError(f"{folder}: damaged, {_JSON} and the weights do not fit together ({reason})") from None


def _read_description(folder: Path) -> dict[str, Any]:
    if not (folder / _JSON).is_file():
        raise StakesError(f"{folder}: expected a saved model, but there is no {_JSON} in it")
    description = read_json(folder / _JSON)
    number = description.get("format") if isinstance(description, dict) else None
    if type(number) is not int or number < 1:
        raise StakesError(f"{folder / _JSON}: expected a model saved by stakes, but it has no format number")
    if number > FORMAT:
        raise StakesError(
            f"{folder}: saved by a newer stakes, in format {number}; this one reads up to {FORMAT}: upgrade stakes"
        )
    if number == 1:
        predictor = {key: description[key] for key in _FORMAT_1 if key in description}
        description["predictor"] = {"kind": "posterior", **predictor}
    return dict(description)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
