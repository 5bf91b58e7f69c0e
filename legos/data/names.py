"""Names of adapters with a fixed meaning."""

__all__ = ["BASE", "EVALUATED", "POLICY", "adapter_name"]

POLICY = "policy"  # the adapter that is trained, unless another name is given
BASE = "base"  # the model without an adapter
EVALUATED = "policy-evaluated"  # the policy of the step that is being evaluated next to training


def adapter_name(asked: str) -> str:
    """The name part of ``NAME`` or ``NAME@VERSION``."""
    return asked.partition("@")[0]
