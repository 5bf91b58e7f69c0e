"""A second device in NumPy: a policy that is a table of logits, one row for every context.

It serves the same seams as a real device and is slow and exact: the engine draws from the table,
and the backend differentiates the kit's own loss by central finite differences, so every objective
works on it. Moves must be restricted to the legal ones, since only their logits are in the table.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from legos.data.batch import Batch, make_batch, pad_rows
from legos.data.names import POLICY
from legos.data.request import Generated, Request, Result
from legos.data.sample import Sample
from legos.data.step import PassResult, Update
from legos.errors import AdapterError, CheckpointError, RequestError, TrainerError
from legos.losses.objective import Objective
from legos.losses.places import Places, chosen_logprobs, place_logprobs
from legos.losses.total import BatchArrays, total_loss
from legos.protocols import Deliver
from legos.testing.records import float64
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape
from legos.weights.tensors import pack_tensors, unpack_tensors

__all__ = ["TableBackend", "TableEngine"]

Floats = NDArray[np.float64]
T = TypeVar("T")
Table = Mapping[str, Floats]  # context -> [V] logits; a context that is missing has zeros
NO_LORA = LoraShape(rank=0, scale=0.0, num_layers=0, modules=())
STATE_FILE = "table.safetensors"
EPSILON = 1e-4  # of the finite differences, nats


def context(token_ids: Sequence[int]) -> str:
    """The name of the row that holds the logits after some tokens."""
    return "-".join(map(str, token_ids))


def _log_softmax(logits: Floats) -> Floats:
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


class TableEngine:
    """Draws from the newest table under each name, at once and on the calling thread."""

    def __init__(self, num_vocabulary: int) -> None:
        self._num_vocabulary = num_vocabulary
        self._live: dict[str, Adapter] = {}
        self._lock = threading.Lock()
        self._drawn = 0

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Answer every request before returning."""
        with self._lock:
            results = [(number, self._answer(request)) for number, request in requests]
        deliver(results)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """Nothing waits here."""

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make a table live under its name."""
        with self._lock:
            self._live[adapter.name] = adapter
        return _done(adapter.info)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Forget a table; the future raises ``AdapterError`` for unknown names."""
        with self._lock:
            if self._live.pop(name, None) is None:
                return _failed(AdapterError(f"adapter {name!r} is not live; live: {self._live}"))
            return _done(None)

    def versions(self) -> Mapping[str, int]:
        """Name -> policy version."""
        return {name: adapter.version for name, adapter in self._live.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Name -> version and digest."""
        return {name: adapter.info for name, adapter in self._live.items()}

    def stats(self) -> Mapping[str, float]:
        """Tokens drawn so far."""
        return {"tokens_generated_total": self._drawn}

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats) of each continuation among those of its prompt."""
        table = self._live[adapter].arrays
        scores: list[list[float]] = []
        for prompt, answers in prompts:
            if any(len(answer) != 1 for answer in answers):
                return _failed(RequestError("a table scores choices of one token alone"))
            row = self._row(table, prompt)
            scores.append(_log_softmax(row[[token for (token,) in answers]]).tolist())
        return _done(scores)

    def _row(self, table: Table, token_ids: Sequence[int]) -> Floats:
        found = table.get(context(token_ids))
        return np.zeros(self._num_vocabulary) if found is None else found

    def _answer(self, request: Request) -> Result:
        """Draw until an answer is whole."""
        live, node = self._live.get(request.adapter), request.choices
        if live is None or node is None or not request.restrict:
            return RequestError(
                f"adapter {request.adapter!r}, restrict {request.restrict}: a table draws for live "
                "adapters, among given choices alone; set play.restrict_choices"
            )
        table = live.arrays
        tokens: list[int] = []
        logprobs: list[float] = []
        legal: list[tuple[int, ...]] = []
        while node is not None and not node.closed and len(tokens) < request.max_tokens:
            row = self._row(table, request.prompt_ids + tuple(tokens))
            found = _log_softmax(row[list(node.legal)] / request.temperature)
            draw = np.random.default_rng([request.seed, len(tokens)])
            index = int(draw.choice(len(found), p=np.exp(found)))
            tokens.append(node.legal[index])
            logprobs.append(min(0.0, float(found[index])))
            legal.append(node.legal)
            node = node.children.get(tokens[-1])
        self._drawn += len(tokens)
        return Generated(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            versions=(live.version,) * len(tokens),
            legal=tuple(legal),
            finish_reason="stop" if node is None or node.closed else "length",
        )


class TableBackend:
    """Gradients of a table by finite differences, and plain gradient descent."""

    def __init__(self, num_vocabulary: int) -> None:
        self._num_vocabulary = num_vocabulary
        self._table: dict[str, Floats] = {}
        self._ema: dict[str, Floats] = {}
        self._reference: Table = {}
        self._gradients: dict[str, Floats] | None = None
        self._version = 0

    @property
    def version(self) -> int:
        """Updates applied so far."""
        return self._version

    def forward_backward(
        self, samples: Sequence[Sample], weights: Sequence[float], objective: Objective
    ) -> "Future[PassResult]":
        """Loss, sums and gradients of a step; the future raises for samples of open moves."""
        if not all(sample.restricted for sample in samples):
            return _failed(TrainerError("a table is trained on restricted choices alone"))
        batch = _batch_of(samples, weights)
        arrays, places, contexts = BatchArrays(np, batch), Places(np, batch), _contexts(batch)
        logits, reference, ema = (
            self._logits(table, contexts) for table in (self._table, self._reference, self._ema)
        )
        everywhere, _ = place_logprobs(np, logits, places)
        logprobs = chosen_logprobs(everywhere, batch.sample_place, batch.target)

        def loss_of(logits: Floats) -> tuple[float, Floats]:
            loss, sums = total_loss(
                np,
                logits,
                arrays,
                objective,
                reference=reference if objective.kl_coef else None,
                average=ema if objective.ema_kl_coef else None,
                frozen=logprobs,
            )
            return float(loss), sums

        self._gradients = gradients = {name: np.zeros(self._num_vocabulary) for name in contexts}
        for place, token in zip(*np.nonzero(_is_legal(batch, self._num_vocabulary)), strict=True):
            ends: list[float] = []
            for move in (EPSILON, -EPSILON):
                moved = logits.copy()
                moved[place, token] += move
                ends.append(loss_of(moved)[0])
            gradients[contexts[place]][token] += (ends[0] - ends[1]) / (2 * EPSILON)
        loss, sums = loss_of(logits)
        return _done(
            PassResult(
                loss=loss,
                sums=tuple(sums.tolist()),
                grad_norm=_norm(gradients),
                logprobs=[
                    row[mask].astype(np.float32)
                    for row, mask in zip(logprobs, batch.mask, strict=True)
                ],
            )
        )

    def optim_step(self, update: Update) -> "Future[int]":
        """Gradient descent on the last step's gradients."""
        gradients, self._gradients = self._gradients, None
        if gradients is None:
            return _failed(TrainerError("there are no gradients; call forward_backward first"))
        scale = update.learning_rate * min(1.0, update.max_grad_norm / (_norm(gradients) + 1e-12))
        nothing = np.zeros(self._num_vocabulary)
        before, self._table = self._table, dict(self._table)
        for name, gradient in gradients.items():
            self._table[name] = before.get(name, nothing) - scale * gradient
        keep = update.ema_decay or 0.0
        self._ema = {
            name: keep * self._ema.get(name, nothing) + (1.0 - keep) * row
            for name, row in self._table.items()
        }
        self._version += 1
        every = update.kl_refresh_steps
        if every is not None and self._version % every == 0:
            self._reference = self._table
        return _done(self._version)

    def adapter(self) -> Adapter:
        """The table as it is."""
        return Adapter(name=POLICY, version=self._version, shape=NO_LORA, arrays=self._table)

    def save(self, folder: Path) -> None:
        """Write the table, its EMA and the reference."""
        parts = {"table": self._table, "ema": self._ema, "reference": self._reference}
        arrays = {
            f"{part}/{name}": row for part, rows in parts.items() for name, row in rows.items()
        }
        texts = {"version": str(self._version)}
        (folder / STATE_FILE).write_bytes(pack_tensors(arrays, texts))

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote, in single precision.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        try:
            arrays, texts = unpack_tensors((folder / STATE_FILE).read_bytes())
        except (OSError, AdapterError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error
        parts: dict[str, dict[str, Floats]] = {"table": {}, "ema": {}, "reference": {}}
        for name, row in arrays.items():
            part, _, of_context = name.partition("/")
            parts[part][of_context] = row.astype(np.float64)
        self._table, self._ema, self._reference = parts.values()
        self._version = int(texts["version"])

    def _logits(self, table: Table, contexts: Sequence[str]) -> Floats:
        """[P, V]."""
        nothing = np.zeros(self._num_vocabulary)
        return np.stack([table.get(name, nothing) for name in contexts])


def _batch_of(samples: Sequence[Sample], weights: Sequence[float]) -> Batch:
    """All samples as one batch in double precision, in their order, equal rows once."""
    rows = {
        row: index for index, row in enumerate(dict.fromkeys(s.token_ids[:-1] for s in samples))
    }
    read_at = [[(rows[s.token_ids[:-1]], p - 1) for p in s.positions] for s in samples]
    return float64(make_batch(pad_rows(list(rows)), samples, weights, read_at))


def _contexts(batch: Batch) -> list[str]:
    """[P] the context of each place."""
    at = zip(batch.place_row, batch.place_column, strict=True)
    return [context(batch.input_ids[row, : column + 1].tolist()) for row, column in at]


def _is_legal(batch: Batch, num_vocabulary: int) -> NDArray[np.bool_]:
    """[P, V] True where a token could be chosen."""
    found = np.zeros((len(batch.place_legal), num_vocabulary + 1), np.bool_)
    np.put_along_axis(found, batch.place_legal, values=True, axis=1)  # -1: the last column
    return found[:, :-1]


def _norm(gradients: Table) -> float:
    return float(np.sqrt(sum((row**2).sum() for row in gradients.values())))


def _done(result: T) -> "Future[T]":
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _failed(error: Exception) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
