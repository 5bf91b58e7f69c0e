"""``legos export``: a run's adapter in the form that another program reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from legos.config.resolve import read_config
from legos.errors import CheckpointError
from legos.files.atomic import write_folder
from legos.run.find import find_run, split_place
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter, write_adapter
from legos.weights.peft import write_peft

__all__ = ["ExportFormat", "export"]

ExportFormat = Literal["mlx", "peft", "fused"]


def export(
    run: str, *, to: Path, form: ExportFormat = "peft", adapter: str | None = None
) -> Mapping[str, Any]:
    """Write an adapter of a run into a new folder, whole or not at all.

    Args:
        run: run folder, or its name in runs/; as ``RUN@STEP``, an adapter of it.
        to: where to; must not exist yet, or be an empty folder.
        form: mlx-lm's adapter, PEFT's adapter, or the base model with the adapter merged.
        adapter: which, as ``RunFolder.adapter_folder`` takes it; None: what ``run`` says, or the
            newest.

    Returns:
        What was written.

    Raises:
        CheckpointError: no such run or adapter, or ``to`` is taken or cannot be written.
        AdapterError: the adapter is damaged, does not fit, or has no such form.
    """
    name, at = split_place(run)
    folder = find_run(name)
    weights = read_adapter(folder.adapter_folder(adapter or at))
    model = read_config(folder.config).model
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CheckpointError(f"{to} exists already; choose another --to, or remove it")
    told: dict[str, Any] = {
        "run": str(folder.path),
        "adapter": f"v{weights.version}",
        "format": form,
        "to": str(to),
    }
    write_folder(to, lambda place: told.update(_write(weights, form, model, place)))
    size = sum(file.stat().st_size for file in to.iterdir())
    return told | {"size_mib": size / 2**20}


def _write(
    adapter: Adapter, form: ExportFormat, model: str, place: Path
) -> Mapping[str, float | str]:
    """Fill the folder; returns what there is to tell of it."""
    if form == "mlx":
        write_adapter(adapter, place)
    elif form == "peft":
        write_peft(adapter, place, base_model=model)
    else:
        from legos.wiring.export import fuse

        return {"largest_logprob_gap": fuse(model, adapter, place)}
    return {"base_model": model}
