"""Tasks from the rows of JSON lines, Parquet files and data sets of the hub."""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

from legos.arena.checks import is_token_ids
from legos.errors import ArenaError
from legos.installed import adding
from legos.records.episode import Task
from legos.records.numbers import shown

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the text of an object that does not write its own


def read_tasks(
    source: str | Path,
    *,
    fields: Sequence[str] = (),
    prompt: str | None = None,
    group_size: str | None = None,
    split: str = "train",
    limit: int | None = None,
) -> list[Task]:
    """The rows of a data set as tasks; a task's id is the row's place, its data is the row.

    Args:
        source: a file of JSON lines (``.jsonl``), a ``.json`` file with a list of objects or with
            JSON lines, a ``.parquet`` file, or a name of the hub, ``NAME`` or ``NAME:CONFIG``.
        fields: fields that every row must have, with a value.
        prompt: field that every row must have, a text or token ids for ``Table.ask``.
        group_size: field with the number of plays of the row, for rows that have their own.
        split: split of a data set of the hub.
        limit: maximum number of rows; None: all.

    Raises:
        ArenaError: the data set or a needed package is not found, or a row is malformed; the
            message gives its file and line.
    """
    path = Path(source)
    read = READERS.get(path.suffix.lower())
    if read is None and path.is_file():
        raise ArenaError(f"{path} is not a file of rows; expected {', '.join(READERS)}")
    if read is None and path.suffix.startswith(".json"):
        raise ArenaError(f"there is no file {path}; endings of files are {', '.join(READERS)}")
    rows = _hub(str(source), split) if read is None else read(path)
    tasks: list[Task] = []
    needed = fields if prompt is None else (prompt, *fields)
    for place, row in islice(rows, limit):
        missing = [field for field in needed if field not in row]
        if missing:
            raise ArenaError(
                f"{place}: the row has no {missing[0]!r}; it has {', '.join(row) or 'no field'}"
            )
        if prompt is not None and not (isinstance(row[prompt], str) or is_token_ids(row[prompt])):
            raise ArenaError(
                f"{place}: {prompt!r} is {shown(row[prompt])}; expected a text, or token ids: "
                "whole numbers from 0, at least one"
            )
        for field in fields:
            if row[field] is None or row[field] != row[field]:  # not even equal to itself
                value = "null" if row[field] is None else "NaN"
                raise ArenaError(f"{place}: {field!r} is {value}; give a value, or remove the row")
        size = row.get(group_size) if group_size is not None else None
        if size is not None and (type(size) is not int or size < 1):
            raise ArenaError(
                f"{place}: {group_size!r} is {shown(size)}; expected a whole number, at least 1"
            )
        tasks.append(Task(id=place, data=row, group_size=size))
    if not tasks:
        raise ArenaError(f"{source} has no rows; expected one JSON object a line")
    return tasks


def hold_out(tasks: Iterable[Task], share: float) -> tuple[list[Task], list[Task]]:
    """Split tasks into those to train on and those held out for evaluations.

    The digest of a task's data decides, so a task stays on its side when others are added, and two
    tasks with equal data are on one side.

    Args:
        tasks: the tasks, with JSON values as data.
        share: share of tasks that are held out, from 0 to below 1.

    Raises:
        ArenaError: the share is out of range, or another process may write a task's data otherwise.
    """
    if not 0.0 <= share < 1.0:
        raise ArenaError(f"the share of held-out tasks is {share}; expected 0 or more, below 1")
    trained: list[Task] = []
    held_out: list[Task] = []
    for task in tasks:
        digest = hashlib.sha256(_content(task).encode()).digest()
        side = held_out if int.from_bytes(digest[:8]) < share * 2**64 else trained
        side.append(task)
    return trained, held_out


def _content(task: Task) -> str:
    """The data of a task as text, which is the same in every process.

    Raises:
        ArenaError: it has none.
    """
    try:
        return json.dumps(task.data, sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArenaError(
            f"hold_out() splits by data, and that of task {task.id!r} is {shown(task.data)}: "
            f"{error}; give JSON values, such as texts, numbers, lists and dicts"
        ) from error


def _plain(value: object) -> object:
    """What stands for a value that JSON lacks; raises ``ValueError`` if it may change."""
    if isinstance(value, Set):
        return sorted(cast("Set[object]", value), key=repr)
    text = str(value)
    if _ADDRESS.search(text):
        raise ValueError(f"{text} has another text in every process")
    return text


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, _object(_loaded(line, f"{place}: the row"), place)
    except OSError as error:
        raise ArenaError(f"{path} cannot be read: {error.strerror}") from error


def _json(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, or of JSON lines."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ArenaError(f"{path} cannot be read: {error.strerror}") from error
    if not text.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from _json_lines(path)
        return
    for number, row in enumerate(_loaded(text, str(path)), start=1):
        yield f"{path}:{number}", _object(row, f"{path}, row {number}")


def _loaded(text: bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArenaError(f"{what} is no JSON: {error}") from error


def _object(row: object, place: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ArenaError(f"{place}: the row is {row!r:.80}; expected a JSON object")
    return cast("Mapping[str, Any]", row)


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path.is_file():
        raise ArenaError(f"{path} cannot be read: there is no such file")
    reader = _package("pyarrow.parquet", f"reading {path}")
    number = 0
    try:
        for batch in reader.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", row
    except Exception as error:  # pyarrow and the types of its values raise whatever they do
        raise ArenaError(f"{path}: row {number + 1} cannot be read: {error}") from error


READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Mapping[str, Any]]]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
"""Ending of a file, in small letters -> reads its rows, each with its place."""


def _hub(name: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    datasets = _package("datasets", f"reading {name!r} from the hub")
    repository, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(repository, config or None, split=split)
    except Exception as error:  # the library raises whatever its parts do
        raise ArenaError(
            f"data set {name!r} cannot be loaded: {error}; expected a .jsonl, .json or .parquet "
            "file, or a name of the hub such as openai/gsm8k:main"
        ) from error
    for number, row in enumerate(rows):
        yield f"{name}/{split}:{number}", row


def _package(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ArenaError(
            f"{what} needs {module.partition('.')[0]}; add it: {adding('datasets')}"
        ) from error
