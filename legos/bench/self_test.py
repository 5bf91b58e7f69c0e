"""Checks of the device at hand that no test elsewhere can make, on one model."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from legos.bench.engine_bench import numbered_requests
from legos.bench.footprint import footprint_mib
from legos.bench.models import random_adapter
from legos.clients.submit import submit_all
from legos.fakes.records import make_sample
from legos.losses.softmax import log_softmax
from legos.records.limits import DecodeAhead, EngineLimits
from legos.records.names import BASE, POLICY
from legos.records.request import Generated, Request
from legos.records.sample import Sample
from legos.records.step import MeasuredStep
from legos.weights.adapter import Adapter
from legos.wiring.device import Row, device_checks
from legos.wiring.model import apply_lora, load_model

__all__ = ["CHECKS", "Check", "SelfTest"]

Status = Literal["pass", "fail", "skip"]

PROMPTS, GROUP = 2, 8  # prompts, and completions of each
PROMPT_TOKENS, COMPLETION_TOKENS = 128, 16
LOAD = 12  # completions that run while weights are swapped
LARGEST_GAP = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.3}  # nats, of one token
LARGEST_DISTANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}  # of gradients, relative
HINT = "; MLX_ENABLE_TF32=1 adds up to 3e-3 nats of rounding on devices that multiply in TF32"
TIMEOUT_S = 120.0
TOGETHER_S, LONG_TOGETHER_S = 3.0, 60.0  # while engine and trainer compute at once
TIMES = ("host_sync", "fork")  # small checks whose figures are times
STEPS = 65  # decode steps that are timed
SMALL: Mapping[str, Mapping[str, float]] = {
    "small_steps": dict.fromkeys(("qwen3_5", "qwen3_moe", "four_bits"), 1e-3),
    "long_rows": {"largest_gap_nats": 0.1},
    "hybrid_decoding": {"bytes_per_step": 1.0},
    "processes": {"failed": 0.0},
    "failed_allocation": {"not_raised": 0.0, "error": 0.0},
}
"""Check on small random models -> figure -> its largest value."""
EFFECT = 0.05  # size of the random LoRA arrays: large enough to change every log-probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    figures: Mapping[str, float]
    reason: str = ""  # why it failed or was skipped
    seconds: float = 0.0  # how long it took


class SelfTest:
    """One model with its engine and a trainer's tree; make it, run its checks, close it."""

    def __init__(self, model: str, *, long: bool = False) -> None:
        """Load a model and make an adapter of version 1 live in its engine and in its tree.

        Args:
            model: a folder, a name on the hub, or "builtin".
            long: whether ``together`` and the checks on small models take minutes.

        Raises:
            LegosError: the model cannot be loaded.
        """
        self._long = long
        self._model = load_model(model)
        self._checks = device_checks(self._model)
        self._dtype = self._model.dtype
        apply_lora(self._model, rank=4, alpha=8.0)
        self._engine = self._model.make_engine()
        self._adapter = self._random_adapter(1)
        self._live(self._adapter)

    def close(self) -> None:
        """End both threads."""
        self._engine.close()
        self._model.close()

    def parity(self) -> Check:
        """Whether the engine reports what a forward pass of the trainer's tree gives."""
        gaps = self._gaps(self._answers)
        figures = {
            "largest_gap_nats": float(gaps.max()),
            "mean_gap_nats": float(gaps.mean()),
            "tokens": float(gaps.size),
        }
        return _judged("parity", figures, {"largest_gap_nats": LARGEST_GAP[self._dtype]})

    def swap(self) -> Check:
        """Whether weights that change under load leave every token with its own version."""
        streamed = threading.Event()
        load = self._requests(LOAD, tokens=4 * COMPLETION_TOKENS)
        running = submit_all(self._engine, load, on_progress=streamed.set)
        running.add_done_callback(lambda _: streamed.set())
        streamed.wait(TIMEOUT_S)
        newer = self._random_adapter(2)
        started = time.perf_counter()
        info = self._engine.load_adapter(newer).result(TIMEOUT_S)
        swap_s = time.perf_counter() - started
        answers = running.result(TIMEOUT_S)
        versions = [answer.versions for answer in answers]
        spanning = sum(len(set(of_one)) > 1 for of_one in versions)
        self._live(newer)
        fresh = self._ask(self._requests(PROMPTS, tokens=4))
        new_gap = float(self._gaps(fresh).max())
        self._live(self._adapter)
        figures = {
            "swap_s": swap_s,
            "spanning_requests": float(spanning),
            "largest_gap_nats": new_gap,
        }
        wrong = [v for v in versions if list(v) != sorted(v) or not set(v) <= {1, 2}]
        failure = skipped = ""
        if wrong or info.version != 2 or info.digest != newer.digest:
            failure = f"versions {wrong[:1]} or the live adapter ({info}) are not those loaded"
        elif any(set(answer.versions) != {2} for _, answer in fresh):
            failure = "a request that came after the swap was answered under the old weights"
        elif not spanning:
            skipped = "no request ran across the swap; the device is too fast for this load"
        limits = {"largest_gap_nats": LARGEST_GAP[self._dtype]}
        return _judged("swap", figures, limits, failure=failure, skipped=skipped)

    def checkpointing(self) -> Check:
        """Whether a step with gradient checkpointing has the gradients of one without."""
        plain = self._plain
        again = self._checks.step(self._adapter, self._samples, checkpoint=True)
        figures = {
            "distance": _distance(again.gradients, plain.gradients),
            "time_ratio": again.seconds / plain.seconds,
            "memory_ratio": again.peak_bytes / max(plain.peak_bytes, 1),
        }
        return _judged("checkpointing", figures, {"distance": LARGEST_DISTANCE[self._dtype]})

    def shared_prefix(self) -> Check:
        """Whether a step whose rows share prefixes has the gradients of one row per sample."""
        shared = self._plain
        rows = self._checks.step(self._adapter, self._samples, share=False)
        figures = {
            "distance": _distance(shared.gradients, rows.gradients),
            "speed_up": rows.seconds / shared.seconds,
            "memory_ratio": shared.peak_bytes / max(rows.peak_bytes, 1),
        }
        skipped = "" if shared.shared else "this architecture keeps a state and shares no prefixes"
        limits = {"distance": LARGEST_DISTANCE[self._dtype]}
        return _judged("shared_prefix", figures, limits, skipped=skipped)

    def repeat(self) -> Check:
        """Whether a step repeats: the distance of its gradients, and whether their bits equal."""
        again = self._checks.step(self._adapter, self._samples).gradients
        first = self._plain.gradients
        figures = {
            "distance": _distance(again, first),
            "equal_bits": float(np.array_equal(again, first)),
        }
        return _judged("repeat", figures, {"distance": LARGEST_DISTANCE[self._dtype]})

    def together(self) -> Check:
        """Whether engine and trainer are right while both compute, and the memory they hold."""
        ends = time.perf_counter() + (LONG_TOGETHER_S if self._long else TOGETHER_S)
        gaps, distances, unused, sizes = [0.0], [0.0], [0.0], [0.0]
        while time.perf_counter() < ends:
            requests = self._requests(LOAD, seed=len(gaps))
            running = submit_all(self._engine, requests)
            step = self._checks.step(self._adapter, self._samples)
            answers = running.result(TIMEOUT_S)
            gaps.append(float(self._gaps(_pairs(requests, answers)).max()))
            distances.append(_distance(step.gradients, self._plain.gradients))
            unused.append(self._checks.memory()["unused_mib"])
            sizes.append(footprint_mib())
        figures = {
            "rounds": len(gaps) - 1.0,
            "largest_gap_nats": max(gaps),
            "distance": max(distances),
            "unused_mib": max(unused),
            "footprint_mib": max(sizes),
            "footprint_growth_mib": sizes[-1] - sizes[(len(sizes) + 1) // 2],
        }
        limits = {
            "largest_gap_nats": LARGEST_GAP[self._dtype],
            "distance": LARGEST_DISTANCE[self._dtype],
        }
        return _judged("together", figures, limits)

    def small(self, name: str, limits: Mapping[str, float]) -> Check:
        """A check of the device on small random models."""
        figures = self._checks.small_check(name, long=self._long)
        if isinstance(figures, str):
            return _judged(name, {}, {}, skipped=figures)
        return _judged(name, figures, limits)

    def speed(self) -> Check:
        """How fast tokens are sampled and trained, and the memory that this takes; never fails."""
        requests = self._requests(PROMPTS * GROUP, tokens=2 * COMPLETION_TOKENS, seed=1)
        started = time.perf_counter()
        answers = self._ask(requests)
        seconds = time.perf_counter() - started
        tokens = sum(len(answer.token_ids) for _, answer in answers)
        step = self._plain
        rows = sum(len(sample.token_ids) for sample in self._samples)
        figures = {
            "sampled_tokens_per_s": tokens / seconds,
            "trained_tokens_per_s": rows / step.seconds,
            "step_peak_mib": step.peak_bytes / 2**20,
            "parameters": float(self._model.num_parameters),
            **self._step_ms(),
            **self._checks.memory(),
        }
        return Check(name="speed", status="pass", figures=figures)

    def _step_ms(self) -> Mapping[str, float]:
        """Milliseconds of a result that the host reads, of a fork, and of one row's decode step.

        The step is timed with and without the next one launched before it is read.
        """
        found = [self._checks.small_check(name) for name in TIMES]
        figures = {
            key: ms for each in found if not isinstance(each, str) for key, ms in each.items()
        }
        settings: tuple[tuple[str, DecodeAhead], ...] = (("", "off"), ("_ahead", "on"))
        for suffix, decode_ahead in settings:
            limits = EngineLimits(decode_ahead=decode_ahead)
            with closing(self._model.make_engine(limits)) as engine:
                engine.load_adapter(self._adapter).result(TIMEOUT_S)
                for name, adapter in (("decode_ms", BASE), ("lora_decode_ms", POLICY)):
                    times: list[float] = []
                    request = numbered_requests([(1, 2, 3)], STEPS, adapter)
                    submit_all(
                        engine, request, on_progress=lambda t=times: t.append(time.perf_counter())
                    ).result(TIMEOUT_S)
                    figures[name + suffix] = 1000 * float(np.median(np.diff(times)))
        return figures

    @cached_property
    def _answers(self) -> list[tuple[Row, Generated]]:
        return self._ask(self._requests(PROMPTS * GROUP))

    @cached_property
    def _samples(self) -> list[Sample]:
        """The answers as the samples of a step, with advantages of both signs in each group."""
        return [
            make_sample(
                prompt + answer.token_ids,
                positions=range(len(prompt), len(prompt) + len(answer.token_ids)),
                logprobs=answer.logprobs,
                versions=answer.versions,
                advantages=(-1.0) ** number,
            )
            for number, (prompt, answer) in enumerate(self._answers)
        ]

    @cached_property
    def _plain(self) -> MeasuredStep:
        """A step as it is trained by default."""
        return self._checks.step(self._adapter, self._samples)

    def _requests(
        self, count: int, *, tokens: int = COMPLETION_TOKENS, seed: int = 0
    ) -> list[Request]:
        """Requests in groups of equal prompts, the first of them streamed."""
        rng = np.random.default_rng(seed)
        size = (PROMPTS, PROMPT_TOKENS)
        prompts = rng.integers(1, self._model.tokenizer.vocab_size, size).tolist()
        groups = [tuple(prompts[number % PROMPTS]) for number in range(count)]
        return numbered_requests(groups, tokens, POLICY)

    def _ask(self, requests: Sequence[Request]) -> list[tuple[Row, Generated]]:
        """Prompts and answers, in order."""
        return _pairs(requests, submit_all(self._engine, requests).result(TIMEOUT_S))

    def _gaps(self, answers: Sequence[tuple[Row, Generated]]) -> NDArray[np.float64]:
        """[N] distance of each token's log-probability from a forward pass of the tree."""
        gaps: list[NDArray[np.float64]] = []
        for prompt, answer in answers:
            logits = self._model(prompt + answer.token_ids[:-1])[len(prompt) - 1 :]
            own = log_softmax(np, logits)[np.arange(len(logits)), answer.token_ids]
            gaps.append(np.abs(own.astype(np.float64) - np.array(answer.logprobs)))
        return np.concatenate(gaps)

    def _random_adapter(self, version: int) -> Adapter:
        base = self._model.base_adapter()
        return random_adapter(base, name=POLICY, version=version, size=EFFECT)

    def _live(self, adapter: Adapter) -> None:
        """Load an adapter into the engine and into the trainer's model."""
        self._model.set_adapter(adapter)
        self._engine.load_adapter(adapter).result(TIMEOUT_S)


def _small(name: str, limits: Mapping[str, float]) -> Callable[[SelfTest], Check]:
    return lambda test: test.small(name, limits)


CHECKS: Mapping[str, Callable[[SelfTest], Check]] = {
    "parity": SelfTest.parity,
    "swap": SelfTest.swap,
    "checkpointing": SelfTest.checkpointing,
    "shared_prefix": SelfTest.shared_prefix,
    "repeat": SelfTest.repeat,
    "together": SelfTest.together,
    **{name: _small(name, limits) for name, limits in SMALL.items()},
    "speed": SelfTest.speed,
}
"""Every check by its name, in the order in which they run."""


def _judged(
    name: str,
    figures: Mapping[str, float],
    limits: Mapping[str, float],
    *,
    failure: str = "",
    skipped: str = "",
) -> Check:
    """A check that passes while its figures are within their limits, without other reasons."""
    for judged, limit in limits.items():
        if not (figures[judged] <= limit or failure or skipped):
            hint = HINT if limit else ""
            failure = f"{judged} is {figures[judged]:.3g}; at most {limit:g} is expected{hint}"
    status: Status = "fail" if failure else "skip" if skipped else "pass"
    return Check(name=name, status=status, figures=figures, reason=failure or skipped)


def _pairs(
    requests: Sequence[Request], answers: Sequence[Generated]
) -> list[tuple[Row, Generated]]:
    return [(r.prompt_ids, answer) for r, answer in zip(requests, answers, strict=True)]


def _distance(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Norm of the difference over the norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
