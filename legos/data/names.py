"""Names of adapters: the default trained adapter, and the model without an adapter."""

__all__ = ["BASE", "POLICY", "adapter_name"]

POLICY = "policy"  # the adapter that is trained, unless another name is given
BASE = "base"  # the model without an adapter


def adapter_name(asked: str) -> str:
    """The name part of ``NAME`` or ``NAME@VERSION``."""
    return asked.partition("@")[0]
