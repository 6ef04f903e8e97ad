"""The paper's experiments: a frozen config, cells that run side by side, and named rows on disk."""
