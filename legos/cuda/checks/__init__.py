"""Measurements of the torch device, and the plain loop that the bench compares it with.

- ``device``: ``TorchChecks``, the baselines on a model's own modules
- ``plain_trainer``: a plain loop of transformers and PEFT, as a program for another Python
"""
