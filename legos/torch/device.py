"""The torch device: loads models, and makes backends from them."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from legos.chat.load import load_tokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat, shown_format
from legos.device import ModelHandle
from legos.device.backend import LoraBackend
from legos.device.leader import Leader, follow
from legos.device.worker import CLOSE_S, InlineWorker, ThreadWorker, Worker, closed_after_error
from legos.errors import AdapterError, ModelError, TrainerError
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.packing import check_token_ids
from legos.records.step import BackendConfig
from legos.torch.gradients import TorchGradients
from legos.torch.lora import (
    LoraLinear,
    Modules,
    insert_lora,
    install,
    new_arrays,
    other_lora,
)
from legos.torch.model import choose_device, load_model
from legos.torch.ranks import Ranks, launched
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.fits import check_arrays, linear_shape
from legos.weights.model_folder import context_length, resolve_folder
from legos.weights.reference import Lora

logger = logging.getLogger(__name__)


class TorchDevice:
    """Torch on CUDA where there is a GPU, and otherwise on the CPU."""

    def load(
        self,
        name: str,
        *,
        inline: bool = False,
        training: TrainingSize | None = None,
        report: Callable[[str], object] | None = None,
    ) -> "TorchModel":
        """Load a model: a folder in hub format, or a hub name.

        Args:
            name: folder, or name on the hub.
            inline: run everything on the calling thread.
            training: what will be trained; its memory is not forecast on this device.
            report: receives the device and the type of the weights as one line.

        Raises:
            ModelError: the model is not found, a file is missing, or torch cannot train it; or
                this is not the first of several processes, which alone runs a loop.
        """
        model = TorchModel(resolve_folder(name), inline=inline)
        if report is not None:
            report(f"{model.device} in {model.dtype}, torch {torch.__version__}")
        return model

    def join(self) -> None:
        """Do nothing: processes wait for each other when they load their models."""

    def follow(self, name: str) -> None:
        """Compute with the first of several processes what it orders, until its run ends.

        Args:
            name: its model: a folder in hub format, or a hub name.

        Raises:
            ModelError: the model is not found, or is another one.
            TrainerError: the first process ended without a word, or a computation failed.
        """
        folder, device = resolve_folder(name), choose_device()
        ranks = launched(device)
        if ranks is None:
            raise TrainerError("this process was started alone; start several with torchrun")
        try:
            model, modules = load_model(folder, device, ranks), dict[str, LoraLinear]()
            logger.info("process %d of %d computes with process 0", ranks.rank, ranks.size)

            def add_lora(shape: LoraShape) -> None:
                modules.update(insert_lora(model.whole, model.last_layers(shape.num_layers), shape))

            def begin(_: LoraShape, config: BackendConfig) -> TorchGradients:
                return TorchGradients(model, modules, config, ranks)

            follow(ranks, begin, add_lora=add_lora, logits=model.all_logits)
        finally:
            ranks.leave()

    def facts(self) -> Mapping[str, str | int | float | bool]:
        """Versions of torch and transformers, and the device with its memory in bytes."""
        device = choose_device()
        facts: dict[str, str | int | float | bool] = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": device.type,
        }
        if device.type == "cuda":
            found: Any = torch.cuda.get_device_properties(device)
            facts |= {"device_name": found.name, "memory_size": found.total_memory}
        return facts


class TorchModel(ModelHandle):
    """A loaded model; what computes with it runs on one thread.

    Attributes:
        folder: the model's folder.
        tokenizer: its tokenizer and chat template.
        num_vocabulary: token ids that both the tokenizer and the model have are below this.
        num_parameters: number of parameters of the base model.
        dtype: float type of its weights.
        context: maximum number of prompt and completion tokens together.
        lora: shape of the model's LoRA; None before ``add_lora``.
        device: the torch device.
        causal: the model itself.
        modules: its modules with LoRA.
        worker: what its calls run on.
        call: runs a function that computes with the model, on its thread or now.
    """

    def __init__(self, folder: Path, *, inline: bool) -> None:
        self.folder = folder
        self.tokenizer = load_tokenizer(folder)
        self.context = context_length(folder)
        self.lora: LoraShape | None = None
        self.device = choose_device()
        self.worker: Worker = InlineWorker() if inline else ThreadWorker("legos-trainer")
        self.call = self.worker.call
        with closed_after_error(self.worker):
            self._ranks: Ranks | None = self.call(_as_first, self.device).result()
            self._leader = Leader(self._ranks)
            self.causal = self.call(load_model, folder, self.device, self._ranks).result()
        self.modules: Modules = {}
        self._arrays: Mapping[str, torch.Tensor] = {}  # LoRA, before the first update
        whole = self.causal.whole
        self.num_vocabulary = min(self.causal.num_vocabulary, self.tokenizer.vocab_size)
        self.num_parameters: int = whole.num_parameters()  # packed weights hold two each
        self.dtype = str(whole.dtype).removeprefix("torch.")

    @property
    def turns(self) -> Mapping[str, int | None]:
        """Name of the thread -> number of the call that it runs now; None: it is idle."""
        return {"legos-trainer": self.worker.turn}

    @property
    def tool_format(self) -> ToolFormat:
        """The model's own format of tool calls, or the plain one, which prompts then explain."""
        tokenizer = self.tokenizer
        shown = tokenizer.knows_tools and shown_format(tokenizer.template, self.folder)
        return shown or PLAIN_TOOLS

    def __call__(
        self, input_ids: Sequence[int], *, adapter: Adapter | None = None
    ) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens.

        Args:
            input_ids: [T] token ids.
            adapter: used in place of the model's own LoRA arrays, for this call only.

        Raises:
            ModelError: a token id is out of range.
            AdapterError: the adapter does not fit.
        """
        check_token_ids(input_ids, self.num_vocabulary)
        ids, other = list(input_ids), None
        if adapter is not None:
            scale = (self.lora or adapter.shape).scale
            other = Lora(arrays=self._fitting(adapter), scale=scale)
        own = adapter is None and not self._without_lora

        def logits() -> NDArray[np.float32]:
            with nullcontext() if own else other_lora(self.modules, other):
                compute = partial(self.causal.all_logits, ids)
                return self._leader.together(compute, "logits", ids)

        return self.call(logits).result()

    def lora_shape(self, *, rank: int, alpha: float, num_layers: int, head: bool) -> LoraShape:
        """See ``legos.weights.fits.linear_shape``.

        Raises:
            AdapterError: no module can be adapted.
        """
        model = self.causal
        output = None if model.tied or not head else model.whole.get_output_embeddings()
        return linear_shape(
            model.last_layers(num_layers),
            output and ("lm_head", output),
            linear=torch.nn.Linear,
            rank=rank,
            alpha=alpha,
        )

    def add_lora(self, shape: LoraShape, *, seed: int = 0) -> None:
        """Add LoRA to the model; its outputs are unchanged until the first update.

        Raises:
            ModelError: the model has LoRA already.
            AdapterError: the model has no such modules.
        """
        if self.lora is not None:
            raise ModelError("the model has LoRA already; load it again for another shape")
        layers = self.causal.last_layers(shape.num_layers)
        insert = partial(insert_lora, self.causal.whole, layers, shape)
        self.modules = self._leader.together(insert, "add_lora", shape)
        self._arrays = new_arrays(self.modules, shape.rank, seed=seed)
        install(self.modules, self._arrays)
        self.lora = shape

    def set_adapter(self, adapter: Adapter) -> None:
        """Make calls use an adapter.

        Raises:
            AdapterError: the adapter does not fit the model's LoRA.
        """
        self._arrays = self._fitting(adapter)
        self.call(install, self.modules, self._arrays).result()

    def write_fused(self, adapter: Adapter, folder: Path) -> float | None:
        """Raise ``AdapterError``: MLX merges the adapters of both devices."""
        raise AdapterError("torch does not merge adapters; load the model with device mlx")

    def make_engine(self, limits: EngineLimits | None = None) -> NoReturn:
        """Raise ``ModelError``: torch has no engine."""
        raise ModelError(
            "device torch trains and does not generate: start a server of the same model "
            "(legos serve) and give its address as --server, or train with --device mlx"
        )

    def make_backend(self, config: BackendConfig | None = None) -> LoraBackend:
        """Make the backend that trains this model's LoRA; make at most one.

        Raises:
            ModelError: the model has no LoRA.
            TrainerError: packed samples of the model see each other, or the configuration limits
                memory or the seconds of a pass.
            AdapterError: the reference adapter does not exist, or does not fit.
        """
        config = replace(config or BackendConfig(), num_vocabulary=self.num_vocabulary)
        if (config.memory_limit_bytes, config.pass_limit_s) != (None, None):
            raise TrainerError(
                f"memory_limit_bytes is {config.memory_limit_bytes} and pass_limit_s is "
                f"{config.pass_limit_s}, but torch bounds passes by micro_batch_tokens alone: "
                "leave training.memory_limit_gib and training.decode_pause_s out, or load the "
                "model with device mlx"
            )
        make = partial(TorchGradients, self.causal, self.modules, config, self._ranks)
        return LoraBackend(self.call, make, self._adapter(), config, leader=self._leader)

    def close(self) -> None:
        """End the other processes, and stop the thread after its current call.

        A call that never returns is given up, as are processes that do not answer.
        """
        if self._ranks is not None and self.worker.alive:
            with suppress(TimeoutError):
                self.call(self._leave, self._ranks).result(CLOSE_S)
        self.worker.close()

    def _leave(self, ranks: Ranks) -> None:
        """Let the other processes end, and leave their group."""
        self._leader.end()
        ranks.leave()

    def _lora_arrays(self) -> Mapping[str, Any]:
        return {name: array.numpy(force=True) for name, array in self._arrays.items()}

    def _fitting(self, adapter: Adapter) -> Mapping[str, torch.Tensor]:
        """An adapter's arrays on the device, after a check that they fit."""
        shapes = {name: tuple(array.shape) for name, array in self._arrays.items()}
        adapter = adapter if self.lora is None else adapter.at_scale(self.lora.scale)
        check_arrays(adapter.arrays, shapes, name=adapter.name)
        return {
            name: torch.tensor(np.asarray(array, np.float32), device=self.device)
            for name, array in adapter.arrays.items()
        }


def _as_first(device: torch.device) -> Ranks | None:
    """The processes that this one leads; None: it is alone."""
    if int(os.environ.get("RANK", "0")) > 0:
        raise ModelError(
            f"this is process {os.environ['RANK']} of a group, and only process 0 loads a model to "
            "train it; launch `legos train --device torch`, whose other processes compute with it"
        )
    return launched(device)
