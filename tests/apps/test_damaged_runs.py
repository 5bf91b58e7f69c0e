"""A damaged file of a run folder never ends a command with a traceback."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from short_runs import NIM

from legos.cli.process import main

READING = (
    ("runs", "--folder", "."),
    ("runs", "show", "run"),
    ("watch", "run"),
    ("watch", "run", "--episode", "1"),
    ("train", *NIM, "--out", "run", "--steps", "1"),
)
USING = (
    ("train", "--resume", "run", "--steps", "4"),
    ("train", "--fork-from", "run", "--out", "fork", "--steps", "4"),
    ("eval", "run"),
    ("eval", "run@best"),
    ("eval", "run@3"),
    ("export", "run", "--to", "exported"),
    ("play", "nim", "--seat", "first=run", "--against", "random"),
)
LOGS = ("metrics.jsonl", "evaluations.jsonl", "episodes.jsonl")
FILES = (
    *("config.toml", *LOGS),
    *(f"checkpoints/step-000003/{name}" for name in ("state.json", "manifest.json", "config.toml")),
    *(f"adapters/v3/{name}" for name in ("adapters.safetensors", "adapter_config.json")),
)


def put(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def half_of_the_lines(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[: len(lines) // 2]) + b"\n")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": put(b""),
    "latin 1": put(b"\xff\xfe\xe9 = 1\n" * 9),
    "list": put(b"[1]\n"),
    "number": put(b"3\n"),
    "null": put(b"null\n"),
    "object": put(b"{}\n"),
    "deep": put(b"[" * 100_000 + b"\n"),
    "other types": put(b'{"step": "x", "seats": 3, "turns": [], "best": 3, "trainer": 1}\n'),
    "binary": put(random.Random(0).randbytes(300)),
    "half": half,
    "half of the lines": half_of_the_lines,
    "folder": folder,
    "missing": Path.unlink,
    "dangling": dangling,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("work") / "run"
    every = ("--loop.checkpoint-every", "1", "--loop.evaluate-every", "1")
    assert main(["train", *NIM, "--out", str(run), "--steps", "3", *every]) == 0
    return run


def check(commands: tuple[tuple[str, ...], ...], whole: Path, damage: Callable[[], object]) -> None:
    """Run commands on a damaged copy; the error of one that fails otherwise reaches the test."""
    for command in commands:
        for made in ("run", "fork", "exported"):
            shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(whole, "run")
        damage()
        assert main(command) in (0, 1, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("name", DAMAGES)
def test_commands_that_read_a_run(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES:
        check(READING, whole, lambda file=file: DAMAGES[name](Path("run", file)))


@pytest.mark.parametrize(
    ("file", "every"),
    [
        *(pytest.param(file, False, marks=pytest.mark.slow) for file in FILES),
        *(pytest.param(file, True, marks=pytest.mark.nightly) for file in FILES),
    ],
)
def test_commands_that_use_a_run(
    file: str, every: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each damage meets every command (nightly), or every third of them one of the commands."""
    monkeypatch.chdir(tmp_path)
    commands = USING[:1] if file == "episodes.jsonl" else USING
    for number, damage in enumerate(DAMAGES.values(), FILES.index(file)):
        in_turn = () if number % 3 else (commands[number % len(commands)],)
        used = commands if every else in_turn
        check(used, whole, lambda damage=damage: damage(Path("run", file)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "checkpoints/step-000003",
        "adapters",
        pytest.param("checkpoints", marks=pytest.mark.nightly),
        pytest.param("adapters/v3", marks=pytest.mark.nightly),
    ],
)
def test_a_file_in_place_of_a_folder(
    place: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def replace() -> None:
        shutil.rmtree(Path("run", place))
        Path("run", place).write_text("x")

    check((*READING, *USING), whole, replace)
