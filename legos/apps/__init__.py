"""What the commands do: train, evaluate, serve, measure, list."""
