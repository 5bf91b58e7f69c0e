"""Peak memory of a computation from its graph alone: nothing is computed or allocated.

``peak_of`` builds the graph of a function and goes through it as MLX's evaluation does: in its
order, views without memory of their own, outputs in the buffers of inputs that nobody reads again.
The device runs some operations behind, so a buffer is released later than its last reader starts.
"""

import gc
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

__all__ = ["num_operations", "of_tree", "peak_of"]

WIDTH = 20  # MLX orders a graph breadth first while fewer operations than this wait
BEHIND = 110  # dispatches that the device may run behind: 11 tasks of 10
DONATED = 1 << 14  # bytes by which a donated buffer may exceed the output
_VIEWS = {
    "AsStrided", "Broadcast", "BroadcastAxes", "Copy", "CustomTransforms", "Depends", "ExpandDims",
    "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten",
}  # fmt: skip
_RESHAPES = {"Contiguous", "Flatten", "Reshape"}  # views where the strides allow it, else copies
_PRODUCTS = {"AddMM", "GatherMM", "GatherQMM", "Matmul", "QuantizedMatmul", "SegmentedMM"}
_NEVER_DONATED = _PRODUCTS | {
    "Arange", "ArgPartition", "ArgReduce", "ArgSort", "Concatenate", "Full", "Gather", "GatherAxis",
    "LogSumExp", "Pad", "Partition", "RandomBits", "Reduce", "Scan", "ScaledDotProductAttention",
    "ScaledDotProductAttentionVJP", "Sort",
}  # fmt: skip
Numbers = tuple[int, ...]


def peak_of(
    function: Callable[..., Sequence[mx.array]],
    *inputs: mx.array,
    behind: int = BEHIND,
    released: int = 0,
) -> int:
    """Bytes at the peak of evaluating a function's results, without those of its inputs.

    Args:
        function: builds the graph; it must not evaluate, and its results must not depend on those
            of ``mx.checkpoint`` or of functions with custom gradients; ``exportable`` has
            what stands for these.
        inputs: arrays of the right shapes and types, which may be lazy and stay so.
        behind: kernels by which the device may run behind.
        released: number of inputs, counted from the last, that nothing else holds. Their bytes
            count, and they are released after their last reader.

    Raises:
        NotImplementedError: the function fails, or MLX cannot export an operation of its graph.
    """
    with _uncollected():
        return _Run(_graph_of(function, *inputs), behind, released).peak()


def of_tree(
    measure: Callable[..., int],
    tree: nn.Module,
    function: Callable[[Mapping[str, mx.array], Sequence[mx.array]], Sequence[mx.array]],
    *inputs: mx.array,
    **options: int,
) -> int:
    """Measure a function of a tree whose weights, evaluated or not, count as inputs.

    Args:
        measure: ``peak_of`` or ``num_operations``.
        tree: the tree; it has its own weights again afterwards.
        function: builds the graph from the tree's weights by name, which the tree has, and the
            inputs.
        inputs: as those of ``measure``.
        options: options of ``measure``.
    """
    parameters: Any = tree_flatten(tree.parameters())
    names = [name for name, _ in parameters]

    def traced(*arrays: mx.array) -> Sequence[mx.array]:
        weights = dict(zip(names, arrays, strict=False))
        tree.update(tree_unflatten(list(weights.items())))
        return function(weights, arrays[len(names) :])

    try:
        return measure(traced, *(array for _, array in parameters), *inputs, **options)
    finally:
        tree.update(tree_unflatten(parameters))


def num_operations(function: Callable[..., Sequence[mx.array]], *inputs: mx.array) -> int:
    """Number of operations of a function's graph; arguments and errors as those of ``peak_of``."""
    return len(_graph_of(function, *inputs).ordered())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within the block, Python's cycle collector does not scan the many objects of a graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _graph_of(function: Callable[..., Sequence[mx.array]], *inputs: mx.array) -> "_Graph":
    graph = _Graph()
    try:
        mx.export_function(graph.take, function, *inputs)
    except Exception as error:  # of a model's code, whatever it is
        raise NotImplementedError(f"{type(error).__name__}: {error}") from error
    return graph


@dataclass(slots=True, eq=False)
class _Buffer:
    size: int  # bytes
    uses: int = 0  # arrays in it that are still read
    held: int = -BEHIND  # dispatch up to which the device holds it


@dataclass(slots=True)
class _Array:
    shape: Numbers
    itemsize: int
    strides: Numbers = ()  # in elements
    readers: int = 0  # operations that have not read it yet
    buffer: _Buffer | None = None  # None: an input, allocated before

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def dense(self) -> bool:
        """Whether its elements lie in order and without gaps."""
        own = zip(self.shape, self.strides, _dense(self.shape), strict=True)
        return all(count == 1 or stride == expected for count, stride, expected in own)

    @property
    def distinct(self) -> int:
        """Number of elements in memory, which broadcast axes share."""
        pairs = zip(self.strides, self.shape, strict=True)
        return math.prod(count for stride, count in pairs if stride)

    @property
    def gapless(self) -> bool:
        """Whether it is dense in some order of its axes, broadcast ones left out."""
        size = 1
        for stride, count in sorted(zip(self.strides, self.shape, strict=True)):
            if count > 1 and stride and stride != size:
                return False
            size *= count if stride else 1
        return True


