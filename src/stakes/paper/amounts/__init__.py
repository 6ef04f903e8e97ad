"""Beyond the paper's tables: outcomes that are numbers."""
