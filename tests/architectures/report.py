"""What a check of an architecture on a small random model found."""

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["ArchitectureReport", "Prefixes"]

Prefixes = Literal["any", "whole"]
"""Prompts that use a cached one: any that share its beginning, or those that continue all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureReport:
    """What legos can do with an architecture; None for everything that was not tried.

    A refusal is an error that legos raises when it loads such a model. An error is a result that is
    wrong although nothing was refused.
    """

    name: str
    trains: bool | None = None
    cpu_only: bool = False  # whether it is known that it does not train on the GPU of a Mac
    checkpoints: bool | None = None  # whether gradient checkpointing is accepted
    serves: bool | None = None
    prefixes: Prefixes | None = None  # prompts that use the prefix cache; None: no prompt does
    bfloat16: bool | None = None  # whether weights in bfloat16 can be served and trained as well
    reasons: tuple[str, ...] = ()  # the refusals, or why it was not tried
    errors: tuple[str, ...] = ()

    @property
    def tried(self) -> bool:
        """Whether a model was built."""
        return self.trains is not None or bool(self.errors)

    def failed(self, *errors: str) -> "ArchitectureReport":
        """The same report with more errors."""
        return replace(self, errors=self.errors + errors)
