"""Play a group of plays of one pure game: as answers arrive, each play takes its next step.

A game's rules are pure functions, so a play needs no coroutine: its state is a value, and equal
states ask the same question. A thousand plays are one task in the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from legos.arena.arena import Arena
from legos.arena.endings import Forfeit
from legos.arena.game import Game, State
from legos.play.context import PlayContext
from legos.play.outcome import episode_after, episode_of, failure_of, rewards_of
from legos.play.play_state import PlayState, SeatState
from legos.play.positions import Ask, Position, Question
from legos.play.watch import Watched
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Message


class _GamePlay(PlayState):
    """One play of the group."""

    def __init__(self, index: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.index = index  # position in the group
        self.state: State = self.task.data
        self.position: Position | None = None
        self.turns: list[_Turn] = []  # the questions of its position
        self.watched: Watched | None = None


class _Turn(Struct, eq=False):
    """One question of a play's position, and its outcome."""

    play: _GamePlay
    question: Question
    seat: SeatState  # the seat that is asked
    messages: tuple[Message, ...] = ()  # the conversation that is asked
    tries: int = 0  # number of illegal answers so far
    asked_at: float = 0.0  # Unix time, seconds
    outcome: str | Exception | None = None  # the move, or why there is none; None: not answered
    end: Callable[[], object] | None = None  # ends the question; None: none is being asked


class GamePlays:
    """The plays of one group; ``run`` plays them."""

    def __init__(
        self,
        context: PlayContext,
        arena: Arena,
        game: Game,
        plays: Sequence[tuple[Task, int]],
    ) -> None:
        """Prepare the plays of tasks, each with the seed of its play."""
        self._context = context
        self._arena = arena
        self._game = game
        self._has_chance = game.has_chance
        self._positions = context.positions(arena, game)
        self._plays = plays
        self._episodes: list[Episode | None] = [None] * len(plays)
        self._num_ended = 0
        self._running: set[_GamePlay] = set()
        self._all_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> list[Episode]:
        """Play to the end; returns the episodes in the order of the plays.

        Raises:
            ArenaError: a play breaks the rules for plays.
            EngineError: the engine has died.
        """
        if not self._plays:
            return []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.wait_for(self._all_ended, None))
                for index, (task, seed) in enumerate(self._plays):
                    await self._context.slots.acquire()
                    self._start(index, task, seed)
        finally:
            for play in tuple(self._running):
                self._leave(play)
        return [episode for episode in self._episodes if episode is not None]

    def _start(self, index: int, task: Task, seed: int) -> None:
        """Start a play, which has a slot."""
        arena = self._arena
        self._context.count.begun += 1
        try:
            seats = self._context.seats(arena, task, seed)
            play = _GamePlay(index, arena, task, seats, seed=seed)
        except Exception as raised:
            try:
                self._end(index, episode_after(raised, PlayState(arena, task, {}, seed=seed)))
            finally:
                self._context.slots.release()
            return
        play.watched = Watched(play, lambda: self._time_out(play), lambda: "between two moves")
        self._context.watch.add(play.watched)
        self._running.add(play)
        self._advance(play)

    def _advance(self, play: _GamePlay) -> None:
        """Draw what chance decides, and ask the next questions of a play or end it."""
        game = self._game
        try:
            if self._has_chance:
                play.state = game.after_chance(play.state, play.rng)
            position = play.position = self._positions.find(play.state)
            if position.questions:
                play.turns = [_Turn(play, q, play.seat_state(q.role)) for q in position.questions]
                for turn in play.turns:
                    self._ask(turn, turn.question.messages)
                return
            source = f"payoff() of game {game.name!r}"
            rewards = rewards_of(play, game.payoff(play.state), source)
        except BaseException as raised:  # a failed play is counted and shown, but never trained on
            self._fail(play, failure_of(raised, f"game {game.name!r}"))
            return
        self._leave(play)
        self._end(play.index, episode_of(play, rewards))

    def _ask(self, turn: _Turn, messages: tuple[Message, ...]) -> None:
        question, seat = turn.question, turn.seat
        if seat.memory or messages is not question.messages:
            messages = (*seat.memory, *messages)
            ask = Ask(seat.seat, seat.prompt(messages), seat.sampling(question.legal))
        else:
            ask = question.ask(seat)
        turn.messages, turn.asked_at = messages, time.time()
        seat.waiting[seat.seat.role] += 1
        turn.end = ask.begin(seat.next_seed(), partial(self._answered, turn))

    def _answered(self, turn: _Turn, answer: Completion | Exception) -> None:
        turn.end = None
        if turn.play not in self._running:  # it ended while the answer was on its way
            return
        try:
            self._hear(turn, answer)
        except Exception as raised:  # it ends the whole group
            if not self._all_ended.done():
                self._all_ended.set_exception(raised)

    def _hear(self, turn: _Turn, answer: Completion | Exception) -> None:
        """Read an answer; the play moves on when all questions of its position are answered."""
        play = turn.play
        turn.seat.waiting[turn.seat.seat.role] -= 1
        failure: Exception | None = None
        try:
            turn.outcome = answer if isinstance(answer, Exception) else self._move(turn, answer)
            for other in play.turns:
                if other.outcome is None:
                    return
                if isinstance(other.outcome, Exception):
                    failure = failure or other.outcome
            if failure is None and play.position is not None:
                moves = {each.question.role: str(each.outcome) for each in play.turns}
                play.state = self._game.after_moves(play.state, play.position.turn, moves)
        except BaseException as raised:
            failure = failure_of(raised, f"game {self._game.name!r}")
        if failure is None:
            self._advance(play)
        else:
            self._fail(play, failure)

    def _move(self, turn: _Turn, completion: Completion) -> str | Exception | None:
        """The move of an answer; None if an illegal one was asked again."""
        question, seat = turn.question, turn.seat
        move, _, reason = seat.read(
            turn.messages, completion, question.legal, asked_at=turn.asked_at
        )
        if reason is None:
            return move
        left = self._arena.retries - turn.tries
        turn.tries += 1
        try:
            after = seat.after_illegal(question.prompt, reason, question.legal, left)
        except Forfeit as forfeit:  # without the frames, which refer to the turn that keeps it
            return forfeit.with_traceback(None)
        if isinstance(after, str):
            return after
        self._ask(turn, (after,))
        return None

    def _time_out(self, play: _GamePlay) -> None:
        """Cancel a play at its time limit."""
        if play in self._running and play.watched is not None:
            self._fail(play, play.watched.timeout())

    def _fail(self, play: _GamePlay, raised: Exception) -> None:
        self._leave(play)
        self._end(play.index, episode_after(raised, play))

    def _leave(self, play: _GamePlay) -> None:
        """Give back what a running play holds.

        A play, its turns and its watch refer to each other. They are separated here, so that Python
        frees them at once; as cycles, all plays of several steps would wait for its collector.
        """
        self._running.discard(play)
        for turn in play.turns:
            if turn.end is not None:
                turn.end()
        play.turns = []
        if play.watched is not None:
            self._context.watch.discard(play.watched)
            play.watched = None
        self._context.slots.release()

    def _end(self, index: int, episode: Episode) -> None:
        self._episodes[index] = episode
        self._num_ended += 1
        self._context.count.ended += 1
        if self._num_ended == len(self._plays) and not self._all_ended.done():
            self._all_ended.set_result(None)
