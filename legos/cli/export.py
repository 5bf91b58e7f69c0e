"""``legos export``: an adapter in the format of another program."""

from pathlib import Path
from typing import Literal

from legos.cli.output import Flag, show


def export(
    run: str, /, *, to: Path, format: Literal["mlx", "peft", "fused"] = "peft", json: Flag = False
) -> None:
    """Write the newest adapter of a run in the format of another program.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP, RUN@best or RUN@vN for another adapter. Of
            a further policy, the folder of the adapter, such as runs/duel-1/adapters/solver/v50.
        to: Folder to write; it must be new or empty.
        format: An adapter for mlx-lm, an adapter for PEFT, or a whole model with the adapter
            merged (fused).
        json: Print one JSON object.
    """
    from legos.apps.export import export as write

    show(write(run, to=to, form=format), json=json)
