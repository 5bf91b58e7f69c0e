"""The settings of rotary positions, by the names that mlx-lm reads.

transformers 5 writes all of them into ``rope_parameters`` alone. Most architectures of mlx-lm have
no such field and would compute with their own default base, without an error.
"""

from collections.abc import Mapping
from typing import Any

ALSO = {
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct",),
    "original_max_position_embeddings": (),
}
"""Name in ``rope_parameters`` and in most of mlx-lm -> other names of it, which GPT-NeoX has."""


def rotary_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a model's ``config.json`` gives in ``rope_parameters`` alone.

    Args:
        config: the content of ``config.json``; where it has no ``rope_parameters``, as before
            transformers 5, or has the old names beside it, nothing is added.

    Returns:
        Additional keys of the configuration, and ``text_config`` where it needs any.
    """
    rope = config.get("rope_parameters") or {}
    found: dict[str, Any] = {}
    if "full_attention" in rope:  # a base for each type of layers
        local = (rope.get("sliding_attention") or {}).get("rope_theta")
        found["rope_local_base_freq"] = local
        rope = rope["full_attention"] or {}
    for name, others in ALSO.items():
        found |= dict.fromkeys((name, *others), rope.get(name))
    kind = rope.get("rope_type", "default")
    if kind != "default":
        found["rope_scaling"] = {**rope, "type": kind}
    found = {k: v for k, v in found.items() if v is not None and config.get(k) is None}
    if isinstance(text := config.get("text_config"), Mapping) and (inner := rotary_settings(text)):
        found["text_config"] = {**text, **inner}
    return found
