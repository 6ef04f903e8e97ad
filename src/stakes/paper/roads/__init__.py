"""Section 6: street scenes, a decision for every pixel."""
