"""How draws are made fast: see README.md beside this file."""
