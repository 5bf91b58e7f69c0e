"""A device in NumPy whose policy is a table of logits, with one row for every context.

It is slow and exact: the engine samples from the table, and the backend differentiates the kit's
own loss by central finite differences. Sampling must be restricted to legal moves, because only
their logits are in the table.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fakes.engine import FakeEngine
from fakes.futures import answered
from numpy.typing import NDArray
from random_samples import float64
from total_loss import total_loss

from legos.chat.load import load_tokenizer
from legos.chat.tools import PLAIN_TOOLS
from legos.device import ModelHandle
from legos.errors import AdapterError, CheckpointError, RequestError, Stopped, TrainerError
from legos.losses.objective import Objective
from legos.losses.positions import Positions, position_logprobs
from legos.losses.softmax import log_softmax
from legos.losses.total import BatchArrays
from legos.protocols import Snapshot
from legos.records.batch import Batch, make_batch, pad_rows
from legos.records.count import Count
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.names import POLICY
from legos.records.request import Generated, Request
from legos.records.sample import Sample
from legos.records.step import BackendConfig, PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.tensors import pack_tensors, unpack_tensors

__all__ = ["STEP", "TableBackend", "TableDevice", "TableEngine", "TableModel"]

Floats = NDArray[np.float64]
Table = Mapping[str, Floats]  # context -> [V] logits; a context that is missing has zeros
NO_LORA = LoraShape(rank=1, scale=1.0, num_layers=0, modules=())
EPSILON = 1e-4  # step of the finite differences, nats
STEP = 100.0  # factor of the learning rate: a logit needs larger steps than a network's weight


class TableDevice:
    """A device that reads only the tokenizer from a model's folder."""

    def load(
        self,
        name: str,
        *,
        inline: bool = False,
        training: TrainingSize | None = None,
        report: Callable[[str], object] | None = None,
    ) -> "TableModel":
        """A model with a uniform policy; it always fits, and runs on the calling thread."""
        return TableModel(Path(name))

    def facts(self) -> Mapping[str, str]:
        """The version of NumPy."""
        return {"numpy": np.__version__}


