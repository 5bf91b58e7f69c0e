"""Several LoRA adapters in one batch, each row with its own."""
