"""Spice: passages, the gate, and that the solver never sees the passage."""

import random
from pathlib import Path

import pytest
from scripted_play import played

from arenas.spice import Question, Spice, gate, is_right, parse_question, passages
from legos.fakes import Asked

TEXT = "The lighthouse of Vega was built in 1,874 by Ana Roth.\n\nIt burned oil until 1931."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        (tmp_path / f"text{number}.md").write_text(f"Text {number}. {TEXT}")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("Who built the lighthouse?", "Ana Roth", ""),
        ("When was it built?", "1874", ""),
        ("When was it built?", "1875", "does not stand in the passage"),
        ("Did Ana Roth build it?", "Ana Roth", "quotes the answer"),
        ("Did _Ana Roth_ build it?", "Ana Roth", "quotes the answer"),
        ("Who?", "Ana Roth", "fewer than 3 words"),
        ("What happened in the end?", "It burned oil until 1931", "has 5 words"),
        ("What happened in the end?", "", "has 0 words"),
    ],
)
def test_the_gate(question: str, answer: str, reason: str) -> None:
    found = gate(Question(question, answer), TEXT)
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("I think\nana roth.", True),
        ("Ana Roth\nMaybe.", False),
        ("", False),
        ("Ana  Roth", True),
        ("_Ana Roth_", True),
    ],
)
def test_the_last_line_is_the_answer(said: str, right: bool) -> None:
    assert is_right(said, "Ana Roth") is right


def test_questions_are_read() -> None:
    said = "Hm. QUESTION: Who\nbuilt it? ANSWER: Ana Roth.\nThat is all."
    assert parse_question(said) == Question("Who\nbuilt it?", "Ana Roth")
    assert parse_question("Who built it?") is None


def test_passages_are_whole_paragraphs_unless_these_are_too_long() -> None:
    assert passages("a b\n\nc\n\n\nd", 6) == ["a b\nc", "d"]
    assert passages("abcdefgh", 3) == ["abc", "def", "gh"]


def test_the_solver_answers_without_the_passage(folder: Path) -> None:
    arena = Spice(texts=str(folder), answers=4)
    [task, *_] = arena.tasks(random.Random(0))
    right = iter([True, False, False, False] * 2)
    question = "Who built the house of light?"

    def answer(asked: Asked) -> str:
        if "QUESTION: ..." in asked.prompt:
            return f"QUESTION: {question} ANSWER: Ana Roth"
        return "Ana Roth" if next(right) else "Nobody"

    episode, prompts = played(arena, task, answer)
    assert "lighthouse of Vega" in prompts[0]
    assert all(p.startswith("Who built the house of light?\n") for p in prompts[1:])
    assert all("Vega" not in p and "Ana Roth" not in p for p in prompts[1:])
    assert episode.rewards == {"challenger": 0.75, "solver": 0.25}
    assert episode.metrics["covered"] == pytest.approx(1 / len(list(arena.tasks(random.Random(0)))))
    question = "who  built the house of light??"
    assert played(arena, task, answer)[0].rewards == episode.rewards  # as after a resume
    again, _ = played(arena, task, answer, seed=2)
    assert again.rewards == {"challenger": -0.5, "solver": 0.0}
    assert again.notes == ("it was asked before",)


def test_passages_that_are_held_out_cover_none_of_training(folder: Path) -> None:
    arena = Spice(texts=str(folder), held_out=0.3, answers=2)
    task = next(iter(arena.held_out(random.Random(0)) or ()))

    def answer(asked: Asked) -> str:
        asks = "QUESTION: ..." in asked.prompt
        return "QUESTION: Who built the house of light? ANSWER: Ana Roth" if asks else "Nobody"

    assert played(arena, task, answer)[0].metrics["covered"] == 0.0


def test_answers_that_fail_are_not_wrong(folder: Path) -> None:
    arena = Spice(texts=str(folder), answers=4)
    [task, *_] = arena.tasks(random.Random(0))
    fails = iter([True, True, False, False])

    def answer(asked: Asked) -> str:
        if "QUESTION: ..." in asked.prompt:
            return "QUESTION: Who built the house of light? ANSWER: Ana Roth"
        if next(fails, True):
            raise RuntimeError("the answer is lost")
        return "Ana Roth"

    episode, _ = played(arena, task, answer)
    assert episode.metrics["solved"] == 1.0
    assert episode.rewards == {"challenger": 0.0, "solver": 1.0}
    with pytest.raises(AssertionError, match="every answer failed; the first:"):
        played(Spice(texts=str(folder), answers=4), task, answer)


def test_what_is_no_question_costs_most(folder: Path) -> None:
    arena = Spice(texts=str(folder))
    [task, *_] = arena.tasks(random.Random(0))
    assert played(arena, task, lambda _: "Hello.")[0].rewards["challenger"] == -1.0


def test_whole_texts_are_held_out(folder: Path) -> None:
    arena = Spice(texts=str(folder), held_out=0.3)
    files = [
        {task.id.partition("#")[0] for task in tasks}
        for tasks in (arena.tasks(random.Random(0)), arena.held_out(random.Random(0)) or ())
    ]
    assert files[1]
    assert files[0].isdisjoint(files[1])
    assert files[0] | files[1] == {f"text{number}.md" for number in range(12)}
    orders = {tuple(task.id for task in arena.held_out(random.Random(n)) or ()) for n in range(9)}
    assert len(orders) > 1


@pytest.mark.parametrize("texts", ["", "nowhere"])
def test_a_folder_without_texts_is_refused(texts: str) -> None:
    with pytest.raises(ValueError, match=r"give a folder with some: --play\.options\.texts FOLDER"):
        Spice(texts=texts)


def test_a_text_that_is_not_utf_8_is_named(folder: Path) -> None:
    (folder / "more.md").mkdir()
    assert len(list(Spice(texts=str(folder), held_out=0.0).tasks(random.Random(0)))) == 12
    (folder / "latin.txt").write_bytes("né".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8: .*; convert it"):
        Spice(texts=str(folder))
