"""Several LoRA adapters in one module tree; each row of a batch uses its own adapter."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from legos.errors import AdapterError
from legos.mlx.generate.multi_lora.slot_batch import Current, SlotBatch
from legos.mlx.generate.multi_lora.slot_layers import (
    EXPERTS,
    AdaptedModule,
    Pair,
    become_experts,
    become_slotted,
)
from legos.mlx.model.lora import LINEAR, SWITCH, check_foreign, pair_shapes
from legos.weights.adapter import Adapter
from legos.weights.fits import check_arrays, own_names

NO_ADAPTER = 0
"""The slot of the base model, which is always there."""

PARTS = ("lora_a", "lora_b")


class AdapterSlots:
    """Per-row LoRA on one module tree; slot 0 is the base model.

    The tree's names and base arrays are unchanged. Arrays of an adapter that are already on the
    device are used without a copy. Only the thread that owns the tree may call the methods.
    """

    def __init__(self, model: nn.Module) -> None:
        """Take over a tree; nothing in it changes until an adapter is loaded.

        Raises:
            AdapterError: the tree already has LoRA or adapter slots.
        """
        self._modules: dict[str, nn.Module] = dict(model.named_modules())
        for name, module in self._modules.items():
            if "lora_a" in module or hasattr(module, "legos_adapted"):
                raise AdapterError(f"{name} has LoRA already; give a tree as it was loaded")
        self._adapted: dict[str, AdaptedModule] = {}
        self._slots: dict[int, frozenset[str]] = {NO_ADAPTER: frozenset()}
        self._digests: dict[int, str] = {}  # of the weights in a slot
        self._next = NO_ADAPTER + 1
        self._current = Current()
        self._batch: SlotBatch | None = None  # the last one, for rows with the same slots

    @property
    def uncalled(self) -> tuple[str, ...]:
        """Names of adapted modules that no forward pass with adapters has called."""
        return tuple(name for name, adapted in self._adapted.items() if not adapted.called)

    def load(self, adapter: Adapter) -> int:
        """Put an adapter into a new slot.

        Returns:
            The number of the slot, which is never used again for another one.

        Raises:
            AdapterError: a tensor does not fit (the message names the first); nothing is changed.
        """
        pairs = self._checked(adapter)
        slot = self._next
        self._next += 1
        for name, pair in pairs.items():
            self._adapted_module(name).put(slot, pair)
        self._slots[slot], self._digests[slot] = frozenset(pairs), adapter.digest
        return slot

    def free(self, slot: int) -> None:
        """Remove a slot that ``load`` has returned, and release its arrays."""
        for name in self._slots.pop(slot):
            self._adapted[name].put(slot, None)
        del self._digests[slot]
        self._batch = None

    def forget(self) -> None:
        """Compute the next rows whatever rows came before."""
        self._batch = None

    def rows(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, row i of every batch [B, ...] uses the adapter in ``slots[i]``.

        Contexts nest; outside of all, every row uses the base model. Where the output head is
        called on logit positions [P, hidden] instead of rows, call it in a context with the slots
        of the positions, unless all slots are equal.

        Args:
            slots: [B] the slot of each row.

        Raises:
            AdapterError: no such slot.
        """
        wanted = tuple(slots)
        if self._batch is None or self._batch.slots != wanted:
            distinct = frozenset(wanted)
            for slot in distinct - self._slots.keys():
                raise AdapterError(f"no adapter in slot {slot}; there are {list(self._slots)}")
            if not wanted or distinct == {NO_ADAPTER}:
                return self._current.using(None)
            self._batch = SlotBatch(wanted, self._stacked(distinct - {NO_ADAPTER}))
        return self._current.using(self._batch)

    def _stacked(self, distinct: frozenset[int]) -> tuple[int, ...]:
        """Slots to stack; those of the last batch are kept if few, to avoid rebuilding stacks.

        Weights decide their order, as slots are numbered in the order of loading.
        """
        before = frozenset(self._batch.stacked if self._batch else ()) & self._slots.keys()
        union = before | distinct
        stacked = union if len(union) <= 2 * len(distinct) else distinct
        return tuple(sorted(stacked, key=lambda slot: (self._digests[slot], slot)))

    def _adapted_module(self, name: str) -> AdaptedModule:
        adapted = self._adapted.get(name)
        if adapted is None:
            adapted = self._adapted[name] = AdaptedModule(name, self._modules[name], self._current)
            if isinstance(adapted.module, SWITCH):
                become_experts(self._modules[_parent(name)], self._current)
            become_slotted(adapted)
        return adapted

    def _checked(self, adapter: Adapter) -> dict[str, Pair]:
        """Check an adapter; module name -> pair. The tree is not changed.

        Pairs that have no effect, such as all pairs before the first step, are left out.
        """
        check_foreign(self._modules[""], adapter)
        label, shape = f"{adapter.name} v{adapter.version}", adapter.shape
        title = f"adapter {label!r}"
        named = own_names(adapter.arrays, self._modules)
        arrays = {key: _on_device(named[key]) for key in sorted(named)}
        names = dict.fromkeys(self._module_name(key, title) for key in arrays)
        taken: dict[int, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            first = taken.setdefault(id(self._modules[name]), name)
            if first != name:
                raise AdapterError(f"{title}: {name} and {first} are one module; adapt one of them")
            pair = pair_shapes(self._modules[name], shape.rank)
            shapes |= {f"{name}.{part}": want for part, want in zip(PARTS, pair, strict=True)}
        host = {key: _on_host(array) for key, array in arrays.items()}
        check_arrays(host, shapes, name=label)
        return {
            name: Pair(
                a=arrays[f"{name}.lora_a"],
                b=arrays[f"{name}.lora_b"],
                scale=shape.scale,
                rank=shape.rank,
            )
            for name in names
            if host[f"{name}.lora_b"].any()
        }

    def _module_name(self, key: str, title: str) -> str:
        """The name of the module that a tensor adapts."""
        name = _parent(key)
        module = self._modules.get(name)
        if module is None:
            hint = "; was it trained on another model?"
            if name.endswith("lm_head"):
                hint = ": its output head is tied to the embedding; train without the head"
            raise AdapterError(f"{title}: {key} adapts what this model has not{hint}")
        if isinstance(module, (nn.Embedding, nn.QuantizedEmbedding)):
            raise AdapterError(
                f"{title}: {key} adapts an embedding, which may be the output head as well and is "
                "not served; train without it"
            )
        if not isinstance(module, LINEAR):
            raise AdapterError(
                f"{title}: {key} adapts a {type(module).__name__}; expected a linear module"
            )
        parent = self._modules.get(_parent(name))
        if isinstance(module, SWITCH) and not isinstance(parent, EXPERTS):
            raise AdapterError(
                f"{title}: {key} adapts experts of a {type(parent).__name__}; served are those of "
                f"{' and '.join(kind.__name__ for kind in EXPERTS)}: train without it"
            )
        return name


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _on_device(array: Any) -> mx.array:
    """The array itself where it is already on the device, else a copy there."""
    return array if isinstance(array, mx.array) else mx.array(np.asarray(array))


def _on_host(array: mx.array) -> Any:
    """An evaluated array as a NumPy array, without a copy where memory is shared.

    For many small arrays, reading on the host takes a twentieth of the time of the device.
    """
    return np.asarray(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)
