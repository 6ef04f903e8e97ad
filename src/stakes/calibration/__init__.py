"""Calibrators: maps from outcomes to outcomes, learnt on rows that the model did not train on."""

from stakes.calibration.base import Calibrated, Calibrator, calibrators
from stakes.calibration.decisions import DecisionCalibration
from stakes.calibration.scaling import Temperature, VectorScaling
from stakes.calibration.shift import Shift

__all__ = [
    "Calibrated",
    "Calibrator",
    "DecisionCalibration",
    "Shift",
    "Temperature",
    "VectorScaling",
    "calibrators",
]
