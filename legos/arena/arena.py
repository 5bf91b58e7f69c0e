"""The base class of arenas, and the arena that plays a ``Game``."""

import json
import logging
import random
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import accumulate
from typing import Any

from legos.arena.checks import (
    check_attributes,
    check_names,
    checked_rewards,
    checked_seats,
)
from legos.arena.curriculum import Climb
from legos.arena.cursor import TaskCursor
from legos.arena.game import Game
from legos.arena.matchmaker import ArenaSeats, SeatOverride
from legos.arena.playable import Playable
from legos.arena.store import Stores
from legos.errors import ArenaError, CheckpointError, user_code
from legos.protocols import Client, CreditAssigner, Curriculum, Matchmaker, Seat
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.message import Sampling
from legos.records.numbers import plain_value, shown
from legos.records.seeds import mix

logger = logging.getLogger(__name__)

FORM = "The legal moves stand after 'Moves:'. Answer with one of them and nothing else."
SEATING = 0  # random stream of a play from which its seats are drawn


class Arena(Playable):
    """Base class of arenas: a game, a debate, a proposer and a solver, a set of questions.

    Subclasses define ``tasks`` and ``play``; the class attributes of ``Playable`` are settings.

    Attributes:
        named_adapters: adapter of another run, as seats name it -> digest of each of its policies.
        configured: attributes that the configuration sets, here and in children made of a class.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        credit_assigner: CreditAssigner | None = None,
        matchmaker: Matchmaker | None = None,
        curriculum: Curriculum | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Make an arena.

        Args:
            client: client of every seat, unless ``seats`` chooses another.
            credit_assigner: turns rewards into advantages.
            matchmaker: decides who sits in which seat; None: ``seats`` decides.
            curriculum: chooses the levels of tasks, if the arena has ``levels``; None: ``Climb``.
            temperature: sampling temperature of the policy.
            seed: seed of tasks and plays.

        Raises:
            ArenaError: the client is none.
        """
        if client is not None and not hasattr(client, "complete"):
            raise ArenaError(
                f"the client of arena {self.name!r} is {reprlib.repr(client)}; expected one that "
                "completes prompts, such as trainer.client() or OpenAIClient(base_url=...)"
            )
        self.client = client
        self.credit_assigner = credit_assigner
        self.matchmaker: Matchmaker = matchmaker or ArenaSeats()
        self.curriculum: Curriculum = curriculum or Climb()
        self.temperature = temperature
        self.seed = seed
        self.cursor = TaskCursor(self)
        self.stores = Stores()
        self.named_adapters: dict[str, list[str]] = {}
        self.configured: dict[str, object] = {}
        self._seats: tuple[tuple[object, ...], dict[str, Seat]] = (), {}  # what they are made of

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The default seat of each role; the first policy sits in every seat.

        A matchmaker may use these seats or choose others.

        Raises:
            ArenaError: the arena has no client.
        """
        if self.client is None:
            raise ArenaError(
                f"arena {self.name!r} has no client; make it with {type(self).__name__}(client)"
            )
        first, temperature, longest = self.policies[0], self.temperature, self.max_tokens
        made_of = self.client, first, temperature, longest, *self.roles
        if made_of != self._seats[0]:  # the same in almost every play
            sampling = Sampling(temperature=temperature, max_tokens=longest)
            seat = partial(Seat, client=self.client, name=first, adapter=first, sampling=sampling)
            self._seats = made_of, {role: seat(role=role) for role in self.roles}
        return dict(self._seats[1])

    def seated(self, task: Task, seed: int) -> Mapping[str, Seat]:
        """The seats of one play, chosen by the matchmaker.

        Args:
            task: the task to play.
            seed: seed of the play; the matchmaker's random draws derive from it.

        Raises:
            ArenaError: the matchmaker returned no valid seats, or a trainable seat whose adapter is
                not trained.
        """
        seats = self.matchmaker.seats(self, task, mix(seed, SEATING))
        maker = self.matchmaker
        source = (
            "seats()" if isinstance(maker, ArenaSeats) else f"seats() of {type(maker).__name__}"
        )
        return checked_seats(seats, self.roles, self.policies, f"{source} of arena {self.name!r}")

    @property
    def kept(self) -> "dict[str, Arena]":
        """The arenas among its attributes, whose plays it spawns."""
        return {name: each for name, each in vars(self).items() if isinstance(each, Arena)}

    def with_players(self, roles: Sequence[str], seat_of: Callable[[str, Seat], Seat]) -> "Arena":
        """A copy in which others play, also in the arenas that it keeps, and none is trained.

        Args:
            roles: the roles that they play. A trained seat of an arena that it keeps, in a role of
                its own, goes to the first of them.
            seat_of: from one of the roles and a seat, the seat with its player.
        """

        def change(seat: Seat) -> Seat:
            mine = seat.role in self.roles or not seat.trainable
            role = seat.role if mine else next(iter(roles), seat.role)
            return seat_of(role, seat) if role in roles else replace(seat, trainable=False)

        arena = copy(self)
        vars(arena).update({name: copy(each) for name, each in self.kept.items()})
        for each in (arena, *arena.kept.values()):
            each.matchmaker = SeatOverride(change, each.matchmaker)
        return arena

    def child(self, thing: object, seats: Mapping[str, Seat]) -> "Arena":
        """The arena of child plays.

        Args:
            thing: an arena, which is returned unchanged, a game, or a class of either.
            seats: role -> seat of the play that spawns, with the adapters that ``seated`` gave. In
                an arena that is made here, the same players take the seats, except those that it
                gives to players of its own. A role that is not among these is played as the class
                says, or, where it has neither ``seats`` nor ``policies``, by the first of them that
                is trained, if any.

        Raises:
            ArenaError: the thing is neither an arena nor a game.
        """
        if isinstance(thing, Arena):
            return thing
        given = list(seats.values())
        first = next((seat for seat in given if seat.trainable), given[0])
        kind = thing if isinstance(thing, type) else type(thing)
        if issubclass(kind, Game):
            arena: Arena = GameArena(thing, first.client)  # pyrefly: ignore[bad-argument-type]
        elif issubclass(kind, Arena):
            arena = kind(first.client)
        else:
            raise ArenaError(
                f"spawn() got {shown(thing)}; expected an Arena or a Game, or the class of one"
            )
        arena.temperature = first.sampling.temperature
        arena.stores = self.stores
        arena.configured = self.configured
        named = arena.policies if arena.policies != Playable.policies else ()
        arena.policies = tuple(dict.fromkeys((*named, *self.policies)))
        chooses = bool(named) or type(arena).seats is not Arena.seats
        for name, value in self.configured.items():
            setattr(arena, name, value)

        def change(own: Seat) -> Seat:
            like = seats.get(own.role, first)
            if not own.trainable:
                return own
            if not like.trainable:
                return replace(like, role=own.role, sampling=own.sampling)
            own = replace(own, client=like.client)
            if chooses and own.role not in seats:
                return own
            return replace(own, name=like.name, adapter=like.adapter)

        arena.matchmaker = SeatOverride(change, arena.matchmaker)
        return arena

    async def step(self, concurrency: int = 8) -> Group:
        """Play the next tasks and return their samples.

        Args:
            concurrency: maximum number of simultaneous plays.

        Raises:
            ArenaError: there is no credit assigner or no task, an attribute is invalid, a play
                breaks the rules for plays, or every play failed.
        """
        check_attributes(self)
        room: Any = import_module("legos.play.step")  # a room above, of which this is a facade
        return await room.play_step(self, concurrency)

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs: tasks, curriculum, credit, matchmaker, stores.

        It also has the digests of ``named_adapters``, which must be the same then.

        Raises:
            ArenaError: the ``state`` of one of them failed, or is no JSON value.
        """
        states = {name: _json_of(part) for name, part in self._parts().items()}
        return {**states, "credit": states.get("credit", {}), "adapters": dict(self.named_adapters)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned.

        Raises:
            CheckpointError: an adapter that seats name has other weights.
            ArenaError: ``restore`` of a user's class failed.
        """
        before = state.get("adapters", {})
        _check_same_adapters(before, self.named_adapters, self.name)
        self.named_adapters = {**before, **self.named_adapters}
        for name, part in self._parts().items():
            given, kind = state[name], type(part)
            # A class of legos fails only at a checkpoint of an earlier version.
            own = kind.__module__.startswith("legos.")
            with nullcontext() if own else user_code(f"restore() of {kind.__name__}"):
                part.restore(given)

    def _parts(self) -> dict[str, Any]:
        """What has a state."""
        credit = {"credit": self.credit_assigner} if self.credit_assigner else {}
        parts = ("cursor", "curriculum", "matchmaker", "stores")
        return {name: getattr(self, name) for name in parts} | credit


def _json_of(part: Any) -> Any:
    """The state of a part, as JSON values of its own; NumPy's numbers become floats."""
    with user_code(f"state() of {type(part).__name__}, which must return JSON values,"):
        return json.loads(json.dumps(part.state(), default=plain_value))


def _check_same_adapters(
    before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]], arena: str
) -> None:
    """Check that the names of adapters mean the same weights as in a checkpoint.

    Args:
        before: name -> digests of its adapters in the checkpoint.
        now: the same now.
        arena: the arena in which they play.

    Raises:
        CheckpointError: one means others, as where its run has trained on.
    """
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            then, here = ("+".join(one[:12] for one in each[name]) for each in (before, now))
            raise CheckpointError(
                f"{name}, which plays in arena {arena!r}, had digest {then} in the checkpoint and "
                f"has {here} now: its results would be those of two players; name the weights that "
                "it had by their step, RUN@STEP, bring them back, or start a new run"
            )


