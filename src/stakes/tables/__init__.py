"""From a table and its costs to models, a comparison and decisions."""
