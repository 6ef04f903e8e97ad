"""Utilities of outcomes that are numbers: what their kinds share, and decisions that are numbers themselves."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.utility.base import Utility

Form = Literal["linear", "exponential"]
LIMIT_QUANTILE = 0.8  # of the plain model's losses, which lie below the limit


@dataclass(frozen=True)
class Limit:
    """How a loss without a bound becomes a gain: of a loss l, ``limit - l`` or ``exp(-l / limit)``."""

    limit: float
    form: Form = "linear"


@dataclass(frozen=True)
class Range:
    """Decisions that are numbers: any between two bounds, or in steps from the lower bound (from 0 without one).

    >>> Range(0, 80, step=10).rounded_down(torch.tensor([34.0, -5.0, 99.0]))
    tensor([30.,  0., 80.])
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    step: float | None = None

    def __post_init__(self) -> None:
        if not self.at_least < self.at_most:
            raise StakesError(
                f"expected the lowest decision below the highest, but got at least {self.at_least:g} and at most "
                f"{self.at_most:g}"
            )
        if self.step is not None and not 0 < self.step < math.inf:
            raise StakesError(f"expected a step above 0, such as 1 for whole units, but got {self.step:g}")
        if self.step is not None and self.step > self.at_most - self.at_least:
            raise StakesError(
                f"expected a step of at most {self.at_most - self.at_least:g}, from the lowest to the highest, "
                f"but got {self.step:g}, which leaves one decision"
            )

    @property
    def origin(self) -> float:
        return self.at_least if math.isfinite(self.at_least) else 0.0

    @property
    def top(self) -> float:
        """The highest decision."""
        if self.step is None or math.isinf(self.at_most):
            return self.at_most
        # A bound that is a whole number of steps but for rounding is one.
        return self.origin + self.step * math.floor((self.at_most - self.origin) / self.step + 1e-9)

    def inside(self, numbers: Tensor) -> Tensor:
        return numbers.clamp(self.at_least, self.top)

    def rounded_down(self, numbers: Tensor) -> Tensor:
        """The highest decision that is not above."""
        if self.step is None:
            return self.inside(numbers)
        return self.inside(self.origin + self.step * ((numbers - self.origin) / self.step + 1e-9).floor())

    def to_dict(self) -> dict[str, Any]:
        """Its bounds and step, where it has them."""
        fields = {"at_least": self.at_least, "at_most": self.at_most, "step": self.step}
        return {name: value for name, value in fields.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True, eq=False, kw_only=True)
