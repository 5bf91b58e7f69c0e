"""A stand-in for the adapters of a vLLM server, for tests where the real one is not installed.

It reads the folders that it is asked to load. The log-probability of a token is minus its id times
the sum of the absolute values of the adapter's matrices B.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from published import small_adapter
from scripted_server import HttpAnswer, HttpAsked

from legos.remote.vllm.probe import Probe
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter

PROMPT, WATCHED = (3, 4), (5, 7)
NOT_FOUND = HttpAnswer({"error": {"message": "cannot be found"}}, 404)


def logprobs(adapter: Adapter | None, watched: Sequence[int] = WATCHED) -> NDArray[np.float64]:
    """[K] nats of the next token; None: the base model."""
    arrays = {} if adapter is None else adapter.arrays
    size = sum(np.abs(array).sum() for name, array in arrays.items() if name.endswith("lora_b"))
    return -np.array(watched) * float(size)


def small_probe() -> Probe:
    return Probe(PROMPT, WATCHED, logprobs, like=small_adapter(0))


class StandIn:
    """The state of the server; ``reply`` answers requests.

    Attributes:
        loaded: name -> the adapter.
        paths: name -> its folder.
        raw: whether it reports log-probabilities of the model, and not of what it samples from.
        base: name of the base model.
        root: its folder.
        calls: what was loaded and unloaded, in order.
        before: called with each request first; what it returns is the answer.
    """

    def __init__(self, *, slots: int = 4, ignores: bool = False, base: str = "tiny") -> None:
        self.slots, self.ignores = slots, ignores
        self.base, self.root = base, f"/models/{base}"
        self.loaded: dict[str, Adapter] = {}
        self.paths: dict[str, str] = {}
        self.raw = False
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[HttpAsked], HttpAnswer | None] = lambda asked: None

    def reply(self, asked: HttpAsked) -> HttpAnswer:
        verb = asked.path.rpartition("/")[2]
        return self.before(asked) or getattr(self, f"_{verb}")(asked)

    def restart(self) -> None:
        """Lose all adapters."""
        self.loaded, self.paths = {}, {}

    def _health(self, asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer(b"")

    def _metrics(self, asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer(f'vllm:lora_requests_info{{max_lora="{self.slots}"}} 1.0'.encode())

    def _models(self, asked: HttpAsked) -> HttpAnswer:
        roots = {self.base: self.root, **self.paths}
        listed = [{"id": id, "root": root, "owned_by": "vllm"} for id, root in roots.items()]
        return HttpAnswer({"data": listed})

    def _load_lora_adapter(self, asked: HttpAsked) -> HttpAnswer:
        name, path = asked.body["lora_name"], asked.body["lora_path"]
        self.calls.append(("load", name))
        if name in self.loaded:
            message = f"The lora adapter '{name}' has already been loaded."
            return HttpAnswer({"error": {"message": message}}, 400)
        self.loaded[name], self.paths[name] = read_adapter(Path(path)), path
        return HttpAnswer(b"Success")

    def _unload_lora_adapter(self, asked: HttpAsked) -> HttpAnswer:
        name = asked.body["lora_name"]
        self.calls.append(("unload", name))
        if self.loaded.pop(name, None) is None:
            return NOT_FOUND
        del self.paths[name]
        return HttpAnswer(b"Success")

    def _completions(self, asked: HttpAsked) -> HttpAnswer:
        name = asked.body["model"]
        if name != self.base and name not in self.loaded:
            return NOT_FOUND
        if "messages" in asked.body:
            return HttpAnswer({"choices": [{"message": {"content": f"{name} answers"}}]})
        adapter = None if self.ignores else self.loaded.get(name)
        watched = asked.body.get("logprob_token_ids", ())
        values = zip(watched, logprobs(adapter, watched), strict=True)
        tops = {f"token_id:{token}": nats for token, nats in values}
        nats = 0.0 if "allowed_token_ids" in asked.body and not self.raw else -1.0
        sampled = {"token_logprobs": [nats], "top_logprobs": [tops]}
        choice = {"finish_reason": "length", "token_ids": [5], "logprobs": sampled}
        choices = [{"index": index, **choice} for index in range(len(asked.body["prompt"]))]
        return HttpAnswer(json.dumps({"choices": choices}).encode())
