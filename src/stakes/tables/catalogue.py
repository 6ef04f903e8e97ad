"""A catalogue of models: those that are trained, and the names under which they are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stakes.errors import StakesError, listing
from stakes.tables.problem import Model


@dataclass(frozen=True)
class Catalogue:
    """The models for one kind of outcomes."""

    trained: Mapping[str, Model]  # in this order: a model that starts from another comes after it
    # What is compared, and the trained models that each is made of; a blend is made of those that stand beside it.
    compared: Mapping[str, tuple[str, ...]]
    members: tuple[str, ...]  # that a blend may have

    def require(self, name: str) -> None:
        if name not in self.compared:
            raise StakesError(f"expected a model of {listing(self.compared)}, but got {name!r}")

    def with_constant(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names, with the constant among them: what can be had without a model belongs in every comparison."""
        for name in names:
            self.require(name)
        return tuple(names) if "constant" in names else ("constant", *names)

    def blended(self, names: Sequence[str]) -> tuple[str, ...]:
        """The models that a blend is made of: those that are compared beside it, or all, if there are none.

        A calibrated network stands for the standard one, which it is if calibration does not pay.
        """
        beside = [name for name in self.members if name in names] or list(self.members)
        return tuple(name for name in beside if name != "standard" or "calibrated" not in beside)

    def keeps_rows(self, name: str) -> bool:
        """Whether a model that is compared holds training rows when it is saved."""
        return any(self.trained[model].keeps_rows for model in self.compared[name])

    def trained_for(self, names: Sequence[str]) -> tuple[str, ...]:
        """The models to train for a comparison of ``names``, those that others start from first."""
        members = self.blended(names) if "blend" in names else ()
        needed = {model for name in (*names, *members) for model in self.compared[name]}
        return tuple(name for name in self.trained if name in needed)
