"""Adapters: named arrays with a version and a digest, and their files."""
