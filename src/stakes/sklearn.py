"""A scikit-learn classifier that decides by a utility."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from stakes import seeds
from stakes._io.parallel import one_thread
from stakes.decisions import Decisions, decide
from stakes.errors import StakesError, listing
from stakes.features import Features
from stakes.outcomes import Predictive, Predictor
from stakes.predictors import SampledPosterior
from stakes.tables.mix import train_mix
from stakes.tables.models import require_compared
from stakes.tables.problem import FAMILIES, LEARNING_RATES, PATIENCE, Noise, Problem, Recipe
from stakes.tables.split import Fold, folds, forward_folds
from stakes.tables.values import as_text, encode_labels
from stakes.training.config import Training
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility, Utility

FOLLOWS_WEIGHTS = ("dropout", "ensemble", "mean_field", "batch_ensemble")  # draws of a user's family may not
FEWEST_ROWS = 40  # with fewer, all are trained on, and the last epoch is kept


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
    model : "blend" of logistic regression, a random forest, boosted trees and a calibrated network, weighted by rows
        that they did not train on; or one of these, "logistic", "forest", "boosting", "calibrated", or of the networks
        "standard", "weighted", "noise", "noise+calibrated"; or "constant", which decides alike for all rows.
    folds : a model is trained once for each, stopped early on the rows of the fold, and its parts are averaged.
    network : "tabm" or "mlp". Inputs are standardised.
    posterior : of an MLP "dropout", "ensemble", "mean_field", "laplace" or the name of your own registered family; with
        settings, {"family": name, ...}. None: "dropout" for an MLP, "batch_ensemble" for a TabM.
    tabm : settings of a TabM, such as {"members": 8, "width": 64}.
    hidden, dropout : of an MLP. The members of an ensemble have no dropout.
    label_noise : the share of labels that are as if drawn at random, or "learnt", for the two noise models.
    epochs, batch_size, learning_rate, patience : training of networks.
    samples : draws from the posterior at prediction.
    random_state : an integer gives the same model every time.

    Attributes
    ----------
    classes_, n_features_in_, utility_, predictor_
    details_ : what training came to, such as the weights of a blend.
    """

    def __init__(
        self,
        utility: TableUtility | None = None,
        *,
        model: str = "blend",
        folds: int = 5,
        network: Literal["tabm", "mlp"] = Recipe.network,
        posterior: str | Mapping[str, Any] | None = None,
        tabm: Mapping[str, Any] | None = None,
        hidden: tuple[int, ...] = Recipe.hidden,
        dropout: float = Recipe.dropout,
        label_noise: Noise = Recipe.noise,
        epochs: int = Training.epochs,
        batch_size: int | None = Training.batch_size,
        learning_rate: float | None = None,
        patience: int | None = PATIENCE,
        samples: int = Recipe.samples,
        random_state: Any = None,
    ) -> None:
        self.utility = utility
        self.model = model
        self.folds = folds
        self.network = network
        self.posterior = posterior
        self.tabm = tabm
        self.hidden = hidden
        self.dropout = dropout
        self.label_noise = label_noise
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.samples = samples
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        costs: Any = None,
        groups: Any = None,
        times: Any = None,
    ) -> Self:
        """Train on rows X with classes y; a row with the weight 0 is left out.

        ``costs``, where each row has its own: ``(N, decisions, outcomes)``, in the order of `utility`, or of the
        classes without one; or a utility with a table for each row, such as `FormulaUtility.for_rows` makes.
        ``groups``, (N,): rows of one group, a patient's, say, stay on one side of every fold. ``times``, (N,) numbers:
        each fold trains on earlier rows than it holds out.
        """
        require_compared(self.model)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        check_consistent_length(X, groups)
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
        even = bool(np.ptp(weights[used]) == 0)
        scaled = None if even else torch.from_numpy(weights[used] / weights[used].mean()).float()
        examples = TensorExamples(self._tensor(X[used]).float(), torch.from_numpy(labels), scaled)
        own_groups, own_times = (None if each is None else column_or_1d(each)[used] for each in (groups, times))
        problem = Problem(examples, self._folds(labels, own_groups, own_times), utility, Features(X.shape[1]))
        with one_thread():
            self.predictor_, self.details_ = train_mix(self.model, problem, self._recipe(), self._seed, _in_double)
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
        rate = LEARNING_RATES[self.network] if self.learning_rate is None else self.learning_rate
        training = Training(self.epochs, self.batch_size, rate, patience=self.patience, select="nll")
        posterior = FAMILIES[self.network] if self.posterior is None else self.posterior
        return Recipe(
            network=self.network,
            tabm=self.tabm or {},
            hidden=tuple(self.hidden),
            dropout=self.dropout,
            posterior={"family": posterior} if isinstance(posterior, str) else posterior,
            training=training,
            samples=self.samples,
            noise=self.label_noise,
        )

    def _tensor(self, X: Any) -> torch.Tensor:
        return torch.from_numpy(self._scaler.transform(X))

    def _folds(
        self,
        labels: np.ndarray[Any, Any],
        groups: np.ndarray[Any, Any] | None,
        times: np.ndarray[Any, Any] | None,
    ) -> tuple[Fold, ...]:
        """As many as there are groups of rows for; of few rows, one that holds none out."""
        if groups is not None and times is not None:
            raise StakesError("expected groups= or times=, but got both: a group may go on after the time of a fold")
        rows = np.arange(len(labels))
        if len(labels) < FEWEST_ROWS:
            return (Fold(rows, rows[:0]),)
        if times is not None:
            return forward_folds(times.astype(np.float64), self.folds)
        return folds(labels, rows if groups is None else groups, self.folds, seeds.derive(self._seed, "folds"))


def _in_double(predictor: Predictor) -> Predictor:
    """In double precision, where that can be had: then a row's prediction does not depend on the rows beside it."""
    if isinstance(predictor, SampledPosterior) and predictor.posterior.spec()["family"] in FOLLOWS_WEIGHTS:
        return predictor.double()
    return predictor
