"""What decisions are worth: tables over named outcomes, made, read and checked."""

from stakes.utility.table import Utility

__all__ = ["Utility"]
