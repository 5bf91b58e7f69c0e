"""The language of pipelines: every program ends, within its bounds."""

import random

import pytest

from arenas.pipelines import random_program, run


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("add 2", [5, 3, 6, 3]),
        ("mul 3 | mod 4", [1, 3, 0, 3]),
        ("sort | reverse | unique", [4, 3, 1]),
        ("keep even", [4]),
        ("keep odd | sum", [5]),
        ("keep above 1 | keep below 4", [3]),
        ("take 2 | max", [3]),
        ("drop 3 | len", [1]),
        ("if odd add 1", [4, 2, 4, 2]),
        ("repeat 3 mul 2 | min", [8]),
        ("keep above 9 | max", []),
        ("keep above 9 | sum", [0]),
    ],
)
def test_operations(program: str, result: list[int]) -> None:
    assert run(program, [3, 1, 4, 1]) == result


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "'' is not an operation"),
        ("add", "'add' is not an operation"),
        ("add 100", "'100' is not a number from 1 to 99"),
        ("add 0", "'0' is not a number"),
        ("add -1", "'-1' is not a number"),
        ("add \u0662", "is not a number"),
        ("__import__ os", "is not an operation"),
        ("repeat 8 add", "is not an operation"),
        (" | ".join(["add 1"] * 9), "the program has 9 operations"),
        ("repeat 8 mul 99", "a number exceeds"),
        ("repeat 9 repeat 9 add 1", "is not an operation"),
    ],
)
def test_what_is_no_program(program: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(program, [3, 1, 4, 1])


def test_random_programs_are_programs() -> None:
    rng = random.Random(3)
    for _ in range(300):
        assert len(run(random_program(rng, rng.randint(1, 4)), [3, 1, 4, 1, 5])) <= 5


def test_a_list_has_a_limit() -> None:
    with pytest.raises(ValueError, match="the list has 33 numbers; at most 32"):
        run("sort", [1] * 33)
