"""The index of the plays of a run."""
