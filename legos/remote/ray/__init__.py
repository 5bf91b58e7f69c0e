"""A Ray cluster on which engines generate, players play and rewards are computed."""
