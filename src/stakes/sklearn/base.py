"""What the estimators share: rows and weights, folds, recipe, and how they are trained."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from stakes import seeds
from stakes._io.parallel import one_thread
from stakes.errors import StakesError
from stakes.features import Features
from stakes.outcomes import Predictive, Predictor
from stakes.predictors import SampledPosterior
from stakes.tables.kind import Kind
from stakes.tables.problem import FAMILIES, LEARNING_RATES, PATIENCE, Problem, Recipe
from stakes.tables.split import Fold, folds
from stakes.tables.task import network as require_network
from stakes.tables.train import train_mix
from stakes.training.config import Training
from stakes.training.examples import TensorExamples
from stakes.utility import Utility

FOLLOWS_WEIGHTS = ("dropout", "ensemble", "mean_field", "batch_ensemble")  # draws of a user's family may not
FEWEST_ROWS = 40  # with fewer, all are trained on, and the last epoch is kept


class DecisionEstimator(BaseEstimator):
    """The settings of models and of their training."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        *,
        model: str = "blend",
        folds: int = 5,
        network: Literal["tabm", "mlp"] = Recipe.network,
        posterior: str | Mapping[str, Any] | None = None,
        tabm: Mapping[str, Any] | None = None,
        hidden: tuple[int, ...] = Recipe.hidden,
        dropout: float = Recipe.dropout,
        epochs: int = Training.epochs,
        batch_size: int | None = Training.batch_size,
        learning_rate: float | None = None,
        patience: int | None = PATIENCE,
        samples: int = Recipe.samples,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.folds = folds
        self.network = network
        self.posterior = posterior
        self.tabm = tabm
        self.hidden = hidden
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.samples = samples
        self.random_state = random_state

    def _weights(self, X: Any, sample_weight: Any, groups: Any, times: Any) -> NDArray[np.float64]:
        """(N,) of the rows, checked; a row with the weight 0 is left out."""
        check_consistent_length(X, groups, times)
        weights: NDArray[np.float64] = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        return weights

    def _train(
        self,
        X: NDArray[np.float64],
        labels: NDArray[Any],
        weights: NDArray[np.float64],
        utility: Utility,
        groups: Any,
        times: Any,
        **recipe: Any,
    ) -> None:
        """On rows X with ``labels``, and a ``utility`` for all of them, or for each."""
        used = weights > 0
        self._scaler = StandardScaler().fit(X[used])
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        even = bool(np.ptp(weights[used]) == 0)
        scaled = None if even else torch.from_numpy(weights[used] / weights[used].mean()).float()
        examples = TensorExamples(self._tensor(X[used]).float(), torch.from_numpy(labels[used]), scaled)
        problem = Problem(examples, (), utility.rows(used), Features(X.shape[1]))
        problem = self._divided(
            problem,
            labels[used],
            None if groups is None else column_or_1d(groups)[used],
            None if times is None else _as_numbers(times)[used],
        )
        with one_thread():
            self.predictor_, self.details_ = train_mix(
                self.kind, self.model, problem, self._recipe(**recipe), self._seed, _in_double
            )

    def _divided(self, problem: Problem, labels: NDArray[Any], groups: Any, times: Any) -> Problem:
        """With as many folds as there are groups of rows for; of few rows, one that holds none out."""
        if groups is not None and times is not None:
            raise StakesError("expected groups= or times=, but got both: a group may go on after the time of a fold")
        rows, seed = np.arange(len(labels)), seeds.derive(self._seed, "folds")
        if len(labels) < FEWEST_ROWS:
            return replace(problem, folds=(Fold(rows, rows[:0]),))
        if times is not None:
            return problem.in_time(times, self.folds, seed)
        strata = self.kind.strata(labels)
        return replace(problem, folds=folds(strata, rows if groups is None else groups, self.folds, seed))

    def _predictive(self, X: Any) -> Predictive:
        check_is_fitted(self)
        return self.predictor_(self._tensor(validate_data(self, X, dtype=np.float64, reset=False)))

    def _recipe(self, **others: Any) -> Recipe:
        network = require_network(self.network)
        rate = LEARNING_RATES[network] if self.learning_rate is None else self.learning_rate
        training = Training(self.epochs, self.batch_size, rate, patience=self.patience, select="nll")
        posterior = FAMILIES[network] if self.posterior is None else self.posterior
        return Recipe(
            network=network,
            tabm=self.tabm or {},
            hidden=tuple(self.hidden),
            dropout=self.dropout,
            posterior={"family": posterior} if isinstance(posterior, str) else posterior,
            training=training,
            samples=self.samples,
            **others,
        )

    def _tensor(self, X: Any) -> torch.Tensor:
        return torch.from_numpy(self._scaler.transform(X))


def _as_numbers(times: Any) -> NDArray[np.float64]:
    """(N,) of numbers, or of dates as NumPy and pandas have them."""
    values = column_or_1d(times)
    try:
        known = not pd.isna(values).any()
        if values.dtype.kind == "O" and not any(isinstance(value, str | Real) for value in values):
            starts = [value.to_timestamp() if isinstance(value, pd.Period) else value for value in values]
            values = pd.to_datetime(starts, utc=True).tz_localize(None).to_numpy()
        if values.dtype.kind == "M":  # whose first is subtracted while they are whole numbers, which lose nothing
            values = values.astype("datetime64[ns]").astype(np.int64)
            values = values - values[:1]
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        known = False
    if not known or not np.isfinite(numbers).all():
        raise StakesError(
            "expected a time for each row, as a number or a date: convert texts with pd.to_datetime(times), and leave "
            "out rows without one"
        )
    return np.asarray(numbers)


def _in_double(predictor: Predictor) -> Predictor:
    """In double precision, where that can be had: then a row's prediction does not depend on the rows beside it."""
    if isinstance(predictor, SampledPosterior) and predictor.posterior.spec()["family"] in FOLLOWS_WEIGHTS:
        return predictor.double()
    return predictor
