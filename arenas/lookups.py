"""Puzzles about hidden numbers, which tools look up: each has a table of its own."""

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

__all__ = ["KINDS", "LEVELS", "RULES", "WORDS", "Puzzle", "make_puzzle"]

KINDS = ("simple", "compositional", "multi_step", "recursive")
LEVELS = ("easy", "medium", "hard")
_WORDS = """
    amber birch cedar delta ember frost grove heron ivory jade karma lotus maple nylon olive
    pearl quartz raven slate topaz umber velvet willow xenon yarrow zinc
"""
WORDS = tuple(_WORDS.split())
RULES = {
    "simple": "LOOKUP[word] tells a word's number.",
    "compositional": "LOOKUP[word] tells a word's number. COMPUTE[2 + 3] tells a value.",
    "multi_step": "GETKEY[word] tells a word's key. FETCH[key] tells the number of a key.",
    "recursive": "LOOKUP[word] tells a word's number, or another word to look up instead.",
}


class Puzzle(NamedTuple):
    """A question and the answers of its tools."""

    kind: str
    question: str
    results: Mapping[str, str]  # call -> result
    answer: int
    needed: int  # number of calls that are enough


def make_puzzle(kind: str, level: int, rng: random.Random) -> Puzzle:
    """A puzzle with a table of its own."""
    words = rng.sample(WORDS, len(WORDS))
    numbers = {word: rng.randint(1, 100) for word in words}
    first, second, third, fourth = words[:4]
    results = {f"LOOKUP[{word}]": str(number) for word, number in numbers.items()}
    question, answer, needed = f"What is the number of {first}?", numbers[first], 1
    if kind == "compositional":
        one, other = numbers[first], numbers[second]
        text, answer, needed = (
            (f"{first} + {second}", one + other, 3),
            (f"{first} - {second}", one - other, 3),
            (f"{first} + {second} * {third}", one + other * numbers[third], 4),
        )[level]
        question = f"What is {text}?"
    elif kind == "multi_step":
        keys = {word: f"ZK_{rng.getrandbits(24):06x}" for word in words}
        results = {f"GETKEY[{word}]": key for word, key in keys.items()}
        results |= {f"FETCH[{key}]": str(numbers[word]) for word, key in keys.items()}
        needed = 2
    elif kind == "recursive":
        path = (first, second, third, fourth)[: level + 2]
        for word, following in pairwise(path):
            results[f"LOOKUP[{word}]"] = f"SEE: {following}"
        answer, needed = numbers[path[-1]], len(path)
    return Puzzle(kind, question, results, answer, needed)
