"""scikit-learn estimators that decide by a utility."""

from stakes.sklearn.classifier import DecisionClassifier
from stakes.sklearn.regressor import DecisionRegressor

__all__ = ["DecisionClassifier", "DecisionRegressor"]
