"""What decisions are worth: the contract, tables over named outcomes, and files of costs."""

from stakes.utility.base import Utility, utilities
from stakes.utility.by_row import FormulaUtility
from stakes.utility.table import TableUtility

__all__ = ["FormulaUtility", "TableUtility", "Utility", "utilities"]