class NumberUtility(Utility):
    """The cost of a decision for an outcome that is a number; its utility is ``best - cost``."""

    unit: str = ""
    best: float = 0.0
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, dict):  # as it is saved
            object.__setattr__(self, "limit", Limit(**self.limit))

    @abstractmethod
    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        """``(...), (...) -> (...)``: what each decision costs under its outcome."""

    @abstractmethod
    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        """``(S, B, ..., K), (B, ...) -> (S, B, ...)``, or both without draws."""

    def expected_of(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        return self.best - self.expected_cost(outcomes, choice)

    def realised(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        choices, outcomes = (torch.as_tensor(each).detach().cpu() for each in (choice, outcome))
        if choices.shape != outcomes.shape:
            raise StakesError(
                f"expected a decision for each outcome, but got {tuple(choices.shape)} and {tuple(outcomes.shape)}"
            )
        return self.best - np.asarray(self.cost(choices, outcomes.double()), dtype=np.float64)

    # For training --------------------------------------------------------------------------------------

    def with_limit(self, losses: ArrayLike | Tensor, quantile: float = LIMIT_QUANTILE, form: Form = "linear") -> Self:
        """For `LossCalibrated`: the limit is a quantile of the losses of a plain model, or the one number given.

        Linear, the gain is ``limit - loss``, whose logarithm is about ``log(limit) - loss / limit``; exponential, it
        is ``exp(-loss / limit)``. A limit far too small does great harm.
        """
        if form not in ("linear", "exponential"):
            raise StakesError(f"expected the form 'linear' or 'exponential', but got {form!r}")
        limit = float(np.quantile(np.asarray(losses, dtype=np.float64), quantile))
        if not 0 < limit < math.inf:
            raise StakesError(f"expected losses with a {quantile} quantile above 0, but it is {limit}")
        return replace(self, limit=Limit(limit, form))

    def log_gain(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        limit = self._limit()
        if limit.form == "exponential":
            return self._log_mean_exp(outcomes, choice, 1 / limit.limit)
        cost, least = self.expected_cost(outcomes, choice), self._least_at_atoms(outcomes, choice)
        if least is not None:
            cost = cost - (outcomes.weights * least).sum(-1)
        return -cost / limit.limit

    def foreseen(self, outcomes: Outcomes) -> Tensor:
        if outcomes.values is None:
            raise StakesError("expected outcomes that are numbers, but got named classes: use a table of costs")
        least = self.unavoidable(outcomes.values.expand(outcomes.shape))
        if least is None:
            return outcomes.weights.new_full(outcomes.shape[:-1], self.best)
        return self.best - (outcomes.weights * least).sum(-1)

    def unavoidable(self, outcome: Tensor) -> Tensor | None:
        """``(B, ...) -> (B, ...)``: what the best decision costs under each outcome; None if that is nothing.

        Training leaves it out: see `Utility.bounded`.
        """
        return None

    def _log_mean_exp(self, outcomes: Outcomes, choice: Tensor, rate: float) -> Tensor:
        """log E exp(-rate cost), by the atoms of the outcomes."""
        cost, least = self._atom_costs(outcomes, choice), self._least_at_atoms(outcomes, choice)
        return (outcomes.log_weights - rate * (cost if least is None else cost - least)).logsumexp(-1)

    def _least_at_atoms(self, outcomes: Outcomes, choice: Tensor) -> Tensor | None:
        """What is unavoidable at each atom of ``(S, B, ..., K)``, or ``(B, ..., K)``, for decisions ``(B, ...)``."""
        if outcomes.values is None:
            return None
        values = outcomes.values.expand(outcomes.shape)
        if values.ndim == choice.ndim + 1:
            return self.unavoidable(values)
        least = self.unavoidable(values.movedim(0, -1))  # examples first: each may have costs of its own
        return None if least is None else least.movedim(-1, 0)

    def _atom_costs(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        """``(S, B, ..., K)`` of a decision under each atom."""
        if outcomes.values is None:
            raise StakesError("expected outcomes that are numbers, but got named classes: use a table of costs")
        return self.cost(choice.unsqueeze(-1), outcomes.values.expand(outcomes.shape))

    @property
    def span(self) -> float:
        return self._limit().limit

    def bounded(self, margin: float) -> Self:
        """Itself: the limit is what bounds it, and its `log_gain` leaves out what is unavoidable."""
        self._limit()
        return self

    def _limit(self) -> Limit:
        if self.limit is None:
            raise StakesError(
                "this loss has no bound, which loss calibration needs: give it one with utility.with_limit(losses), "
                "those of a plain model"
            )
        return self.limit

    # As data -------------------------------------------------------------------------------------------

    def _shared_fields(self) -> dict[str, Any]:
        """What `to_dict` says of every kind."""
        fields: dict[str, Any] = {"unit": self.unit, "best": self.best}
        return fields if self.limit is None else fields | {"limit": asdict(self.limit)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberUtility) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(repr(self.to_dict()))


@dataclass(frozen=True, eq=False, kw_only=True)
class AmountUtility(NumberUtility):
    """Decisions are numbers from ``at_least`` to ``at_most``, in steps of ``step``: see `Range`.

    The cost is convex in the decision, so that the best step is beside the best number, unless `best_choice` says else.
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    step: float | None = None
    decisions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.range  # noqa: B018 (validates the bounds)

    @property
    def range(self) -> Range:
        return Range(self.at_least, self.at_most, self.step)

    @abstractmethod
    def optimum(self, outcomes: Outcomes) -> Tensor:
        """The best of all numbers, whatever the range."""

    def unavoidable(self, outcome: Tensor) -> Tensor | None:
        """The cost of the nearest decision that is allowed, for outcomes beyond the range or between two steps."""
        range_ = self.range
        if range_ == Range():
            return None
        below = range_.rounded_down(outcome)
        above = below if self.step is None else range_.inside(below + self.step)
        return torch.minimum(self.cost(below, outcome), self.cost(above, outcome))

    def expected(self, outcomes: Outcomes) -> Tensor:
        raise StakesError("decisions are numbers, of which there is no list: ask for expected_of(outcomes, numbers)")

    def best_choice(self, outcomes: Outcomes) -> Tensor:
        best, range_ = self.optimum(outcomes), self.range
        if bool(range_.inside(best).isinf().any()):
            raise StakesError(
                "expected a best decision that is finite, but some are not, as where too many, or too few, cost "
                "nothing: bound decisions with at_least and at_most"
            )
        if self.step is None:
            return range_.inside(best)
        below = range_.rounded_down(best)
        return self._best_of(outcomes, [below, range_.inside(below + self.step)])

    def runner_up(self, outcomes: Outcomes, choice: Tensor) -> Tensor | None:
        """The better of the next steps below and above; None if decisions have no steps."""
        if self.step is None:
            return None
        below, above = self.range.inside(choice - self.step), self.range.inside(choice + self.step)
        below, above = torch.where(below == choice, above, below), torch.where(above == choice, below, above)
        return self._best_of(outcomes, [below, above])

    def _best_of(self, outcomes: Outcomes, candidates: Sequence[Tensor]) -> Tensor:
        worth = torch.stack([self.expected_of(outcomes, candidate) for candidate in candidates])
        return torch.stack(list(candidates)).gather(0, worth.argmax(0, keepdim=True)).squeeze(0)

    def _shared_fields(self) -> dict[str, Any]:
        return super()._shared_fields() | self.range.to_dict()
