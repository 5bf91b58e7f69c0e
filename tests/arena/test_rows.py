"""Tasks from files: what a malformed row is called, and a split that stays as it is."""

import asyncio
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from legos import Arena, GRPOCredit, Task, hold_out, read_tasks
from legos.arena import rows
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.loop.evaluation import ArenaEvaluation

ROWS = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(40)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))
    return path


def test_each_row_of_a_file_is_a_task_named_by_its_place(file: Path) -> None:
    tasks = read_tasks(file, fields=("question", "answer"))
    assert [task.data for task in tasks] == ROWS
    assert [task.id for task in tasks[:2]] == [f"{file}:1", f"{file}:3"]
    assert len(read_tasks(file, limit=7)) == 7


def test_parquet_gives_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "sums.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    tasks = read_tasks(path)
    assert [task.data for task in tasks] == ROWS
    assert tasks[0].id == f"{path}:1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "sums.jsonl:2: the row is no JSON: Expecting property name"),
        ("[1]", "sums.jsonl:2: the row is [1]; expected a JSON object"),
        ('{"question": "?"}', "sums.jsonl:2: the row has no 'answer'; it has question"),
        ("{}", "sums.jsonl:2: the row has no 'question'; it has no field"),
        ('{"question": "?", "answer": null}', "sums.jsonl:2: 'answer' is null; give a value"),
        ('{"question": "?", "answer": NaN}', "sums.jsonl:2: 'answer' is NaN; give a value"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(f"{json.dumps(ROWS[0])}\n{line}\n")
    with pytest.raises(ArenaError) as raised:
        read_tasks(path, fields=("question", "answer"))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "name", ["sums.JSONL", "sums.ndjson", "lines.json", "list.json", "bom.json"]
)
def test_files_of_other_endings_are_read_and_not_looked_for_on_the_hub(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    rows = "\n".join(map(json.dumps, ROWS))
    text = rows if path.stem in ("sums", "lines") else json.dumps(ROWS, indent=1)
    path.write_text(text, encoding="utf-8-sig" if name == "bom.json" else "utf-8")
    tasks = read_tasks(path, fields=("question", "answer"))
    assert [task.data for task in tasks] == ROWS
    assert [task.id for task in tasks[:2]] == [f"{path}:1", f"{path}:2"]


def test_a_list_of_rows_is_checked_as_lines_are(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('[{"q": "?"}, 7]')
    with pytest.raises(
        ArenaError, match=r"list\.json, row 2: the row is 7; expected a JSON object"
    ):
        read_tasks(path)
    path.write_text('[{"q": "?"}')
    with pytest.raises(ArenaError, match=r"list\.json is no JSON: Expecting ',' delimiter"):
        read_tasks(path)


def test_a_file_that_holds_no_rows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("question,answer\n")
    lines = tmp_path / "sums.jsonlines"
    with pytest.raises(ArenaError, match=r"there is no file .*sums\.jsonlines; endings of files"):
        read_tasks(lines)
    lines.touch()
    with pytest.raises(ArenaError, match=r"sums\.jsonlines is not a file of rows; expected \.jso"):
        read_tasks(lines)
    with pytest.raises(ArenaError, match=r"sums\.csv is not a file of rows; expected \.jsonl, "):
        read_tasks(path)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArenaError, match=r"none\.jsonl cannot be read: No such file"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(ArenaError, match=r"none\.parquet cannot be read: there is no such file"):
        read_tasks(tmp_path / "none.parquet")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ArenaError, match=r"empty\.jsonl has no rows"):
        read_tasks(empty)
    broken = tmp_path / "broken.parquet"
    broken.write_text("no parquet")
    with pytest.raises(ArenaError, match=r"broken\.parquet: row 1 cannot be read"):
        read_tasks(broken)
    late = pyarrow.table({"at": pyarrow.array([10**15], pyarrow.timestamp("s"))})
    pyarrow.parquet.write_table(late, tmp_path / "late.parquet")
    with pytest.raises(ArenaError, match=r"late\.parquet: row 1 cannot be read: .*int too large"):
        read_tasks(tmp_path / "late.parquet")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(rows, "import_module", missing)
    with pytest.raises(ArenaError, match=r"broken\.parquet needs pyarrow; add it: .*\bdatasets\b"):
        read_tasks(broken)
    with pytest.raises(ArenaError, match="reading 'org/name' from the hub needs datasets; add it"):
        read_tasks("org/name")


def test_rows_of_the_hub_are_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(repository: str, config: str | None, *, split: str) -> list[Any]:
        asked.append((repository, config, split))
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    tasks = read_tasks("org/sums:main", fields=("answer",), split="test", limit=3)
    assert [task.data for task in tasks] == ROWS[:3]
    assert [task.id for task in tasks] == [f"org/sums:main/test:{n}" for n in range(3)]
    assert len(read_tasks("org/sums")) == 40
    assert asked == [("org/sums", "main", "test"), ("org/sums", None, "train")]
    with pytest.raises(ArenaError, match="org/sums/train:0: the row has no 'gold'; it has quest"):
        read_tasks("org/sums", fields=("gold",))


@pytest.mark.optional
def test_the_package_datasets_reads_a_folder_as_it_reads_the_hub(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = file.parent / "set"
    folder.mkdir()
    for split, listed in (("train", ROWS), ("test", ROWS[:5])):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, listed)))
    tasks = read_tasks(folder, fields=("question", "answer"))
    assert [task.data for task in tasks] == ROWS
    assert tasks[0].id == f"{folder}/train:0"
    assert [task.data for task in read_tasks(folder, split="test")] == ROWS[:5]
    with pytest.raises(ArenaError, match="cannot be loaded: Unknown split"):
        read_tasks(folder, split="other")


