"""Other libraries and stakes, side by side, in an environment of their own: ``make bench-others``."""
