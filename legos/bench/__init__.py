"""What ``legos bench`` measures: one model on this machine, beside mlx-lm."""
