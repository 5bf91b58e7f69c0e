"""``legos chat``: chat with a model in the terminal, or line by line through a pipe."""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import TextIO

from legos.apps.adapters import loaded
from legos.apps.transcript import visible
from legos.arena.game import position, split_position
from legos.builtin import BUILTIN, EXAMPLE
from legos.chat.incremental import TextStream
from legos.clients.engine import EngineClient
from legos.clients.openai import OpenAIClient
from legos.errors import LegosError
from legos.records.limits import EngineLimits
from legos.records.message import Completion, Message, Sampling
from legos.records.names import BASE, POLICY
from legos.track.output import OutputConsole
from legos.wiring.named import named_adapter

HELP = "/reset starts a new conversation, /adapter NAME asks another adapter, /quit ends the chat"
GAMES = (
    "a line that ends with the moves of a game is answered with one of them, such as\n  "
    + EXAMPLE.replace("\n", " ")
)
BUILTIN_CAN = (
    "the built-in model has 0.15 million parameters and plays games; it has not learned language, "
    "and at best copies other text"
)
LONGEST = 512  # tokens of an answer, by default
BUILTIN_LONGEST = 32  # the same for the built-in model, whose longer answers do not end
CUT = "(cut off after {} tokens; --max-tokens N allows more)"
SEEDS = 1 << 63


@dataclass(slots=True, kw_only=True)
class Chat:
    """One conversation.

    Attributes:
        client: answers.
        adapter: name of the adapter that is asked.
        sampling: temperature and token limit of the answers.
        rng: generator of the seeds of the answers.
        system: system message; empty: none.
        history: questions and answers so far.
    """

    client: OpenAIClient | EngineClient
    adapter: str
    sampling: Sampling
    rng: random.Random
    system: str = ""
    history: list[Message] = field(default_factory=list[Message])

    async def answer(self, question: str, show: Callable[[str], object]) -> Completion:
        """The answer, whose text enters the history.

        The position of a game is asked without the history, as arenas ask it, and the answer is a
        legal move.

        Args:
            question: a question, or a position.
            show: receives the text of the answer piece by piece: from an engine in this process as
                it is sampled, from a server at the end.

        Raises:
            LegosError: the question is refused, or the answer fails.
        """
        game = split_position(question)
        prompt = Message("user", position(*game) if game else question)
        sampling = Sampling(
            temperature=self.sampling.temperature,
            max_tokens=None if game else self.sampling.max_tokens,
            choices=game[1] if game else (),
            restrict=game is not None,
            seed=self.rng.randrange(SEEDS),
        )
        messages = [] if game else list(self.history)
        if self.system:
            messages.insert(0, Message("system", self.system))
        said = await self._said([*messages, prompt], sampling, show)
        if game is None:
            self.history += (prompt, Message("assistant", said.text))
        return said

    async def _said(
        self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], object]
    ) -> Completion:
        """The answer to messages, of which ``show`` receives each piece as soon as it is known."""
        if isinstance(self.client, OpenAIClient):
            said = await self.client.complete(messages, sampling, adapter=self.adapter)
            show(said.text)
            return said
        text = TextStream(self.client.tokenizer.decode)
        parts = self.client.stream(messages, sampling, adapter=self.adapter)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Completion):
                    show(text.finish(self.client.tokenizer.decode(part.token_ids)))
                    return part
                show(text.push(part.token_ids))
        raise AssertionError("a stream ends with its completion")

    def command(self, line: str) -> str | None:
        """Execute a line that begins with a slash; the message to show, or None to end."""
        word, _, rest = line.strip().partition(" ")
        name = rest.strip()
        if word == "/quit":
            return None
        if word == "/reset":
            self.history.clear()
            return "the conversation is forgotten"
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
    """Chat until the end of the input, ``/quit`` or Ctrl-C.

    Args:
        url: address of a server; None: run the model in this process.
        model: a folder, a name on the hub, or the built-in model; None: the model that the adapter
            was trained on. With a URL, the name of the model on the server.
        api_key: API key of the server.
        adapter: "policy", "base", or what ``named_adapter`` reads; with a URL, the name of an
            adapter on the server.
        system: system message; empty: none.
        temperature: sampling temperature of the answers.
        max_tokens: longest answer that is not a move; None: ``LONGEST`` or ``BUILTIN_LONGEST``.
        seed: seed of the answers; None: a random one.
        source: input; None: standard input.

    Returns:
        Exit code 0.

    Raises:
        LegosError: an answer failed and the input is not a terminal.
    """
    lines = sys.stdin if source is None else source
    with asyncio.Runner() as runner, ExitStack() as stack:
        small = False
        if url is not None:
            client = OpenAIClient(url, api_key=api_key, model=model)
            stack.callback(lambda: runner.run(client.aclose()))
        else:
            adapters = [] if adapter in (POLICY, BASE) else [named_adapter(adapter)]
            live = stack.enter_context(loaded(model, adapters, EngineLimits()))
            client = live.client()
            small = live.name == BUILTIN
            adapter = BASE if adapter == BASE else POLICY
        if max_tokens is None:
            max_tokens = BUILTIN_LONGEST if small else LONGEST
        talk = Chat(
            client=client,
            adapter=adapter,
            sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
            rng=random.Random(seed),
            system=system,
        )
        if lines.isatty():
            hint = f"{BUILTIN_CAN};\n{GAMES}" if small else GAMES
            _interactive(talk, runner, OutputConsole(), hint)
        else:
            console = OutputConsole(soft_wrap=True)
            for line in lines:
                if not _turn(talk, line.rstrip("\n"), runner, console):
                    break
    return 0


def _interactive(talk: Chat, runner: asyncio.Runner, console: OutputConsole, hint: str) -> None:
    """Read lines from the terminal; an error is shown and does not end the chat."""
    _show(console, f"{hint}\n{HELP}; Ctrl-C stops an answer")
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
            _show(console, f"error: {error}")
        except KeyboardInterrupt as stop:
            console.print()
            if type(stop) is not KeyboardInterrupt:
                raise


def _turn(talk: Chat, line: str, runner: asyncio.Runner, console: OutputConsole) -> bool:
    """Handle one line, a command or a question; False ends the chat."""
    if not line.strip():
        return True
    if line.startswith("/"):
        message = talk.command(line)
        if message is not None and console.is_terminal:
            _show(console, message)
        return message is not None

    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        console.out(visible(text) if console.is_terminal else text, highlight=False, end="")

    try:
        answer = runner.run(talk.answer(line, show))
    except LegosError:
        if shown:
            console.out()
        raise
    console.out()
    if answer.finish_reason == "length" and console.is_terminal:
        _show(console, CUT.format(talk.sampling.max_tokens))
    return True


def _show(console: OutputConsole, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
