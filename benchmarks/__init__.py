"""Measured claims: one short file for each, ratios taken side by side in one run."""
