"""Every value of nested containers by its place, so that two of them compare within rounding."""

from collections.abc import Mapping, Sequence
from typing import Any


def nested_values(container: Any) -> dict[str, Any]:
    left, found = [("", container)], {}
    while left:
        place, value = left.pop()
        if isinstance(value, Mapping):
            left += [(f"{place}.{key}", item) for key, item in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            left += [(f"{place}.{index}", item) for index, item in enumerate(value)]
        else:
            found[place] = value
    return found
