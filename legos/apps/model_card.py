"""The model card of an exported adapter, README.md in the format of the hub."""

import json
import platform
import re
import shlex
from collections.abc import Iterable, Iterator
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Template
from typing import Any, Literal, cast

from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from legos.apps.markdown import four_digits, table_head, table_line
from legos.builtin import BUILTIN
from legos.config.command import train_command
from legos.installed import own_version
from legos.records.names import POLICY
from legos.remote.vllm.command import max_rank
from legos.run.key_figures import before_and_after, key_figures
from legos.run.metrics import MetricTable
from legos.run.reader import RunReader, RunSettings
from legos.weights.adapter import Adapter
from legos.weights.model_folder import quantised_by

ExportFormat = Literal["mlx", "peft", "fused"]
_LIBRARIES: dict[ExportFormat, str] = {"mlx": "mlx", "peft": "peft", "fused": "transformers"}
_USES: dict[ExportFormat, str] = {
    "mlx": 'uv run mlx_lm.generate --model {base} --adapter-path . --prompt "..."',
    "peft": "vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules {name}=.",
    "fused": "uv run legos chat --model .",
}
_WITH_LEGOS = "uv run legos serve --model {base} --adapter ."
_CARD = resources.files("legos.apps") / "templates" / "model_card.md"
_VERSIONS = ("mlx", "mlx-lm", "torch", "transformers")


def model_card(run: RunReader, adapter: Adapter, form: ExportFormat) -> str:
    """The card of an adapter, with the figures that its run has measured.

    Args:
        run: the run that trained the adapter.
        adapter: the adapter.
        form: the format in which it is written.

    Raises:
        CheckpointError: the settings or the metrics of the run cannot be read.
    """
    config, evaluations = run.config, run.evaluations
    base = str(config.values["model"])
    first = run.metrics.of_version(adapter.version, adapter.name).get("policy_version")
    version = adapter.version if first is None else int(first)  # of the run's first policy
    figures = before_and_after(evaluations, version=version)
    arena = "+".join(_arenas(config))
    data = ModelCardData(
        base_model=base if _is_on_hub(base) else None,
        library_name=_LIBRARIES[form],
        license=_license(base),
        pipeline_tag="text-generation",
        tags=["legos", "lora", "reinforcement-learning"],
        model_name=run.name,
        eval_results=[
            EvalResult(
                task_type="text-generation",
                dataset_type="legos",
                dataset_name=arena,
                metric_type=name.removeprefix("eval/"),
                metric_value=value,
            )
            for name in key_figures(figures)
            if (value := figures[name][1]) is not None
        ]
        or None,
    )
    shown_base = base if _is_on_hub(base) else Path(base).name
    facts = [
        *_facts(config, run.metrics, adapter),
        ("base", "the model that ships with legos" if base == BUILTIN else shown_base),
        ("versions of this export", ", ".join(_versions())),
    ]
    given_values = {**config.values, "model": shown_base}  # a path tells where the user keeps it
    command = shlex.join(["uv", "run", *train_command(given_values, config.sources)])
    rank = max_rank(adapter.shape.rank)
    # Only legos can name the built-in model, and vLLM does not read MLX's quantised models.
    other = form == "peft" and (rank is None or _is_quantised(base))
    own = other or (base == BUILTIN and form != "fused")
    use = (_WITH_LEGOS if own else _USES[form]).format(base=shown_base, name=run.name, rank=rank)
    given = {
        "data": data,
        "name": run.name,
        "what": "A model with merged LoRA" if form == "fused" else "A LoRA adapter",
        "arena": arena,
        "facts": _table(("", ""), facts),
        "evaluation": _evaluation(evaluations, figures, version),
        "use": use,
        "command": command,
    }
    return Template(_CARD.read_text(encoding="utf-8")).substitute(given)


def _facts(config: RunSettings, table: MetricTable, adapter: Adapter) -> Iterator[tuple[str, str]]:
    """What was trained, and on how much."""
    values, newest = config.values, table.of_version(adapter.version, adapter.name)
    if adapter.name != POLICY:
        yield "policy", adapter.name
    yield "arena", ", ".join(_arenas(config))
    yield "optimiser steps", f"{adapter.version} applied, of {values['loop.steps']} in the run"
    for name in ("generated", "trained"):
        if (tokens := newest.get(f"tokens_{name}")) is not None:
            yield f"tokens {name}", f"{int(tokens):,}"
    yield "LoRA", f"rank {adapter.shape.rank}, scale {adapter.shape.scale:g}"
    last = newest.get("step") or 0
    rates = [rate for step, rate in table.points("learning_rate") if step <= last]
    if rates:
        ends = (f"{end:.3g}" for end in (min(rates), max(rates)))
        yield "learning rate", " to ".join(dict.fromkeys(ends))
    if adapter.thinking not in (None, "default"):
        yield "thinking", adapter.thinking
    for name in ("seed", "fork_from", "adapter"):
        if values.get(name) is not None:
            yield name.replace("_", " "), f"{values[name]}"


def _arenas(config: RunSettings) -> list[str]:
    """The names of the arenas, without folders of files."""
    mixed = dict.fromkeys(
        n.removeprefix("mix.").rpartition(".")[0] for n in config.values if n.startswith("mix.")
    )
    return [Path(name).name for name in mixed or [str(config.values["arena"])]]


def _evaluation(
    table: MetricTable, figures: dict[str, tuple[float | None, float | None]], version: int
) -> str:
    """The figures before and after training, and of which steps they are."""
    if not figures:
        return "The run was not evaluated.\n"
    first, step = table["step"][0], table.of_version(version).get("step")
    if step is None:
        head = f"This version was not evaluated; the figures are those of step {first}."
    else:  # a fork has no evaluation before its training
        start = "First evaluation" if first else "Before training"
        head = f"{start} (step {first}), and this version (step {step})."
    rows = [
        (name.removeprefix("eval/").replace("_", " "), *map(_number, pair))
        for name, pair in figures.items()
    ]
    return f"{head}\n\n" + _table(("metric", "before", "after"), rows)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [table_line(cell.replace("|", "\\|") for cell in row) for row in rows]
    return table_head(titles) + "".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else four_digits(value)


def _is_on_hub(model: str) -> bool:
    """Whether a model is named as the hub does, with its owner."""
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model and not Path(model).exists()


def _license(model: str) -> str | None:
    """The license in the card of the base model, where that card is on this machine."""
    text = _read(model, "README.md")
    named = re.match(r"---\n(?:(?!---).*\n)*?license: *([\w.-]+) *\n", text)
    return named and named[1]


def _is_quantised(model: str) -> bool:
    """Whether MLX has quantised the base model, where its configuration is on this machine."""
    return quantised_by(base_config(model)) == "mlx"


def base_config(model: str) -> dict[str, Any]:
    """The configuration of a base model; empty where it is not on this machine."""
    try:
        config = json.loads(_read(model, "config.json") or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", config) if isinstance(config, dict) else {}


def _read(model: str, name: str) -> str:
    """A file of a model that is on this machine; nothing where it is not."""
    found = try_to_load_from_cache(model, name) if _is_on_hub(model) else Path(model) / name
    if not isinstance(found, str | Path) or not Path(found).is_file():
        return ""
    return Path(found).read_text(encoding="utf-8", errors="replace")


def _versions() -> Iterator[str]:
    yield f"legos {own_version()}"
    for name in _VERSIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    yield f"Python {platform.python_version()}"
