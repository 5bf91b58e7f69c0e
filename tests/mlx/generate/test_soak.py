"""Ten thousand requests with cancellations, swaps and bad inputs: memory stays flat."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from legos.device.worker import ThreadWorker
from legos.errors import RequestError
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.load import load_tree
from legos.records.limits import EngineLimits
from legos.records.request import Generated, Progress, Request, Result

WAVES, WAVE = 50, 200


def resident_bytes() -> int:
    """Memory of this process that lies in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def some_request(rng: random.Random) -> Request:
    start = tuple(range(6, 60)) * (rng.random() < 0.3)
    bad = rng.random()
    return Request(
        prompt_ids=() if bad < 0.02 else start + tuple(rng.randrange(358) for _ in range(5)),
        max_tokens=rng.choice((1, 2, 8)) if bad < 0.97 else 5000,
        temperature=rng.choice((0.7, 1.0)) if bad < 0.95 else -1.0,
        seed=rng.getrandbits(40),
        adapter=rng.choice(("policy", "policy", "rival", "base", "nobody")),
        stream=rng.random() < 0.2,
    )


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_ten_thousand_requests_leave_nothing_behind(
    tiny_models: Mapping[str, Path], room: Callable[..., Any], decode_ahead: Any
) -> None:
    import mlx.core as mx

    limits = EngineLimits(
        max_rows=32, prefix_bytes=1 << 20, cache_bytes=1 << 24, decode_ahead=decode_ahead
    )

    def make() -> MlxEngine:
        worker = ThreadWorker("engine", mx.clear_streams)

        def build() -> MlxEngine:
            tree = load_tree(tiny_models["llama"])
            return MlxEngine(worker, tree, num_vocabulary=358, context=1024, limits=limits)

        return worker.call(build).result()

    engine = make()
    prepared, rng = room("llama"), random.Random(0)
    answers: dict[int, list[Result]] = {}
    heard = threading.Condition()

    def deliver(results: Sequence[tuple[int, Result]]) -> None:
        with heard:
            for number, result in results:
                if not isinstance(result, Progress):
                    answers.setdefault(number, []).append(result)
            heard.notify_all()

    def wave(index: int) -> None:
        numbers = range(index * WAVE, (index + 1) * WAVE)
        for name in ("policy", "rival"):
            engine.load_adapter(prepared.adapter(index % 3, name=name)).result()
        engine.submit([(number, some_request(rng)) for number in numbers], deliver)
        engine.cancel(rng.sample(numbers, 30), deliver)
        with heard:
            assert heard.wait_for(lambda: all(n in answers for n in numbers), timeout=60)

    held: list[tuple[int, int]] = []
    for index in range(WAVES):
        wave(index)
        if index >= WAVES // 5:
            held.append((resident_bytes(), mx.get_active_memory()))
    stats = engine.stats()
    engine.close()
    assert sorted(answers) == list(range(WAVES * WAVE))
    assert all(len(results) == 1 for results in answers.values())
    kinds = {type(results[0]) for results in answers.values()}
    assert kinds == {Generated, RequestError}
    assert stats["requests_running"] == stats["reserved_cache_bytes"] == 0
    (first_resident, first_active), (last_resident, last_active) = held[0], held[-1]
    answered = 40 * WAVE * 4096  # what this test itself keeps of the answers, generously
    assert last_resident - first_resident < answered + (64 << 20)
    assert last_active - first_active < 8 << 20