@dataclass(slots=True, eq=False)
class _Operation:
    name: str
    inputs: list[str]
    outputs: list[str]
    arguments: Any


class _Graph:
    """The operations and arrays of a traced function."""

    def __init__(self) -> None:
        self.arrays: dict[str, _Array] = {}
        self.inputs: list[str] = []
        self.results: list[str] = []
        self._operations: list[_Operation] = []
        self._first: set[str] = set()  # results of checkpointed functions, to be read alone

    def take(self, part: Mapping[str, Any]) -> None:
        """Take over one part of what ``mx.export_function`` reports."""
        kind = part["type"]
        if kind == "inputs":
            for name, shape, dtype in part["inputs"]:
                self.arrays[name] = _Array(tuple(shape), dtype.size, _dense(shape))
                self.inputs.append(name)
        elif kind == "constants":
            for name, array in part["constants"]:
                self.arrays[name] = _Array(array.shape, array.itemsize, _dense(array.shape))
        elif kind == "outputs":
            self.results = [name for name, _, _ in part["outputs"]]
        elif kind == "primitive":
            for name, shape, dtype in part["outputs"]:
                self.arrays[name] = _Array(tuple(shape), dtype.size)
            inputs, outputs = ([each[0] for each in part[key]] for key in ("inputs", "outputs"))
            kind = part["name"]
            own, rest = inputs[: len(outputs)], inputs[len(outputs) :]
            if kind == "Depends" and rest[-len(outputs) :] == own:
                kind, inputs = "CustomTransforms", rest
                self._first.update(outputs)
            elif kind == "Add" and inputs[0] in self._first:
                kind, inputs = "Depends", inputs[:1]
            self._operations.append(_Operation(kind, inputs, outputs, part["arguments"]))

    def ordered(self) -> list[_Operation]:
        """The operations in the order of MLX's evaluation: from the results, backwards."""
        maker = {name: one for one in self._operations for name in one.outputs}
        end = _Operation("", self.results, [], None)
        reads: Counter[_Operation] = Counter()
        found, work = {end}, [end]
        while work:
            for name in work.pop().inputs:
                if name in maker:
                    one = maker[name]
                    reads[one] += 1
                    if one not in found:
                        found.add(one)
                        work.append(one)
        tape, index = [end], 0
        paused: list[tuple[_Operation, int]] = []
        while index < len(tape) or paused:
            one, first = (tape[index], 0) if index < len(tape) else paused.pop()
            index += first == 0 and index < len(tape)
            for at, name in enumerate(one.inputs[first:], first):
                if name not in maker:
                    continue
                if len(tape) - index >= WIDTH:
                    paused.append((one, at))
                    break
                reads[maker[name]] -= 1
                if not reads[maker[name]]:
                    tape.append(maker[name])
        return tape[:0:-1]


