"""``legos export``: write an adapter of a run in the format of another program."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from legos.apps.adapters import report_loading
from legos.apps.model_card import ExportFormat, base_config, model_card
from legos.errors import CheckpointError
from legos.files.atomic import write_folder
from legos.run.find import find_adapter, find_run, split_place
from legos.run.folder import RunFolder
from legos.run.reader import RunReader
from legos.weights.adapter import Adapter
from legos.weights.folder import is_adapter_folder, read_adapter, write_adapter
from legos.weights.peft import check_exportable, write_peft
from legos.wiring.model import load_model


def export(run: str, *, to: Path, form: ExportFormat = "peft") -> Mapping[str, Any]:
    """Write an adapter of a run and its model card into a new folder; after an error there is none.

    Args:
        run: folder of the run, or its name in runs/, for its newest adapter; ``RUN@STEP``,
            ``RUN@best`` or ``RUN@vN`` for another one; or the folder of an adapter in a run, such
            as that of a further policy.
        to: the folder to write; it must not exist yet, or be empty, and not be the current one.
        form: an adapter for mlx-lm, an adapter for PEFT, or the model with the adapter merged.

    Returns:
        The run, the adapter, the format, the folder and its size, and for a merged model the
        largest difference of a log-probability.

    Raises:
        CheckpointError: the run or the adapter is not found, or ``to`` exists or cannot be written.
        AdapterError: the adapter is damaged, does not fit the model, or not the format.
    """
    source = RunReader(_run_of(run))
    weights = read_adapter(find_adapter(run))
    model = str(source.config.values["model"])
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CheckpointError(f"{to} exists already; choose another --to, or remove it")
    if (place := to.resolve()) == Path.cwd():  # it would be replaced
        raise CheckpointError(f"{to} is the folder in which this program runs; choose another --to")
    report: dict[str, Any] = {
        "run": str(source.folder.path),
        "adapter": f"v{weights.version}",
        "format": form,
        "to": str(to),
    }

    def write(folder: Path) -> None:
        report.update(_write(weights, form, model, folder))
        card = model_card(source, weights, form)
        (folder / "README.md").write_text(card, encoding="utf-8")

    write_folder(place, write)  # where a link leads
    size = sum(file.stat().st_size for file in to.iterdir())
    return report | {"size_mib": size / 2**20}


def _run_of(text: str) -> RunFolder:
    """The run of an adapter that a user names."""
    place = Path(text)
    with suppress(OSError):  # which finding the run tells
        if is_adapter_folder(place):
            above = (each.parent for each in place.absolute().parents if each.name == "adapters")
            return find_run(next(above, place))
    return find_run(split_place(text)[0])


def _write(
    adapter: Adapter, form: ExportFormat, model: str, folder: Path
) -> Mapping[str, float | str]:
    """Write the files; returns metrics for the report."""
    if form == "mlx":
        write_adapter(adapter, folder)
    elif form == "peft":
        check_exportable(adapter, model, base_config(model).get("model_type"))
        write_peft(adapter, folder, base_model=model)
    else:
        report_loading(model)
        handle = load_model(model, inline=True)
        gap = handle.write_fused(adapter, folder)
        return {} if gap is None else {"mean_logprob_gap": gap}
    return {"base_model": model}
