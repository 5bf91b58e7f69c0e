"""The questions of a game's positions, each made once, and asked without a coroutine for each."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from legos.arena.checks import check_text, checked_choices
from legos.arena.game import Game, State, movers
from legos.errors import PlayCancelledError
from legos.play.outcome import failing_alone
from legos.play.play_state import SeatState
from legos.protocols import BatchClient, Seat
from legos.records.message import Completion, Message, Prompt, Sampling

MAX_POSITIONS = 4096  # positions kept for one game
MAX_SEATS = 16  # players whose question is kept for one position: a league's, and the policy's
Done = Callable[[Completion | Exception], Any]


class Ask:
    """A question to a seat that can be asked many times, with a seed each."""

    def __init__(self, seat: Seat, prompt: Prompt, sampling: Sampling) -> None:
        """Prepare a question.

        Args:
            seat: the seat to ask.
            prompt: the prompt.
            sampling: sampling parameters; each time the question is asked it gets another seed.

        Raises:
            RequestError: the request cannot be served.
        """
        self.seat = seat
        self._prompt = prompt
        self._sampling = sampling
        client: Any = seat.client
        self._client: BatchClient | None = client if hasattr(client, "prepare") else None
        self._prepared: Any = None
        if self._client is not None:
            self._prepared = self._client.prepare(prompt, sampling, adapter=seat.adapter)

    def begin(self, seed: int, done: Done) -> Callable[[], object]:
        """Ask in the running event loop.

        Args:
            seed: seed of the draws.
            done: called later with the completion, or the error, unless the question was ended.

        Returns:
            A function that ends the question.
        """
        if self._client is None or self._prepared is None:
            return self._begin_task(seed, done)
        return partial(self._client.cancel, self._client.begin(self._prepared, seed, done))

    def _begin_task(self, seed: int, done: Done) -> Callable[[], object]:
        """Ask a client that has no callbacks."""

        async def answer() -> Completion:
            sampling, client = replace(self._sampling, seed=seed), self.seat.client
            with failing_alone(f"the client of {self.seat.role!r}"):
                return await client.complete(self._prompt, sampling, adapter=self.seat.adapter)

        def finish(task: "asyncio.Task[Completion]") -> None:
            if task.cancelled():
                done(PlayCancelledError("the client cancelled its own answer"))
            elif (error := task.exception()) is None:
                done(task.result())
            elif isinstance(error, Exception):
                done(error)

        def end() -> None:
            task.remove_done_callback(finish)
            task.cancel()

        task = asyncio.get_running_loop().create_task(answer())
        task.add_done_callback(finish)
        return end


class Question:
    """The question of one position."""

    def __init__(self, role: str, prompt: str, legal: tuple[str, ...]) -> None:
        """Make the question to the role to move, with its legal moves."""
        self.role = role
        self.prompt = prompt
        self.messages = (Message("user", prompt),)
        self.legal = legal
        self._asked: dict[str, Ask] = {}  # by the player in the seat

    def ask(self, state: SeatState) -> Ask:
        """The question to a seat without a conversation; of equal seats it is made once.

        Raises:
            RequestError: the request cannot be served.
        """
        seat = state.seat
        ask = self._asked.get(seat.name)
        if ask is None or (ask.seat is not seat and ask.seat != seat):
            if len(self._asked) >= MAX_SEATS:
                self._asked.clear()
            ask = self._asked[seat.name] = Ask(seat, self.messages, state.sampling(self.legal))
        return ask


class Position(NamedTuple):
    """What is asked in a position."""

    questions: tuple[Question, ...]  # one for each role to move; none if the play has ended
    turn: str | Sequence[str] | None  # what ``Game.turn`` returned


class Positions:
    """A game's positions in the plays of one arena; equal states share one."""

    def __init__(self, game: Game) -> None:
        """Keep the positions of a game."""
        self.game = game
        self._positions: dict[State, Position] = {}

    def find(self, state: State) -> Position:
        """The position of a state.

        Raises:
            ArenaError: the roles to move or a legal move is invalid, or a prompt is not text.
        """
        try:
            position = self._positions.get(state)
        except TypeError:  # the state cannot be hashed, so that nothing is kept
            return self._position(state)
        if position is None:
            if len(self._positions) >= MAX_POSITIONS:
                self._positions.clear()
            position = self._positions[state] = self._position(state)
        return position

    def _position(self, state: State) -> Position:
        turn = self.game.turn(state)
        roles = () if turn is None else movers(self.game, state, turn)
        return Position(tuple(self._question(state, role) for role in roles), turn)

    def _question(self, state: State, role: str) -> Question:
        legal = checked_choices(self.game.legal(state, role), role)
        prompt: Any = self.game.prompt(state, role)
        check_text(prompt, f"the prompt for {role!r}")
        return Question(role, prompt, legal)