class GameArena(Arena):
    """Plays a game from its start states; views are complete, so seats need no conversation.

    If the game lists its start states, plays from the same start share a task id, so they are
    compared with each other although the group size is 1. If it lists none, or more than a step has
    plays, each start is played 8 times, in a step with as many plays.
    """

    remember = False
    max_tokens = None  # only a move; set a number for a model that thinks first
    tasks_per_step = 256
    group_size = 1

    def __init__(
        self, game: Game | type[Game], client: Client | None = None, **settings: Any
    ) -> None:
        """Make the arena of a game.

        Args:
            game: the game, or its class, which is made without arguments.
            client: client of every seat.
            settings: settings of ``Arena``: credit_assigner, matchmaker, temperature, seed.

        Raises:
            ArenaError: the game's roles are not a list of names, or its ``starts`` failed.
        """
        self.game = game() if isinstance(game, type) else game  # which has the arena's name
        super().__init__(client, **settings)
        check_names(self.game.roles, f"roles of game {self.game.name!r}")
        self.roles = tuple(self.game.roles)
        self.forfeit_reward = self.game.forfeit_reward
        self.recommended = self.game.recommended
        self.utility = self.game.utility
        with user_code(f"starts() of game {self.name!r}"):
            starts = self.game.starts()
            for each in starts or ():
                if not isinstance(each, Sequence) or len(each) != 2 or isinstance(each, str):
                    raise ArenaError(
                        f"starts() of game {self.name!r} holds {shown(each)}; expected (state, "
                        "probability)"
                    )
            if self.group_size == 1 and (starts is None or len(starts) > self.tasks_per_step):
                self.group_size = Arena.group_size
                self.tasks_per_step = max(1, self.tasks_per_step // self.group_size)

    @property
    def name(self) -> str:
        """The game's name."""
        return self.game.name

    @property
    def pure_game(self) -> Game | None:
        """The game; None if a subclass has its own ``play``, which is then called."""
        return self.game if type(self).play is GameArena.play else None

    def state_rules(self) -> None:
        """State the rules and the form of an answer in the system message of every role."""
        if not self.game.rules:
            logger.warning(
                "game %r has no rules to state; write them for the model: rules = '...'", self.name
            )
        form = FORM if type(self.game).prompt is Game.prompt else "Answer with your move alone."
        text = f"{self.game.rules}\n{form}".strip()
        self.system = {**dict.fromkeys(self.roles, text), **self.system}

    def reference(self) -> Mapping[str, float]:
        """Those of the game."""
        return self.game.reference()

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """An infinite sequence of random start states."""
        listed = self.game.starts()
        own_start = type(self.game).start is not Game.start
        while listed is None or own_start:
            seed = rng.getrandbits(63)
            start = self.game.start(random.Random(seed))
            name = f"{self.name}/{seed if listed is None else repr(start)}"
            yield Task(id=name, seed=seed, data=start)
        starts = [(f"{self.name}/{start!r}", start) for start, _ in listed]
        bounds = list(accumulate(weight for _, weight in listed))
        while True:
            seed = rng.getrandbits(63)
            name, start = random.Random(seed).choices(starts, cum_weights=bounds)[0]
            yield Task(id=name, seed=seed, data=start)

    async def play(self, t: Any) -> Mapping[str, float]:
        """Ask the seats that move, and draw what chance decides, until the game ends."""
        game = self.game
        state = game.after_chance(t.task.data, t.rng)
        while (turn := game.turn(state)) is not None:
            if isinstance(turn, str):
                legal = tuple(game.legal(state, turn))
                replies = {turn: await t.ask(turn, game.prompt(state, turn), choices=legal)}
            else:
                prompts = {role: game.prompt(state, role) for role in turn}
                choices = {role: game.legal(state, role) for role in turn}
                replies = await t.ask_all(prompts, choices=choices)
            moves = {role: str(reply.move) for role, reply in replies.items()}
            state = game.after_chance(game.after_moves(state, turn, moves), t.rng)
        return checked_rewards(game.payoff(state), self.roles, f"payoff() of game {self.name!r}")
