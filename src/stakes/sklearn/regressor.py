"""A scikit-learn regressor that decides by a utility: how much to order, rather than how much is expected."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from stakes._io.parallel import one_thread
from stakes.decisions import AmountDecisions, Decisions, decide
from stakes.errors import StakesError
from stakes.mixtures import Quantiles
from stakes.mixtures.atoms import interval
from stakes.sklearn.base import DecisionEstimator
from stakes.tables.amounts.kind import Amounts
from stakes.tables.amounts.other_costs import warn_beyond_levels
from stakes.tables.problem import PATIENCE, LikelihoodName, Recipe
from stakes.tables.task import likelihood as require_likelihood
from stakes.training.config import Training
from stakes.utility import Squared
from stakes.utility.amounts import NumberUtility


class DecisionRegressor(RegressorMixin, DecisionEstimator):
    """A regressor that predicts the decision with the lowest expected cost, where outcomes are numbers.

    >>> from stakes import Newsvendor
    >>> model = DecisionRegressor(Newsvendor(under=15, over=5), model="constant")
    >>> model.fit([[day % 7] for day in range(70)], [20 + day % 10 for day in range(70)]).predict([[3]])
    array([27.])

    Parameters
    ----------
    utility : `Newsvendor`, `Squared`, `Linex`, `Utility.from_curves` or `Utility.from_function`: what a decision costs
        under each outcome. None: the squared error; then predictions are means, and `score` is R^2.
    model : "blend" of the models below, weighted by rows that they did not train on; or one of these, "linear" quantile
        regression, "neighbours", "forest", "boosting" of quantiles or of the "mean", the networks "standard" and
        "calibrated"; or "constant", the quantiles of the past.
    folds : a model is trained once for each, stopped early on the rows of the fold, and its parts are averaged.
    network : "tabm" or "mlp". Inputs are standardised, and so are outcomes.
    likelihood : of networks, "gaussian", "log_normal" for amounts above 0, or "student_t" for heavy tails.
    posterior, tabm, hidden, dropout, epochs, batch_size, learning_rate, patience, samples, random_state : as of
        `DecisionClassifier`.

    Attributes
    ----------
    n_features_in_, utility_, predictor_
    details_ : what training came to, such as the weights of a blend.
    """

    kind = Amounts()

    def __init__(
        self,
        utility: NumberUtility | None = None,
        *,
        model: str = "blend",
        folds: int = 5,
        network: Literal["tabm", "mlp"] = Recipe.network,
        likelihood: LikelihoodName = Recipe.likelihood,
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
        self.utility = utility
        self.likelihood = likelihood
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
        costs: NumberUtility | None = None,
        groups: Any = None,
        times: Any = None,
    ) -> Self:
        """Train on rows X with outcomes y; a row with the weight 0 is left out.

        ``costs``, where each row has its own: a utility with a number for each row, ``Newsvendor(under, over)`` of
        arrays, say. ``groups`` and ``times`` as of `DecisionClassifier`.
        """
        self.kind.catalogue.require(self.model)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        weights = self._weights(X, sample_weight, groups, times)
        if self.utility is not None and (not isinstance(self.utility, NumberUtility) or self.utility.per_example):
            raise StakesError(
                "expected one utility of numbers for all rows, such as Newsvendor(under=15, over=5): pass those of "
                "each row to fit, as costs=, and use DecisionClassifier for a table of classes"
            )
        self.utility_ = self.utility or costs or Squared()
        self._costs_by_row = costs is not None
        utility, likelihood = self._utility_of(costs, len(X)), require_likelihood(self.likelihood)
        self._train(X, y.astype(np.float64), weights, utility, groups, times, likelihood=likelihood)
        return self

    def decide(self, X: Any, costs: NumberUtility | None = None) -> Decisions:
        """Decisions with their expected utility, margins to the next step or action, and an interval of the outcome.

        ``costs`` of each row as in `fit`: required if it was fitted with them.
        """
        check_is_fitted(self)
        if costs is None and self._costs_by_row:
            raise StakesError("it was fitted with costs of each row: pass costs= of these rows, too")
        predictive = self._predictive(X)
        utility = self._utility_of(costs, len(predictive.x))
        warn_beyond_levels(utility, len(predictive.x))
        with one_thread():
            return decide(predictive, utility)

    def predict(self, X: Any, costs: NumberUtility | None = None) -> NDArray[Any]:
        """The best decision for each row: a number, or the name of an action."""
        decisions = self.decide(X, costs)
        if isinstance(decisions, AmountDecisions):
            return decisions.choice.numpy()
        return decisions.chosen_names

    def predict_quantile(self, X: Any, share: float = 0.5) -> NDArray[np.float64]:
        """(N,) the number that the outcome is at most with probability ``share``."""
        if not 0 < share < 1:
            raise StakesError(f"expected a share of the outcomes above 0 and below 1, but got {share}")
        return self._quantiles(X).quantile(share).numpy()

    def predict_interval(self, X: Any, share: float = 0.9) -> NDArray[np.float64]:
        """(N, 2) two numbers between which the outcome lies with probability ``share``, as much beyond either."""
        return np.stack([end.numpy() for end in interval(self._quantiles(X), share)], 1)

    def score(self, X: Any, y: Any, sample_weight: Any = None, costs: NumberUtility | None = None) -> float:
        """The mean utility of the decisions for X, when y turns out to be true; without a utility, R^2."""
        if self.utility is None and costs is None:
            return float(super().score(X, y, sample_weight))
        choice = self.decide(X, costs).choice
        utility = self._utility_of(costs, len(choice))
        realised = utility.realised(choice, np.asarray(y, dtype=np.float64))
        return float(np.average(realised, weights=sample_weight))

    def _quantiles(self, X: Any) -> Quantiles:
        predictive = self._predictive(X)
        with one_thread():
            return Quantiles.of(predictive.mixture())

    def _utility_of(self, costs: NumberUtility | None, rows: int) -> NumberUtility:
        """The one utility of all rows, or that of each row."""
        if costs is None:
            return self.utility_
        if not isinstance(costs, NumberUtility) or not costs.per_example:
            raise StakesError(
                "expected costs of each row as a utility with a number for each, such as Newsvendor(under, over) of "
                f"arrays, but got {type(costs).__name__}"
            )
        costs.require_examples(rows)
        return costs
