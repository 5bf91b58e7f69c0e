"""Names of settings and options that were removed, and what replaces each."""

from collections.abc import Mapping

__all__ = ["REMOVED", "why_removed"]

_MEMORY = "training.memory_limit_gib limits all memory"
_ICEPOP = "training.icepop drops tokens: above it, and below 1 divided by it"
_BY_HAND = "start vLLM itself with the flags of docs/serve/vllm.md, or train with --engine vllm"
_FIXED = """
    adam_beta1 adam_beta2 adaptive_concurrency checkpoint_seconds chunk_tokens constant_length
    decode_ahead dual_clip entropy_over entropy_steps in_flight keep_batches kl_in lora_head
    max_failed_share max_grad_norm max_restarts min_group_size order reuse sapo_tau
    sapo_tau_negative sequence_clip_skip_threshold share_end stall_after_s truncation_cap use_dora
    weight_decay
"""

REMOVED: Mapping[str, str] = dict.fromkeys(_FIXED.split(), "it is the same in every run") | {
    "adaptive_overlap": "training.staleness_limit 0 makes play and training take turns",
    "again": "compare two runs with the same --seed; --episode N shows a play turn by turn",
    "backend": _BY_HAND,
    "cache_gib": _MEMORY,
    "continue_tokens": "the arena's attribute continue_tokens sets it",
    "curriculum_easier": "pass Climb(easier=...) to the arena",
    "curriculum_threshold": "pass Climb(threshold=...) to the arena",
    "discount": "pass a credit rule with a discount to the arena",
    "episodes_kept_per_step": "loop.plays_kept is the share of tasks whose plays are kept",
    "evaluation_alone": "loop.deterministic implies it",
    "fits": "legos train plans the memory of a model before it loads it (docs/run/mac.md)",
    "geometric_mask_high": _ICEPOP,
    "geometric_mask_low": _ICEPOP,
    "icepop_high": _ICEPOP,
    "icepop_low": _ICEPOP,
    "kl_server_adapter": "merge it: legos export --format fused",
    "opsm_delta": _ICEPOP,
    "outlier_veto": _ICEPOP,
    "overlong_margin": "use training.overlong_filter, or OverlongPenalty",
    "pause_on_battery": "stop the run, and continue it with --resume",
    "prefill_tokens": _MEMORY,
    "prefix_cache_gib": _MEMORY,
    "project": "set WANDB_PROJECT in the environment",
    "replicas": "start several servers, which legos train --server takes (docs/serve/serving.md)",
    "truncation": "training.anchor proximal caps the weight of each token",
    "vllm_arguments": _BY_HAND,
    "vllm_bin": "set LEGOS_VLLM_BIN in the environment, or put vllm on PATH",
}
"""Last part of the name -> what replaces it."""


def why_removed(name: str) -> str | None:
    """What replaces a removed setting, for messages; None: no setting was removed with this name.

    Args:
        name: dotted name, or the part after the last dot.
    """
    instead = REMOVED.get(name.rpartition(".")[2])
    return instead and f"was removed: {instead}"
