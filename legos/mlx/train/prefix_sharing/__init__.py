"""Every distinct prefix of a step is computed once, forward and backward."""
