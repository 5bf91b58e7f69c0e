"""Maths problems of a file, with known answers."""

import logging
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from legos import Arena, RunError, Table, Task, adding, hold_out, read_tasks

__all__ = ["Math", "MathReward", "answer_of"]

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_SAID = re.compile(r"the (?:final )?answer is:?\s*(.+)", re.IGNORECASE)
_MINUS = "\u2212"
_SENTENCE_END = re.compile(r"\.(?:\s|$)")
_WORD = re.compile(r"(?<![\w\\])[^\W\d_]{2,}")  # in words, not a command of LaTeX
SENTENCE = 4  # number of words from which on a known answer is a solution that ends with it

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}(?:\^\{?\d\}?)?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{(-?\d+)\}\s*\{(\d+)\}")
_MARKS = re.compile(r"\\?[$%]|\\[,;:! ]|[*_`~]|\^?\{?\\circ\}?|°|(?<=[a-z])\^\{?\d\}?|^\s*\w\s*=")
_THOUSANDS = re.compile(r"(?<=\d)[, ](?=\d{3}(?!\d))")
_VALUE = re.compile(
    r"(?:[-+]\s*)?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3}|\s?/\s?\d+)?(?![\w/^])", re.I
)
_UNITS = re.compile(r"(?:[^\W\d_]{2,}+|[\s.,;:!?'\"()-])*")  # a word is not tried in pieces
_NO_UNIT = re.compile(  # words that change the value
    r"\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|mod|or|and|not|to|plus|minus|times|over|half|third|dozen"
    r"|hundreds?|thousands?|millions?|billions?|pairs?|negative|squared|cubed|than)\b",
    re.I,
)
_NO_OPERATION = re.compile(  # parts of a number that look like one
    r"(?:\\times|\\cdot|[*\u00d7\u00b7])\s*10\s*\^\s*(?:-?\d+|\{-?\d+\})|\^?\{?\\circ\}?"
)
_OPERATION = re.compile(
    r"[\d)}!|][\s*]*(?:[-+*/\u00d7\u00b7\u00f7^]|\\(?:times|cdot|div)\b)[-+\s*]*[\d.({\\|]"
    r"|[\d)]\s*\(\s*-?\d|\\(?:sqrt|log|ln|lg|binom|lfloor|lceil)\b|\|-?\d+\|"
)
_QUOTIENT = re.compile(r"\\[cdt]?frac\s*(?:\{\s*-?[\d.]+\s*\}|\d)\s*(?:\{\s*-?[\d.]+\s*\}|\d)")
_EQUAL = re.compile(r"(?<![<>!:\\])=")
_LIST = re.compile(r",(?!\s?\d{3}(?!\d))|;|\b(?:or|and)\b")


def answer_of(text: str, *, strict: bool = False) -> str | None:
    r"""The final answer in a text: the last ``\boxed{}``, or what follows the last ``####``.

    Args:
        text: a solution, or the reference of a data set.
        strict: False: also take what follows "the answer is", or else the last number.
    """
    if (boxed := _boxed(text)) is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0]
    if strict:
        return None
    if said := _SAID.findall(text):
        return _SENTENCE_END.split(said[-1].strip())[0]
    numbers = _NUMBER.findall(text.replace(_MINUS, "-").replace("{,}", ","))
    return numbers[-1] if numbers else None


