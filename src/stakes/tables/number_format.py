"""Numbers as people write them: 27,857 and 88.9% and £1,200 and 1.200,50 €.

A format is found once, from all the texts of a column, and saved with the model: the same text is the same number
when the model decides.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from stakes.errors import StakesError
from stakes.utility.csv import CURRENCY

PERCENT = "%"
_WRITTEN = re.compile(
    rf"(?P<sign>[+-]?)\s*((?P<before>{CURRENCY})\s*)?(?P<inner>[+-]?)"
    rf"(?P<body>[\d.]([\d., ']*[\d.,'])?)\s*(?P<after>{CURRENCY}|%)?"
)
_EXPONENT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)[eE][+-]?\d+")
LONGEST = 100  # characters of a number; what is longer is a text
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2212": "-"})
_SHAPE = str.maketrans("23456789", "11111111")
# (decimal mark, thousands mark), in the order of preference: where a text can be read in two ways, as in English.
_MARKS = ((".", ""), (".", ","), (".", " "), (".", "'"), (",", ""), (",", "."), (",", " "), (",", "'"))


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written; ``symbol`` is a currency or the percent sign, or empty.

    >>> NumberFormat(thousands=",", symbol="£").parse("£1,200.50")
    1200.5
    """

    decimal: str = "."
    thousands: str = ""
    symbol: str = ""

    def parse(self, text: str) -> float | None:
        """The number, or None if the text does not match. A percentage keeps its number: 88.9% is 88.9."""
        clean = text.translate(_SPACES).strip()
        if self.symbol != PERCENT and len(clean) <= LONGEST and _EXPONENT.fullmatch(clean):
            return float(clean)
        match = _written(text)
        if match is None or not self._body.fullmatch(match["body"]):
            return None
        symbols = {match["before"], match["after"]} - {None}
        if not symbols <= {self.symbol} or (match["sign"] and match["inner"]):
            return None
        number = float(match["body"].replace(self.thousands or " ", "").replace(self.decimal, "."))
        if self.symbol == PERCENT and number and not symbols:  # 0.889 among percentages: of which kind?
            return None
        return -number if "-" in match["sign"] + match["inner"] else number

    @property
    def example(self) -> str:
        """A number written so."""
        number = f"1{self.thousands}234{self.decimal}5"
        return f"{number}%" if self.symbol == PERCENT else f"{self.symbol}{number}"

    @property
    def plain(self) -> bool:
        """Whether it is how programs write numbers."""
        return self == NumberFormat()

    @cached_property
    def _body(self) -> re.Pattern[str]:
        point, mark = re.escape(self.decimal), re.escape(self.thousands)
        grouped = rf"[1-9]\d{{0,2}}({mark}\d{{3}})+({point}\d+)?|" if mark else ""
        return re.compile(rf"{grouped}\d+({point}\d*)?|{point}\d+")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "NumberFormat":
        known = set(content) == set(cls.__annotations__) and (content["decimal"], content["thousands"]) in _MARKS
        if not known or not re.fullmatch(rf"{CURRENCY}|%|", str(content["symbol"])):
            raise StakesError(f"expected a format of numbers, but got {content!r:.120}; the saved model is damaged")
        return cls(**content)


@dataclass(frozen=True)
class NumberGuess:
    """The format that reads most of some texts, those that it does not read, and an alternative that reads as many."""

    format: NumberFormat
    odd: tuple[str, ...]
    other: NumberFormat | None  # reads all of them too, but to other numbers


def guess_numbers(texts: Sequence[str], decimal: str = ".") -> NumberGuess | None:
    """How texts are to be read as numbers; None if none of them is one.

    Where they can be read in two ways, by the mark ``decimal``.
    """
    shapes: dict[str, list[str]] = {}  # whether a text can be read depends on its shape alone
    for text in texts:
        shapes.setdefault(text.translate(_SHAPE), []).append(text)
    symbols: dict[str, int] = {"": 0}
    candidates = 0
    for same in shapes.values():
        match = _written(same[0])
        if match is not None:
            candidates += len(same)
            for symbol in {match["before"], match["after"]} - {None}:
                symbols[symbol] = symbols.get(symbol, 0) + len(same)
    if not candidates:
        return None
    symbol = max(symbols, key=lambda each: symbols[each])
    read = {}
    for marks in sorted(_MARKS, key=lambda marks: marks[0] != decimal):
        option = NumberFormat(*marks, symbol)
        read[option] = {shape: option.parse(same[0]) for shape, same in shapes.items()}
    unread = {option: sum(len(shapes[s]) for s, number in read[option].items() if number is None) for option in read}
    best = min(read, key=lambda option: unread[option])  # the first of equals
    if unread[best] == len(texts):
        return None
    odd = tuple(text for text in texts if read[best][text.translate(_SHAPE)] is None)
    others = [option for option, parsed in read.items() if parsed != read[best] and not unread[option]]
    return NumberGuess(best, odd, others[0] if others and not odd else None)


def is_written_number(text: str) -> bool:
    """Whether a text is a number in any of the formats."""
    match = _written(text)
    symbol = (match["before"] or match["after"] or "") if match else ""
    return any(NumberFormat(*marks, symbol).parse(text) is not None for marks in _MARKS)


def _written(text: str) -> re.Match[str] | None:
    """The parts of a text that may be a number."""
    clean = text.translate(_SPACES).strip()
    return _WRITTEN.fullmatch(clean) if len(clean) <= LONGEST else None
