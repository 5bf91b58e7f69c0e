"""The table of live adapters by name; it also keeps replaced ones while requests still use them."""

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import count

from legos.errors import AdapterError, RequestError, did_you_mean
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.records.names import BASE
from legos.weights.adapter import Adapter, AdapterInfo


@dataclass(slots=True, eq=False)
class LiveAdapter:
    """The weights that requests use under a name: an adapter, or the base model."""

    info: AdapterInfo | None  # version and digest; None for the base
    slot: int  # slot of the weights in the module tree
    epoch: int  # a number of the weights, which no other weights ever get

    @property
    def version(self) -> int:
        """Policy version; 0 for the base."""
        return self.info.version if self.info else 0


class AdapterTable:
    """The adapters of one module tree by name; only the thread that owns the tree may use it.

    Equal weights under several names, such as a snapshot of the policy, share slot and epoch, so
    that what is computed with one of them is known for the others.

    Attributes:
        infos: name -> version and digest of the live adapter of that name; replaced as a whole and
            never changed in place, so any thread may read it.
        retired: slots of replaced or removed weights, until nothing uses them.
    """

    def __init__(self, slots: AdapterSlots) -> None:
        self._slots = slots
        self._epochs = count()
        self._by_name = {BASE: LiveAdapter(None, slot=0, epoch=next(self._epochs))}
        self._pinned: dict[str, LiveAdapter] = {}  # those of ``NAME@VERSION``, by name
        self.retired: list[int] = []
        self.infos: Mapping[str, AdapterInfo] = {}

    def find(self, adapter: str) -> LiveAdapter:
        """The weights that a request selects.

        Args:
            adapter: a name, whose weights change while the request runs (``load``), or
                ``NAME@VERSION``, whose weights stay.

        Raises:
            RequestError: no adapter of that name is live, or it has another version.
        """
        live = self._by_name.get(adapter)
        if live is not None:
            return live
        name, _, version = adapter.partition("@")
        live = self._by_name.get(name)
        if live is None:
            hint = did_you_mean(name, self._by_name)
            versions = {known: each.version for known, each in self._by_name.items()}
            raise RequestError(
                f"adapter {adapter!r} is not live{hint}; live: {versions}; publish it first "
                "(await trainer.publish_weights(), or POST /adapters/load)"
            )
        if version != str(live.version):
            raise RequestError(f"adapter {adapter!r} is not live; {name!r} is at {live.version}")
        return self._pinned.setdefault(name, copy(live))

    def load(self, adapter: Adapter) -> None:
        """Make an adapter live under its name; requests that run under the name go on with it.

        Those for ``NAME@VERSION`` keep their weights, whose slot is freed when the last one ends.

        Raises:
            AdapterError: the adapter does not fit the model; nothing is changed.
        """
        name, info = adapter.name, adapter.info
        if name == BASE or "@" in name:
            raise AdapterError(f"an adapter cannot be called {name!r}; choose another name")
        names = {each.digest: known for known, each in self.infos.items()}
        equal = self._by_name.get(names.get(info.digest, ""))
        slot = equal.slot if equal else self._slots.load(adapter)
        epoch = equal.epoch if equal else next(self._epochs)
        live = self._by_name.setdefault(name, LiveAdapter(info, slot, epoch))
        before = live.slot
        live.info, live.slot, live.epoch = info, slot, epoch
        self._pinned.pop(name, None)
        self._retire(before)
        self.infos = {**self.infos, name: info}

    def drop(self, name: str) -> None:
        """Remove an adapter by name; requests that already use it finish with its weights.

        Raises:
            AdapterError: no adapter is live under that name.
        """
        if name not in self.infos:
            raise AdapterError(f"adapter {name!r} is not live; live: {sorted(self.infos)}")
        self._retire(self._by_name.pop(name).slot)
        self._pinned.pop(name, None)
        self.infos = {key: info for key, info in self.infos.items() if key != name}

    def _retire(self, slot: int) -> None:
        """Give up a slot that a name has left, unless another name has it."""
        if all(live.slot != slot for live in self._by_name.values()):
            self.retired.append(slot)

    @property
    def epochs(self) -> set[int]:
        """The epochs of all weights that new requests can use."""
        return {live.epoch for live in self._by_name.values()}

    def free_unused(self, used: Collection[int]) -> None:
        """Free the slots of replaced or removed weights that are not in ``used``."""
        for slot in self.retired:
            if slot not in used:
                self._slots.free(slot)
        self.retired = [slot for slot in self.retired if slot in used]
