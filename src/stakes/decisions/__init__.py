"""Decisions: from what a model says of the outcomes, and a utility, to what to do."""

from stakes.decisions.information import ValueOfInformation, value_of_information
from stakes.decisions.results import AmountDecisions, Decisions
from stakes.decisions.rules import RULES, SETTLE, Rule, decide

__all__ = [
    "RULES",
    "SETTLE",
    "AmountDecisions",
    "Decisions",
    "Rule",
    "ValueOfInformation",
    "decide",
    "value_of_information",
]