class TableModel(ModelHandle):
    """A tokenizer and an empty table."""

    tool_format = PLAIN_TOOLS
    num_parameters = 0
    dtype = "float64"
    context = 1 << 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = load_tokenizer(folder)
        self.num_vocabulary = self.tokenizer.vocab_size
        self.lora: LoraShape | None = None
        self._table: Table = {}

    @property
    def turns(self) -> Mapping[str, int | None]:
        """No thread: everything runs on the caller's."""
        return {}

    def __call__(
        self, input_ids: Sequence[int], *, adapter: Adapter | None = None
    ) -> NDArray[np.float32]:
        """[T, V] logits after each of T tokens."""
        own = {} if self._without_lora else self._table
        table = own if adapter is None else adapter.arrays
        names = [_context(input_ids[: end + 1]) for end in range(len(input_ids))]
        return _logits(table, names, self.tokenizer.vocab_size).astype(np.float32)

    def lora_shape(self, **_: Any) -> LoraShape:
        """A shape without modules."""
        return NO_LORA

    def add_lora(self, shape: LoraShape, *, seed: int = 0) -> None:
        """Mark the model as trainable."""
        self.lora = shape

    def set_adapter(self, adapter: Adapter) -> None:
        """Make calls read this table."""
        self._table = adapter.arrays

    def base_adapter(self) -> Adapter:
        """The empty table."""
        return Adapter(name=POLICY, version=0, shape=NO_LORA, arrays={})

    def _lora_arrays(self) -> Table:
        return self._table

    def write_fused(self, adapter: Adapter, folder: Path) -> float:
        """Raise ``AdapterError``: there are no weights to merge a table into."""
        raise AdapterError("a table of logits cannot be merged into a model")

    def make_engine(self, limits: EngineLimits | None = None) -> "TableEngine":
        """Make an engine; it has no limits and needs no watchdog."""
        return TableEngine(self.tokenizer.vocab_size)

    def make_backend(self, config: BackendConfig | None = None) -> "TableBackend":
        """Make a backend of one policy, which ignores the settings."""
        return TableBackend(self.tokenizer.vocab_size)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class TableEngine(FakeEngine):
    """Samples from the newest table of each name, at once and on the calling thread."""

    def __init__(self, num_vocabulary: int) -> None:
        super().__init__(self._sample)
        self._num_vocabulary = num_vocabulary

    @answered
    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> list[list[float]]:
        """Log-probability (nats) of each continuation, normalised over those of its prompt."""
        if by_token or any(len(answer) != 1 for _, answers in prompts for answer in answers):
            raise RequestError("a table scores choices of one token alone")
        return [
            log_softmax(np, self._row(adapter, prompt)[[token for (token,) in answers]]).tolist()
            for prompt, answers in prompts
        ]

    def _row(self, adapter: str, token_ids: Sequence[int]) -> Floats:
        table = self.live[adapter].arrays
        return _logits(table, [_context(token_ids)], self._num_vocabulary)[0]

    def _sample(self, request: Request) -> Generated:
        """Sample until an answer is complete."""
        live, node = self.live.get(request.adapter), request.choices
        if live is None:
            raise RequestError(f"adapter {request.adapter!r} is not live; live: {[*self.live]}")
        if node is None or not request.restrict:
            raise RequestError("a table draws among legal choices alone; set play.restrict_choices")
        tokens: list[int] = []
        logprobs: list[float] = []
        legal: list[tuple[int, ...]] = []
        while node is not None and not node.closed and len(tokens) < request.max_tokens:
            row = self._row(request.adapter, (*request.prompt_ids, *tokens))
            found = log_softmax(np, row[list(node.legal)] / request.temperature)
            draw = np.random.default_rng([request.seed, len(tokens)])
            index = int(draw.choice(len(found), p=np.exp(found)))  # pyrefly: ignore[unnecessary-type-conversion]
            tokens.append(node.legal[index])
            logprobs.append(min(0.0, float(found[index])))
            legal.append(node.legal)
            node = node.children.get(tokens[-1])
        return Generated(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            versions=(live.version,) * len(tokens),
            legal=tuple(legal),
            finish_reason="stop" if node is None or node.closed else "length",
        )


