"""``legos bench``: how fast a model is on this machine."""

from legos.cli.output import Flag, show
from legos.cli.overrides import Limit


def bench(*, model: str | None = None, seconds: Limit = 60.0, json: Flag = False) -> None:
    """Measure how fast a model is on this machine, beside mlx-lm alone: a table to post.

    Prefill and decoding with 1, 8 and 32 streams, an optimiser step with its peak of memory, and an
    adapter swap. Both sides are measured in turn.

    Args:
        model: Folder, name on the hub, or builtin; by default random weights, 40 million
            parameters.
        seconds: Time to measure, roughly, in seconds; slow models take longer.
        json: Print one JSON object.
    """
    from legos.apps.bench import bench as run

    found = run(model, seconds, write=(lambda _: None) if json else show)
    facts = {name: value for name, value in found.items() if name != "lines"}
    show(found if json else facts, json=json)
