"""The experiments of Cobb, Roberts and Gal (2018)."""
