"""Names with a fixed meaning: of adapters, of a header, of a metric."""

from functools import lru_cache

POLICY = "policy"  # the adapter that is trained, unless another name is given
BASE = "base"  # the model without an adapter
MODEL_HEADER = "x-legos-model"  # of our server's answers: name and fingerprint of its base model
LAG = "lag_versions/"  # of an engine's metrics: by how many versions the server named is behind


@lru_cache(maxsize=1024)
def adapter_name(asked: str) -> str:
    """The name part of ``NAME`` or ``NAME@VERSION``."""
    return asked.partition("@")[0]


def evaluated_name(policy: str) -> str:
    """Name of the adapter with a policy's weights of the step that is being evaluated."""
    return f"{policy}-evaluated"


def frozen_name(digest: str) -> str:
    """Name of an adapter that is not trained, by its weights: equal weights, equal name."""
    return f"seat-{digest[:12]}"