def _boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{}``, whose braces may be nested."""
    start = text.rfind("\\boxed{")
    depth = 0
    for index in range(start + 6, len(text) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if not depth:
            return text[start + 7 : index].strip()
    return None


def _number(text: str) -> Fraction | None:
    """The only number of an answer, without marks, units and words; None: it is something else."""
    text = _WRAPPED.sub(_unwrapped, text.replace(_MINUS, "-").replace("{,}", ","))
    text = _THOUSANDS.sub("", _MARKS.sub(" ", _FRACTION.sub(r" \1/\2", text)))
    values, words = _VALUE.findall(text), _VALUE.sub(" ", text)
    if len(values) != 1 or not _UNITS.fullmatch(words) or _NO_UNIT.search(words):
        return None
    try:
        return Fraction("".join(values[0].split()).rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


def _unwrapped(found: re.Match[str]) -> str:
    """The text in a command of LaTeX; a unit of one letter, such as m, goes."""
    inner = found[1].strip()
    return " " if len(inner) == 1 and inner.isalpha() else f" {inner} "


def _same(said: str, known: str) -> bool | None:
    """Whether an answer is the known number or text; None: compare them as expressions.

    An operation that is left to be computed is no number: 9 - 7 is not 2, and 12/4 is not 3.
    """
    if said.strip() == known.strip():
        return True
    second = _number(known)
    if second is None:
        return None
    *terms, result = _EQUAL.split(said)
    if not any(map(_LIST.search, terms)):
        said = result  # 9 - 7 = 2 has been computed
    percents = [bool(re.search(r"%|percent", text)) for text in (said, known)]
    if _left_to_compute(said, whole=second.denominator == 1 and not percents[1]):
        return False
    first = _number(said)
    if first is None:
        return None
    if percents[0] == percents[1] or first == second:
        return first == second
    return first == 100 * second if percents[0] else 100 * first == second


def _left_to_compute(said: str, *, whole: bool) -> bool:
    """Whether an answer, where a number is known, is an operation on others.

    Args:
        said: the answer.
        whole: whether the known number is whole, so that a fraction is an operation too.
    """
    result = _WRAPPED.sub(_digits, _FRACTION.sub(r" \1/\2", said.replace(_MINUS, "-")))
    result = re.sub(r"\\(?:left|right)(?![a-z])|\\[,;:! ]", "", _NO_OPERATION.sub("", result))
    if whole and _QUOTIENT.search(result):
        return True
    return bool(_OPERATION.search(result if whole else result.replace("/", " ")))


def _digits(found: re.Match[str]) -> str:
    """The text in a command of LaTeX where it has digits; a unit goes."""
    return f" {found[1]} " if any(map(str.isdigit, found[1])) else " "


@cache
def _say_what_is_missing() -> None:
    """Say once that expressions are not compared."""
    if find_spec("math_verify") is None:
        logger.warning(
            "math-verify is not installed, so only answers that are numbers are compared by value, "
            "others by their text; add it: %s",
            adding("math"),
        )


class MathReward:
    """1 for a completion whose answer equals the reference, otherwise 0.

    Equal numbers are equal, whatever marks, units and words stand around them, and equal texts;
    otherwise math-verify compares expressions. Where a number is known, an operation that is left
    to be computed is no answer. math-verify may hang, so call ``score`` through ``Table.run``.
    """

    def __init__(self, *, strict: bool = False) -> None:
        """Say whether only marked answers count."""
        self.strict = strict

    def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[str]
    ) -> list[float]:
        """[N] rewards of N completions."""
        pairs = zip(completions, answers, strict=True)
        return [float(self._right(completion, answer)) for completion, answer in pairs]

    def _right(self, completion: str, answer: str) -> bool:
        found = answer_of(completion, strict=self.strict)
        if found is None:
            return False
        same = _same(found, answer)
        if same is not None:  # math-verify takes seconds to load, and has nothing to add
            return same
        return self._equal(found, answer)

    @staticmethod
    def _equal(found: str, answer: str) -> bool:
        try:
            library: Any = import_module("math_verify")  # an optional package, slow to import
        except ImportError:
            return False
        known, said = (library.parse(f"${text}$", parsing_timeout=None) for text in (answer, found))
        return bool(library.verify(known, said, timeout_seconds=None))


class Math(Arena):
    r"""Solve a problem of a data set; the answer stands in ``\boxed{}`` or after ``####``.

    The rows have a question and an answer, as GSM8K has; a tenth of the questions is held out for
    evaluations. Without ``strict``, what follows "the answer is" counts too, or the last number.
    ``arena/strict`` is the share of right answers that are marked, and ``arena/lenient`` that of
    all right answers, whichever is rewarded. ``arena/unclear`` counts answers that could not be
    checked in time.

    Rewards: 1 for the right answer, and 0.1 for one that is marked by ``\boxed{}`` or ``####``.
    Credit compares the answers to one row. The number that shows learning is
    ``reward_part_player/correct`` on the held-out rows.
    """

    reward_weights: Mapping[str, float] = {"correct": 1.0, "format": 0.1}
    references: Mapping[str, float] = {"oracle": 1.1, "idle": 0.0}  # rewards
    max_tokens = 512
    check_s = 10.0  # seconds in which an answer must be compared with the known one

    def __init__(
        self,
        client: Any = None,
        *,
        data: str = "openai/gsm8k:main",
        question: str = "question",
        answer: str = "answer",
        group_size: str | None = None,
        limit: int | None = None,
        held_out: float = 0.1,
        strict: bool = False,
        **kwargs: Any,
    ) -> None:
        """Read the data set.

        Args:
            client: client of the seat.
            data: a .jsonl, .json or .parquet file, or a name of the hub.
            question: field with the problem, or with a whole prompt as token ids.
            answer: field with the answer, or with a solution that ends with it: several lines, or
                at least four words.
            group_size: field with the number of plays of a row, for rows that have their own.
            limit: maximum number of rows.
            held_out: share of rows that are evaluated and never trained on.
            strict: whether only a marked answer is rewarded.
            kwargs: settings of every arena.
        """
        super().__init__(client, **kwargs)
        _say_what_is_missing()
        rows = read_tasks(
            data, fields=(answer,), prompt=question, group_size=group_size, limit=limit
        )
        for row in rows:
            known: object = row.data[answer]
            if not isinstance(known, str | int | float):
                raise TypeError(
                    f"{row.id}: {answer!r} is {known!r:.80}; expected a text or a number"
                )
        asked = [Task(id=row.id, data=row.data[question]) for row in rows]  # however it is solved
        kept = {task.id for task in hold_out(asked, held_out)[0]}
        self._trained = [row for row in rows if row.id in kept]
        self._held_out = [row for row in rows if row.id not in kept]
        self._question, self._answer = question, answer
        self._reward, self._strict = MathReward(), strict

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The rows that are not held out, in random order."""
        return rng.sample(self._trained, len(self._trained))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """The rows that are held out, in random order; none: evaluate on the others."""
        return rng.sample(self._held_out, len(self._held_out)) or None

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """The known answer, marked."""
        return f"\\boxed{{{self._known(task)}}}", 1.1

    def example(self, role: str, prompt: str, rng: random.Random) -> str | None:
        """A number of the problem, marked; none where it has none."""
        numbers = _NUMBER.findall(prompt)
        return f"\\boxed{{{rng.choice(numbers)}}}" if numbers else None

    def _known(self, task: Task) -> str:
        """The answer of a row: the end of a solution, or the whole text if it is none."""
        known = str(task.data[self._answer])
        solution = "\n" in known.strip() or len(_WORD.findall(known)) >= SENTENCE
        return answer_of(known, strict=not solution) or known

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """One answer."""
        prompt = problem = t.task.data[self._question]
        if isinstance(problem, str):
            prompt = f"{problem}\nReason step by step, and put the final answer in \\boxed{{}}."
        said = (await t.ask("player", prompt)).answer
        known = self._known(t.task)
        unclear = 0.0
        try:
            score = self._reward.score
            [lenient] = await t.run(score, [str(prompt)], [said], [known], timeout_s=self.check_s)
        except RunError:
            lenient, unclear = 0.0, 1.0
        marked = float(answer_of(said, strict=True) is not None)
        strict = lenient * marked  # a marked answer is the one that is read
        t.metric(strict=strict, lenient=lenient, unclear=unclear)
        return {"player": {"correct": strict if self._strict else lenient, "format": marked}}
