"""The measurements of MLX that the benches and the self-test use, on one model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from legos.device import LocalEngine
from legos.mlx.checks.bare import bare_generation, bare_load, bare_shared_generation
from legos.mlx.checks.bare_training import Split, make_bare_update
from legos.mlx.checks.small_checks import LONG_CHECKS, SMALL_CHECKS
from legos.mlx.checks.step_check import run_step
from legos.mlx.device import MlxModel
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.machine import memory_facts, peak_bytes
from legos.mlx.model.spans import covered
from legos.records.sample import Sample
from legos.records.step import MeasuredStep
from legos.weights.adapter import Adapter
from legos.weights.folder import WEIGHTS_FILE

__all__ = ["MlxChecks"]

Row = tuple[int, ...]


class MlxChecks:
    """Runs baselines and checks on the module trees and threads of a model and its engines."""

    def __init__(self, model: MlxModel) -> None:
        self._model = model

    def bare_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, max_tokens: int, rows: int
    ) -> float:
        """Seconds of mlx-lm's ``BatchGenerator``, which computes equal prompts again."""
        assert isinstance(engine, MlxEngine), "an engine of this model"
        return engine.run(
            lambda tree: bare_generation(tree, prompts, max_tokens=max_tokens, rows=rows)
        ).result()

    def bare_shared_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, rows: int
    ) -> float:
        """Seconds of ``BatchGenerator`` for one token per prompt, equal prompts computed once."""
        assert isinstance(engine, MlxEngine), "an engine of this model"
        counts = Counter(prompts)
        return engine.run(lambda tree: bare_shared_generation(tree, counts, rows=rows)).result()

    def bare_load(self, engine: LocalEngine, folder: Path) -> float:
        """Seconds of ``mx.load`` for an adapter's folder, its arrays evaluated."""
        assert isinstance(engine, MlxEngine), "an engine of this model"
        return engine.run(lambda _: bare_load(folder / WEIGHTS_FILE)).result()

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """Make a baseline optimiser step on blocks of rows; it runs on the model's thread."""
        worker, tree = self._model.worker, self._model.tree
        update = worker.call(lambda: make_bare_update(tree, blocks, pad_to=pad_to)).result()
        return lambda: worker.call(update).result()

    def step(
        self,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        share: bool = True,
        checkpoint: bool = False,
    ) -> MeasuredStep:
        """Compute the gradients of one step on a separate tree, on the calling thread."""
        return run_step(self._model.folder, adapter, samples, share=share, checkpoint=checkpoint)

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; returns the peak of MLX's memory in bytes, minus what was held before."""
        return peak_bytes(call)

    def small_check(self, name: str, *, long: bool = False) -> Mapping[str, float] | str:
        """Run one of ``SMALL_CHECKS`` on a small random model, on the calling thread."""
        return (LONG_CHECKS if long else SMALL_CHECKS)[name]()

    def memory(self) -> Mapping[str, float]:
        """Memory that MLX holds now, and its peak so far, in MiB."""
        return memory_facts()

    def record(self) -> None:
        """Start recording the time spans of device code in the model's engines and backend."""
        for spans in self._model.spans:
            spans.found.clear()
            spans.recording = True

    def recorded(self, start: float, end: float) -> float:
        """Seconds in which device code ran, between two readings of ``perf_counter``."""
        found = [span for spans in self._model.spans for span in spans.found]
        return covered((max(a, start), min(b, end)) for a, b in found if b > start and a < end)
