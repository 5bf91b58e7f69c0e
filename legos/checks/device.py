"""Check on one model that the device at hand generates and trains correctly."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from legos.clients.submit import submit_all
from legos.fakes.records import make_sample, random_adapter
from legos.losses.softmax import log_softmax
from legos.records.names import POLICY
from legos.records.request import Generated, Request
from legos.records.sample import Sample
from legos.weights.adapter import Adapter
from legos.wiring.device import device_checks
from legos.wiring.model import apply_lora, load_model

Answers = Sequence[tuple[Request, Generated]]

PROMPTS, GROUP = 2, 8  # prompts, and completions of each
PROMPT_TOKENS, COMPLETION_TOKENS = 128, 16
LOAD = 12  # completions that run while weights are swapped
LARGEST_GAP = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.3}  # nats, of one token
LARGEST_DISTANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}  # of gradients, relative
HINT = "; MLX_ENABLE_TF32=1 adds up to 3e-3 nats of rounding on devices that multiply in TF32"
TIMEOUT_S = 120.0
TOGETHER_S = 3.0  # while engine and trainer compute at once
EFFECT = 0.05  # size of the random LoRA arrays: large enough to change every log-probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    metrics: Mapping[str, float]
    reason: str = ""  # why it failed
    seconds: float = 0.0  # how long it took


class SelfTest:
    """One model with its engine and a trainer's tree; make it, run its checks, close it."""

    def __init__(self, model: str) -> None:
        """Load a model and make an adapter of version 1 live in its engine and in its tree.

        Args:
            model: a folder, a name on the hub, or "builtin".

        Raises:
            LegosError: the model cannot be loaded.
        """
        with ExitStack() as stack:  # nothing is left behind where one of these fails
            self._model = stack.enter_context(closing(load_model(model)))
            self._checks = device_checks(self._model)
            self._gap = {"largest_gap_nats": LARGEST_GAP[self._model.dtype]}
            self._distance = LARGEST_DISTANCE[self._model.dtype]
            apply_lora(self._model, rank=4, alpha=8.0)
            self._engine = stack.enter_context(closing(self._model.make_engine()))
            self._adapter = self._adapter_of(1)
            self._live(self._adapter)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End both threads."""
        self._stack.close()

    def parity(self) -> Check:
        """Whether the engine reports what a forward pass of the trainer's tree gives."""
        gaps = self._gaps(self._answers)
        metrics = {
            "largest_gap_nats": float(gaps.max()),
            "mean_gap_nats": float(gaps.mean()),
            "tokens": float(gaps.size),
        }
        return _judged("parity", metrics, self._gap)

    def swap(self) -> Check:
        """Whether weights that change under load leave every token with its own version."""
        streamed = threading.Event()
        load = self._requests(LOAD, tokens=4 * COMPLETION_TOKENS)
        running = submit_all(self._engine, load, on_progress=streamed.set)
        streamed.wait(TIMEOUT_S)
        self._live(self._adapter_of(2))
        fresh = self._ask(self._requests(PROMPTS, tokens=4))
        gap = float(self._gaps(fresh).max())
        versions = [answer.versions for answer in running.result(TIMEOUT_S)]
        self._live(self._adapter)
        wrong = [v for v in versions if list(v) != sorted(v) or not set(v) <= {1, 2}]
        wrong += [answer.versions for _, answer in fresh if set(answer.versions) != {2}]
        metrics = {
            "wrong_versions": float(len(wrong)),
            "spanning_requests": float(sum(len(set(of_one)) > 1 for of_one in versions)),
            "largest_gap_nats": gap,
        }
        return _judged("swap", metrics, {**self._gap, "wrong_versions": 0.0})

    def gradients(self) -> Check:
        """Whether all ways to compute a step's gradients agree, and repeat."""

        def distance(**how: bool) -> float:
            return self._distance_of(self._checks.gradients(self._adapter, self._samples, **how))

        metrics = {
            "repeated": distance(),
            "whole_rows": distance(share=False),
            "checkpointing": distance(checkpoint=True),
        }
        return _judged("gradients", metrics, dict.fromkeys(metrics, self._distance))

    def together(self) -> Check:
        """Whether engine and trainer are right while both compute, and the buffers they keep."""
        ends = time.perf_counter() + TOGETHER_S
        gaps, distances, unused = [0.0], [0.0], [0.0]
        while time.perf_counter() < ends:
            requests = self._requests(LOAD, seed=len(gaps))
            running = submit_all(self._engine, requests)
            gradients = self._checks.gradients(self._adapter, self._samples)
            answers = running.result(TIMEOUT_S)
            gaps.append(float(self._gaps(list(zip(requests, answers, strict=True))).max()))
            distances.append(self._distance_of(gradients))
            unused.append(self._checks.unused_mib())
        metrics = {
            "rounds": len(gaps) - 1.0,
            "largest_gap_nats": max(gaps),
            "distance": max(distances),
            "unused_mib": max(unused),
        }
        return _judged("together", metrics, {**self._gap, "distance": self._distance})

    @cached_property
    def _answers(self) -> Answers:
        return self._ask(self._requests(PROMPTS * GROUP))

    @cached_property
    def _samples(self) -> list[Sample]:
        """The answers as the samples of a step, with advantages of both signs in each group."""
        return [
            make_sample(
                request.prompt_ids + answer.token_ids,
                positions=range(
                    len(request.prompt_ids), len(request.prompt_ids) + len(answer.token_ids)
                ),
                logprobs=answer.logprobs,
                versions=answer.versions,
                advantages=(-1.0) ** number,
            )
            for number, (request, answer) in enumerate(self._answers)
        ]

    @cached_property
    def _plain(self) -> NDArray[np.float64]:
        """The gradients of a step as it is trained by default."""
        return self._checks.gradients(self._adapter, self._samples)

    def _distance_of(self, found: NDArray[np.float64]) -> float:
        """Norm of the difference from the plain gradients over their norm."""
        return float(np.linalg.norm(found - self._plain) / np.linalg.norm(self._plain))

    def _requests(
        self, count: int, *, tokens: int = COMPLETION_TOKENS, seed: int = 0
    ) -> list[Request]:
        """Requests in groups of equal prompts, the first of them streamed."""
        rng = np.random.default_rng(seed)
        size = (PROMPTS, PROMPT_TOKENS)
        prompts = rng.integers(1, self._model.tokenizer.vocab_size, size).tolist()
        return [
            Request(
                prompt_ids=tuple(prompts[number % PROMPTS]),
                max_tokens=tokens,
                seed=number,
                adapter=POLICY,
                stream=number == 0,
            )
            for number in range(count)
        ]

    def _ask(self, requests: Sequence[Request]) -> Answers:
        """Requests with their answers, in order."""
        answers = submit_all(self._engine, requests).result(TIMEOUT_S)
        return list(zip(requests, answers, strict=True))

    def _gaps(self, answers: Answers) -> NDArray[np.float64]:
        """[N] distance of each token's log-probability from a forward pass of the tree."""
        gaps: list[NDArray[np.float64]] = []
        for request, answer in answers:
            prompt = request.prompt_ids
            logits = self._model(prompt + answer.token_ids[:-1])[len(prompt) - 1 :]
            own = log_softmax(np, logits)[np.arange(len(logits)), answer.token_ids]
            gaps.append(np.abs(own.astype(np.float64) - np.array(answer.logprobs)))
        return np.concatenate(gaps)

    def _adapter_of(self, version: int) -> Adapter:
        base = self._model.base_adapter()
        return random_adapter(base, name=POLICY, version=version, size=EFFECT)

    def _live(self, adapter: Adapter) -> None:
        """Load an adapter into the engine and into the trainer's model."""
        self._model.set_adapter(adapter)
        self._engine.load_adapter(adapter).result(TIMEOUT_S)


