"""A scikit-learn classifier that decides by a utility."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from stakes import seeds
from stakes._io.parallel import one_thread
from stakes.decisions import Decisions, decide
from stakes.errors import StakesError, listing
from stakes.outcomes import Predictive
from stakes.posteriors import Ensemble, MCDropout, MeanField
from stakes.predictors import SampledPosterior
from stakes.tables.models import FAMILY, Noise, Problem, Recipe, model
from stakes.tables.split import split
from stakes.tables.values import as_text, encode_labels
from stakes.training.config import Training
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility, Utility

_ANY_PRECISION = (MCDropout, Ensemble, MeanField)  # their draws follow the weights; a user's family may not
SMALLEST_SPLIT = 40  # with fewer rows all are trained on, and the last epoch is kept


class DecisionClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that predicts the decision with the highest expected utility.

    >>> costs = {"treat": {"ill": 0, "well": 4}, "wait": {"ill": 9, "well": 0}}
    >>> model = DecisionClassifier(Utility.from_costs(costs), model="boosting", random_state=0)
    >>> model.fit([[age] for age in range(20, 80)], ["well"] * 30 + ["ill"] * 30).predict([[30], [70]])
    array(['wait', 'treat'], dtype='<U5')

    Parameters
    ----------
    utility : what each decision is worth under each outcome; outcomes are the classes by name. None: every
        right decision is worth 1, and `score` is the accuracy.
    model : "standard", "weighted", "calibrated", "noise", "noise+calibrated" or "boosting", which uses none of the
        parameters below but `validation_fraction` and `random_state`.
    posterior : "dropout", "ensemble", "mean_field" or the name of your own registered family; with settings,
        {"family": name, ...}.
    hidden, dropout : the network. Inputs are standardised. The members of an ensemble have no dropout.
    label_noise : the share of labels that are as if drawn at random, or "learnt", for the two noise models.
    epochs, batch_size, learning_rate, patience : training, stopped early on `validation_fraction` of the rows.
    samples : draws from the posterior at prediction.
    random_state : an integer gives the same model every time.

    Attributes
    ----------
    classes_, n_features_in_, utility_, predictor_
    details_ : what training came to, such as the number of epochs.
    """

    def __init__(
        self,
        utility: TableUtility | None = None,
        *,
        model: str = "calibrated",
        posterior: str | Mapping[str, Any] = FAMILY,
        hidden: tuple[int, ...] = Recipe.hidden,
        dropout: float = Recipe.dropout,
        label_noise: Noise = Recipe.noise,
        epochs: int = Training.epochs,
        batch_size: int | None = Training.batch_size,
        learning_rate: float = Training.learning_rate,
        patience: int | None = Training.patience,
        validation_fraction: float = 0.2,
        samples: int = Recipe.samples,
        random_state: Any = None,
    ) -> None:
        self.utility = utility
        self.model = model
        self.posterior = posterior
        self.hidden = hidden
        self.dropout = dropout
        self.label_noise = label_noise
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.samples = samples
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, costs: Any = None) -> Self:
        """Train on rows X with classes y; a row with the weight 0 is left out.

        ``costs``, where each row has its own: ``(N, decisions, outcomes)``, in the order of `utility`, or of the
        classes without one; or a utility with a table for each row, such as `FormulaUtility.for_rows` makes.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        used = weights > 0
        self.classes_ = np.unique(y)
        if len(np.unique(y[used])) < 2:
            raise StakesError("expected at least 2 classes with a weight above 0, but got 1 class: nothing to decide")
        if self.utility is not None and (self.utility.per_example or self.utility.values.ndim != 2):
            raise StakesError("expected one utility table for all rows, but got one per example: pass costs= to fit")
        names = as_text(pd.Series(self.classes_)).tolist()
        self.utility_ = self.utility or (costs if isinstance(costs, TableUtility) else Utility.diagonal(names))
        self._columns = encode_labels(pd.Series(self.classes_), self.utility_.outcomes, name="y")
        self._scaler = StandardScaler().fit(X[used])
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        labels = self._columns[np.searchsorted(self.classes_, y[used])]
        self._costs_by_row = costs is not None
        utility = self._utility_of(costs, len(X)).rows(used)
        problem = self._problem(self._tensor(X[used]).float(), labels, weights[used], utility)
        with one_thread():
            predictor, self.details_ = model(self.model).train(problem, self._recipe(), self._seed)
        if isinstance(predictor, SampledPosterior) and isinstance(predictor.posterior, _ANY_PRECISION):
            predictor = predictor.double()
        self.predictor_ = predictor
        return self

    def decide(self, X: Any, costs: Any = None) -> Decisions:
        """Decisions with the expected utility of every alternative, margins and their Monte-Carlo errors.

        ``costs`` of each row as in `fit`: required if it was fitted with them.
        """
        check_is_fitted(self)
        if costs is None and self._costs_by_row:
            raise StakesError("it was fitted with costs of each row: pass costs= of these rows, too")
        predictive = self._predictive(X)
        with one_thread():
            return decide(predictive, self._utility_of(costs, len(predictive.x)))

    def predict(self, X: Any, costs: Any = None) -> np.ndarray[Any, Any]:
        """The best decision for each row: a class, or, where some decision is not a class, its name."""
        decisions = self.decide(X, costs)
        texts = as_text(pd.Series(self.classes_)).tolist()
        if not set(decisions.names) <= set(texts):
            return decisions.chosen_names
        positions = np.array([texts.index(name) for name in decisions.names])
        predicted: np.ndarray[Any, Any] = self.classes_[positions[decisions.choice.numpy()]]
        return predicted

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """(N, classes) the mean predictive, columns in the order of `classes_`."""
        with one_thread():
            probs = self._predictive(X).mean_probs().numpy()[:, self._columns]
        normalised: np.ndarray[Any, Any] = probs / probs.sum(1, keepdims=True)
        return normalised

    def score(self, X: Any, y: Any, sample_weight: Any = None, costs: Any = None) -> float:
        """The mean utility of the decisions for X, when y turns out to be true."""
        choice = self.decide(X, costs).choice.numpy()
        labels = encode_labels(pd.Series(np.asarray(y)), self.utility_.outcomes, name="y")
        utility = self._utility_of(costs, len(choice))
        return float(np.average(utility.realised(choice, labels), weights=sample_weight))

    def _predictive(self, X: Any) -> Predictive:
        check_is_fitted(self)
        return self.predictor_(self._tensor(validate_data(self, X, dtype=np.float64, reset=False)))

    def _utility_of(self, costs: Any, rows: int) -> TableUtility:
        """The one utility of all rows, or what the costs of each row are worth."""
        if costs is None:
            return self.utility_
        known = self.utility_
        best, scale = (0.0, 1.0) if self.utility is None else (known.best, known.scale)
        if isinstance(costs, TableUtility):
            tables = costs
        else:
            table = np.asarray(costs, dtype=np.float64)
            tables = TableUtility(best - table / scale, known.decisions, known.outcomes, known.unit, best, scale)
        if not tables.per_example or (tables.decisions, tables.outcomes) != (known.decisions, known.outcomes):
            raise StakesError(
                f"expected costs of each row, for the decisions {listing(known.decisions)} and the outcomes "
                f"{listing(known.outcomes)} in this order, but got other ones"
            )
        tables.require_examples(rows)
        return tables

    def _recipe(self) -> Recipe:
        training = Training(self.epochs, self.batch_size, self.learning_rate, patience=self.patience)
        posterior = {"family": self.posterior} if isinstance(self.posterior, str) else self.posterior
        return Recipe(tuple(self.hidden), self.dropout, posterior, training, self.samples, self.label_noise)

    def _tensor(self, X: Any) -> torch.Tensor:
        return torch.from_numpy(self._scaler.transform(X))

    def _problem(
        self, x: torch.Tensor, labels: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], utility: TableUtility
    ) -> Problem:
        even = bool(np.ptp(weights) == 0)
        scaled = None if even else torch.from_numpy(weights / weights.mean()).float()
        everything = TensorExamples(x, torch.from_numpy(labels), scaled)
        if len(x) < SMALLEST_SPLIT:
            return Problem(everything, None, utility)
        kept, held = split(labels, np.arange(len(labels)), self.validation_fraction, seeds.derive(self._seed, "split"))
        train, validation = (everything.subset(torch.from_numpy(part)) for part in (kept, held))
        return Problem(train, validation, utility.rows(kept), utility.rows(held))
