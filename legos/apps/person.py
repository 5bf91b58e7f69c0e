"""A person in a seat, who reads questions and writes answers at the terminal."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from legos.apps.transcript import visible
from legos.arena.endings import Void
from legos.records.message import (
    Completion,
    Message,
    Prompt,
    Sampling,
    messages_or_ids,
)
from legos.records.names import POLICY

LEFT = "the person at the terminal has left"


class Terminal:
    """Lines of a terminal or a pipe, for one person at a time."""

    def __init__(self, source: TextIO, say: Callable[[str], object]) -> None:
        """Take where lines are read from, and a function that shows a text."""
        self._source = source
        self._reader = ThreadPoolExecutor(max_workers=1)
        self._asking = asyncio.Lock()
        self.say = say

    async def answer(self, question: str, choices: Sequence[str]) -> str:
        """Ask until the answer is one of the choices, if there are any.

        Raises:
            Void: the input has ended.
        """
        async with self._asking:
            self.say(visible(question))
            while True:
                line = await self._line()
                if not line:
                    raise Void(LEFT)
                answer = line.strip()
                exact = answer if answer in choices else None
                move = exact or next((c for c in choices if c.lower() == answer.lower()), None)
                if move is not None or not choices:
                    return move or answer
                self.say(f"{answer!r} is not one of: {', '.join(choices)}")

    async def _line(self) -> str:
        """The next line, empty at the end; the event loop goes on while the person thinks."""
        if self._source.isatty():
            sys.stdout.write("> ")
            sys.stdout.flush()
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._source.readline)


class Person:
    """The client of one role that a person plays."""

    def __init__(self, role: str, terminal: Terminal) -> None:
        """Take the role, and the terminal at which the person sits."""
        self._role = role
        self._terminal = terminal
        self._shown: set[str] = set()  # system messages that were shown

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Show what is new in the conversation and read the answer.

        Raises:
            Void: the input has ended.
        """
        unread = _unread(messages_or_ids(prompt)[0])
        new = [each for each in unread if each.role != "system" or each.content not in self._shown]
        self._shown |= {each.content for each in new if each.role == "system"}
        text = "\n".join(each.content for each in new)
        question = f"\nYou are {self._role}.\n{text}"
        return Completion(
            text=await self._terminal.answer(question, sampling.choices), adapter=adapter
        )


def _unread(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages after the person's last answer."""
    answers = [index for index, each in enumerate(messages) if each.role == "assistant"]
    return messages[answers[-1] + 1 if answers else 0 :]
