"""Predictors: whatever turns inputs into `Outcomes`, saved as settings and tensors, without pickles."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from stakes.errors import StakesError, listing
from stakes.outcomes import Predictor
from stakes.predictors.trees import BoostedTrees

__all__ = ["BoostedTrees", "Predictor", "load", "register", "spec_of"]

_KINDS: dict[str, Any] = {"trees": BoostedTrees}
PredictorClass = TypeVar("PredictorClass", bound=type[Predictor])


def register(kind: str) -> Callable[[PredictorClass], PredictorClass]:
    """Class decorator: predictors whose ``spec()["kind"]`` is ``kind`` can be saved, and loaded again.

    The class has ``spec``, ``state_dict`` and a class method ``load(spec, tensors, network)``.
    """

    def add(cls: PredictorClass) -> PredictorClass:
        if kind in _KINDS and _KINDS[kind].__qualname__ != cls.__qualname__:
            raise StakesError(f"the kind {kind!r} is {_KINDS[kind].__qualname__} already: choose another name")
        _KINDS[kind] = cls
        return cls

    return add


def spec_of(predictor: Predictor) -> dict[str, Any]:
    """The spec of a predictor, if `load` will know its kind."""
    spec = predictor.spec()
    if not isinstance(predictor, _KINDS.get(spec.get("kind", ""), ())):
        raise StakesError(
            f"a {type(predictor).__name__} cannot be saved, for nothing could load it: "
            'give its class the decorator @stakes.predictors.register("name"), and its spec {"kind": "name"}'
        )
    return spec


def load(spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Predictor:
    """The predictor that has this ``spec`` and these tensors; ``network`` is one like a network stakes cannot build."""
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise StakesError(
            f"expected a predictor of {listing(_KINDS)}, but got {kind!r:.80}; import the module that registers it"
        )
    return cast(Predictor, _KINDS[kind].load(spec, tensors, network))
