"""Prefix sharing: compute each shared prefix of a step once, in both passes."""
