"""Saved models made by hand, from weights of the test's own: nothing is trained."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from stakes import SavedModel, Utility
from stakes.predictors import Logistic
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import TableProfile
from stakes.utility import FormulaUtility, TableUtility

COSTS = {"treat": {"ill": 0.0, "well": 40.0}, "wait": {"ill": 500.0, "well": 0.0}, "refer": {"ill": 30, "well": 30}}
UTILITY = Utility.from_costs(COSTS, unit="£")


def patients(rows: int, columns: int = 2, seed: int = 0) -> pd.DataFrame:
    """Numbers, and a ward; the outcome is not among them."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(generator.normal(size=(rows, columns)), columns=[f"test {i}" for i in range(columns)])
    frame.iloc[::5, 0] = np.nan
    return frame.assign(ward=generator.choice(["north", "south"], rows))


def logistic_model(
    frame: pd.DataFrame, utility: TableUtility | FormulaUtility = UTILITY, profile: bool = True
) -> SavedModel:
    """A logistic regression with arbitrary weights; the outcomes are ill and well."""
    encoder = TableEncoder.fit(frame)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, encoder.width, generator=generator, dtype=torch.float64)
    predictor = Logistic(weights, torch.tensor([-1.0, 1.0]).double(), torch.ones(2, dtype=torch.bool))
    return SavedModel(predictor, utility, encoder, {}, TableProfile.fit(encoder, frame) if profile else None)


def saved(
    path: Path, frame: pd.DataFrame, utility: TableUtility | FormulaUtility = UTILITY, profile: bool = True
) -> Path:
    logistic_model(frame, utility, profile).save(path)
    return path
