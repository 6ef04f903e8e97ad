"""What is typed on the command line, as values. What cannot be one is refused by the name of its option."""

import csv
from pathlib import Path

from stakes.errors import StakesError
from stakes.tables.models import Noise, model_names


def split(*texts: str) -> list[str]:
    """The names in some texts, separated by commas; quotation marks around one protect the commas in it."""
    rows = csv.reader(texts, skipinitialspace=True)
    return [part.strip() for row in rows for part in row if part.strip()]


def label_noise(text: str) -> Noise:
    """``none``, ``learnt``, or a rate."""
    if text in ("none", "learnt"):
        return None if text == "none" else "learnt"
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise StakesError(
            f"--label-noise: expected none, learnt, or a rate from 0 up to but not including 1, but got {text!r}"
        )
    return rate


def models(text: str, noise: Noise) -> tuple[str, ...]:
    """The models named; where none is, those that make sense with such label noise."""
    return tuple(split(text)) or model_names(noise)


def share_or_file(text: str) -> Path | float:
    try:
        return float(text)
    except ValueError:
        return Path(text)


def sizes(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in split(text))
    except ValueError:
        found = (0,)
    if not all(size >= 1 for size in found):
        raise StakesError(f"--hidden: expected whole numbers of at least 1, such as 128,64, but got {text!r}")
    return found


def renames(text: str) -> dict[str, str]:
    """``0=repaid,1=defaulted``."""
    pairs = [[side.strip() for side in part.partition("=")] for part in split(text)]
    if not all(old and mark and new for old, mark, new in pairs) or len({old for old, _, _ in pairs}) < len(pairs):
        raise StakesError(
            f"--labels: expected value=name pairs such as 0=repaid,1=defaulted, each value once, but got {text!r}"
        )
    return {old: new for old, _, new in pairs}
