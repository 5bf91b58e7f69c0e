"""What benches and the self-test measure MLX with, on one model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from legos.data.sample import Sample
from legos.data.step import MeasuredStep
from legos.device import LocalEngine
from legos.mlx.checks.bare import bare_generation, bare_shared_generation
from legos.mlx.checks.bare_training import Split, make_bare_update
from legos.mlx.checks.mlx_lm_lora_step import is_installed, make_mlx_lm_lora_step
from legos.mlx.checks.step_check import run_step
from legos.mlx.device import MlxModel
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.facts import memory_facts
from legos.mlx.model.spans import covered
from legos.mlx.train.memory import peak_bytes
from legos.weights.adapter import Adapter

__all__ = ["MlxChecks"]

Row = tuple[int, ...]


class MlxChecks:
    """Bare loops run on the module trees and threads of the model and its engines."""

    def __init__(self, model: MlxModel) -> None:
        self._model = model

    def bare_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, max_tokens: int, rows: int
    ) -> float:
        """Seconds of a bare BatchGenerator, which computes equal prompts again."""
        assert isinstance(engine, MlxEngine), "an engine of this model"
        return engine.run(
            lambda tree: bare_generation(tree, prompts, max_tokens=max_tokens, rows=rows)
        ).result()

    def bare_shared_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, rows: int
    ) -> float:
        """Seconds of a bare BatchGenerator that computes equal prompts once, one token each."""
        assert isinstance(engine, MlxEngine), "an engine of this model"
        counts = Counter(prompts)
        return engine.run(lambda tree: bare_shared_generation(tree, counts, rows=rows)).result()

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """A bare optimiser step on blocks of rows, on the model's thread."""
        worker, tree = self._model.worker, self._model.tree
        update = worker.call(lambda: make_bare_update(tree, blocks, pad_to=pad_to)).result()
        return lambda: worker.call(update).result()

    def peer_update(self, blocks: Sequence[Sequence[Split]]) -> Callable[[], None] | None:
        """The step of mlx-lm-lora on the same blocks; None where it is not installed."""
        worker, tree = self._model.worker, self._model.tree
        if not is_installed():
            return None
        update = worker.call(make_mlx_lm_lora_step, tree, blocks).result()
        return lambda: worker.call(update).result()

    def step(
        self,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        share: bool = True,
        checkpoint: bool = False,
    ) -> MeasuredStep:
        """The gradients of one step on a tree of its own, on the calling thread."""
        return run_step(self._model.folder, adapter, samples, share=share, checkpoint=checkpoint)

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; the most bytes that MLX held beyond those before it."""
        return peak_bytes(call)

    def memory(self) -> Mapping[str, float]:
        """MiB that MLX holds now, and the most that it held so far."""
        return memory_facts()

    def record(self) -> None:
        """Start recording when device code runs, in the model's engines and backend."""
        for spans in self._model.spans:
            spans.found.clear()
            spans.recording = True

    def recorded(self, start: float, end: float) -> float:
        """Seconds between two readings of ``perf_counter`` in which some device code ran."""
        found = [span for spans in self._model.spans for span in spans.found]
        return covered((max(a, start), min(b, end)) for a, b in found if b > start and a < end)
