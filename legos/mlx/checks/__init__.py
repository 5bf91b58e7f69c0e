"""Minimal loops and checks that the benches and the self-test compare legos with."""
