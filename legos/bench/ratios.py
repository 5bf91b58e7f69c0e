"""What each ratio of the benches means, and from which value on it is good."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["RATIOS", "Ratio"]


class Ratio(NamedTuple):
    """One ratio: of two measurements that alternate in one process, so it holds on any machine."""

    meaning: str
    target: float
    at_most: bool = False  # True: small values are the good ones

    @property
    def good(self) -> str:
        """The values that are good: ``>= 0.9``."""
        return f"{'<=' if self.at_most else '>='} {self.target:g}"

    def met(self, value: float) -> bool:
        """Whether a value is good."""
        return value <= self.target if self.at_most else value >= self.target


_BARE = "speed against mlx-lm's BatchGenerator without a kit around it"
_STOCK = "speed of the HTTP server against mlx-lm's, 64 clients"

RATIOS: Mapping[str, Mapping[str, Ratio]] = {
    "engine": {
        "engine_vs_bare": Ratio(f"{_BARE}, 64 prompts, 64 tokens each", 0.9),
        "group_prefill_share": Ratio(
            "prompt tokens computed for 8 samples of one prompt, of 8 times all of them; 1/8 is "
            "every token once",
            0.15,
            at_most=True,
        ),
        "multiturn_prefill_share": Ratio(
            "prompt tokens computed in a conversation, of those that were new", 1.1, at_most=True
        ),
        "adapters4_vs_1": Ratio("speed with four adapters in a batch, against one", 0.8),
        "decode_with_swaps": Ratio("speed with one new adapter a second, against none", 0.9),
        "swap_pause_in_steps": Ratio(
            "p99 pause of a stream at ten new adapters a second, in decoding steps", 2, at_most=True
        ),
        "pause_in_steps_without_swap": Ratio("the same with no new adapter", 2, at_most=True),
    },
    "loop": {
        "engine_vs_bare": Ratio(f"{_BARE}, 256 distinct prompts, one token each", 0.75),
        "engine_vs_bare_long": Ratio(f"{_BARE}, 64 prompts, 32 tokens each", 0.75),
        "engine_vs_bare_repeated": Ratio(
            f"{_BARE}, repeated prompts, each computed once by both", 0.75
        ),
        "line_vs_slower_half": Ratio(
            "speed of play and training together, against the slower of the two alone in a bare "
            "loop that computes every row",
            1,
        ),
        "line_vs_slower_half_shared": Ratio(
            "the same against a bare loop that computes equal rows once", 0.6
        ),
    },
    "server": {
        "server_vs_bare": Ratio(f"{_BARE} and without HTTP, 64 clients, 5 M parameters", 0.75),
        "server_vs_bare_40m": Ratio("the same with 40 M parameters", 0.9),
        "server_vs_mlx_lm": Ratio(f"{_STOCK} with a seed each", 2),
        "server_vs_mlx_lm_unseeded": Ratio(f"{_STOCK} with temperatures of their own, no seeds", 1),
        "server_vs_mlx_lm_unseeded_40m": Ratio("the same with 40 M parameters", 1),
        "swap_vs_loopback_copy": Ratio(
            "seconds to load an adapter of about 20 MB over HTTP, against only sending its bytes",
            3,
            at_most=True,
        ),
    },
    "train": {
        "dense_vs_bare": Ratio("speed of a step on unrelated rows, against a bare update", 0.9),
        "dense_memory_vs_bare": Ratio("memory of that step, against it", 1.2, at_most=True),
        "train_vs_mlx_lm_lora": Ratio("speed against mlx-lm-lora's GRPO step as it is", 1.5),
        "train_vs_mlx_lm_lora_memory": Ratio("memory of that step, against it", 1, at_most=True),
        "train_vs_mlx_lm_lora_fastest": Ratio(
            "speed against it, each at its fastest micro-batch", 1
        ),
        "group_vs_padded": Ratio("speed on 8 answers to one prompt, against padded rows", 3.5),
        "group_memory_vs_padded": Ratio("memory of that step, against them", 0.5, at_most=True),
        "mixed_vs_padded": Ratio("speed on rows of 32 to 512 tokens, against padded rows", 1.5),
        "trie_vs_rows": Ratio("speed on 1,024 answers to 21 prompts, against one row each", 10),
        "logprob_memory_vs_full": Ratio(
            "memory with 150,000 words, against all logits at once", 0.2, at_most=True
        ),
        "logprob_speed_vs_full": Ratio("speed of that step, against it", 1),
        "checkpoint_memory_vs_plain": Ratio(
            "memory with gradient checkpointing, against without", 0.4, at_most=True
        ),
        "checkpoint_vs_plain": Ratio("speed with it, against without", 0.65),
        "token_scaling_exponent": Ratio(
            "power of the tokens with which a step's seconds grow, 1k to 32k", 1.1, at_most=True
        ),
    },
}
"""Bench -> ratio -> what it is."""