CHECKS = (SelfTest.parity, SelfTest.swap, SelfTest.gradients, SelfTest.together)
"""Every check, in the order in which they run; its name is that of the result."""


def run_checks(model: str) -> list[Check]:
    """Run every check on a model; an error of a device or a library is a failed check.

    Args:
        model: a folder, a name on the hub, or "builtin".
    """
    try:
        test = SelfTest(model)
    except Exception as error:
        return [_failed("load", error)]
    with closing(test):
        return [_run(check, test) for check in CHECKS]


def _run(run: Callable[[SelfTest], Check], test: SelfTest) -> Check:
    started = time.perf_counter()
    try:
        check = run(test)
    except Exception as error:  # the other checks still run
        check = _failed(run.__name__, error)
    return replace(check, seconds=time.perf_counter() - started)


def _failed(name: str, error: Exception) -> Check:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return Check(name=name, passed=False, metrics={}, reason=reason)


def _judged(name: str, metrics: Mapping[str, float], limits: Mapping[str, float]) -> Check:
    """A check that passes while its metrics are within their limits."""
    reasons = [
        f"{judged} is {metrics[judged]:.3g}; at most {limit:g} is expected{HINT if limit else ''}"
        for judged, limit in limits.items()
        if not metrics[judged] <= limit
    ]
    return Check(name=name, passed=not reasons, metrics=metrics, reason="; ".join(reasons))
