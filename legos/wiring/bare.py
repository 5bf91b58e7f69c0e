"""What the benches time on a device: the kit's own parts, and bare loops of the same work."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from legos.data.request import Request
from legos.wiring.asking import submit_all
from legos.wiring.trainer import Trainer

if TYPE_CHECKING:
    from legos.mlx.generate.engine import MlxEngine

__all__ = ["DeviceBench", "Row", "bare_seconds"]

Row = tuple[int, ...]


def bare_seconds(
    engine: "MlxEngine", prompts: Sequence[Row], *, max_tokens: int, rows: int
) -> float:
    """Seconds of a bare BatchGenerator on an engine's thread and module tree."""
    from legos.mlx.checks.bare import bare_generation

    def work(tree: Any) -> float:
        return bare_generation(tree, prompts, max_tokens=max_tokens, rows=rows)

    return engine.run(work).result()


class DeviceBench:
    """Times one trainer's engine against bare loops on the same module tree, in one process."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._engine = trainer.engine

    def engine(self, prompts: Sequence[Row], *, max_tokens: int) -> float:
        """Seconds in which the engine samples a completion of every prompt, nothing remembered."""
        self._fresh()
        requests = [
            Request(prompt_ids=prompt, max_tokens=max_tokens, seed=number)
            for number, prompt in enumerate(prompts)
        ]
        started = time.perf_counter()
        submit_all(self._engine, requests).result()
        return time.perf_counter() - started

    def bare(self, prompts: Sequence[Row], *, max_tokens: int, rows: int) -> float:
        """Seconds of a bare BatchGenerator on the same prompts."""
        return bare_seconds(self._engine, prompts, max_tokens=max_tokens, rows=rows)

    def bare_shared(self, prompts: Sequence[Row], *, rows: int) -> float:
        """Seconds of a bare BatchGenerator that computes equal prompts once, one token each."""
        from legos.mlx.checks.bare import bare_shared_generation

        counts: dict[Row, int] = {}
        for prompt in prompts:
            counts[prompt] = counts.get(prompt, 0) + 1

        def work(tree: Any) -> float:
            return bare_shared_generation(tree, counts, rows=rows)

        return self._engine.run(work).result()

    def bare_training(self, rows: Sequence[Row], *, updates: int, max_tokens: int) -> list[float]:
        """Seconds of each of ``updates`` bare LoRA updates on these rows, equal ones again."""
        from legos.mlx.checks.bare import make_bare_training

        worker, tree = self._trainer.model.worker, self._trainer.model.tree
        update = worker.call(make_bare_training, tree, rows, 1e-6, max_tokens).result()
        return [worker.call(update).result() for _ in range(updates)]

    def record(self) -> None:
        """Start recording when device code runs, in the engine and in the trainer."""
        for spans in self._trainer.spans:
            spans.found.clear()
            spans.recording = True

    def recorded(self, start: float, end: float) -> float:
        """Seconds between two readings of the clock in which some device code ran."""
        from legos.mlx.model.spans import covered

        found = [span for spans in self._trainer.spans for span in spans.found]
        return covered((max(a, start), min(b, end)) for a, b in found if b > start and a < end)

    def _fresh(self) -> None:
        """Load the weights again, so that nothing is remembered."""
        self._engine.load_adapter(self._trainer.backend.adapter()).result()
