"""Names of adapters: the one that is trained by default, and the model without any."""

__all__ = ["BASE", "POLICY", "adapter_name"]

POLICY = "policy"  # the adapter that is trained, unless another name is given
BASE = "base"  # the model without an adapter


def adapter_name(asked: str) -> str:
    """The name in ``NAME`` or ``NAME@VERSION``, which insists on a version."""
    return asked.partition("@")[0]