def test_the_split_depends_on_the_rows_alone(file: Path) -> None:
    tasks = read_tasks(file)
    trained, held_out = hold_out(tasks, 0.3)
    assert len(trained) + len(held_out) == 40
    assert 4 <= len(held_out) <= 20
    random.Random(0).shuffle(tasks)
    again = hold_out(tasks[:30], 0.3)[1]
    assert {task.id for task in again} <= {task.id for task in held_out}
    assert hold_out(tasks, 0.0) == (tasks, [])
    with pytest.raises(ArenaError, match=r"share of held-out tasks is 1\.0; expected 0 or more"):
        hold_out(tasks, 1.0)


def test_tasks_that_another_process_would_split_otherwise_are_refused() -> None:
    for data in (object(), [object()], lambda: 1, {1: "a", "b": 2}):
        with pytest.raises(ArenaError, match=r"that of task 'a' is .*; give JSON values"):
            hold_out([Task(id="a", data=data)], 0.5)


def test_a_set_is_split_as_its_sorted_list_is() -> None:
    words = [[f"{letter}{n}" for letter in "abcdefgh"] for n in range(20)]  # of any order in a set
    sets, lists = (
        hold_out([Task(id=each[0], data=form(each)) for each in words], 0.5)[1]
        for form in (set, list)
    )
    assert [task.id for task in sets] == [task.id for task in lists]


class Sums(Arena):
    """Plays the rows of a file; remembers which."""

    tasks_per_step = 8
    group_size = 1

    def __init__(self, file: Path, share: float) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
        self.trained, self.evaluated = hold_out(read_tasks(file), share)
        self.played: list[str] = []

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        return rng.sample(self.trained, len(self.trained))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        return self.evaluated or None

    async def play(self, t: Any) -> Any:
        await t.ask("player", t.task.data["question"])
        self.played.append(t.task.id)
        return {"player": 0.0}


def test_what_is_held_out_is_evaluated_and_never_trained_on(file: Path) -> None:
    arena = Sums(file, 0.3)
    for _ in range(10):
        asyncio.run(arena.step())
    held_out = {task.id for task in arena.evaluated}
    assert set(arena.played) == {task.id for task in arena.trained}
    arena.played.clear()
    client: Any = arena.client
    asyncio.run(ArenaEvaluation(arena, client, plays=2 * len(held_out)).metrics())
    assert set(arena.played) == held_out


def test_without_held_out_tasks_an_evaluation_plays_the_others(file: Path) -> None:
    arena = Sums(file, 0.0)
    client: Any = arena.client
    asyncio.run(ArenaEvaluation(arena, client, plays=5).metrics())
    assert len(arena.played) == 5


def test_bad_held_out_tasks_are_refused(file: Path) -> None:
    class Wrong(Sums):
        def held_out(self, rng: random.Random) -> Any:
            return ["a"]

    arena = Wrong(file, 0.1)
    client: Any = arena.client
    with pytest.raises(ArenaError, match=r"held_out\(\) of arena 'wrong' yielded 'a', a str"):
        asyncio.run(ArenaEvaluation(arena, client, plays=5).metrics())


def test_held_out_tasks_that_are_async_are_refused(file: Path) -> None:
    class Later(Sums):
        async def held_out(self, rng: random.Random) -> Any:  # pyrefly: ignore[bad-override]
            return []

    arena = Later(file, 0.1)
    client: Any = arena.client
    with pytest.raises(
        ArenaError, match=r"held_out\(\) .* is async; write def held_out\(self, rng"
    ):
        asyncio.run(ArenaEvaluation(arena, client, plays=5).metrics())
