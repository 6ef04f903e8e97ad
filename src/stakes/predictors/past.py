"""Past outcomes as predictions: all of them alike, or weighted by how much their rows are like a new one.

With weights w_i(x) of the training rows, the outcome of x is y_i with probability w_i(x). Bertsimas and Kallus (2020)
decide by such weights; their quantiles are those of nearest neighbours, and of quantile regression forests
(Meinshausen 2006).
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError
from stakes.features import Features
from stakes.inputs import Inputs
from stakes.mixtures import LEVELS, Quantiles
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.predictors import _tree_arrays, forest
from stakes.predictors._amounts import LARGEST_LABEL, AmountPredictor, standard_of, weighted_quantiles
from stakes.predictors._rows import BLOCK_ROWS, as_arrays, damaged
from stakes.seeds import derive, numpy_generator
from stakes.training.examples import TensorExamples

MOST_ROWS = 20_000  # of the past that are kept: a random part of more
NEIGHBOURS = (5, 10, 15, 20, 30, 40, 60, 80, 120, 160)
BLIND_NEIGHBOURS = 20  # without rows held out
BLOCK_NUMBERS = 2**22  # weights that are computed at once
TREES, SMALLEST_LEAF, MOST_LEAVES = 200, 5, 1024


class PastQuantiles(Predictor):
    """The same quantiles ``(99,)`` for every input, of any kind: those of the past."""

    def __init__(self, values: Tensor) -> None:
        if not isinstance(values, Tensor) or values.dtype != torch.float64 or values.shape != LEVELS.shape:
            raise damaged("quantiles", f"{len(LEVELS)} float64 numbers", "others")
        if not bool((values.abs() <= LARGEST_LABEL).all()) or not bool((values.diff() >= 0).all()):
            raise damaged("quantiles", "finite numbers in order", "others")
        self.values = values

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None = None,
        seed: int = 0,
        features: Features | None = None,
    ) -> Self:
        """The quantiles of the labels, by their weights. The other arguments are there as in the other predictors."""
        standard_of(train, "quantiles")
        weights = None if train.weights is None else train.weights.numpy()
        return cls(weighted_quantiles(train.labels.double().numpy(), weights))

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        return Quantiles(self.values.expand(inputs.count(x), -1)).repeat(last - first)

    def footprint(self, x: Inputs) -> Footprint:
        return Footprint(1, 2**21 // BLOCK_ROWS)

    def spec(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values}

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        if set(tensors) != {"values"}:
            raise damaged("quantiles", "the vector values", "others")
        return cls(tensors["values"])


class WeightedPast(AmountPredictor):
    """The past ``outcomes`` (N,), in order, with weights that a row gives to each. It holds training labels."""

    past: Tensor  # (N,) float64
    shares: Tensor | None  # (N,) float64 what each of them counts beside others like it; None: all alike

    @abstractmethod
    def weights(self, x: NDArray[Any]) -> Tensor:
        """``(B, N)`` of the past outcomes, for rows ``(B, features)``; each row sums to 1."""

    def quantiles(self, x: NDArray[Any]) -> NDArray[np.float64]:
        size = max(1, BLOCK_NUMBERS // len(self.past))
        parts = [np.zeros((0, len(LEVELS)))]
        for start in range(0, len(x), size):
            weights = self.weights(x[start : start + size])
            total = weights.cumsum(1)
            target = LEVELS.expand(len(total), -1) - 1e-9  # reached but for rounding
            index = torch.searchsorted(total, target.contiguous()).clamp_max(len(self.past) - 1)
            parts.append(self.past[index].numpy())
        return np.concatenate(parts)


class NearestPast(WeightedPast):
    """The outcomes of the ``neighbours`` nearest of the training rows, each by its share. It holds training rows."""

    model_name = "nearest neighbours"

    def __init__(self, rows: Tensor, past: Tensor, neighbours: int, shares: Tensor | None = None) -> None:
        _check_past(past, shares)
        if rows.dtype != torch.float32 or rows.ndim != 2 or len(rows) != len(past) or not bool(rows.isfinite().all()):
            raise damaged("past outcomes", "finite float32 rows, one for each outcome", "others")
        if type(neighbours) is not int or not 1 <= neighbours <= len(past) or not rows.shape[1]:
            raise damaged("past outcomes", f"a number of neighbours up to {len(past)}", repr(neighbours))
        self.rows, self.past, self.shares = rows, past, shares
        self.neighbours, self.features = neighbours, rows.shape[1]

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None,
        seed: int = 0,
        features: Features | None = None,
    ) -> Self:
        """The rows as they are, whose features should be standardised; as many neighbours as have the lowest CRPS on
        rows held out.
        """
        x, past, shares = _kept(train, seed, cls.model_name)
        if not np.isfinite(x).all():
            raise StakesError("expected finite numbers for nearest neighbours, but some are not: encode gaps first")
        rows = torch.from_numpy(x).float()
        best = cls(rows, past, min(BLIND_NEIGHBOURS, len(past)), shares)
        if held_out is None:
            return best
        lowest = np.inf
        for count in sorted({min(count, len(past)) for count in NEIGHBOURS}):
            candidate = cls(rows, past, count, shares)
            loss = candidate.mean_crps(held_out)
            if loss < lowest:
                best, lowest = candidate, loss
        return best

    def weights(self, x: NDArray[Any]) -> Tensor:
        given = torch.from_numpy(x).float()
        if not bool(given.isfinite().all()):
            raise StakesError("expected finite numbers for nearest neighbours, but some are not: encode gaps first")
        # Without the product of matrices, which rounds differently for other rows beside a row.
        distances = torch.cdist(given, self.rows, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(self.neighbours, largest=False).indices
        weights = torch.zeros(len(x), len(self.past)).double()
        if self.shares is None:
            return weights.scatter_(1, nearest, 1 / self.neighbours)
        shares = self.shares[nearest]
        return weights.scatter_(1, nearest, shares / shares.sum(1, keepdim=True))

    def spec(self) -> dict[str, Any]:
        return {"neighbours": self.neighbours}

    def state_dict(self) -> dict[str, Tensor]:
        return {"rows": self.rows, "past": self.past} | ({} if self.shares is None else {"shares": self.shares})

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        if {*tensors} - {"shares"} != {"rows", "past"}:
            raise damaged("past outcomes", "rows and past outcomes", "other tensors")
        return cls(tensors["rows"], tensors["past"], spec["neighbours"], tensors.get("shares"))


class ForestPast(WeightedPast):
    """The outcomes of the training rows in the same leaf as a row, in each tree of a random forest."""

    model_name = "a forest of past outcomes"

    def __init__(self, arrays: Mapping[str, Tensor], features: int) -> None:
        _check_forest(arrays, features)
        self.arrays, self.features = dict(arrays), features
        self.past, self.shares = arrays["past"], arrays.get("shares")

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None = None,
        seed: int = 0,
        features: Features | None = None,
    ) -> Self:
        """Train scikit-learn's RandomForestRegressor; it needs no rows held out. NaN is a missing value."""
        from sklearn.ensemble import RandomForestRegressor

        standard_of(train, cls.model_name)
        x, labels, weights = as_arrays(train, cls.model_name)
        model = RandomForestRegressor(
            TREES,
            min_samples_leaf=SMALLEST_LEAF,
            max_leaf_nodes=MOST_LEAVES,
            max_features=1 / 3,
            max_samples=min(len(x), MOST_ROWS),
            random_state=derive(seed, "forest") % 2**32,
        )
        model.fit(x, labels, weights)
        nodes = forest.node_arrays([each.tree_ for each in model.estimators_])
        rows, past, shares = _kept(train, seed, cls.model_name)
        members = np.stack(list(_tree_arrays.leaves(nodes, rows.T)))
        if not np.array_equal(members - nodes["start"].numpy()[:, None], model.apply(rows).T):
            raise StakesError(
                "expected the stored forest to be walked as scikit-learn's; this version of scikit-learn stores trees "
                "in another way: use the version stakes is tested with"
            )
        arrays = {**nodes, "past": past, "members": torch.from_numpy(members).int()}
        return cls(arrays | ({} if shares is None else {"shares": shares}), x.shape[1])

    def weights(self, x: NDArray[Any]) -> Tensor:
        from scipy.sparse import csr_array

        members = self.arrays["members"].numpy()  # (T, N)
        trees, rows = members.shape
        nodes = len(self.arrays["leaf"])
        past = np.ones(rows) if self.shares is None else self.shares.numpy()
        sizes = np.bincount(members.ravel(), np.tile(past, trees), minlength=nodes)
        reached = np.stack(list(_tree_arrays.leaves(self.arrays, x.T)), 1)  # (B, T)
        # A leaf that none of the kept rows is in gives no weight: the others share it.
        shares = np.divide(1, sizes, out=np.zeros(nodes), where=sizes > 0)[reached]
        ours = csr_array((shares.ravel(), reached.ravel(), np.arange(len(x) + 1) * trees), shape=(len(x), nodes))
        per_row = np.repeat(past, trees), members.T.ravel(), np.arange(rows + 1) * trees
        theirs = csr_array(per_row, shape=(rows, nodes))
        weights = torch.from_numpy((ours @ theirs.T).toarray())
        total = weights.sum(1, keepdim=True)
        return torch.where(total > 0, weights / total, 1 / rows)

    def spec(self) -> dict[str, Any]:
        return {"features": self.features}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"])


