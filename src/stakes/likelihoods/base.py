"""The contract of a likelihood."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from stakes.inputs import by_label
from stakes.outcomes import Outcomes
from stakes.registry import Registry

CLASS_AXIS = 2  # of outputs (S, B, C, ...)

kinds: Registry["Likelihood"] = Registry("likelihood")


class Likelihood(nn.Module, ABC):
    """Network outputs of S draws, ``(S, B, C, ...)``, as `Outcomes`, and as log-probabilities of labels."""

    classes: int | None = None  # of the outcomes, where they are not as many as the network's outputs

    @abstractmethod
    def outcomes(self, outputs: Tensor) -> Outcomes:
        """``(S, B, C, ...) -> (S, B, ..., K)``: the outcome as it is."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        """``(S, B, C, ...), (B, ...) -> (S, B, ...)``: log p(label as it was observed).

        ``outcomes`` are those of the outputs, where they are computed already. Of a label that does not count it is 0.
        """

    def mixture_log_prob(self, outcomes: Outcomes, labels: Tensor) -> Tensor | None:
        """``(B, ..., K), (B, ...) -> (B, ...)``: log p(label) under a mixture over draws; None if it has no density."""
        return None

    def prepare(self, labels: Iterable[Tensor]) -> None:
        """What it has to know of the training labels, which come in batches; `fit` calls it before the first step.

        A likelihood that knows it already, from an earlier fit, does not read them.
        """

    def counted(self, labels: Tensor) -> Tensor | None:
        """``(B, ...)`` of booleans: the labels that count in losses and scores; None if all of them do."""
        return None

    def learns_from(self, labels: Tensor, weights: Tensor | None = None) -> bool:
        """Whether one of the labels counts, and has a weight above 0."""
        counted = self.counted(labels)
        if weights is None:
            return counted is None or bool(counted.any())
        positive = by_label(weights, labels.shape) > 0
        return bool((positive if counted is None else positive & counted.to(positive.device)).any())

    def settings(self) -> dict[str, Any]:
        """The keyword arguments of its constructor in JSON types."""
        return {}

    def spec(self) -> dict[str, Any]:
        """The name of its kind, and its settings, from which `from_spec` builds it again."""
        return {"kind": kinds.name_of(type(self)), **self.settings()}


def from_spec(spec: dict[str, Any]) -> Likelihood:
    """The likelihood that ``Likelihood.spec`` described."""
    settings = dict(spec)
    return kinds[settings.pop("kind", None)](**settings)


def in_single_precision(outputs: Tensor) -> Tensor:
    """At least: half precision gives probabilities of three digits, which do not sum to 1."""
    return outputs.float() if outputs.itemsize < 4 else outputs
