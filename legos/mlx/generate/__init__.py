"""The engine: requests in, sampled tokens out."""
