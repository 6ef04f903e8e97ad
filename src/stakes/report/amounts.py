"""Costs and utilities as people read them: as the user stated them, the unit in its place, digits by the width."""

from dataclasses import dataclass
from math import floor, log10

from stakes.evaluation.metrics import Interval
from stakes.utility import Utility

BEFORE_NUMBER = ("£", "$", "¥", "₹", "₩", "US$", "A$", "C$", "CA$", "AU$", "NZ$", "HK$", "S$", "R$")
_MONEY = (*BEFORE_NUMBER, "€", "GBP", "USD", "EUR", "CHF", "Fr.", "kr", "zł")
_MOST_DIGITS = 12


def rule_names(costs: bool) -> dict[str, str]:
    """How decisions are taken, in words, by `Rule`."""
    best = "lowest expected cost" if costs else "highest expected utility"
    return {"optimal": best, "argmax": "highest probability"}


@dataclass(frozen=True)
class AmountFormat:
    """How amounts of a utility are shown: as costs or as utilities, whichever the user gave."""

    unit: str
    costs: bool
    best: float
    scale: float

    @classmethod
    def of(cls, utility: Utility) -> "AmountFormat":
        return cls(utility.unit, utility.given == "cost", utility.best, utility.scale)

    @property
    def noun(self) -> str:
        return "cost" if self.costs else "utility"

    @property
    def plural(self) -> str:
        return "costs" if self.costs else "utilities"

    @property
    def verb(self) -> str:
        """Of decisions: they *cost* an amount, or *are worth* one."""
        return "cost" if self.costs else "are worth"

    @property
    def better(self) -> str:
        return "less" if self.costs else "more"

    @property
    def worse(self) -> str:
        return "more" if self.costs else "less"

    @property
    def rule_names(self) -> dict[str, str]:
        return rule_names(self.costs)

    @property
    def bracketed(self) -> str:
        return f" [{self.unit}]" if self.unit else ""

    def level(self, mean: Interval) -> Interval:
        """A mean utility as it was stated."""
        if not self.costs:
            return mean
        return Interval(*(self.value(each) for each in (mean.mean, mean.high, mean.low)))

    def value(self, utility: float) -> float:
        return (self.best - utility) * self.scale if self.costs else utility

    def gain(self, difference: Interval) -> Interval:
        """A difference of mean utilities in the unit of the amounts; above 0 is better."""
        scale = self.scale if self.costs else 1.0
        return Interval(*(scale * each for each in difference))

    def size(self, utility: float) -> float:
        """How large a difference of utilities is in the unit of the amounts."""
        return abs(utility) * (self.scale if self.costs else 1.0)

    # As text -----------------------------------------------------------------------------------------

    def digits(self, interval: Interval) -> int:
        """Decimals that suit the width of an interval; of one that has none, those that suit the number."""
        width = interval.high - interval.low or abs(interval.mean)
        # Of £ and its like, pence are shown or not: £6.90, and not £6.9.
        decimals = 0 if width == 0 else min(_MOST_DIGITS, max(0, 1 - floor(log10(width))))
        return 2 if decimals == 1 and self.unit in _MONEY else decimals

    def text(self, value: float, digits: int) -> str:
        """``£13.60``, ``13.60 €``, ``12 minutes``."""
        number = f"{abs(value):z,.{digits}f}"
        sign = "-" if value < 0 and float(number.replace(",", "")) else ""
        return f"{sign}{self.with_unit(number)}"

    def with_unit(self, number: str) -> str:
        if self.unit in BEFORE_NUMBER:
            return f"{self.unit}{number}"
        return f"{number} {self.unit}" if self.unit else number

    def plain(self, value: float) -> str:
        """An amount that has no interval."""
        size = abs(value)
        if value == round(value):
            return self.text(value, 0)
        return self.text(value, 0 if size >= 1000 else 2 if size >= 1 else self.digits(Interval(value, 0, 0)) + 1)

    def mean(self, level: Interval) -> str:
        return self.text(level.mean, self.digits(level))

    def ends(self, level: Interval) -> str:
        """``£11.20 to £16.10``."""
        low, high = (self.text(each, self.digits(level)) for each in (level.low, level.high))
        return f"{low} to {high}"

    def interval(self, level: Interval) -> str:
        """``£13.60 (£11.20 to £16.10)``."""
        return f"{self.mean(level)} ({self.ends(level)})"

    def difference(self, gain: Interval) -> str:
        """``£6.90 less`` or ``£6.90 more``: what is better is less of a cost, and more of a utility."""
        if gain.low == gain.high == 0:
            return "no difference"
        return self._directed(gain.mean, self.digits(gain))

    def range(self, gain: Interval) -> str:
        """``£4.10 to £9.70 less``, ``£0.20 less to £1.00 more``."""
        digits = self.digits(gain)
        ends = (gain.low, gain.high) if gain.mean >= 0 else (gain.high, gain.low)
        first, second = (self._directed(end, digits) for end in ends)
        if (ends[0] >= 0) == (ends[1] >= 0):
            first = self.text(abs(ends[0]), digits)
        return f"{first} to {second}"

    def _directed(self, gain: float, digits: int) -> str:
        return f"{self.text(abs(gain), digits)} {self.better if gain >= 0 else self.worse}"
