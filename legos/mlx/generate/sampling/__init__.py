"""Sampling: penalties and logit bias, top-k, top-p and min-p, and the draw of tokens."""