class _Run:
    """One pass through a graph, which counts the bytes of its buffers."""

    def __init__(self, graph: _Graph, behind: int, released: int) -> None:
        self._arrays = graph.arrays
        self._operations = graph.ordered()
        self._behind = behind
        self._kernels = self._bytes = self._most = 0
        self._late: deque[tuple[int, int]] = deque()  # number of a kernel, bytes that it releases
        for name in graph.inputs[len(graph.inputs) - released :]:
            array = self._arrays[name]
            array.buffer = self._allocate(array.nbytes)
            array.buffer.uses = 1
        for name in graph.results:
            self._arrays[name].readers += 1  # the caller keeps it
        for one in self._operations:
            for name in one.inputs:
                self._arrays[name].readers += 1

    def peak(self) -> int:
        """Peak of the allocated bytes."""
        for one in self._operations:
            inputs = [self._arrays[name] for name in one.inputs]
            outputs = [self._arrays[name] for name in one.outputs]
            self._kernels += 1
            copied = 0
            if not _as_view(one, inputs, outputs):
                self._kernels += 1
                if one.name in _PRODUCTS:
                    copies = [array.nbytes for array in inputs[:2] if not _multipliable(array)]
                    self._kernels += len(copies) + (one.name == "AddMM")
                    copied = sum(copies)
                    self._allocate(copied)
                elif one.name == "Concatenate":
                    self._kernels += len(inputs) - 1
                self._compute(one, inputs, outputs)
                made = [array.buffer for array in outputs]
                for array in inputs:
                    if array.buffer is not None and array.buffer not in made:
                        array.buffer.held = self._kernels
            for array in outputs:
                if array.buffer is not None:
                    array.buffer.uses += 1
            self._release(inputs, outputs, copied)
        return self._most

    def _allocate(self, size: int) -> _Buffer:
        self._bytes += size
        self._most = max(self._most, self._bytes)
        return _Buffer(size)

    def _compute(
        self, one: _Operation, inputs: Sequence[_Array], outputs: Sequence[_Array]
    ) -> None:
        for out in outputs:
            out.strides = _dense(out.shape)
        if one.name not in _NEVER_DONATED and len(outputs) == 1:
            out = outputs[0]
            alike = [array for array in inputs if array.shape == out.shape and array.gapless]
            alike.sort(key=lambda array: -array.distinct)
            if alike and all(a.strides == alike[0].strides or not any(a.strides) for a in inputs):
                out.strides = alike[0].strides
            out.buffer = next((a.buffer for a in alike if self._is_donated(a, out)), None)
        for out in outputs:
            if out.buffer is None:
                out.buffer = self._allocate(out.distinct * out.itemsize)

    def _is_donated(self, array: _Array, out: _Array) -> bool:
        """Whether an output gets the buffer of an input that nobody else reads."""
        buffer = array.buffer
        return (
            buffer is not None
            and array.readers == buffer.uses == 1
            and buffer.held <= self._kernels - self._behind
            and array.itemsize == out.itemsize
            and array.distinct == out.distinct
            and buffer.size <= out.nbytes + DONATED
        )

    def _release(self, inputs: Sequence[_Array], outputs: Sequence[_Array], copied: int) -> None:
        """Count down the readers; a buffer without any is released when the device gets there."""
        freed = copied
        for array in inputs:
            array.readers -= 1
        for array in {id(array): array for array in (*inputs, *outputs)}.values():
            if not array.readers and array.buffer is not None:
                array.buffer.uses -= 1
                freed += 0 if array.buffer.uses else array.buffer.size
        self._late.append((self._kernels, freed))
        while self._late and self._late[0][0] <= self._kernels - self._behind:
            self._bytes -= self._late.popleft()[1]


def _as_view(one: _Operation, inputs: Sequence[_Array], outputs: Sequence[_Array]) -> bool:
    """Put the outputs into the buffers of the inputs, where the operation copies nothing."""
    if not inputs or one.name not in _VIEWS | _RESHAPES:
        return False
    for number, out in enumerate(outputs):
        own = inputs[-len(outputs) :] if one.name == "CustomTransforms" else inputs
        source = own[min(number, len(own) - 1)]
        strides = _view(one, source, out.shape)
        if strides is None:
            return False
        out.strides, out.buffer = strides, source.buffer
    return True


def _view(one: _Operation, source: _Array, shape: Numbers) -> Numbers | None:
    """Strides of a view; None where the operation must copy."""
    if one.name == "Transpose":
        return tuple(source.strides[axis] for axis in one.arguments[0])
    if one.name in ("Broadcast", "BroadcastAxes"):
        extra = len(shape) - len(source.shape)
        own = zip(source.strides, source.shape, shape[extra:], strict=True)
        return (0,) * extra + tuple(stride if count == n else 0 for stride, count, n in own)
    if one.name == "Slice":
        return tuple(s * step for s, step in zip(source.strides, one.arguments[2], strict=True))
    if one.name not in _RESHAPES and len(source.shape) == len(shape):
        return source.strides
    found = _reshaped(source, shape)
    return found if one.name in _RESHAPES else found or _dense(shape)


def _reshaped(source: _Array, shape: Numbers) -> Numbers | None:
    """Strides of a view with another shape; None where the elements must move."""
    if source.dense:
        return _dense(shape)
    runs: list[list[int]] = []  # axes that lie behind each other, merged: count and stride
    for count, stride in zip(source.shape, source.strides, strict=True):
        if runs and runs[-1][1] == stride * count:
            runs[-1] = [runs[-1][0] * count, stride]
        elif count > 1:
            runs.append([count, stride])
    found: list[int] = []
    for count in shape:
        if count > 1 and (not runs or runs[0][0] % count):
            return None
        if count > 1:
            runs[0][0] //= count
        found.append(runs[0][0] * runs[0][1] if runs else 1)
        if runs and runs[0][0] == 1:
            runs.pop(0)
    return tuple(found)


def _multipliable(array: _Array) -> bool:
    """Whether a matrix product reads it without a copy: its last two axes are dense."""
    if len(array.shape) < 2:
        return True
    (rows, columns), (outer, inner) = array.shape[-2:], array.strides[-2:]
    return (inner == 1 and outer == columns) or (outer == 1 and inner == rows)


def _dense(shape: Sequence[int]) -> Numbers:
    strides = [1]
    for count in reversed(shape):
        strides.append(strides[-1] * count)
    return tuple(strides[-2::-1])
