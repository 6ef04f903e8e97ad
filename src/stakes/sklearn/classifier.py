"""A scikit-learn classifier that decides by a utility."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from stakes._io.parallel import one_thread
from stakes.decisions import Decisions, decide
from stakes.errors import StakesError, listing
from stakes.sklearn.base import DecisionEstimator
from stakes.tables.classes import Classes
from stakes.tables.problem import PATIENCE, Noise, Recipe
from stakes.tables.values import as_text, encode_labels
from stakes.training.config import Training
from stakes.utility import TableUtility, Utility


class DecisionClassifier(ClassifierMixin, DecisionEstimator):
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

    kind = Classes()

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
        self.label_noise = label_noise
        super().__init__(
            model=model,
            folds=folds,
            network=network,
            posterior=posterior,
            tabm=tabm,
            hidden=hidden,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            patience=patience,
            samples=samples,
            random_state=random_state,
        )

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
        ``groups``, (N,): rows of one group, a patient's, say, stay on one side of every fold. ``times``, (N,) numbers
        or dates: models are chosen on later rows than they were trained on, and then made of all rows.
        """
        self.kind.catalogue.require(self.model)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weights = self._weights(X, sample_weight, groups, times)
        self.classes_ = np.unique(y)
        if len(np.unique(y[weights > 0])) < 2:
            raise StakesError("expected at least 2 classes with a weight above 0, but got 1 class: nothing to decide")
        if self.utility is not None and (self.utility.per_example or self.utility.values.ndim != 2):
            raise StakesError("expected one utility table for all rows, but got one per example: pass costs= to fit")
        names = as_text(pd.Series(self.classes_)).tolist()
        self.utility_ = self.utility or (costs if isinstance(costs, TableUtility) else Utility.diagonal(names))
        self._columns = encode_labels(pd.Series(self.classes_), self.utility_.outcomes, name="y")
        self._costs_by_row = costs is not None
        labels = self._columns[np.searchsorted(self.classes_, y)]
        utility = self._utility_of(costs, len(X))
        self._train(X, labels, weights, utility, groups, times, noise=self.label_noise)
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
            tables = TableUtility.of_costs(table, known.decisions, known.outcomes, best, scale, unit=known.unit)
        if not tables.per_example or (tables.decisions, tables.outcomes) != (known.decisions, known.outcomes):
            raise StakesError(
                f"expected costs of each row, for the decisions {listing(known.decisions)} and the outcomes "
                f"{listing(known.outcomes)} in this order, but got other ones"
            )
        tables.require_examples(rows)
        return tables
