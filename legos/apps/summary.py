"""What ``legos train`` prints before a run, and after it."""

import shlex
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from legos.apps.adapters import resume_command
from legos.builtin import BUILTIN
from legos.config.learning_rate import learning_rates
from legos.config.resolve import ResolvedConfig, is_chosen
from legos.config.schema import RunConfig
from legos.loop.evaluation import flat_metrics
from legos.mac import on_battery
from legos.machine import blas_hint
from legos.run.folder import RunFolder
from legos.run.run import Run
from legos.wiring.trainer import Trainer

_OTHER_GAME = {"nim": "kuhn", "kuhn": "nim"}


def announcement(
    resolved: ResolvedConfig, folder: RunFolder, trainer: Trainer, run: Run
) -> Iterator[str]:
    """What is trained, where it is kept, and what to know before the run starts."""
    config, model = resolved.config, trainer.model
    adapter = trainer.adapters[0]
    adapted = sum(array.size for array in adapter.arrays.values())
    done = f", {run.step} of which are done" if run.step else ""
    if config.fork_from is not None:
        done += f" (forked from {config.fork_from})"
    yield (
        f"{config.model} ({model.num_parameters:,} parameters, {adapted:,} in LoRA) plays "
        f"{config.title} for {config.loop.steps} steps{done}, in {folder.path}"
    )
    if config.adapter is not None:
        yield f"starts from adapter {config.adapter}, of rank {adapter.shape.rank}"
    wanted, layers = config.training.lora_layers, adapter.shape.num_layers
    if wanted > layers and resolved.sources["training.lora_layers"] != "default":
        yield f"training.lora_layers is {wanted}; the model has {layers}, and all get LoRA"
    yield from _without_effect(resolved)
    if config.training.anchored(model.dtype).anchor != config.training.ratio_anchor:
        yield (
            f"the base computes in {model.dtype}: the ratio is to the trainer's own probabilities, "
            "and a capped weight corrects the gap (training.anchor proximal)"
        )
    rates, rate = learning_rates(model.folder), config.training.learning_rate
    if rates is not None and rate is None:
        end = rates.middle * config.training.learning_rate_end_fraction
        falls = f"; it falls to {end:.2g} after the last step" if end < rates.middle else ""
        yield f"learning rate {rates.middle:.2g}, by the size of the model{falls}"
    elif rates is not None and config.model != BUILTIN:  # that one brings its own learning rate
        yield (
            f"learning rate {rate:.3g}; for LoRA on a model of this size look between "
            f"{rates.lowest:.1g} and {rates.highest:.1g} (training.learning_rate)"
        )
    if on_battery():
        yield "hint: this Mac runs on battery; connect it to power"
    if hint := blas_hint():
        yield hint


def _without_effect(resolved: ResolvedConfig) -> Iterator[str]:
    """The settings that the user chose and that nothing reads."""
    config, chosen = resolved.config, {n for n, s in resolved.sources.items() if is_chosen(s)}
    for name, needed in config.training.unread.items():
        if f"training.{name}" in chosen:
            zero = f"{needed[0]} is 0" if len(needed) == 1 else f"{' and '.join(needed)} are 0"
            yield f"training.{name} has no effect while {zero}"
    if not any(one.play.opponents for one in config.arenas.values()):
        for name in sorted(name for name in chosen if name.startswith("league.")):
            yield f"{name} has no effect without play.opponents"


def summary(
    run: Run, folder: RunFolder, config: RunConfig, seconds: float, received: int | None
) -> Iterator[str]:
    """What ended the run, and what to do next.

    Args:
        run: the run.
        folder: its folder.
        config: its settings.
        seconds: how long this process has worked on it; 0: it was finished before.
        received: number of the signal that stopped it, if one did.
    """
    command = resume_command(folder.path)
    if not run.finished:
        by = "" if received is None else f" by {signal.Signals(received).name}"
        yield (
            f"stopped{by} after {seconds:.0f} s at step {run.step} of {config.loop.steps}, "
            f"with a checkpoint; continue with\n  {command}"
        )
    elif not seconds:
        yield (
            f"nothing to do: the run in {folder.path} has done {run.step} steps of "
            f"{config.loop.steps}; continue with\n  {command} --steps {2 * run.step}"
        )
    else:
        yield f"done in {seconds:.0f} s; next, try"
        for hint in _hints(folder, config):
            yield f"  {shlex.join(['uv', 'run', 'legos', *hint])}"


def _hints(folder: RunFolder, config: RunConfig) -> Iterator[list[str]]:
    """Arguments of commands to try after a finished run."""
    run = str(folder.path)
    yield ["eval", run]
    yield ["serve", "--adapter", run]
    if config.model == BUILTIN and config.title in _OTHER_GAME:
        yield ["train", "--arena", _OTHER_GAME[config.title]]
    else:
        yield ["train", "--resume", run, "--steps", str(2 * config.loop.steps)]


def comparison(first: Mapping[str, Any], last: Mapping[str, Any], title: str) -> Table:
    """A table of the evaluations before and after a run; ``title`` names the arena."""
    before, after = flat_metrics(first), flat_metrics(last)
    table = Table(title=escape(title), box=None, header_style="bold", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for name in (*after, *(before.keys() - after.keys())):
        if name != "eval/policy_version":
            label = name.removeprefix("eval/").replace("_", " ")
            table.add_row(
                escape(label), *(_shown(metrics.get(name)) for metrics in (before, after))
            )
    return table


def _shown(value: float | None) -> str:
    """A float with four decimals, a count as it is, a dash for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
