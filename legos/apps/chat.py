"""``legos chat``: talk to a model in the terminal, or line by line through a pipe."""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TextIO

from rich.console import Console

from legos.arena.game import position, split_position
from legos.builtin import BUILTIN, EXAMPLE
from legos.clients.engine import EngineClient
from legos.clients.openai import OpenAIClient
from legos.data.message import Message, Sampling
from legos.data.names import BASE, POLICY
from legos.errors import LegosError
from legos.run.find import find_adapter
from legos.weights.folder import read_adapter
from legos.wiring.model import apply_lora, load_model
from legos.wiring.serving import base_of, put_on

__all__ = ["Chat", "Speaker", "chat"]

HELP = "/reset forgets what was said, /adapter NAME asks another one, /quit ends"
GAMES = (
    "a line that ends with the moves of a game is answered with one of them, such as\n  "
    + EXAMPLE.replace("\n", " ")
)
BUILTIN_CAN = (
    "the built-in model has 0.15 million parameters and plays games; it knows no language, and "
    "what is no position of a game it copies at best"
)
LIVE = (POLICY, BASE)  # adapters of a model in this process that are no files
LONGEST = 512  # tokens of an answer, unless told otherwise
BUILTIN_LONGEST = 32  # an answer of the built-in model that has not ended by then never ends
SEEDS = 1 << 63


class Speaker(Protocol):
    """Answers a chat, piece by piece."""

    def stream(
        self, messages: Sequence[Message], sampling: Sampling, *, adapter: str = POLICY
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

        A position of a game is asked as games ask it: by itself, and the answer is a move.

        Raises:
            LegosError: nobody answers, or the question is refused.
        """
        before = [Message("system", self.system)] if self.system else []
        place = split_position(question)
        asked = Message("user", position(*place) if place else question)
        sampling = Sampling(
            temperature=self.sampling.temperature,
            max_tokens=None if place else self.sampling.max_tokens,
            choices=place[1] if place else (),
            seed=self.rng.randrange(SEEDS),
        )
        pieces: list[str] = []
        messages = (*before, *(() if place else self.said), asked)
        async for piece in self.speaker.stream(messages, sampling, adapter=self.adapter):
            pieces.append(piece)
            yield piece
        if place is None:
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
    max_tokens: int | None,
    seed: int | None,
    source: TextIO | None = None,
) -> int:
    """Talk until the end of the input, ``/quit`` or Ctrl-C.

    Args:
        url: of a server; None runs ``model`` in this process.
        model: a folder, a hub name or the built-in model; None: what the adapter was trained on.
            With a URL, the model's name there.
        api_key: of the server.
        adapter: whom to ask for: "policy", "base", or what ``find_adapter`` finds; with a URL, an
            adapter's name there.
        system: what is said before everything else.
        temperature: of the answers.
        max_tokens: longest answer that is no move; None: ``LONGEST``, of the built-in model less.
        seed: makes the answers repeat; None draws one.
        source: where lines come from; None is standard input.

    Returns:
        Exit code 0.

    Raises:
        LegosError: what went wrong, where the lines come through a pipe.
    """
    lines = sys.stdin if source is None else source
    rng = random.Random(seed)
    with asyncio.Runner() as runner, ExitStack() as stack:
        if url is not None:
            speaker: Speaker = stack.enter_context(_server(runner, url, model, api_key))
            small = False
        else:
            speaker, small = stack.enter_context(_own_model(model, adapter))
            adapter = BASE if adapter == BASE else POLICY
        longest = max_tokens or (BUILTIN_LONGEST if small else LONGEST)
        sampling = Sampling(temperature=temperature, max_tokens=longest)
        talk = Chat(speaker=speaker, adapter=adapter, sampling=sampling, rng=rng, system=system)
        if lines.isatty():
            _interactive(
                talk, runner, Console(), can=f"{BUILTIN_CAN};\n{GAMES}" if small else GAMES
            )
        else:
            console = Console(soft_wrap=True)
            for line in lines:
                if not _turn(talk, line.rstrip("\n"), runner, console):
                    break
    return 0


def _interactive(talk: Chat, runner: asyncio.Runner, console: Console, *, can: str) -> None:
    """Ask for lines; what goes wrong is told, and the next line may go better."""
    _tell(console, f"{can}\n{HELP}; Ctrl-C stops an answer")
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
def _server(
    runner: asyncio.Runner, url: str, model: str | None, api_key: str | None
) -> Generator[Speaker]:
    """A server; its connections are closed at the end."""
    client = OpenAIClient(url, api_key=api_key, model=model)
    try:
        yield client
    finally:
        runner.run(client.aclose())


@contextmanager
def _own_model(model: str | None, adapter: str) -> Generator[tuple[Speaker, bool]]:
    """A model in this process with an adapter as its policy, and whether it is the built-in one."""
    weights = None if adapter in LIVE else read_adapter(find_adapter(adapter))
    name = base_of(model, [weights] if weights else [])
    handle = load_model(name)
    if weights is None:
        apply_lora(handle)
        weights = handle.base_adapter()
    engine = handle.make_engine()
    try:
        put_on(engine, replace(weights, name=POLICY), name)
        yield _Whole(EngineClient(engine, handle.tokenizer)), name == BUILTIN
    finally:
        engine.close()
        handle.close()


class _Whole:
    """A client of this process, whose answers come in one piece."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def stream(
        self, messages: Sequence[Message], sampling: Sampling, *, adapter: str = POLICY
    ) -> AsyncGenerator[str]:
        """The answer."""
        yield (await self._client.complete(messages, sampling, adapter=adapter)).text
