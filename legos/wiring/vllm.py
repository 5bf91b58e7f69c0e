"""Make the engine of a vLLM server, which runs elsewhere or as a process of ours."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from legos.builtin import EXAMPLE
from legos.clients.transport import server_name
from legos.device import ModelHandle
from legos.losses.softmax import log_softmax
from legos.records.message import Message
from legos.records.names import BASE, evaluated_name
from legos.remote.engine import RemoteEngine
from legos.remote.process import ServerProcess
from legos.remote.publish.broadcast import Broadcaster
from legos.remote.vllm.command import VllmOptions, find_vllm, vllm_command, vllm_process
from legos.remote.vllm.probe import TOLERANCE, Probe
from legos.remote.vllm.publisher import VllmPublisher
from legos.remote.vllm.server import VllmServer
from legos.weights.adapter import Adapter
from legos.wiring.engines import TokenEngine

PROMPT = 8  # tokens of the probe's prompt: a long one would slow every publication down
WATCHED = 64  # tokens whose probabilities after it are compared


def vllm_at(
    servers: Sequence[str | ServerProcess],
    model: ModelHandle,
    *,
    policies: Sequence[str],
    rivals: int = 0,
    api_key: str | None = None,
    adapter_folder: Path | None = None,
) -> TokenEngine:
    """The engine on vLLM servers that answer.

    Args:
        servers: addresses of the servers, or processes of ours.
        model: the trainer's model, with LoRA.
        policies: names of the trained adapters.
        rivals: number of further adapters that play at the same time.
        api_key: API key of the servers.
        adapter_folder: where they read adapters, under the same path; None: this machine's folder
            for temporary files.

    Raises:
        ModelError: a server reports log-probabilities of another distribution than it samples from.
        AdapterError: a server has another model, or cannot serve the run's adapters.
        EngineError: a server does not answer.
    """
    probe = probe_of(model)
    names = [*policies, *map(evaluated_name, policies), BASE]
    names += [f"opponent {number + 1}" for number in range(rivals)]
    publishers = [
        VllmPublisher(one, probe, names=names, folder=adapter_folder, api_key=api_key)
        for one in servers
    ]
    engine = RemoteEngine(
        [VllmServer(publisher, api_key=api_key) for publisher in publishers],
        Broadcaster((server_name(publisher.api.url), publisher) for publisher in publishers),
    )
    with ExitStack() as stack:
        stack.callback(engine.close)
        for publisher in publishers:
            engine.call(publisher.start()).result()
        # vLLM applies LoRA of the output head to requests of its base model too, after an adapter
        # was used; an adapter that changes nothing answers as the base model does.
        engine.load_adapter(replace(model.base_adapter(), name=BASE)).result()
        stack.pop_all()
    return TokenEngine(engine, model)


def started_vllm(
    model: ModelHandle,
    *,
    policies: Sequence[str],
    rivals: int = 0,
    rank: int = 0,
    say: Callable[[str], object],
) -> TokenEngine:
    """Start ``vllm serve`` as a process of ours, and return its engine.

    Args:
        model: the trainer's model, with LoRA.
        policies: names of the trained adapters.
        rivals: number of further adapters that play at the same time.
        rank: their largest LoRA rank, where it may exceed that of the model.
        say: receives the progress of the start.

    Raises:
        ConfigError: the program is not found, or cannot serve LoRA of this rank.
        EngineError: the server does not start.
    """
    assert model.lora is not None
    options = VllmOptions(
        model=model.folder,
        name=model.folder.name,
        dtype=model.dtype,
        context=model.context,
        rank=max(model.lora.rank, rank),
        max_loras=2 * len(policies) + 3 + rivals,  # evaluated copies, base, next version, a rival
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="legos-vllm-")))
        command = partial(vllm_command, find_vllm(), options)
        process = vllm_process(command, log=folder / "vllm.log", say=say)
        stack.callback(process.close)
        process.start()
        process.wait()
        made = vllm_at([process], model, policies=policies, rivals=rivals, adapter_folder=folder)
        return TokenEngine(made.engine, model, closing=stack.pop_all().close)


def _dtype(model: ModelHandle) -> str:
    return model.dtype if model.dtype in TOLERANCE else "float32"


def probe_of(model: ModelHandle) -> Probe:
    """A probe that compares a server with a model, whose LoRA it leaves as it is."""
    prompt = tuple(model.tokenizer.render((Message("user", EXAMPLE),)))[-PROMPT:]
    step = max(1, model.num_vocabulary // WATCHED)
    watched = tuple(range(0, model.num_vocabulary, step))[:WATCHED]

    def logprobs(adapter: Adapter) -> NDArray[np.float64]:
        logits = model(prompt, adapter=adapter)[-1].astype(np.float64)
        return log_softmax(np, logits)[list(watched)]

    return Probe(prompt, watched, logprobs, like=model.base_adapter(), dtype=_dtype(model))
