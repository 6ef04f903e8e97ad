"""What the columns of an encoded table are: which are numbers, which stand for gaps, which for levels."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from stakes.errors import StakesError


@dataclass(frozen=True)
class Features:
    """The columns of a matrix of features, in this order.

    >>> Features(numbers=3, missing=(1,), levels=(2, 4)).width
    10

    Here three standardised numbers; an indicator that is 1 where the second number is missing (it then holds the
    training median); and two one-hot blocks, of 2 and 4 levels, all zeros for a level that was never seen.
    """

    numbers: int
    missing: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "missing", tuple(self.missing))
        object.__setattr__(self, "levels", tuple(self.levels))
        counts = (self.numbers, *self.missing, *self.levels)
        right = all(type(count) is int and count >= 0 for count in counts) and min(self.levels, default=1) >= 1
        if not right or max(self.missing, default=-1) >= self.numbers or self.width < 1:
            raise StakesError(f"expected the numbers, gaps and levels of at least one feature, but got {self}")

    @property
    def width(self) -> int:
        """How many columns the matrix has."""
        return self.numbers + len(self.missing) + sum(self.levels)

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        return cls(**content)
