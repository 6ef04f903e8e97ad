"""What decisions are worth: the contract, tables over named outcomes, losses over numbers, and files of costs."""

from stakes.utility.amounts import AmountUtility, NumberUtility, Range
from stakes.utility.base import Utility, utilities
from stakes.utility.by_row import FormulaUtility
from stakes.utility.continuous import Linex, Newsvendor, Squared
from stakes.utility.curves import CurveUtility
from stakes.utility.priced import PricedNewsvendor
from stakes.utility.table import TableUtility

__all__ = [
    "AmountUtility",
    "CurveUtility",
    "FormulaUtility",
    "Linex",
    "Newsvendor",
    "NumberUtility",
    "PricedNewsvendor",
    "Range",
    "Squared",
    "TableUtility",
    "Utility",
    "utilities",
]
