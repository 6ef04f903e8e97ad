"""Training a posterior: how, on what, and the one loop."""
