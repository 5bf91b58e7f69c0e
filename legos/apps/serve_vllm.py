"""``legos serve --backend vllm``: start vLLM with adapters of runs, and keep it running."""

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np

from legos.builtin import BUILTIN, EXAMPLE
from legos.errors import AdapterError, EngineError
from legos.remote.process import ServerProcess, kept_running
from legos.remote.vllm.api import VllmApi
from legos.remote.vllm.command import VllmOptions, find_vllm, vllm_command, vllm_process
from legos.weights.adapter import Adapter
from legos.weights.peft import write_peft
from legos.wiring.model import model_place
from legos.wiring.serving import base_of

__all__ = ["serve_vllm"]

PROMPT = tuple(range(40, 72))  # token ids on which an adapter's effect is looked for
MOST_RESTARTS = 5
LEAST_RANK, SPARE_SLOTS = 16, 4  # room for adapters that a trainer loads later


def serve_vllm(
    *,
    model: str | None,
    adapters: Sequence[Adapter],
    host: str,
    port: int,
    api_key: str | None,
    max_rows: int,
    arguments: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Serve adapters with vLLM until ``KeyboardInterrupt``; it is started again if it ends.

    Args:
        model: a folder, a name on the hub, or the built-in model; None: the model that the adapters
            were trained on.
        adapters: adapters to serve, each under its name.
        host: address to listen on.
        port: port to listen on; 0: a free one.
        api_key: key that every request must send.
        max_rows: completions decoded in one batch.
        arguments: further arguments of ``vllm serve``.
        say: receives progress, and a message with the address once the server answers.

    Raises:
        AdapterError: vLLM refuses an adapter, or answers as if it were not there.
        EngineError: vLLM does not start, or ends again and again; the message shows its log.
    """
    name = base_of(model, adapters)
    place = model_place(name)
    options = VllmOptions(
        model=place,
        name=Path(name).name if Path(name).is_dir() else name,
        dtype="float32" if name == BUILTIN else "auto",
        context=None,
        rank=max([LEAST_RANK, *(adapter.shape.rank for adapter in adapters)]),
        max_loras=len(adapters) + SPARE_SLOTS,
        max_rows=max_rows,
        arguments=arguments,
    )
    command = partial(vllm_command, find_vllm(), options, host=host)
    with tempfile.TemporaryDirectory(prefix="legos-vllm-serve-") as text:
        folder = Path(text)
        for adapter in adapters:
            (folder / adapter.name).mkdir()
            write_peft(adapter, folder / adapter.name, base_model=name)
        process = vllm_process(
            command, port=port, host=host, log=folder / "vllm.log", say=say, api_key=api_key
        )
        ended = threading.Event()
        failures: list[ServerProcess] = []

        def load(server: ServerProcess) -> None:
            asyncio.run(_load(server.url, options.name, adapters, folder, api_key=api_key))

        def again(server: ServerProcess) -> None:
            load(server)
            say("vLLM had ended and was started again")

        def gave_up(server: ServerProcess) -> None:
            failures.append(server)
            ended.set()

        with closing(process):
            process.start()
            process.wait()
            load(process)
            with (
                suppress(KeyboardInterrupt),  # or what SIGTERM raises in a command
                kept_running([process], most=MOST_RESTARTS, again=again, gave_up=gave_up),
            ):
                say(_message(process.url, options.name, adapters, keyed=api_key is not None))
                ended.wait()
        if failures:
            raise EngineError(f"vLLM has ended {MOST_RESTARTS + 1} times.\n{process.end_of_log()}")


async def _load(
    url: str, base: str, adapters: Sequence[Adapter], folder: Path, *, api_key: str | None
) -> None:
    """Load the adapters, and check that each changes the answers.

    Raises:
        AdapterError: vLLM refuses one, or ignores it.
    """
    server = VllmApi(url, api_key=api_key)
    try:
        plain = await server.logprobs(base, PROMPT, PROMPT)
        for adapter in adapters:
            await server.load(adapter.name, str(folder / adapter.name), base_model=base)
            found = await server.logprobs(adapter.name, PROMPT, PROMPT)
            trained = any(np.any(a) for n, a in adapter.arrays.items() if n.endswith("lora_b"))
            if trained and np.array_equal(found, plain):
                raise AdapterError(
                    f"vLLM has loaded adapter {adapter.name!r} but answers like the base model: "
                    "it ignores tensors whose names are not those of its modules; give the model "
                    "that the adapter was trained on (--model)"
                )
    finally:
        await server.aclose()


def _message(url: str, base: str, adapters: Sequence[Adapter], *, keyed: bool) -> str:
    named = [f"{adapter.name} (version {adapter.version})" for adapter in adapters]
    content = EXAMPLE if base == BUILTIN else "Hello"
    body = {
        "model": adapters[0].name if adapters else base,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1 if base == BUILTIN else 64,
    }
    key = '-H "Authorization: Bearer $LEGOS_API_KEY" ' if keyed else ""
    return (
        f"vLLM serves {', '.join([base, *named])} at {url}/v1\n"
        f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'\n"
        f"uv run legos train --server {url}\n"
    )
