"""Maths: answers in their forms, rewards, held-out rows."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from misbehaving import hang

from arenas import math
from arenas.math import Math, MathReward, answer_of
from legos import GRPOCredit, adding
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient
from legos.records.group import Group


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2", "2"),
        ("48/2 = 24\n#### 72\nmore", "72", "72"),
        ("The answer is 1,234.", None, "1,234"),
        ("3 apples and 4 pears make 7", None, "7"),
        (r"cut off \boxed{12", None, "12"),
        ("no idea", None, None),
    ],
)
def test_answers_are_found_in_their_forms(
    text: str, strict: str | None, lenient: str | None
) -> None:
    assert answer_of(text, strict=True) == strict
    assert answer_of(text) == lenient


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        (r"\boxed{72}", "72", 1.0),
        ("#### 1,000", "1000", 1.0),
        ("the answer is $72.0", "72", 1.0),
        (r"\boxed{\frac{1}{2}}", "1/2", 1.0),
        (r"\boxed{x^2 + 2x + 1}", "(x+1)^2", 1.0),
        (r"\boxed{1.8 \times 10^1}", "18", 1.0),
        (r"\boxed{1\frac{1}{2}}", "3/2", 1.0),
        (r"\boxed{\frac12}", "0.5", 1.0),
        (r"\boxed{9 - 7}", "9 - 7", 1.0),
        (r"\boxed{73}", "72", 0.0),
        (r"\boxed{1/0}", "72", 0.0),
        ("", "72", 0.0),
    ],
)
def test_rewards(completion: str, answer: str, reward: float) -> None:
    assert MathReward().score(["?"], [completion], [answer]) == [reward]


RIGHT = [
    (r"\boxed{\$18}", "18"),
    (r"\boxed{18\%}", "18"),
    (r"\boxed{50\%}", "0.5"),
    (r"\boxed{\text{18}}", "18"),
    (r"\boxed{18\text{ dollars}}", "18"),
    (r"\boxed{18 \text{ cm}^2}", "18"),
    (r"\boxed{5\,\mathrm{m}}", "5"),
    (r"\boxed{1{,}000}", "1000"),
    (r"\boxed{1\,000}", "1,000"),
    (r"\boxed{-18}", "\u221218"),
    ("The answer is \u221218.", "-18"),
    ("it makes \u221218", "-18"),
    ("#### 42 apples", "42"),
    ("#### 42", "42 apples"),
    ("The answer is 18 dollars.", "18"),
    ("The answer is 18. I am sure of it", "18"),
    ("**18**", "18"),
    ("The answer is **18**.", "18"),
    ("The answer is **18.**", "18"),
    (r"\boxed{\mathbf{18}}", "18"),
    (r"\boxed{x = 18}", "18"),
    (r"\boxed{\dfrac{1}{2}}", "0.5"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{18.}", "18"),
    (r"\boxed{The total is 18 apples}", "18"),
    (r"\boxed{20 - 2 = 18}", "18"),
    (r"\boxed{18 (apples)}", "18"),
    (r"\boxed{2/4}", "0.5"),
    (r"\boxed{1/2}", "50%"),
    (r"\boxed{- \frac{1}{2}}", "-1/2"),
    (r"\boxed{1,000 - 982 = 18}", "18"),
    ("The answer is 18!", "18"),
]
WRONG = [
    (r"\boxed{negative 18}", "18"),
    (r"\boxed{less than 18}", "18"),
    (r"\boxed{18 squared}", "18"),
    (r"\boxed{2x}", "2"),
    (r"\boxed{2 x}", "2"),
    (r"\boxed{2\pi}", "2"),
    (r"\boxed{2 pi}", "2"),
    (r"\boxed{\sqrt{2}}", "2"),
    (r"\boxed{x^2}", "2"),
    (r"\boxed{10^3}", "10"),
    (r"\boxed{1, 2}", "12"),
    (r"\boxed{3 or 4}", "3"),
    (r"\boxed{2 million}", "2"),
    (r"\boxed{not 18}", "18"),
    (r"\boxed{18\%}", "0.5"),
    (r"\boxed{1/0}", "1"),
    (r"\boxed{1e999999999}", "1"),
    (r"\boxed{f(18)}", "18"),
    (r"\boxed{18-x}", "18"),
    ("#### -42 apples", "42"),
    *(
        (f"\\boxed{{{operation}}}", "18")
        for operation in (
            *("20 - 2", "20-2", "9 + 9", "-2 + 20", "20 \u2212 2", "**20** - **2**", "36/2"),
            *(r"\frac{36}{2}", r"2 \times 9", r"2\cdot 9", "2 * 9", "2(9)", "(20) - (2)"),
            *(r"-2 \times -9", "20 + -2", "18.5-.5", "20-|2|", r"2\left(9\right)"),
            *(r"20\,-\,2", r"\frac{ 36 }{ 2 }", r"\frac{36.0}{2}", r"\frac{36}2", r"\cfrac{36}{2}"),
            *("3! + 12", r"\lfloor 18.5 \rfloor", r"\text{36/2}", r"\mathrm{20 - 2}"),
            *("x >= 18", "17 != 18", "x = 17 or x = 18", "x = 5, y = 18"),
            *(r"36 \div 2", r"\sqrt{324}", "18 = 20 - 2", r"20\text{ apples} - 2\text{ apples}"),
        )
    ),
    (r"\boxed{1/2 + 0}", "0.5"),
    (r"\boxed{- \frac{1}{2}}", "1/2"),
    (r"\boxed{1 - 1/2}", "1/2"),
]


@pytest.fixture(params=["with math-verify", "without"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "math_verify", None)
    else:
        pytest.importorskip("math_verify")


def test_marks_units_and_words_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # which is not needed for it
    said, known = zip(*RIGHT, strict=True)
    got = MathReward().score([""] * len(said), said, known)
    assert [pair for pair, reward in zip(RIGHT, got, strict=True) if reward != 1.0] == []


@pytest.mark.usefixtures("library")
def test_what_is_no_plain_number_is_not_taken_for_one() -> None:
    said, known = zip(*WRONG, strict=True)
    got = MathReward().score([""] * len(said), said, known)
    assert [pair for pair, reward in zip(WRONG, got, strict=True) if reward != 0.0] == []


def test_a_long_word_is_compared_at_once() -> None:
    assert math._same(f"18 {'a' * 60}+", "18") is None


def test_a_missing_library_is_named_once(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(math, "find_spec", lambda name: None)
    math._say_what_is_missing.cache_clear()
    for _ in range(2):
        Math(ScriptedClient(solve), data=str(file))
    assert caplog.text.count("math-verify is not installed") == 1
    assert f"add it: {adding('math')}" in caplog.text
    math._say_what_is_missing.cache_clear()


@pytest.mark.parametrize("answer", ["null", "NaN", '["18"]', "{}"])
def test_a_row_without_an_answer_is_refused_with_its_line(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(
        f'{{"question": "?", "answer": "18"}}\n{{"question": "?", "answer": {answer}}}\n'
    )
    with pytest.raises((ArenaError, TypeError), match=r"sums\.jsonl:2: 'answer' is "):
        Math(ScriptedClient(solve), data=str(path))


def test_strict_rewards_need_a_marked_answer() -> None:
    assert MathReward(strict=True).score(["?"] * 2, ["72", "#### 72"], ["72"] * 2) == [0.0, 1.0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gsm.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": f"one more\n#### {n + 1}"} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def solve(asked: Asked) -> str:
    """Right in a box for even numbers, right as a plain number for odd ones."""
    number = int(asked.prompt.split()[0])
    return f"so \\boxed{{{number + 1}}}" if number % 2 == 0 else f"it is {number + 1}"


def step(arena: Any) -> Group:
    return asyncio.run(arena.step())


def test_problems_of_a_file(file: Path) -> None:
    arena = Math(ScriptedClient(solve), data=str(file), credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size = 4, 1
    batch = step(arena)
    assert [e.error for e in batch.episodes] == [None] * 4
    for episode in batch.episodes:
        even = int(episode.task.data["question"].split()[0]) % 2 == 0
        assert episode.parts == {"player": {"correct": 1.0, "format": float(even)}}
        assert episode.rewards == {"player": 1.0 + 0.1 * even}
    held_out = list(arena.held_out(random.Random(0)) or ())
    trained = list(arena.tasks(random.Random(0)))
    assert len(held_out) + len(trained) == 30
    assert {task.id for task in held_out}.isdisjoint(task.id for task in trained)
    orders = {tuple(task.id for task in arena.held_out(random.Random(n)) or ()) for n in range(9)}
    assert len(orders) > 1


@pytest.mark.parametrize("strict", [False, True])
def test_both_accuracies_are_logged_whichever_is_rewarded(file: Path, strict: bool) -> None:
    client = ScriptedClient(solve)
    arena = Math(client, data=str(file), strict=strict, credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size = 12, 1
    batch = step(arena)
    even = [int(e.task.data["question"].split()[0]) % 2 == 0 for e in batch.episodes]
    assert 0 < sum(even) < 12
    for episode, marked in zip(batch.episodes, even, strict=True):
        assert episode.metrics == {"strict": float(marked), "lenient": 1.0, "unclear": 0.0}
        assert episode.parts["player"]["correct"] == float(marked or not strict)
    assert batch.metrics["arena/strict"] == pytest.approx(sum(even) / 12)
    assert batch.metrics["arena/lenient"] == 1.0


def test_the_known_answer_may_have_another_name(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} + 1?", "gt_answer": str(n + 1)} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    arena = Math(
        ScriptedClient(solve), data=str(path), answer="gt_answer", credit_assigner=GRPOCredit()
    )
    assert step(arena).metrics["arena/lenient"] == 1.0


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (r"\frac{3}{4}", r"\frac{3}{4}"),
        (r"2\sqrt{3}", r"2\sqrt{3}"),
        ("x^2 + 3", "x^2 + 3"),
        ("(3, 4)", "(3, 4)"),
        (1e-05, "1e-05"),
        ("He has 3 + 4 = 7 apples now", "7"),
        ("3 + 4 = 7\n7 + 1 = 8", "8"),
        (r"so it is \boxed{2\pi}", r"2\pi"),
    ],
)
def test_a_known_expression_is_not_cut_to_its_last_number(
    tmp_path: Path, answer: object, known: str
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"question": "?", "answer": answer}))
    arena = Math(ScriptedClient(solve), data=str(path), held_out=0.0)
    [task] = arena.tasks(random.Random(0))
    assert arena.oracle("player", "?", task, random.Random(0)) == (f"\\boxed{{{known}}}", 1.1)


def test_rows_with_one_question_are_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    rows = [{"question": f"{n % 40} + 1?", "answer": str(n % 40 + 1), "id": n} for n in range(80)]
    path.write_text("\n".join(map(json.dumps, rows)))
    arena = Math(ScriptedClient(solve), data=str(path))
    sides = arena.tasks(random.Random(0)), arena.held_out(random.Random(0)) or ()
    trained, held_out = ({task.data["question"] for task in side} for side in sides)
    assert held_out
    assert not trained & held_out


def test_numbers_are_compared_without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def equal(found: str, answer: str) -> bool:
        asked.append((found, answer))
        return True

    monkeypatch.setattr(MathReward, "_equal", staticmethod(equal))
    said = ["it is 7", "\\boxed{-1,200.50}", "\\boxed{1/2}", "\\boxed{50%}", "\\boxed{x + 1}"]
    known = ["8", "1200.5", "3/4", "0.5", "1 + x"]
    assert MathReward().score([""] * 5, said, known) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert asked == [("x + 1", "1 + x")]


class Hanging:
    """A checker that never returns."""

    def score(self, *_: Any) -> list[float]:
        hang()
        return [1.0]


def test_a_check_that_hangs_is_a_wrong_answer(file: Path) -> None:
    arena = Math(ScriptedClient(solve), data=str(file), credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size, arena.check_s = 1, 1, 0.3
    vars(arena)["_reward"] = Hanging()
    batch = step(arena)
    assert batch.episodes[0].parts["player"]["correct"] == 0.0
    assert batch.metrics["arena/unclear"] == 1.0
    assert batch.metrics["arena/lenient"] == 0.0


def test_an_example_has_the_form_and_any_number(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "Ann has 3 eggs and 14 pens. How many?", "answer": "17"}\n')
    arena, rng = Math(data=str(rows)), random.Random(0)
    said = {arena.example("player", "Ann has 3 eggs and 14 pens.", rng) for _ in range(20)}
    assert said == {"\\boxed{3}", "\\boxed{14}"}
    assert arena.example("player", "How many?", rng) is None
