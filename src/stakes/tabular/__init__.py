"""From a table and its costs to a model, a comparison and decisions: what the command line does."""
