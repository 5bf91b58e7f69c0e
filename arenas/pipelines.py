"""A small language: pipelines of operations on a list of whole numbers.

    add 2 | keep even | sort | sum

Every program ends, whatever it says: there is no recursion, loops have a fixed number of rounds,
and lists and numbers are bounded. So a program that a model has written can simply be run.

    add N, mul N, mod N       change each number        keep even|odd, above N, below N
    sort, reverse, unique     change the order          take N, drop N
    sum, max, min, len        at most one number        repeat N OPERATION, N up to 8
    if even|odd OPERATION     changes only such numbers (add, mul, mod)
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

__all__ = ["random_program", "run"]

MAX_OPERATIONS = 8
MAX_ROUNDS = 8
MAX_ITEMS = 32
LARGEST = 10**9
Numbers = list[int]

_EACH: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda x, n: x + n,
    "mul": lambda x, n: x * n,
    "mod": lambda x, n: x % n,
}
_WHOLE: Mapping[str, Callable[[Numbers], Numbers]] = {
    "sort": sorted,
    "reverse": lambda xs: xs[::-1],
    "unique": lambda xs: list(dict.fromkeys(xs)),
    "sum": lambda xs: [sum(xs)],
    "max": lambda xs: [max(xs)] if xs else [],
    "min": lambda xs: [min(xs)] if xs else [],
    "len": lambda xs: [len(xs)],
}
_PARITY: Mapping[str, Callable[[int], bool]] = {
    "even": lambda x: x % 2 == 0,
    "odd": lambda x: x % 2 == 1,
}
_CUTS: Mapping[str, Callable[[Numbers, int], Numbers]] = {
    "take": lambda xs, n: xs[:n],
    "drop": lambda xs, n: xs[n:],
    "above": lambda xs, n: [x for x in xs if x > n],
    "below": lambda xs, n: [x for x in xs if x < n],
}


def run(program: str, numbers: Sequence[int]) -> Numbers:
    """What a program makes of a list.

    Raises:
        ValueError: the program or the list is not valid, or a value exceeds its bound.
    """
    operations = [part.split() for part in program.split("|")]
    if len(operations) > MAX_OPERATIONS:
        raise ValueError(f"the program has {len(operations)} operations; at most {MAX_OPERATIONS}")
    values = _bounded(list(numbers))
    for words in operations:
        values = _bounded(_apply(words, values))
    return values


def _apply(words: Sequence[str], values: Numbers) -> Numbers:
    """One operation."""
    match words:
        case [name] if name in _WHOLE:
            made = _WHOLE[name](values)
        case [name, number] if name in _EACH:
            made = [_EACH[name](x, _number(number)) for x in values]
        case [("take" | "drop") as name, number]:
            made = _CUTS[name](values, _number(number))
        case ["keep", parity] if parity in _PARITY:
            made = [x for x in values if _PARITY[parity](x)]
        case ["keep", ("above" | "below") as side, number]:
            made = _CUTS[side](values, _number(number))
        case ["if", parity, name, number] if parity in _PARITY and name in _EACH:
            change = _EACH[name]
            made = [change(x, _number(number)) if _PARITY[parity](x) else x for x in values]
        case ["repeat", rounds, *rest] if rest and rest[0] != "repeat":
            made = values
            for _ in range(min(_number(rounds), MAX_ROUNDS)):
                made = _bounded(_apply(rest, made))
        case _:
            raise ValueError(f"{' '.join(words)!r:.60} is not an operation")
    return made


def _number(word: str) -> int:
    """The argument of an operation, 1 to 99."""
    if not re.fullmatch(r"[1-9][0-9]?", word):  # one form of each, so that a program is one text
        raise ValueError(f"{word!r:.20} is not a number from 1 to 99")
    return int(word)


def _bounded(values: Numbers) -> Numbers:
    if len(values) > MAX_ITEMS:
        raise ValueError(f"the list has {len(values)} numbers; at most {MAX_ITEMS}")
    if max(map(abs, values), default=0) > LARGEST:
        raise ValueError(f"a number exceeds {LARGEST}")
    return values


def random_program(rng: random.Random, operations: int) -> str:
    """A random program of so many operations."""

    def operation() -> str:
        number = rng.randint(2, 9)
        return rng.choice(
            (
                f"{rng.choice(('add', 'mul', 'mod'))} {number}",
                f"if {rng.choice(('even', 'odd'))} add {number}",
                f"keep {rng.choice(('even', 'odd'))}",
                rng.choice(("sort", "reverse", "unique")),
                f"take {rng.randint(1, 3)}",
                rng.choice(("sum", "max", "min", "len")),
            )
        )

    return " | ".join(operation() for _ in range(operations))
