"""The reference numbers of arenas of tasks and talk; ``check_arena`` plays oracles and silence."""

import random
from collections.abc import Callable, Sequence
from itertools import islice, permutations, product
from statistics import fmean

import numpy as np
import pytest

from arenas.absolute_zero import AbsoluteZero, is_right
from arenas.countdown import OPERATORS, Countdown, solution
from arenas.duel import Duel
from arenas.negotiation import Negotiation, best_surplus
from arenas.problems import lists_in, question
from arenas.refine import SUBJECTS, WORDS, Refine, Rules, score_of
from arenas.zorplex import Zorplex
from legos import Task
from legos.arena.cursor import plays_from
from legos.checks.players import played, slack
from legos.fakes import Asked, ScriptedClient

Operator = Callable[[int, int], int]


def left_to_right(numbers: Sequence[int], first: Operator, second: Operator) -> int:
    return second(first(numbers[0], numbers[1]), numbers[2])


def as_written(numbers: Sequence[int], first: Operator, second: Operator) -> int:
    """The value without brackets: a product comes first."""
    if second is OPERATORS["*"] and first is not OPERATORS["*"]:
        return first(numbers[0], second(numbers[1], numbers[2]))
    return left_to_right(numbers, first, second)


def test_countdown_by_random_expressions() -> None:
    """Random signs between the numbers of the prompt, over all tasks and orders."""
    pairs = list(product(OPERATORS.values(), repeat=2))
    right = plays = 0
    for numbers in product(range(1, 10), repeat=3):
        targets = [left_to_right(numbers, *pair) for pair in pairs]
        for shown in permutations(numbers):
            right += sum(targets.count(as_written(shown, *pair)) for pair in pairs)
            plays += len(pairs) ** 2
    known = Countdown().reference()["random_expression_right"]
    assert known == pytest.approx(right / plays, abs=1e-9)

    shares = [
        fmean(
            solution(f"{a} {f} {b} {g} {c}", (a, b, c)) == task.data[1]
            for f, g in product(OPERATORS, repeat=2)
        )
        for task in islice(Countdown().tasks(random.Random(0)), 1000)
        for a, b, c in [task.data[0]]
    ]
    assert abs(fmean(shares) - known) < slack(shares)


@pytest.mark.parametrize("largest", [1, 2, 20])
def test_countdown_by_random_operators(largest: int) -> None:
    numbers = product(range(1, largest + 1), repeat=2)
    signs = OPERATORS.values()
    right = [f(a, b) == g(a, b) for a, b in numbers for f in signs for g in signs]
    arena = Countdown(size=2, largest=largest, operator=True)
    assert arena.reference()["random_operator_right"] == pytest.approx(fmean(right), abs=1e-12)


def test_zorplex_by_guessing() -> None:
    """A uniform number from 1 to 100 against the number of a word, a sum, a difference, x + y z."""
    numbers = np.arange(1, 101)
    sums = numbers[:, None] + numbers
    products = numbers[:, None] * numbers
    answers = {
        "easy": sums,
        "medium": numbers[:, None] - numbers,
        "hard": numbers[:, None, None] + products,
    }
    compositional = [np.mean((values >= 1) & (values <= 100)) / 100 for values in answers.values()]
    known = Zorplex().reference()["guess_success"]
    assert known == pytest.approx((9 * 0.01 + sum(compositional)) / 12, abs=1e-7)

    tasks = islice(Zorplex().tasks(random.Random(0)), 6000)
    shares = [float(1 <= task.data.answer <= 100) / 100 for task in tasks]
    assert abs(fmean(shares) - known) < slack([100 * share for share in shares]) / 100


def test_negotiation() -> None:
    arena = Negotiation()
    sums = [best_surplus(task.data) / 100 for task in islice(arena.tasks(random.Random(0)), 2000)]
    assert abs(fmean(sums) - arena.reference()["largest_sum"]) < slack(sums)

    def ends(*_: object) -> str:
        return "[end]"

    arena.client = ScriptedClient([])
    for episode in played(arena, ends, plays_from(arena, 0, 8)).episodes:
        assert set(episode.rewards.values()) == {arena.reference()["no_trade"]}
    assert set(Negotiation(mode="zero_sum").reference()) == {"idle_ann"}


def test_refine_by_copying_the_task() -> None:
    scores: list[float] = []
    for fewest, words, subject in product(range(6, 15), permutations(WORDS, 2), SUBJECTS):
        letters = sorted(set("abcdefghiklmnoprstuwy").difference(*words))
        every = [Rules(subject, fewest, fewest + 4, words, banned=letter) for letter in letters]
        scores.append(fmean(score_of(str(rules), rules) for rules in every))
    assert Refine().reference()["copied_task"] == pytest.approx(fmean(scores), abs=1e-6)


def test_duel_with_a_judge_that_tosses_a_coin() -> None:
    def player(role: str, _: Task, __: int, asked: Asked) -> str:
        heads = asked.sampling.seed % 2
        if role == "judge":
            return "[A]" if heads else "[B]"
        return "one two three four" if heads else "five six seven"

    arena = Duel(ScriptedClient([]))
    plays = plays_from(arena, 0, 1000, held_out=False)
    metrics = [episode.metrics for episode in played(arena, player, plays).episodes]
    figures = {
        "agreement": [m["judge_agreement"] for m in metrics if "planted_right" not in m],
        "planted_right": [m["planted_right"] for m in metrics if "planted_right" in m],
        "longer_wins": [m["longer_wins"] for m in metrics],
    }
    for name, values in figures.items():
        known = Duel.references[f"coin_judge_{name}"]
        assert abs(fmean(values) - known) < slack(values), name


def test_absolute_zero_by_repeating_the_list_of_the_question() -> None:
    arena = AbsoluteZero()
    problems = [task.data for task in arena.held_out(random.Random(0))]
    right = [is_right(str(list(lists_in(question(each))[-1])), each) for each in problems]
    assert arena.reference()["echo_solver"] == pytest.approx(fmean(right))
    assert "echo_solver" not in AbsoluteZero(kinds=["induction"]).reference()
