"""A run: its folder, checkpoints, stored plays, and the training that writes them."""
