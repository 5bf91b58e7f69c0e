"""``legos chat``: talk to a model in the terminal, or line by line through a pipe."""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console

from legos.build.model import apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.clients.openai import OpenAIClient
from legos.data.message import Message, Sampling
from legos.errors import LegosError

__all__ = ["Chat", "Speaker", "chat"]

HELP = "/reset forgets what was said, /adapter NAME asks another one, /quit ends"
SEEDS = 1 << 63


class Speaker(Protocol):
    """Answers a chat, piece by piece."""

    def stream(
        self, messages: Sequence[Message], sampling: Sampling, *, adapter: str = "policy"
    ) -> AsyncGenerator[str]:
        """The text of one answer as it comes."""
        ...


@dataclass(slots=True, kw_only=True)
class Chat:
    """One conversation.

    Attributes:
        speaker: who answers.
        adapter: whom to ask for.
        sampling: how answers are drawn, but for their seeds.
        rng: of the seeds.
        system: what is said before everything else; empty for nothing.
        said: questions and answers so far.
    """

    speaker: Speaker
    adapter: str
    sampling: Sampling
    rng: random.Random
    system: str = ""
    said: list[Message] = field(default_factory=list[Message])

    async def answer(self, question: str) -> AsyncGenerator[str]:
        """Ask and tell the answer as it comes; one that breaks off is forgotten, question and all.

        Raises:
            LegosError: nobody answers, or the question is refused.
        """
        before = [Message("system", self.system)] if self.system else []
        asked = Message("user", question)
        sampling = Sampling(
            temperature=self.sampling.temperature,
            max_tokens=self.sampling.max_tokens,
            seed=self.rng.randrange(SEEDS),
        )
        pieces: list[str] = []
        messages = (*before, *self.said, asked)
        async for piece in self.speaker.stream(messages, sampling, adapter=self.adapter):
            pieces.append(piece)
            yield piece
        self.said += (asked, Message("assistant", "".join(pieces)))

    def command(self, line: str) -> str | None:
        """Do what a line with a slash says; what to tell then, or None to end."""
        word, _, rest = line.strip().partition(" ")
        name = rest.strip()
        if word == "/quit":
            return None
        if word == "/reset":
            self.said.clear()
            return "forgotten"
        if word == "/adapter" and name:
            self.adapter = name
            return f"asking {name}"
        return HELP


def chat(
    *,
    url: str | None,
    model: str | None,
    api_key: str | None,
    adapter: str,
    system: str,
    temperature: float,
    max_tokens: int,
    seed: int | None,
    source: TextIO | None = None,
) -> int:
    """Talk until the end of the input, ``/quit`` or Ctrl-C.

    Args:
        url: of a server; None runs ``model`` in this process.
        model: a folder, a hub name or the built-in model; with a URL, its name there.
        api_key: of the server.
        adapter: whom to ask for.
        system: what is said before everything else.
        temperature: of the answers.
        max_tokens: longest answer.
        seed: makes the answers repeat; None draws one.
        source: where lines come from; None is standard input.

    Returns:
        Exit code 0.

    Raises:
        LegosError: what went wrong, where the lines come through a pipe.
    """
    lines = sys.stdin if source is None else source
    rng = random.Random(seed)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    with asyncio.Runner() as runner, _speaker(runner, url, model, api_key) as speaker:
        talk = Chat(speaker=speaker, adapter=adapter, sampling=sampling, rng=rng, system=system)
        if lines.isatty():
            _interactive(talk, runner, Console())
        else:
            console = Console(soft_wrap=True)
            for line in lines:
                if not _turn(talk, line.rstrip("\n"), runner, console):
                    break
    return 0


def _interactive(talk: Chat, runner: asyncio.Runner, console: Console) -> None:
    """Ask for lines; what goes wrong is told, and the next line may go better."""
    _tell(console, f"{HELP}; Ctrl-C stops an answer")
    while True:
        try:
            line = console.input("[bold]> [/bold]")
        except (EOFError, KeyboardInterrupt) as end:
            console.print()
            if type(end) not in (EOFError, KeyboardInterrupt):  # SIGTERM ends the process
                raise
            return
        try:
            if not _turn(talk, line, runner, console):
                return
        except LegosError as error:
            _tell(console, f"error: {error}")
        except KeyboardInterrupt as stop:
            console.print()
            if type(stop) is not KeyboardInterrupt:
                raise


def _turn(talk: Chat, line: str, runner: asyncio.Runner, console: Console) -> bool:
    """One line: a command or a question; False ends the chat."""
    if not line.strip():
        return True
    if line.startswith("/"):
        told = talk.command(line)
        if told is not None and console.is_terminal:
            _tell(console, told)
        return told is not None

    async def show() -> None:
        async for piece in talk.answer(line):
            console.out(piece, end="", highlight=False)
        console.out("", highlight=False)

    runner.run(show())
    return True


def _tell(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _speaker(
    runner: asyncio.Runner, url: str | None, model: str | None, api_key: str | None
) -> Generator[Speaker]:
    """A server, or a model in this process; closed at the end."""
    if url is not None:
        client = OpenAIClient(url, api_key=api_key, model=model)
        try:
            yield client
        finally:
            runner.run(client.aclose())
        return
    handle = load_model(model or "builtin")
    apply_lora(handle)
    engine = handle.make_engine()
    try:
        engine.load_adapter(handle.base_adapter()).result()
        yield _Whole(EngineClient(engine, handle.tokenizer))
    finally:
        engine.close()
        handle.close()


class _Whole:
    """A client of this process, whose answers come in one piece."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def stream(
        self, messages: Sequence[Message], sampling: Sampling, *, adapter: str = "policy"
    ) -> AsyncGenerator[str]:
        """The answer."""
        yield (await self._client.complete(messages, sampling, adapter=adapter)).text
