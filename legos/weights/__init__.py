"""LoRA adapters: named arrays with a version and a digest, and their file formats."""
