"""Formulas in the cells of a cost table: numbers, columns, + - * / and parentheses. Nothing is ever run as code.

    cell     = number | "=" sum
    sum      = product { ("+" | "-") product }
    product  = factor { "*" factor | "/" number }
    factor   = { "+" | "-" } ( number | column | "(" sum ")" )
    column   = name | "name in quotation marks" | [name in brackets]

A formula is kept as a polynomial: the coefficient of each column, of each product of two, and of 1.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stakes.errors import StakesError, quoted

MOST_CHARACTERS, MOST_NESTED, MOST_COLUMNS = 1000, 20, 2  # MOST_COLUMNS: multiplied with each other

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(
    rf'(?P<number>{_NUMBER})|(?P<name>[^\W\d][\w.]*)|"(?P<quoted>(?:[^"]|"")+)"|\[(?P<bracketed>[^\[\]]+)\]'
    r"|(?P<mark>[-+*/()])"
)

Terms = dict[tuple[str, ...], float]  # columns that are multiplied, in alphabetical order -> their coefficient


@dataclass(frozen=True)
class Formula:
    """What a cell costs, from the columns of a row.

    >>> formula = Formula.parse("=0.45 * amount + 20")
    >>> formula.columns, formula({"amount": np.array([100.0, 1000.0])})
    (('amount',), array([ 65., 470.]))
    """

    text: str
    terms: Terms

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text of a cell: a number, or ``=`` and an expression."""
        source = text.strip()
        if not source.startswith("="):
            return cls(source, {(): _plain_number(source)})
        if len(source) > MOST_CHARACTERS:
            raise StakesError(f"expected a formula of at most {MOST_CHARACTERS} characters, but got {len(source)}")
        terms = _Parser(source).parsed()
        if not all(map(math.isfinite, terms.values())):
            raise StakesError(f"expected finite numbers in a formula, but got {source!r}")
        return cls(source, terms)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have to be known."""
        return tuple(dict.fromkeys(name for names in self.terms for name in names))

    def __call__(self, columns: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Its value in every row; without columns, one number."""
        total = np.zeros(())
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite, with its row
            for names, coefficient in self.terms.items():
                total = total + coefficient * math.prod((columns[name] for name in names), start=np.ones(()))
        return total

    @property
    def constant(self) -> float:
        """The part that does not depend on the row."""
        return self.terms.get((), 0.0)

    def __str__(self) -> str:
        return self.text


def parse_cell(text: str, decision: str, outcome: str) -> Formula:
    """The formula of a cell; an error names the cell."""
    try:
        return Formula.parse(text)
    except StakesError as error:
        raise StakesError(f"decision {decision!r} under outcome {outcome!r}: {error}") from None


class _Parser:
    """Recursive descent; each rule of the grammar is a method that returns the terms of what it read."""

    def __init__(self, source: str) -> None:
        self.source, self.nested = source, 0
        self.tokens: list[tuple[str, str, int]] = [*_tokens(source)]  # kind, text, position
        self.tokens.append(("end", "", len(source)))
        self.next = 0

    def parsed(self) -> Terms:
        terms = self._sum()
        if self._kind != "end":
            raise self._unexpected("+, -, *, / or the end")
        return terms

    def _sum(self) -> Terms:
        total = self._product()
        while mark := self._take("+-"):
            sign = 1.0 if mark == "+" else -1.0
            for names, coefficient in self._product().items():
                total[names] = total.get(names, 0.0) + sign * coefficient
        return total

    def _product(self) -> Terms:
        total = self._factor()
        while mark := self._take("*/"):
            total = self._times(total, self._factor()) if mark == "*" else self._over(total, self._factor())
        return total

    def _factor(self) -> Terms:
        sign = 1.0
        while mark := self._take("+-"):
            sign = -sign if mark == "-" else sign
        kind, text, _ = self.tokens[self.next]
        terms: Terms
        if kind == "number":
            terms = {(): float(text)}
        elif kind == "column":
            terms = {(text,): 1.0}
        elif text == "(":
            terms = self._parenthesis()
        else:
            raise self._unexpected("a number, a column or a parenthesis")
        self.next += 1
        return {names: sign * coefficient for names, coefficient in terms.items()}

    def _parenthesis(self) -> Terms:
        self.next, self.nested = self.next + 1, self.nested + 1
        if self.nested > MOST_NESTED:
            raise StakesError(f"expected at most {MOST_NESTED} parentheses inside each other, but got more")
        terms = self._sum()
        if self.tokens[self.next][1] != ")" or self._kind != "mark":
            raise self._unexpected("a closing parenthesis")
        self.nested -= 1
        return terms

    def _times(self, left: Terms, right: Terms) -> Terms:
        total: Terms = {}
        for (first, one), (second, other) in product(left.items(), right.items()):
            names = tuple(sorted(first + second))
            if len(names) > MOST_COLUMNS:
                raise StakesError(
                    f"expected at most {MOST_COLUMNS} columns multiplied with each other, but got "
                    f"{' * '.join(names)} in {self.source!r}: make a column of their product in the table"
                )
            total[names] = total.get(names, 0.0) + one * other
        return total

    def _over(self, left: Terms, right: Terms) -> Terms:
        if set(right) != {()} or not right[()]:
            raise StakesError(
                f"expected a division by a number other than 0, but got another one in {self.source!r}: make a column "
                "of the ratio in the table"
            )
        return {names: coefficient / right[()] for names, coefficient in left.items()}

    @property
    def _kind(self) -> str:
        return self.tokens[self.next][0]

    def _take(self, marks: str) -> str:
        """The next mark, if it is one of these; else nothing."""
        kind, text, _ = self.tokens[self.next]
        if kind != "mark" or text not in marks:
            return ""
        self.next += 1
        return text

    def _unexpected(self, expected: str) -> StakesError:
        _, text, position = self.tokens[self.next]
        what = f"{text!r} at character {position + 1}" if text else "its end"
        return StakesError(
            f"expected {expected} in the formula {self.source!r}, but got {what}; a formula is made of numbers, "
            'columns ("in quotation marks" if they have spaces), +, -, *, / and parentheses'
        )


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    position = 1  # after the =
    while position < len(source):
        if source[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(source, position)
        if match is None:
            hint = ": write decimals with a point" if source[position] == "," else ""
            raise StakesError(
                f"expected numbers, columns, +, -, *, / and parentheses in a formula, but got {source[position]!r} at "
                f"character {position + 1} of {source!r}{hint}"
            )
        kind, text = str(match.lastgroup), str(match[str(match.lastgroup)])
        if kind in ("name", "quoted", "bracketed"):
            kind, text = "column", (text.replace('""', '"') if kind == "quoted" else text).strip()
        yield kind, text, position
        position = match.end()


def _plain_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        what = f"the text {quoted(text)}" if text else "an empty cell"
        what += " (write decimals with a point)" if "," in text else ""
        raise StakesError(f"expected a number, or a formula that begins with =, but got {what}") from None
