"""The meaning and the target of every ratio that the benches measure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["RATIOS", "Ratio"]


class Ratio(NamedTuple):
    """One ratio of two measurements, which alternate so that a busy machine slows both."""

    meaning: str
    target: float
    at_most: bool = False  # True: values up to the target are good; False: values from it on

    def verdict(self, value: float | None) -> dict[str, Any]:
        """Meaning, good values (``>= 0.9``), and whether a value is good (None: not measured)."""
        good = f"{'<=' if self.at_most else '>='} {self.target:g}"
        met = None
        if value is not None:
            met = value <= self.target if self.at_most else value >= self.target
        return {"meaning": self.meaning, "good": good, "met": met}


_BARE = "speed against mlx-lm's BatchGenerator alone"
_STOCK = "speed of the HTTP server against mlx-lm's, 64 clients"

RATIOS: Mapping[str, Mapping[str, Ratio]] = {
    "arenas": {
        "turn_overhead_us": Ratio(
            "microseconds of a turn of a coroutine, beside its client", 60, at_most=True
        ),
        "game_vs_coroutine": Ratio(
            "time of 1,000 plays of a game with 168 positions, against each as a coroutine",
            0.5,
            at_most=True,
        ),
        "waiting_plays_mib": Ratio(
            "memory of 10,000 plays that wait at the same time, MiB", 1024, at_most=True
        ),
        "waiting_plays_resident_mib": Ratio(
            "resident memory by which a process grows for them, MiB", 1024, at_most=True
        ),
        "slow_tool_throughput": Ratio(
            "speed of 64 simultaneous plays while others wait for a tool of 1 s, against none", 0.95
        ),
        "slow_judge_throughput": Ratio(
            "the same while others wait for a judge that replies after 1 s", 0.95
        ),
        "evaluation_score_calls": Ratio(
            "calls that score the 4,520 decisions of tictactoe with the built-in model",
            1,
            at_most=True,
        ),
    },
    "async": {
        "compute_async_vs_sync": Ratio(
            "samples per second with overlap, against in turns, where plays only compute", 0.97
        ),
        "tool_async_vs_sync": Ratio("the same where each play waits 0.5 s for a tool", 1.6),
        "tails_async_vs_sync": Ratio(
            "the same where the lengths of plays have a heavy tail, 50 ms to 2 s", 1.6
        ),
    },
    "cuda": {
        "torch_vs_plain": Ratio(
            "speed of torch's step against a plain loop of transformers and PEFT, padded rows", 1.3
        ),
        "torch_memory_vs_plain": Ratio(
            "peak memory of that step, against it, each in a process of its own", 0.6, at_most=True
        ),
        "loss_path_vs_bare": Ratio(
            "time of a step on rows of one length, against forward, backward and AdamW alone",
            1.05,
            at_most=True,
        ),
        "vllm_moves_vs_bare": Ratio(
            "moves per second through a vLLM server, against a client that sends as long lists", 0.7
        ),
        "vllm_publish_vs_by_hand": Ratio(
            "time to publish an adapter of 22 MB to vLLM, against writing, syncing and loading its "
            "folder",
            2,
            at_most=True,
        ),
        "vllm_small_publish_vs_answer": Ratio(
            "the same with an adapter of 0.1 MB, against that and the answer to a first request",
            2,
            at_most=True,
        ),
    },
    "engine": {
        "engine_vs_bare": Ratio(f"{_BARE}, 64 prompts, 64 tokens each", 0.9),
        "group_prefill_share": Ratio(
            "prompt tokens computed for 8 samples of one prompt, as a share of 8 prompts; 1/8 "
            "computes every token once",
            0.15,
            at_most=True,
        ),
        "multiturn_prefill_share": Ratio(
            "prompt tokens computed in a conversation, per new prompt token", 1.1, at_most=True
        ),
        "adapters4_vs_1": Ratio("speed with four adapters in one batch, against one", 0.8),
        "decode_ahead": Ratio(
            "speed with every step launched before the last one is read, against reading each at "
            "once; a gain on a GPU, a loss on a CPU, where it is off by default",
            0.75,
        ),
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
            f"{_BARE}, repeated prompts, which both compute once", 0.75
        ),
        "line_vs_slower_half": Ratio(
            "speed of play and training together, against the slower of the two alone, as a bare "
            "loop that computes every row",
            1,
        ),
        "line_vs_slower_half_shared": Ratio(
            "the same against a bare loop that computes equal rows once", 0.6
        ),
        "slow_play_throughput": Ratio(
            "speed of the line while one of 64 running plays takes 500 times as long as the "
            "others, against none",
            0.9,
        ),
    },
    "ray": {
        "moves_vs_one_process": Ratio(
            "turns per second with a player and an engine on Ray, against one process", 0.8
        ),
        "answers_vs_one_process": Ratio("the same with answers of up to 64 tokens", 0.8),
    },
    "scale": {
        "arithmetic_vs_simulated": Ratio(
            "largest factor between the speed of a simulated line and what the arithmetic says",
            1.15,
            at_most=True,
        ),
        "two_engines_vs_one": Ratio("speed of two engines against one", 1.9),
        "engine_of_many_vs_one": Ratio("speed of each of many engines, against one alone", 0.85),
        "cpu_of_many_vs_few": Ratio(
            "CPU time of a sample in the trainer's process with many engines, against 16",
            1.5,
            at_most=True,
        ),
        "discarded_share": Ratio("share of generated tokens that is too old", 0.02, at_most=True),
    },
    "server": {
        "server_vs_engine": Ratio(
            "speed over HTTP against the engine alone, 64 clients, 5 M parameters", 0.95
        ),
        "server_vs_engine_40m": Ratio("the same with 40 M parameters", 0.95),
        "server_vs_mlx_lm": Ratio(f"{_STOCK}, requests with seeds", 2),
        "server_vs_mlx_lm_unseeded": Ratio(f"{_STOCK}, different temperatures, no seeds", 1),
        "concurrency_monotone": Ratio(
            "total speed at 1, 2, 4, 8, 16 and 32 streams, the smallest ratio of neighbours", 0.97
        ),
        "fairness_spread": Ratio(
            "time of the last of 32 equal streams against the first, less 1", 0.1, at_most=True
        ),
        "mixed_prompts_vs_sequential": Ratio(
            "time of a long, a middle and a short prompt at once, against one by one",
            1.1,
            at_most=True,
        ),
        "first_token_vs_allowed": Ratio(
            "time to the first token while another stream is decoded, against 1.5 times the time "
            "alone plus one decode step of that stream",
            1,
            at_most=True,
        ),
        **{
            f"streams_{n}_vs_best": Ratio(
                f"speed with {n} streams, 40 M parameters, against the fastest other server", 1
            )
            for n in (1, 8, 32)
        },
        "first_token_vs_best": Ratio(
            "time to the first token, against the fastest other server", 1, at_most=True
        ),
        "memory_vs_best": Ratio(
            "memory of the process, against the smallest other server", 1, at_most=True
        ),
        "swap_vs_loopback_copy": Ratio(
            "time to load an adapter of about 20 MB over HTTP, against only sending its bytes",
            3,
            at_most=True,
        ),
    },
    "train": {
        "dense_vs_bare": Ratio("speed of a step on unrelated rows, against a bare update", 0.9),
        "dense_memory_vs_bare": Ratio("memory of that step, against it", 1.2, at_most=True),
        "train_vs_fastest": Ratio(
            "speed on unrelated rows against the fastest of the other trainers given, each at its "
            "fastest micro-batch",
            1.5,
        ),
        "train_memory_vs_fastest": Ratio("memory of that step, against it", 0.7, at_most=True),
        "group_vs_fastest": Ratio("the same speed on 8 answers to one prompt", 4),
        "group_vs_padded": Ratio("speed on 8 answers to one prompt, against padded rows", 3.5),
        "group_memory_vs_padded": Ratio("memory of that step, against them", 0.5, at_most=True),
        "mixed_vs_padded": Ratio("speed on rows of 32 to 512 tokens, against padded rows", 1.5),
        "trie_vs_rows": Ratio("speed on 1,024 answers to 21 prompts, against one row each", 10),
        "logprob_memory_vs_full": Ratio(
            "memory with a vocabulary of 150,000, against all logits at once", 0.2, at_most=True
        ),
        "logprob_speed_vs_full": Ratio("speed of that step, against it", 1),
        "checkpoint_memory_vs_plain": Ratio(
            "memory with gradient checkpointing, against without", 0.4, at_most=True
        ),
        "checkpoint_vs_plain": Ratio("speed with it, against without", 0.65),
        "token_scaling_exponent": Ratio(
            "exponent with which the time of a step grows in its tokens, 1k to 32k",
            1.1,
            at_most=True,
        ),
    },
}
"""Bench -> name of the ratio -> its meaning and target."""
