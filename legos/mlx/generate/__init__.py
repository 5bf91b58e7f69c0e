"""The generation engine: turns requests into sampled tokens."""
