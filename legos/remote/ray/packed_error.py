"""Errors as bytes between two processes of a run on a Ray cluster."""

import pickle

from legos.errors import LegosError

__all__ = ["packed_error"]


def packed_error(error: Exception, otherwise: type[LegosError]) -> bytes:
    """The pickle of an error; of ``otherwise`` with its text where the pickle cannot be read."""
    try:
        packed = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(packed)  # many an exception can be pickled, but not made again
    except Exception:  # whatever the error's own methods do there
        packed = pickle.dumps(otherwise(f"{type(error).__name__}: {error}"))
    return packed
