"""The HTTP interface over the engine."""
