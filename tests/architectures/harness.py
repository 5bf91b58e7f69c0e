"""Checks that legos computes the right numbers for an architecture, or refuses it.

A small random model is served and trained, in float32 and in bfloat16, and compared with
``references``: batches of unlike lengths, adapters mixed in a batch and swapped, prompts that use
the prefix cache, gradients with and without gradient checkpointing.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import StringIO
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from architectures.engines import small_engine
from architectures.references import Arrays, References, Row, chosen, ended_sample
from architectures.report import ArchitectureReport, Prefixes
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from legos.clients.submit import submit_all
from legos.errors import AdapterError, ModelError, TrainerError
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.forward import WAY_OUT, architecture
from legos.mlx.model.load import REFUSED
from legos.mlx.model.lora import add_lora, set_lora_arrays
from legos.mlx.train.step_gradients import StepGradients
from legos.records.limits import EngineLimits
from legos.records.names import BASE
from legos.records.packing import StepSamples
from legos.records.request import Request
from legos.records.sample import Sample
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter

__all__ = ["check_architecture"]

T = TypeVar("T")
TYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
LARGEST_GAP = {"float32": 2e-4, "bfloat16": 0.05}  # nats, of a sampled token
LARGEST_DISTANCE = {"float32": 2e-3, "bfloat16": 0.05}  # of an array's gradient, relative
ROUNDING = 2.0  # times the plain model's error in bfloat16 may be added to these
LIMITS = EngineLimits(max_rows=8, prefill_tokens=600, chunk_tokens=64)
PREFIX: Row = tuple(n % 50 + 5 for n in range(20))
ROWS = ((*PREFIX, 7, 8, 9), (*PREFIX, 9, 8, 7, 6, 5), (3, 1, 2))  # of the training step
_NOT_ON_METAL = {"rwkv7": "cannot be trained on Metal: mlx-lm's wkv7_kernel has no gradient"}
STARTS, WEIGHTS = (20, 21, 1), (1.0, -0.5, 0.3)


class _WrongError(Exception):
    """A result that differs from its reference; the text says by how much."""


class _RefusedError(Exception):
    """A refusal by legos; its text is the reason."""


@dataclass(frozen=True, slots=True)
class _Served:
    """An engine was made and computed the right numbers."""

    prefixes: Prefixes | None


def check_architecture(name: str) -> ArchitectureReport:
    """Check one of ``small_models.architectures`` in this process.

    It takes 1 to 10 seconds. Where mlx-lm's code ends the process, there is no report.
    """
    if name in REFUSED:
        return ArchitectureReport(name=name, reasons=(f"refused: {REFUSED[name]}",))
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            tree = small_model(name)
    except (Exception, SystemExit) as error:  # of mlx-lm's code for it, whatever it is
        reason = f"no small model can be built: {type(error).__name__}: {error}"
        said = printed.getvalue().strip()
        return ArchitectureReport(name=name, reasons=(f"{reason} ({said})" if said else reason,))
    return _Check(References(name), architecture(tree)).report()


@dataclass
class _Check:
    """The check of one architecture; it collects reasons and errors."""

    references: References
    model_type: str  # how messages begin
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)  # (part, type) -> reason
    errors: list[str] = field(default_factory=list)
    steps: dict[str, tuple[list[Sample], Arrays]] = field(default_factory=dict)  # by type

    def report(self) -> ArchitectureReport:
        """Serve and train a model of each type."""
        served = {kind: self._tried("serving", kind, self._serve) for kind in TYPES}
        trained = {kind: self._tried("training", kind, self._train) for kind in TYPES}
        for done in (served, trained):
            if done["bfloat16"] is not None and done["float32"] is None:
                self.errors.append("bfloat16: accepted, but refused in float32")
        whole, checkpoints = served["float32"], trained["float32"]
        narrow = {
            f"in bfloat16: {reason}": None
            for (part, kind), reason in self.reasons.items()
            if kind != "float32" and (part, "float32") not in self.reasons
        }
        wide = {reason: None for (_, kind), reason in self.reasons.items() if kind == "float32"}
        on_metal = _NOT_ON_METAL.get(self.model_type)
        if checkpoints is not None and on_metal is not None:
            wide[on_metal] = None
        return ArchitectureReport(
            name=self.references.architecture,
            trains=checkpoints is not None,
            cpu_only=checkpoints is not None and on_metal is not None,
            checkpoints=bool(checkpoints),
            serves=whole is not None,
            prefixes=whole.prefixes if whole else None,
            bfloat16=served["bfloat16"] == whole and trained["bfloat16"] == checkpoints,
            reasons=(*wide, *narrow),
            errors=tuple(self.errors),
        )

    def _tried(self, part: str, kind: str, check: Callable[[str], T]) -> T | None:
        """The result of a check; None where the model is refused or the result is wrong."""
        try:
            return check(kind)
        except _RefusedError as error:
            self._refused(part, kind, error)
        except _WrongError as error:
            self.errors.append(f"{kind}: {error}")
        except Exception as error:  # neither a refusal nor a result
            self.errors.append(f"{kind}: {part} fails with {type(error).__name__}: {error}")
        return None

    def _refused(self, part: str, kind: str, error: Exception) -> None:
        text = f"{error}".removeprefix(self.model_type).removesuffix(f"; {WAY_OUT}")
        self.reasons[part, kind] = text.lstrip(": ")

    def _serve(self, kind: str) -> _Served:
        """Compare the log-probabilities of sampled tokens."""
        try:
            engine = small_engine(self.references.architecture, limits=LIMITS, dtype=TYPES[kind])
        except ModelError as error:
            raise _RefusedError(f"{error}") from error
        with closing(engine):
            adapters = [self.references.adapter(seed) for seed in (1, 2)]
            for adapter in adapters:
                engine.load_adapter(adapter).result()
            rng = np.random.default_rng(0)
            long, other = (tuple(rng.integers(1, 60, size).tolist()) for size in (70, 33))
            ask = partial(self._ask, engine, kind)
            ask((long, long[:7], (5,), other, long), [*adapters, None])
            adapters[1] = replace(self.references.adapter(3), name=adapters[1].name)
            engine.load_adapter(adapters[1]).result()
            whole = ask(((*long, 4, 4),) * 2, adapters)
            partly = ask(((*long[:66], 1),) * 2 + ((*long[:68], 9, 8, 7),) * 2, adapters)
        return _Served("any" if partly else "whole" if whole else None)

    def _ask(
        self,
        engine: MlxEngine,
        kind: str,
        prompts: Sequence[Row],
        adapters: Sequence[Adapter | None],
    ) -> bool:
        """Compare the answers to prompts, which use the adapters in turn.

        Returns:
            Whether a prompt used a cached prefix.
        """
        used = [adapters[n % len(adapters)] for n in range(len(prompts))]
        requests = [
            Request(
                prompt_ids=prompt,
                max_tokens=3 + n % 5,
                seed=n,
                adapter=adapter.name if adapter else BASE,
            )
            for n, (prompt, adapter) in enumerate(zip(prompts, used, strict=True))
        ]
        before = engine.stats()["prefix_tokens_total"]
        answers = submit_all(engine, requests).result()
        gaps: list[float] = []
        roundings: list[float] = [0.0]
        for prompt, adapter, answer in zip(prompts, used, answers, strict=True):
            row, start = prompt + answer.token_ids, len(prompt)
            expected = self._chosen(adapter, row, start, "float32")
            gaps.append(np.abs(answer.logprobs - expected).max())
            if kind != "float32":
                rounded = self._chosen(adapter, row, start, kind)
                roundings.append(np.abs(rounded - expected).max())
        _judge(
            "the log-probability of a sampled token (nats)",
            max(gaps),
            LARGEST_GAP[kind] + ROUNDING * max(roundings),
        )
        return engine.stats()["prefix_tokens_total"] > before

    def _chosen(
        self, adapter: Adapter | None, row: Row, start: int, kind: str
    ) -> NDArray[np.float32]:
        return np.array(chosen(self.references.model(adapter, TYPES[kind]), row, start))

    def _train(self, kind: str) -> bool:
        """Compare gradients; returns whether gradient checkpointing is accepted as well."""
        name = self.references.architecture
        try:
            tree = small_model(name, dtype=TYPES[kind])
            add_lora(tree, self.references.shape, seed=0)
            set_lora_arrays(tree, self._trained.arrays)
            step = StepGradients(tree, BackendConfig(micro_batch_tokens=64))
        except (AdapterError, ModelError, TrainerError) as error:
            raise _RefusedError(f"{error}") from error
        self._compare(kind, "", step)
        try:
            step = StepGradients(
                tree, BackendConfig(micro_batch_tokens=64, gradient_checkpointing=True)
            )
        except TrainerError as error:
            self._refused("gradient checkpointing", kind, error)
            return False
        self._compare(kind, " with gradient checkpointing", step)
        return True

    def _compare(self, kind: str, how: str, step: StepGradients) -> None:
        expected, (samples, rounded) = self._plain("float32")[1], self._plain(kind)
        whole = StepSamples(samples=samples, weights=WEIGHTS)
        found: Any = dict(tree_flatten(step.of_step(whole, Objective(), {}).gradients))
        norms = {key: _norm(array) for key, array in expected.items()}
        floor = 0.02 * max(norms.values())
        for key, array in expected.items():
            size = max(norms[key], floor)
            rounding = _norm(rounded[key] - array) / size
            _judge(
                f"the gradient of {key}{how}",
                _norm(found[key] - array) / size,
                LARGEST_DISTANCE[kind] + ROUNDING * rounding,
            )

    @cached_property
    def _trained(self) -> Adapter:
        return self.references.adapter(1)

    def _plain(self, kind: str) -> tuple[list[Sample], Arrays]:
        """The samples of a step, with log-probabilities of this type, and their gradients."""
        if kind in self.steps:
            return self.steps[kind]
        samples = [
            ended_sample(row, self._chosen(self._trained, row, start, kind).tolist())
            for row, start in zip(ROWS, STARTS, strict=True)
        ]
        found = self.references.gradients(self._trained, samples, WEIGHTS, TYPES[kind])
        self.steps[kind] = samples, found
        return samples, found


def _norm(array: mx.array) -> float:
    return float(mx.linalg.norm(array.astype(mx.float32)))


def _judge(what: str, gap: float, limit: float) -> None:
    if not gap <= limit:
        raise _WrongError(f"{what} differs by {gap:.2g}; at most {limit:.2g} is expected")
