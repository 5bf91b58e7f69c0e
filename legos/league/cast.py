"""Seat members of a league by name: a bot, the model, an adapter, or a server."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from inspect import iscoroutinefunction
from urllib.parse import urldefrag

from legos.arena.arena import Arena
from legos.arena.registry import made_of
from legos.clients.openai import OpenAIClient
from legos.errors import ArenaError, ConfigError
from legos.games.bots import OptimalBot, RandomBot
from legos.games.exact import GameTree, Policy, optimal_policy
from legos.games.scored import enumerated
from legos.protocols import Client, Seat
from legos.records.episode import Task
from legos.records.names import BASE, POLICY
from legos.records.numbers import shown

RANDOM, OPTIMAL = "random", "optimal"
BOTS = (RANDOM, OPTIMAL)
PERSON = "person:"  # and a name
URLS = ("http://", "https://")


def is_own_bot(who: str) -> bool:
    """Whether a member is a bot in a file of the user, ``FILE.py:Class``."""
    return (".py:" in who or who.endswith(".py")) and not who.startswith((*URLS, PERSON))


def is_adapter(who: str) -> bool:
    """Whether an adapter that has to be loaded answers for a member: no bot, server or person."""
    named = who in (*BOTS, BASE) or who.startswith((*URLS, PERSON))
    return not named and not is_own_bot(who)


def only_plays(who: str) -> bool:
    """Whether nothing but plays shows the policy of a member: a server, or a bot of the user."""
    return who.startswith(URLS) or is_own_bot(who)


class Cast:
    """Puts members into seats; a bot and the client of a server are made once.

    Attributes:
        arena: the arena.
        live: member and policy of the seat -> name in the engine of the adapter that answers there
            for the member; where none is listed, the one with the member's own name.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        live: Mapping[tuple[str, str], str] | None = None,
        api_key: str | None = None,
    ) -> None:
        """Make a cast of an arena.

        Args:
            arena: the arena; its client answers for adapters and the base model.
            live: see ``Cast``.
            api_key: key of the servers.
        """
        self.live = dict(live or {})
        self.arena = arena
        self._api_key = api_key
        self._servers: dict[str, OpenAIClient] = {}
        self._bots: dict[str, Client] = {RANDOM: RandomBot()}
        self._optimal: dict[str, OptimalBot] = {}  # by role

    def seat(self, who: str, default: Seat) -> Seat:
        """The seat of a member, which is not trained.

        Args:
            who: ``random``, ``optimal``, ``base``, an adapter, ``FILE.py:Class``, or the address
                of a server; ``URL#MODEL`` names its model.
            default: the seat of the role that the arena has by default.

        Raises:
            ArenaError: an optimal player cannot be computed, a person is named, or a bot's file
                cannot be imported.
            ConfigError: what a file has is no bot.
        """
        client, adapter = self._answers(who, default)
        return replace(default, name=who, client=client, adapter=adapter, trainable=False)

    def brought_by_arena(self, task: Task) -> set[str]:
        """The roles that no member takes, as that of a judge: the arena brings a player for them.

        None where fewer than two others are left, since that player is then the only opponent.
        """
        seats = self.arena.seats(task).values()
        fixed = {seat.role for seat in seats if seat.policy is None}
        return fixed if len(seats) - len(fixed) > 1 else set[str]()

    def _answers(self, who: str, default: Seat) -> tuple[Client, str]:
        """The client that answers for a member, and its adapter."""
        if who == RANDOM or is_own_bot(who):
            return self.bot(who), POLICY
        if who == OPTIMAL:
            if default.role not in self._optimal:
                self._optimal[default.role] = OptimalBot(default.role, self.best)
            return self._optimal[default.role], POLICY
        if who.startswith(PERSON):
            raise ArenaError(
                f"{who} stands for plays that were kept, and answers no question; to play as that "
                f"person: legos play {self.arena.name} --name {who.removeprefix(PERSON)}"
            )
        if who.startswith(URLS):
            url, model = urldefrag(who)
            if who not in self._servers:
                client = OpenAIClient(url, api_key=self._api_key, model=model or None)
                self._servers[who] = client
            return self._servers[who], model or POLICY
        return default.client, self.live.get((who, default.policy or POLICY), who)

    def bot(self, who: str) -> Client:
        """The bot of a name, which answers in every seat of that name; as ``seat`` raises."""
        if who not in self._bots:
            made = made_of(who, "player")
            if not iscoroutinefunction(getattr(made, "complete", None)):
                raise ConfigError(
                    f"player {who!r} is {shown(made)}, which has no `async def complete(self, "
                    "prompt, sampling, *, adapter)`; give it this method, which returns a "
                    "legos.Completion (docs/arenas/seats.md)"
                )
            self._bots[who] = made
        return self._bots[who]

    @cached_property
    def tree(self) -> GameTree | None:
        """The states of the arena's game; None: they cannot be listed.

        Raises:
            ArenaError: the game is inconsistent.
        """
        return enumerated(self.arena)

    @cached_property
    def best(self) -> Policy:
        """An optimal policy of the arena's game.

        Raises:
            ArenaError: the arena is no game, or an optimal policy of it cannot be computed.
        """
        reason = "it is no game whose states can be listed"
        if self.tree is not None:
            if (best := optimal_policy(self.tree)) is not None:
                return best
            reason = str(self.tree.unsolved)
        raise ArenaError(
            f"no optimal player of arena {self.arena.name!r} can be computed: {reason}; seat "
            f"another one, such as {RANDOM}"
        )

    async def aclose(self) -> None:
        """Close the connections to servers."""
        while self._servers:
            await self._servers.popitem()[1].aclose()
