"""The MLX device: generation, gradients and the model's arrays."""