class TableBackend:
    """A backend of one policy: gradients by finite differences, and plain gradient descent."""

    def __init__(self, num_vocabulary: int) -> None:
        self._num_vocabulary = num_vocabulary
        self._parts: dict[str, Table] = {"table": {}, "ema": {}, "reference": {}}
        self._gradients: Table | None = None
        self._version = 0
        self.passes = Count(unit="passes")

    @property
    def version(self) -> int:
        """Number of updates applied so far."""
        return self._version

    @answered
    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        *,
        policy: str = POLICY,
        stop: Stop = never,
    ) -> PassResult:
        """Loss, sums and gradients of a step; the future raises for unrestricted samples."""
        if stop():
            raise Stopped
        batch = _batch_of(samples, weights)
        arrays, contexts = BatchArrays(np, batch), _contexts(batch)
        logits, ema, reference = (
            _logits(table, contexts, self._num_vocabulary) for table in self._parts.values()
        )
        reference = reference if objective.kl_coef else None
        ema = ema if objective.ema_kl_coef else None
        logprobs = _chosen(batch, logits)

        def loss_of(logits: Floats) -> tuple[float, Floats]:
            loss, sums = total_loss(
                np, logits, arrays, objective, reference=reference, ema=ema, frozen=logprobs
            )
            return float(loss), sums

        self._gradients = gradients = {name: np.zeros(self._num_vocabulary) for name in contexts}
        for position, number in zip(*np.nonzero(batch.logit_legal >= 0), strict=True):
            token = batch.logit_legal[position, number]
            move = np.zeros_like(logits)
            move[position, token] = EPSILON
            change = loss_of(logits + move)[0] - loss_of(logits - move)[0]
            gradients[contexts[position]][token] += change / (2 * EPSILON)
        loss, sums = loss_of(logits)
        return PassResult(
            loss=loss,
            sums=tuple(sums.tolist()),
            grad_norm=_norm(gradients),
            logprobs=_by_sample(batch, logprobs),
        )

    @answered
    def optim_step(self, update: Update, *, policies: Sequence[str] = (POLICY,)) -> None:
        """Apply the last step's gradients by gradient descent, whatever their norm."""
        gradients, self._gradients = self._gradients, None
        if gradients is None:
            raise TrainerError("there are no gradients; call forward_backward first")
        rate, nothing = STEP * update.learning_rate, np.zeros(self._num_vocabulary)
        before, ema = self._parts["table"], self._parts["ema"]
        moved = {name: before.get(name, nothing) - rate * g for name, g in gradients.items()}
        self._parts["table"] = table = {**before, **moved}
        keep = update.ema_decay or 0.0
        self._parts["ema"] = {
            name: keep * ema.get(name, nothing) + (1.0 - keep) * row for name, row in table.items()
        }
        self._version += 1
        if update.kl_refresh_steps and self._version % update.kl_refresh_steps == 0:
            self._parts["reference"] = table

    def adapter(self, policy: str = POLICY) -> Adapter:
        """The current table."""
        arrays = self._parts["table"]
        return Adapter(name=POLICY, version=self._version, shape=NO_LORA, arrays=arrays)

    @answered
    def take(self, adapter: Adapter, *, policy: str = POLICY) -> int:
        """Go on from another table."""
        self._parts["table"] = self._parts["ema"] = dict(adapter.arrays)
        self._version += 1
        return self._version

    @answered
    def snapshot(self) -> Snapshot:
        """The table, its EMA and the reference."""
        texts = {"version": str(self._version)}
        files = {part: pack_tensors(table, texts) for part, table in self._parts.items()}

        def write(folder: Path) -> None:
            for part, data in files.items():
                (folder / f"{part}.safetensors").write_bytes(data)

        return write

    def restore(self, folder: Path) -> None:
        """Read what a snapshot wrote, in single precision.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        for part in self._parts:
            try:
                arrays, texts = unpack_tensors((folder / f"{part}.safetensors").read_bytes())
            except (OSError, AdapterError) as error:
                raise CheckpointError(f"{folder} cannot be restored: {error}") from error
            self._parts[part] = {name: row.astype(np.float64) for name, row in arrays.items()}
            self._version = int(texts["version"])


def _context(token_ids: Sequence[int]) -> str:
    """The name of the table row with the logits after some tokens."""
    return "-".join(map(str, token_ids))


def _logits(table: Table, contexts: Sequence[str], num_vocabulary: int) -> Floats:
    """[P, V] rows of a table; zeros for missing contexts."""
    nothing = np.zeros(num_vocabulary)
    return np.stack([table.get(name, nothing) for name in contexts])


def _batch_of(samples: Sequence[Sample], weights: Sequence[float]) -> Batch:
    """All samples, in order, as one batch in double precision; equal rows are stored once.

    Raises:
        TrainerError: a sample was not restricted to legal tokens.
    """
    if not all(sample.restricted for sample in samples):
        raise TrainerError("a table is trained on restricted choices alone")
    numbers = {row: n for n, row in enumerate(dict.fromkeys(s.token_ids[:-1] for s in samples))}
    read_at = [[(numbers[s.token_ids[:-1]], p - 1) for p in s.positions] for s in samples]
    return float64(make_batch(pad_rows(list(numbers)), samples, weights, read_at))


def _contexts(batch: Batch) -> list[str]:
    """[P] context of each logit position."""
    at = zip(batch.logit_row, batch.logit_column, strict=True)
    return [_context(batch.input_ids[row, : column + 1].tolist()) for row, column in at]


def _chosen(batch: Batch, logits: Floats) -> Floats:
    """[S, A] log-probabilities (nats) of the chosen tokens."""
    everywhere, _ = position_logprobs(np, logits, Positions(np, batch))
    return everywhere[batch.logit_index, batch.target]


def _by_sample(batch: Batch, logprobs: Floats) -> list[NDArray[np.float32]]:
    return [row[mask].astype(np.float32) for row, mask in zip(logprobs, batch.mask, strict=True)]


def _norm(gradients: Table) -> float:
    return float(np.sqrt(sum((row**2).sum() for row in gradients.values())))
