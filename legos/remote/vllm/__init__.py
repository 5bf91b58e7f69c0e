"""vLLM as the engine of a run: its process, its adapters, and what to do when it fails."""
