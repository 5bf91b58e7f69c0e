"""Submit requests to an engine without a client or an event loop, for benches and checks."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from legos.protocols import Engine
from legos.records.request import Generated, Progress, Request, Result


def submit_all(
    engine: Engine, requests: Sequence[Request], *, on_progress: Callable[[], object] | None = None
) -> "Future[list[Generated]]":
    """Submit requests at once.

    Args:
        engine: engine that answers.
        requests: the requests.
        on_progress: called on the engine's thread for the tokens of streamed requests.

    Returns:
        The answers in the order of the requests once all have arrived, or the first error.
    """
    done: Future[list[Generated]] = Future()
    found: dict[int, Generated] = {}

    def deliver(results: Sequence[tuple[int, Result]]) -> None:
        for number, result in results:
            if isinstance(result, Generated):
                found[number] = result
            elif isinstance(result, Progress):
                if on_progress is not None:
                    on_progress()
            elif not done.done():
                done.set_exception(result)
        if len(found) == len(requests) and not done.done():
            done.set_result([found[number] for number in range(len(requests))])

    engine.submit(list(enumerate(requests)), deliver)
    return done
