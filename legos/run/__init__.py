"""A training run: its folder, checkpoints, stored plays, and the code that writes them."""
