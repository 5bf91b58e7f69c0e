"""Questions of reasoning-gym: ``reasoning_gym:basic_arithmetic``, ``reasoning_gym:countdown``."""

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from arenas.worlds import HELD_OUT, World, take_arena_settings
from legos import Arena, Client, RunError, Table, Task

__all__ = ["Reasoning", "world"]

reasoning_gym: Any = import_module("reasoning_gym")
DRAWN = 256  # questions that are generated together
HELD_OUT_SEED = 0x5EED
SCORE_S = 10.0  # seconds in which an answer must be scored


@lru_cache(maxsize=64)
def world(name: str) -> type[Arena]:
    """The class of the arena of a data set of reasoning-gym.

    Raises:
        ValueError: there is no such data set.
    """
    reasoning_gym.create_dataset(name, seed=0, size=1)
    fields = {"source": name, "__doc__": f"Questions {name} of reasoning-gym."}
    return type("Reasoning", (Reasoning,), fields)


class Reasoning(World):
    """Answer generated questions; the reward is reasoning-gym's score, 0 to 1.

    Options are those of the data set's generator, such as ``--play.options.max_digits 2``. Only the
    answer without thinking is scored, in another process, because some scorers run it as code. An
    answer that cannot be scored in time gets 0, and the metric ``unclear`` counts it. The metric
    ``right`` is the share of full scores, since many data sets give a part of the score for a wrong
    answer.
    """

    scheme = "reasoning_gym"

    def __init__(self, client: Client | None = None, **settings: Any) -> None:
        """Make the arena.

        Args:
            client: client of the seat.
            settings: settings of ``Arena``, and options of the generator.
        """
        super().__init__(client, **take_arena_settings(settings))
        self._options = settings
        self._scorer = self._questions(0, 1)
        self._held_out = self._questions(HELD_OUT_SEED, HELD_OUT)

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """Questions without end, except those that are held out.

        Raises:
            ValueError: there are so few that all are held out.
        """
        held_out = {entry["question"] for entry in self._held_out}
        left = True
        while left:
            seed, left = rng.getrandbits(31), False
            for number, entry in enumerate(self._questions(seed, DRAWN)):
                if entry["question"] not in held_out:
                    left = True
                    yield Task(id=f"{seed}/{number}", data=entry)
        raise ValueError(
            f"{self.name} has only {len(held_out)} questions with the options {self._options}, and "
            "all are held out; give options with more"
        )

    def held_out(self, rng: random.Random) -> Sequence[Task]:
        """The same questions in every evaluation."""
        return [Task(id=f"held out/{n}", data=entry) for n, entry in enumerate(self._held_out)]

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        """The generator's own answer; none where it gets less than the full score."""
        answer = task.data["answer"]
        if answer is None or float(self._scorer.score_answer(str(answer), task.data)) < 1.0:
            return None
        return str(answer), 1.0

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask, and let reasoning-gym score the answer."""
        entry = t.task.data
        reply = await t.ask("player", entry["question"])
        options, unclear = pickle.dumps(self._options), 0.0
        try:
            score = await t.run(
                _score, self.source, options, reply.answer, entry, timeout_s=SCORE_S
            )
        except RunError:
            score, unclear = 0.0, 1.0
        t.metric(right=float(score >= 1.0), unclear=unclear)
        return {"player": score}

    def _questions(self, seed: int, size: int) -> Any:
        return reasoning_gym.create_dataset(self.source, seed=seed, size=size, **self._options)


@lru_cache(maxsize=64)
def _scorer(name: str, options: bytes) -> Any:
    """The data set whose scorer is used, with its pickled options."""
    return reasoning_gym.create_dataset(name, seed=0, size=1, **pickle.loads(options))


def _score(name: str, options: bytes, answer: str, entry: Mapping[str, Any]) -> float:
    """The score of an answer."""
    return float(_scorer(name, options).score_answer(answer, entry))
