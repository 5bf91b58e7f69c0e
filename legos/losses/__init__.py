"""Loss functions, their metrics and schedules, for NumPy, MLX and similar array namespaces."""
