"""Settings and values of earlier versions: read in files, and refused by name as options."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["REMOVED", "from_before", "why_removed", "why_renamed"]

logger = logging.getLogger(__name__)


class Removed(NamedTuple):
    """A setting that does not exist any more."""

    holds: object  # the value that every run has in its place; files with it lose nothing
    instead: str  # what replaces it, after the name and "was removed: "


REMOVED: Mapping[str, Removed] = {
    "generation.cache_gib": Removed("none", "training.memory_limit_gib limits all memory"),
    "generation.chunk_tokens": Removed(512, "it is 512 in every run"),
    "generation.decode_ahead": Removed("auto", "the device decides"),
    "generation.in_flight": Removed("switch", "running completions continue with new weights"),
    "generation.prefill_tokens": Removed("none", "training.memory_limit_gib limits all memory"),
    "generation.prefix_cache_gib": Removed("none", "training.memory_limit_gib limits all memory"),
    "loop.adaptive_concurrency": Removed(True, "without effect with training.staleness_limit 0"),
    "loop.adaptive_overlap": Removed(
        True, "play and training overlap; training.staleness_limit 0 makes them take turns"
    ),
    "loop.checkpoint_seconds": Removed(600.0, "it is 600 in every run"),
    "loop.evaluation_alone": Removed(False, "loop.deterministic implies it"),
    "loop.keep_batches": Removed(False, "steps can no longer be computed again"),
    "loop.max_failed_share": Removed(0.9, "it is 0.9 in every run"),
    "loop.max_restarts": Removed(3, "it is 3 in every run"),
    "loop.pause_on_battery": Removed(False, "stop the run and continue it later: --resume"),
    "loop.stall_after_s": Removed(10.0, "it is 10 in every run"),
    "mix.concurrency": Removed("none", "play.concurrency holds for all arenas"),
    "mix.entropy_coef": Removed("none", "training.entropy_coef holds for all arenas"),
    "mix.entropy_coef_end": Removed("none", "training.entropy_coef_end holds for all arenas"),
    "mix.entropy_steps": Removed("none", "training.entropy_steps holds for all arenas"),
    "mix.min_group_size": Removed(1, "groups of all sizes are trained on"),
    "mix.order": Removed("oldest", "the oldest groups are taken first"),
    "mix.reuse": Removed(1, "every group is trained on once"),
    "mix.share_end": Removed("none", "shares are constant"),
    "mix.staleness_limit": Removed("none", "training.staleness_limit holds for all arenas"),
    "play.continue_tokens": Removed("none", "the arena's attribute continue_tokens sets it"),
    "play.curriculum_easier": Removed("none", "pass Climb(easier=...) to the arena"),
    "play.curriculum_threshold": Removed("none", "pass Climb(threshold=...) to the arena"),
    "play.discount": Removed(1.0, "pass a credit rule with a discount to the arena"),
    "play.overlong_margin": Removed("none", "use training.overlong_filter, or OverlongPenalty"),
    "track.project": Removed("legos", "set WANDB_PROJECT in the environment"),
    "training.adam_beta1": Removed(0.9, "it is 0.9 in every run"),
    "training.adam_beta2": Removed(0.95, "it is 0.95 in every run"),
    "training.constant_length": Removed("none", "it is 256 in every run"),
    "training.dual_clip": Removed(3.0, "it is 3 in every run"),
    "training.entropy_over": Removed("legal", "it is the entropy over the legal moves"),
    "training.entropy_steps": Removed("none", "the bonus changes over the whole run"),
    "training.geometric_mask_high": Removed("none", "icepop drops tokens"),
    "training.geometric_mask_low": Removed("none", "icepop drops tokens"),
    "training.icepop_high": Removed("none", "set icepop: above it and below 1 divided by it"),
    "training.icepop_low": Removed("none", "set icepop: above it and below 1 divided by it"),
    "training.kl_in": Removed("loss", "divergences are part of the loss"),
    "training.kl_server_adapter": Removed("base", "merge it: legos export --format fused"),
    "training.lora_head": Removed("none", "LoRA is put on the output head of small models"),
    "training.max_grad_norm": Removed(1.0, "it is 1 in every run"),
    "training.opsm_delta": Removed("none", "icepop drops tokens"),
    "training.outlier_veto": Removed(False, "icepop drops tokens"),
    "training.sapo_tau": Removed("none", "it is 1 in every run"),
    "training.sapo_tau_negative": Removed("none", "it is 1.05 in every run"),
    "training.sequence_clip_skip_threshold": Removed(0.9, "it is 0.9 in every run"),
    "training.truncation": Removed("none", "anchor proximal caps the weight of each token"),
    "training.truncation_cap": Removed(2.0, "it is 2 in every run"),
    "training.use_dora": Removed(False, "LoRA is trained"),
    "training.weight_decay": Removed(0.0, "AdamW decays no LoRA matrix"),
    "vllm_bin": Removed("none", "set LEGOS_VLLM_BIN in the environment, or put vllm on PATH"),
}
"""Dotted name -> what holds in its place. A setting of one arena of a mix is ``mix.NAME``."""

RENAMED: Mapping[str, Mapping[str, str]] = {
    "play.credit": {"grpo": "dr_grpo", "grpo_std": "grpo"},
    "training.spill": {"lend": "borrow"},
}
"""Dotted name -> a value of the version before -> the same value now."""

_reported: set[str] = set()  # names, so that a command which reads many runs reports each once


def why_removed(name: str) -> str | None:
    """What replaces a removed setting, for messages; None: no setting was removed with this name.

    Args:
        name: dotted name, also ``mix.ARENA.NAME``, or the part after the last dot.
    """
    known = [key for key in REMOVED if key.rpartition(".")[2] == name and key[:4] != "mix."]
    found = _find(known[0] if known else name)
    return None if found is None else f"was removed: {found.instead}"


def why_renamed(name: str, value: object) -> str | None:
    """What replaces a value that a setting has no more, for messages; None: nothing does.

    Args:
        name: dotted name of the setting.
        value: its value.
    """
    known = _renamed(name)
    found = known.get(value) if isinstance(value, str) and value not in known.values() else None
    return found and f"was renamed: it is {found!r} now"


def from_before(
    values: Mapping[str, object], path: Path, *, named: Iterable[str]
) -> dict[str, object]:
    """The values of a file without removed settings, and with today's names of renamed values.

    A file that names a removed setting was written by a version before this one. Logs one line
    where another value holds now, and one where a value has another name.

    Args:
        values: dotted name -> value.
        path: the file, for the log.
        named: names of all settings in the file, also of those that are comments.
    """
    if any(map(_find, named)):
        values = _translated(values, path)
    kept: dict[str, object] = {}
    changed: list[str] = []
    for name, value in values.items():
        found = _find(name)
        if found is None:
            kept[name] = value
        elif value != found.holds and name not in _reported:
            changed.append(f"{name} = {value} ({found.instead})")
            _reported.add(name)
    if changed:
        logger.warning("%s has settings that were removed: %s", path, "; ".join(changed))
    return kept


def _translated(values: Mapping[str, object], path: Path) -> dict[str, object]:
    """The values of a file of the version before, under today's names."""
    now = {n: _renamed(n)[v] for n, v in values.items() if isinstance(v, str) and v in _renamed(n)}
    if now:
        changed = "; ".join(f"{name} {values[name]!r} is now {new!r}" for name, new in now.items())
        logger.warning("%s is of an earlier version: %s", path, changed)
    return {**values, **now}


def _renamed(name: str) -> Mapping[str, str]:
    """Old value -> new value of a setting, also of one of an arena in a mix."""
    key = f"play.{name.rpartition('.')[2]}" if name.startswith("mix.") else name
    return RENAMED.get(key, {})


def _find(name: str) -> Removed | None:
    if name.startswith("mix."):
        last = name.rpartition(".")[2]
        return REMOVED.get(f"mix.{last}") or REMOVED.get(f"play.{last}")
    return REMOVED.get(name)
