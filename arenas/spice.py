"""Spice: questions about a folder of texts, which the solver has to answer without the text."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from arenas.passages import passages, stands_in, words_in
from arenas.proposers import share_solved
from legos import Arena, Table, Task, hold_out

__all__ = ["Answer", "Question", "Spice", "gate", "is_right", "parse_question", "passages"]

MALFORMED, REJECTED = -1.0, -0.5  # rewards of what is no question, or does not pass the gate
KEPT = 2000  # questions in the store
FORMS = (".txt", ".md")  # endings of the texts
_QUESTION = re.compile(r"QUESTION:\s*(.+?)\s*ANSWER:\s*(.+)", re.DOTALL)


class Question(NamedTuple):
    """A question with its answer."""

    text: str
    answer: str


class Answer(Arena):
    """Answer one question; the last line counts. Reward: 1 or 0."""

    roles = ("solver",)
    max_tokens = 128

    async def play(self, t: Table) -> Mapping[str, float]:
        """One answer."""
        question = Question(*t.task.data)
        prompt = f"{question.text}\nReason, and write nothing but the answer in the last line."
        said = (await t.ask("solver", prompt)).answer
        return {"solver": float(is_right(said, question.answer))}


class Spice(Arena):
    """The challenger reads a passage and asks about it; the solver answers without the passage.

    A question is written ``QUESTION: ... ANSWER: ...``. The gate lets it through if its answer has
    at most four words that stand next to each other in the passage, the question does not quote
    it, and it is new. So the answer is grounded in the texts, and no judge is needed.

    Rewards: the challenger gets 4 p (1 - p) for the share p of right answers, -1 for what is no
    question, and -0.5 for what does not pass the gate; a solver gets 1 or 0. Credit
    ``hierarchical`` compares the questions about one passage with each other, and the answers to
    one question with each other. A tenth of the texts is held out; the numbers that show learning
    are the gate's pass rate ``arena/gate`` and, of the questions that passed, the share of right
    answers ``arena/solved`` there, and ``arena/covered``, the share of the passages of training
    that the stored questions come from.
    """

    roles = ("challenger", "solver")
    references: Mapping[str, float] = {
        "oracle_solver": 1.0,
        "best_challenger": 1.0,  # if half of the answers are right
        "idle_challenger": -1.0,
    }
    max_tokens = 128
    recommended: Mapping[str, object] = {"play.credit": "hierarchical"}

    def __init__(
        self,
        client: Any = None,
        *,
        texts: str = "",
        answers: int = 8,
        characters: int = 1200,
        held_out: float = 0.1,
        **kwargs: Any,
    ) -> None:
        """Read the texts.

        Args:
            client: client of all seats.
            texts: a folder with .txt and .md files.
            answers: number of answers to each question.
            characters: maximum length of a passage.
            held_out: share of the texts that are evaluated and never trained on.
            kwargs: settings of every arena.

        Raises:
            ValueError: no folder with texts to train on, one that is not in UTF-8, or fewer than
                two answers.
        """
        super().__init__(client, **kwargs)
        files = sorted(p for p in Path(texts).rglob("*") if p.suffix in FORMS and p.is_file())
        if not texts or not files:
            raise ValueError(
                f"texts is {texts!r}, where no .txt or .md file is; give a folder with some: "
                "--play.options.texts FOLDER"
            )
        if answers < 2:
            raise ValueError(f"answers is {answers}; expected at least 2 to compare")
        self.answers = answers
        whole = [Task(id=str(path.relative_to(texts)), data=_read(path)) for path in files]
        trained, evaluated = hold_out(whole, held_out)
        self._trained = [part for task in trained for part in _parts(task, characters)]
        if not trained:
            raise ValueError(f"all {len(files)} texts are held out; give more, or held_out 0")
        self._trained_ids = {task.id for task in self._trained}
        self._held_out = [part for task in evaluated for part in _parts(task, characters)]

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The passages, in random order."""
        return rng.sample(self._trained, len(self._trained))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """Passages of the texts that are held out, in random order."""
        return rng.sample(self._held_out, len(self._held_out)) or None

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """A question about a word of the passage, or a word as the answer."""
        if "QUESTION: ..." not in prompt:
            return "perhaps\nsomething"
        word = rng.choice(words_in(prompt.partition("\n\nAsk")[0]) or ["nothing"])
        return f"QUESTION: Which word is number {rng.random():.3f}? ANSWER: {word}"

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """A question about a word of the passage by its place, and that word."""
        words = words_in(str(task.data))
        if found := re.search(r"stands at place (\d+) of", prompt):
            return words[int(found[1])], 1.0
        asked = "Which word stands at place {} of the text? {:016x}"  # the number makes it new
        at = rng.choice(
            [at for at, word in enumerate(words) if word.isalpha() and word not in asked]
        )
        question = asked.format(at, rng.getrandbits(64))
        return f"QUESTION: {question} ANSWER: {words[at]}", 0.0

    def private(self, task: Task) -> Mapping[str, Sequence[str]]:
        """The passage, which the solver does not see."""
        return {"challenger": [str(task.data)]}

    async def play(self, t: Table) -> Mapping[str, float]:
        """A question, and the solver's answers to it."""
        passage = str(t.task.data)
        prompt = (
            f"{passage}\n\nAsk a question about this that is neither easy nor hard for somebody "
            "who has not read it. Its answer has 1 to 4 words of the text.\n"
            "QUESTION: ... ANSWER: ..."
        )
        question = parse_question((await t.ask("challenger", prompt)).answer)
        if question is None:
            t.metric(gate=0.0)
            return {"challenger": MALFORMED, "solver": 0.0}
        store, name = t.store("questions", limit=KEPT), " ".join(words_in(question.text))
        mine = f"{t.seed} {t.task.id}"  # a resumed run may repeat this play
        known = bool(store.get(name, mine) != mine)
        reason = "it was asked before" if known else gate(question, passage)
        t.metric(gate=float(not reason))
        if reason:
            t.note(reason)
            return {"challenger": REJECTED, "solver": 0.0}
        store[name] = mine
        answers = await t.spawn(Answer, Task(id=question.text, data=question), n=self.answers)
        right = share_solved(answers)
        covered = self._trained_ids & {each.partition(" ")[2] for each in store.values()}
        t.metric(solved=right, covered=len(covered) / len(self._trained_ids))
        return {"challenger": 4 * right * (1 - right), "solver": right}


def parse_question(said: str) -> Question | None:
    """The question and answer of a reply; None: it has none."""
    found = _QUESTION.search(said)
    return Question(found[1], found[2].strip().splitlines()[0].strip(" .")) if found else None


def gate(question: Question, passage: str) -> str:
    """Why a question is not accepted; empty: it is."""
    answer, asked = words_in(question.answer), words_in(question.text)
    if not 1 <= len(answer) <= 4:
        return f"the answer has {len(answer)} words; expected 1 to 4"
    if not stands_in(answer, words_in(passage)):
        return "the answer does not stand in the passage"
    if stands_in(answer, asked):
        return "the question quotes the answer"
    return "" if len(asked) >= 3 else "the question has fewer than 3 words"


def is_right(said: str, answer: str) -> bool:
    """Whether the last line of a reply is the answer, but for case and punctuation."""
    lines = said.strip().splitlines()
    return bool(lines) and words_in(lines[-1]) == words_in(answer)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}; convert it, or move it away") from error


def _parts(text: Task, characters: int) -> list[Task]:
    """The passages of a text as tasks."""
    parts = passages(str(text.data), characters)
    return [Task(id=f"{text.id}#{number}", data=part) for number, part in enumerate(parts, 1)]
