"""Reads a .wandb file: blocks of a LevelDB log, whose records W&B's own messages describe."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["WandbFile"]

BLOCK = 32768
HEADER = 7  # of the file, and of each part of a record: checksum, length, and kind of the part


class WandbFile:
    """What one process has logged.

    Attributes:
        run: id, name, group, tags, notes and entity.
        config: the settings.
        rows: values of each row of the history, with ``_step``.
        metrics: name or glob -> its definition.
        artifacts: name and aliases of each artifact, in order.
        alerts: title and text of each alert.
    """

    def __init__(self, path: Path) -> None:
        from wandb.proto import wandb_internal_pb2 as messages

        self.run: Any = None
        self.config: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.metrics: dict[str, Any] = {}
        self.artifacts: list[tuple[str, list[str]]] = []
        self.alerts: list[tuple[str, str]] = []
        for data in _records(path.read_bytes()):
            record: Any = messages.Record()  # pyrefly: ignore[missing-attribute]
            record.ParseFromString(data)
            self._add(record)

    def _add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.run = record.run
            self.config |= {
                item.key: json.loads(item.value_json) for item in record.run.config.update
            }
        elif kind == "history":
            items = record.history.item
            row: dict[str, Any] = {}
            for item in items:  # a table or a histogram has an item for each of its fields
                name, *field = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                row[name] = {**row.get(name, {}), field[0]: value} if field else value
            self.rows.append(row | {"_step": record.history.step.num})
        elif kind == "metric":
            self.metrics[record.metric.name or record.metric.glob_name] = record.metric
        elif kind == "artifact":
            self.artifacts.append((record.artifact.name, [*record.artifact.aliases]))
        elif kind == "alert":
            self.alerts.append((record.alert.title, record.alert.text))
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            made = record.request.log_artifact.artifact
            self.artifacts.append((made.name, [*made.aliases]))


def _records(data: bytes) -> Iterator[bytes]:
    """The records; a part that is not complete ends them."""
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        room = BLOCK - place % BLOCK
        if room < HEADER:
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
