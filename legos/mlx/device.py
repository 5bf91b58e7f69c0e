"""The MLX device: loads models, and makes engines and backends from them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import get_total_parameters
from numpy.typing import NDArray

from legos.chat.load import load_tokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.device import LocalEngine, ModelHandle
from legos.device.backend import LoraBackend
from legos.device.leader import Leader, check_same, follow
from legos.device.worker import InlineWorker, ThreadWorker, Worker, closed_after_error
from legos.errors import EngineError, ModelError, TrainerError
from legos.mlx.fits import check_training
from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.faults import faults_raised
from legos.mlx.model.forward import all_logits
from legos.mlx.model.fuse import logits_under, set_adapter, weights_dtype, write_checked
from legos.mlx.model.load import REFUSED, base_arrays, load_tree, num_token_ids
from legos.mlx.model.lora import add_lora, check_foreign, lora_arrays, lora_shape
from legos.mlx.model.machine import bound_memory, choose_device, device_facts, usable_bytes
from legos.mlx.model.tools import tool_format
from legos.mlx.train.processes import MlxProcesses, process_group
from legos.mlx.train.step_gradients import StepGradients
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.packing import check_token_ids
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.folder import is_adapter_folder, read_adapter
from legos.weights.model_folder import context_length, resolve_folder

logger = logging.getLogger(__name__)
STEP_S = 10.0  # for the engine to end its step before memory is measured
END_S = 10.0  # for the last word to the processes that follow; MLX may wait for a dead one forever


class MlxDevice:
    """MLX on Metal, CUDA or the CPU; MLX chooses which, unless ``LEGOS_DEVICE`` says it."""

    def __init__(self) -> None:
        """Choose the device and bound its memory.

        Raises:
            ModelError: ``LEGOS_DEVICE`` names a device that MLX cannot use here.
        """
        choose_device()
        bound_memory()

    def load(
        self,
        name: str,
        *,
        inline: bool = False,
        training: TrainingSize | None = None,
        report: Callable[[str], object] | None = None,
    ) -> "MlxModel":
        """Load a model: a folder in MLX or hub format, or a hub name.

        Args:
            name: folder, or name on the hub.
            inline: run everything on the calling thread.
            training: what will be trained; it is checked first, see ``legos.mlx.fits``. The first
                of several processes then leads the others.
            report: receives the forecast of the memory as one line.

        Raises:
            ModelError: the model is not found, a file is missing, MLX cannot load it, or it cannot
                be trained in the memory of this machine; or another process has another model.
            TrainerError: another process has ended.
        """
        folder = resolve_folder(name, refused=REFUSED)
        forecast = None if training is None else check_training(folder, training)
        if forecast is not None and report is not None:
            report(forecast)
        return MlxModel(folder, inline=inline, leads=training is not None)

    def join(self) -> None:
        """Connect the processes that were launched together; those that wait give up soon."""
        process_group()

    def follow(self, name: str) -> None:
        """Compute with the first of several processes what it orders, until its run ends.

        Args:
            name: its model: a folder in MLX or hub format, or a hub name.

        Raises:
            ModelError: the model is not found, or is another one.
            TrainerError: the first process ended without a word, or a computation failed.
            DeviceError: the device failed.
        """
        group = process_group()
        if group is None:
            raise TrainerError("this process was started alone; start several with mlx.launch")
        folder, others = resolve_folder(name, refused=REFUSED), MlxProcesses(group)
        check_same(folder, others)
        tree = load_tree(folder)
        logger.info("process %d of %d computes with process 0", others.rank, others.size)

        def begin(shape: LoraShape, config: BackendConfig) -> StepGradients:
            add_lora(tree, shape, seed=0)
            limit = config.memory_limit_bytes  # of the first machine, which may have more memory
            limit = limit and min(limit, usable_bytes())
            config = replace(config, report=logger.info, memory_limit_bytes=limit)
            return StepGradients(tree, config, group=others)

        with faults_raised():
            follow(others, begin)

    def facts(self) -> Mapping[str, str | int | float | bool]:
        """Versions of MLX and mlx-lm, and the default device with its kind and memory."""
        return device_facts()


class MlxModel(ModelHandle):
    """A loaded model; only its own thread uses the module tree.

    Attributes:
        folder: the model's folder.
        tokenizer: its tokenizer and chat template.
        num_vocabulary: token ids that both the tokenizer and the model have are below this.
        num_parameters: number of parameters of the base model.
        dtype: the narrowest float type of its weights.
        context: maximum number of prompt and completion tokens together.
        lora: shape of the model's LoRA; None before ``add_lora``.
        worker: runs calls on the thread that owns the tree, or on the caller's thread.
        tree: the module tree; only the worker may use it.
    """

    def __init__(self, folder: Path, *, inline: bool, leads: bool = False) -> None:
        self.folder = folder
        self.tokenizer = load_tokenizer(folder)
        self.context = context_length(folder)
        self.lora: LoraShape | None = None
        self._inline = inline
        self._workers: dict[str, Worker] = {}  # the newest of each name
        self._capabilities: Capabilities | None = None  # found by the first engine
        self.worker = self._make_worker("legos-trainer")
        with closed_after_error(self.worker):
            self.tree: Any = self.worker.call(load_tree, folder).result()
            self.num_vocabulary = self._token_ids()
            self._base = base_arrays(self.tree)
            group = process_group() if leads else None
            self._led = None if group is None else MlxProcesses(group)  # what this process leads
            self._leader = Leader(self._led)
            self.num_parameters: int = get_total_parameters(self.tree)
            self.dtype = weights_dtype(self._base)
            if self._led is not None:
                self.worker.call(check_same, self.folder, self._led).result()

    @property
    def tool_format(self) -> ToolFormat:
        """The model's own format of tool calls, or the plain one, which prompts then explain."""
        return (self.tokenizer.knows_tools and tool_format(self.folder)) or PLAIN_TOOLS

    @property
    def turns(self) -> Mapping[str, int | None]:
        """Name of each thread -> number of the call that it runs now; None: it is idle."""
        return {name: worker.turn for name, worker in self._workers.items()}

    def __call__(
        self, input_ids: Sequence[int], *, adapter: Adapter | None = None
    ) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens; see ``ModelHandle``.

        Raises:
            ModelError: a token id is out of range.
            AdapterError: the adapter does not fit the model's LoRA.
        """
        check_token_ids(input_ids, self.num_vocabulary)
        if adapter is None and not self._without_lora:
            return self.worker.call(all_logits, self.tree, list(input_ids)).result()
        return self.worker.call(logits_under, self.tree, adapter, list(input_ids)).result()

    def lora_shape(self, *, rank: int, alpha: float, num_layers: int, head: bool) -> LoraShape:
        """See ``legos.mlx.model.lora.lora_shape``."""
        choose = partial(lora_shape, rank=rank, alpha=alpha, num_layers=num_layers, head=head)
        return self.worker.call(choose, self.tree).result()

    def add_lora(self, shape: LoraShape, *, seed: int = 0) -> None:
        """Add LoRA to the model; its outputs are unchanged until the first update.

        Raises:
            ModelError: the model has LoRA already.
            AdapterError: the model has no module that the shape names.
        """
        if self.lora is not None:
            raise ModelError("the model has LoRA already; load it again for another shape")
        self.worker.call(lambda: add_lora(self.tree, shape, seed=seed)).result()
        self.lora = shape

    def set_adapter(self, adapter: Adapter) -> None:
        """Make calls use an adapter.

        Raises:
            AdapterError: the adapter does not fit the model's LoRA.
        """
        own = adapter if self.lora is None else adapter.at_scale(self.lora.scale)
        self.worker.call(set_adapter, self.tree, own).result()

    def write_fused(self, adapter: Adapter, folder: Path) -> float | None:
        """Merge an adapter into the model and write it; see ``write_checked``."""
        if self.lora is None:
            self.add_lora(adapter.shape)
        self.set_adapter(adapter)
        self._base = {}
        write = self.worker.call(write_checked, self.tree, self.folder, folder, self.num_vocabulary)
        return write.result()

    def make_engine(self, limits: EngineLimits | None = None) -> LocalEngine:
        """Make an engine with its own thread and module tree, which shares the base arrays.

        Args:
            limits: limits of rows, tokens and memory; None: the defaults.
        """
        limits = limits or EngineLimits()
        bound_memory(limits.memory_bytes)
        worker = self._make_worker("legos-engine")

        def build() -> MlxEngine:
            return MlxEngine(
                worker,
                load_tree(self.folder, share=self._base),
                num_vocabulary=self.num_vocabulary,
                context=self.context,
                limits=limits,
                capabilities=self._capabilities,
            )

        with closed_after_error(worker):
            engine = worker.call(build).result()
        self._capabilities = engine.capabilities
        return engine

    def make_backend(self, config: BackendConfig | None = None) -> LoraBackend:
        """Make the backend that trains this model's LoRA on its thread; make at most one.

        Raises:
            ModelError: the model has no LoRA, or several processes were started without a leader.
            TrainerError: the model cannot be trained.
            AdapterError: the reference adapter does not exist, or does not fit.
        """
        if self._led is None and process_group() is not None:
            raise ModelError(
                "mlx.launch started several processes; only `legos train` shares its steps with "
                "them, so start this program alone"
            )
        config = replace(config or BackendConfig(), num_vocabulary=self.num_vocabulary)
        if config.reference is not None and is_adapter_folder(config.reference):
            check_foreign(self.tree, read_adapter(config.reference))
        bound_memory(config.memory_limit_bytes)
        make = partial(
            StepGradients, self.tree, config, group=self._led, held_bytes=self._held_bytes
        )
        return LoraBackend(self.worker.call, make, self._adapter(), config, leader=self._leader)

    def close(self) -> None:
        """End the processes that follow this one, and stop the thread that owns the tree."""
        if self._led is not None and self.worker.alive:
            try:
                self.worker.call(self._leader.end).result(END_S)
            except TimeoutError:
                logger.warning("the processes that follow this one do not answer; end them by hand")
                self.worker.abandon()
                return
        self.worker.close()

    def _held_bytes(self) -> int:
        """Bytes that are allocated now, or between two steps of the engine where one runs."""
        engine = self._workers.get("legos-engine")
        if engine is not None:
            with suppress(EngineError, TimeoutError):  # it is closed, or its step takes very long
                return engine.call(mx.get_active_memory).result(STEP_S)
        return mx.get_active_memory()

    def _token_ids(self) -> int:
        """Number of usable token ids; a log line names those that the embedding lacks."""
        rows = self.worker.call(num_token_ids, self.tree).result()
        if rows < self.tokenizer.vocab_size:
            logger.warning(
                "%s: the tokenizer has %d tokens but the model only %d; prompts with the others "
                "are refused",
                self.folder,
                self.tokenizer.vocab_size,
                rows,
            )
        return min(rows, self.tokenizer.vocab_size)

    def _make_worker(self, name: str) -> Worker:
        # A process that exits before the streams of its threads are gone is aborted.
        made = InlineWorker() if self._inline else ThreadWorker(name, mx.clear_streams)
        self._workers[name] = made
        return self._workers[name]

    def _lora_arrays(self) -> Mapping[str, Any]:
        return self.worker.call(lora_arrays, self.tree).result()
