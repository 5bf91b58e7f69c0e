"""Multi-LoRA batches: each row of a batch uses its own adapter."""