def _kept(train: TensorExamples, seed: int, model_name: str) -> tuple[NDArray[Any], Tensor, Tensor | None]:
    """The rows and outcomes of the past that are kept, in the order of the outcomes, and what each counts: by its
    weight, which of too many rows says which are kept instead.
    """
    standard_of(train, model_name)
    x, labels, weights = as_arrays(train, model_name)
    rows = np.arange(len(x)) if weights is None else np.flatnonzero(weights)
    if len(rows) > MOST_ROWS:
        shares = None if weights is None else weights[rows] / weights[rows].sum()
        rows, weights = numpy_generator(seed, "past").choice(rows, MOST_ROWS, replace=False, p=shares), None
    rows = rows[np.argsort(labels[rows], kind="stable")]
    counts = None if weights is None or np.ptp(weights[rows]) == 0 else torch.from_numpy(weights[rows]).double()
    return x[rows], torch.from_numpy(labels[rows]).double(), counts


def _check_past(past: Tensor, shares: Tensor | None) -> None:
    if past.dtype != torch.float64 or past.ndim != 1 or not len(past):
        raise damaged("past outcomes", "a float64 vector of outcomes", "others")
    if not bool((past.abs() <= LARGEST_LABEL).all()) or not bool((past.diff() >= 0).all()):
        raise damaged("past outcomes", "finite outcomes in order", "others")
    if shares is not None:
        fits = shares.dtype == torch.float64 and shares.shape == past.shape
        if not fits or not bool(((shares > 0) & shares.isfinite()).all()):
            raise damaged("past outcomes", "a share above 0 for each outcome", "others")


def _check_forest(arrays: Mapping[str, Tensor], features: int) -> None:
    """Refuse arrays that are not a forest with past outcomes in its leaves."""
    others = {"past": (torch.float64, 1), "members": (torch.int32, 2)}
    others |= {"shares": (torch.float64, 1)} if "shares" in arrays else {}
    _tree_arrays.check_vectors(arrays, {name: (dtype, 1) for name, dtype in forest.VECTORS.items()} | others)
    _tree_arrays.check_trees(arrays, features, None)
    _check_past(arrays["past"], arrays.get("shares"))
    members, start = arrays["members"].long(), arrays["start"]
    if members.shape != (len(start), len(arrays["past"])):
        raise damaged("past outcomes", "a leaf of each tree for each outcome", "others")
    end = torch.cat([start[1:], torch.tensor([len(arrays["leaf"])])])
    inside = bool(((members >= start[:, None]) & (members < end[:, None])).all())
    if not inside or not bool(arrays["leaf"][members].all()):
        raise damaged("past outcomes", "leaves of their own tree", "others")
