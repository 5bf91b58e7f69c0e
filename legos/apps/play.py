"""``legos play``: play an arena in the terminal, with anybody in any seat."""

import asyncio
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TextIO

from legos.apps.members import adapters_of, cast_of, free_seats, lasting_names, model_of
from legos.apps.person import LEFT, Person, Terminal
from legos.apps.transcript import answer_of, ending, heading, turns_of, visible
from legos.arena.arena import Arena, GameArena
from legos.arena.cursor import held_out_or_own
from legos.arena.registry import advice
from legos.config.schema import PlayConfig
from legos.errors import ConfigError, did_you_mean
from legos.fakes import ScriptedClient
from legos.league.cast import PERSON
from legos.play.step import play_all
from legos.protocols import Seat
from legos.records.episode import Episode
from legos.records.limits import EngineLimits
from legos.records.names import BASE, POLICY
from legos.run.episodes import StoredEpisode, stored_episode
from legos.run.people import PersonalPlay
from legos.wiring.arena import make_arena

ME = "me"
FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """Who sits at the table, as a user names them: me, random, optimal, base, RUN or a URL."""

    seats: Mapping[str, str]  # role -> who
    against: str = BASE  # who sits in the other trained seats, except the first if nobody is "me"
    model: str | None = None  # base model; None: that of the adapters
    api_key: str | None = None  # key of the URLs
    name: str | None = None  # of the person, under which the plays are kept

    def of(self, roles: Sequence[str], free: Sequence[str]) -> dict[str, str]:
        """Role -> who, for all roles that are named or free.

        Args:
            roles: the roles of the arena.
            free: those for which the arena does not bring a player of its own.

        Raises:
            ConfigError: a named role is not one of the arena.
        """
        for role in self.seats:
            if role not in roles:
                raise ConfigError(f"--seat names the role {role!r}{did_you_mean(role, roles)}")
        left = [role for role in free if role not in self.seats]
        mine = left[:1] if ME not in self.seats.values() else []
        return {**dict.fromkeys(left, self.against), **dict.fromkeys(mine, ME), **self.seats}


def play(
    name: str,
    players: Players,
    *,
    settings: PlayConfig,
    plays: int,
    seed: int | None,
    temperature: float,
    thinking: bool,
    say: Callable[[str], object],
    source: TextIO | None = None,
) -> int:
    """Play an arena; with a person at the table only what that person may know is shown.

    Args:
        name: name of the arena, as ``--arena`` takes it.
        players: who sits where.
        settings: settings of the arena.
        plays: number of plays.
        seed: seed of tasks and plays; None: a random one.
        temperature: sampling temperature of models; 0: the most probable token.
        thinking: show what models think, in plays without a person.
        say: shows a text.
        source: where a person writes; None: standard input.

    Returns:
        Exit code: 0, or 1 if a play failed.

    Raises:
        LegosError: the arena, an adapter, a model or a seat is not valid.
    """
    arena = make_arena(name, ScriptedClient([]), play=settings)
    for each in (arena, *arena.kept.values()):  # a person may think for hours
        each.temperature = temperature
        each.play_timeout_s, each.report_after_s = None, float("inf")
    seed = random.getrandbits(32) if seed is None else seed
    planned = held_out_or_own(arena, seed, plays)
    who = players.of(arena.roles, [*free_seats(arena)])
    if players.name is not None and ME not in who.values():
        raise ConfigError(f"--name is {players.name!r} but nobody is me; give --seat ROLE=me")
    terminal = Terminal(sys.stdin if source is None else source, say)
    with (
        asyncio.Runner() as runner,
        _seated(arena, players, who, terminal, runner, name=name, settings=settings) as (
            seated,
            names,
        ),
    ):
        episodes: list[Episode] = []
        for planned_play in planned:
            [episode] = runner.run(play_all(seated, [planned_play], asyncio.Semaphore(1)))
            stored, person = stored_episode(episode), ME in who.values()
            for text in _report(stored, person=person, thinking=thinking):
                say(text)
            episodes.append(episode)
            if players.name is not None and not episode.error and not episode.void:
                result = episode.result()
                PersonalPlay(options=settings.options, members=names, result=result).keep()
            if f"void: {LEFT}" in episode.notes:
                break
    if len(episodes) > 1:
        for text in _summary(episodes, who):
            say(text)
    return FAILED if any(episode.error for episode in episodes) else 0


def _as_trained(arena: Arena, settings: PlayConfig, advised: Mapping[str, object]) -> None:
    """Where the settings do not say how, ask as a run does, by what is recommended for it."""
    if settings.rules is None and advised.get("play.rules") and isinstance(arena, GameArena):
        arena.state_rules()
    for field in ("restrict_choices", "illegal"):
        if getattr(settings, field) is None and f"play.{field}" in advised:
            setattr(arena, field, advised[f"play.{field}"])


def _report(episode: StoredEpisode, *, person: bool, thinking: bool) -> Iterator[str]:
    """What is shown after a play and those that it spawned: all, or how they ended for a person."""
    if not person:
        yield f"\n{heading(episode)}"
        yield from turns_of(episode, thinking=thinking)
    elif not episode.void:
        for seat in episode.seats:
            if seat.seat != ME and seat.turns:
                answers = ", ".join(map(answer_of, seat.turns))
                yield visible(f"{seat.role} ({seat.seat}) said: {answers}")
    yield ending(episode)
    for child in () if person and episode.void else episode.children:
        yield from _report(child, person=person, thinking=thinking)


def _summary(episodes: Sequence[Episode], who: Mapping[str, str]) -> Iterator[str]:
    """The number of plays by how they ended, and the rewards of each role."""
    ended = [episode for episode in episodes if not episode.error and not episode.void]
    failed = sum(bool(episode.error) for episode in episodes)
    yield f"\n{len(episodes)} plays: {len(ended)} ended, {failed} failed"
    for role in ended[0].rewards if ended else ():
        rewards = [episode.returns[role] for episode in ended]
        above, below = sum(reward > 0 for reward in rewards), sum(reward < 0 for reward in rewards)
        signs = f"{above} above 0, {len(rewards) - above - below} at 0, {below} below 0"
        yield f"{role} ({who.get(role, 'its own')}): mean reward {fmean(rewards):+.3g}; {signs}"


@contextmanager
def _seated(
    arena: Arena,
    players: Players,
    who: Mapping[str, str],
    terminal: Terminal,
    runner: asyncio.Runner,
    *,
    name: str,
    settings: PlayConfig,
) -> Generator[tuple[Arena, Mapping[str, str]]]:
    """Within the block, the arena with the players of its roles, and the lasting name of each."""
    people = {role: Person(role, terminal) for role, one in who.items() if one == ME}
    members = [one for one in who.values() if one != ME]
    adapters = adapters_of(members, arena.policies)
    model = model_of(players.model, adapters)
    _as_trained(arena, settings, advice(name, model))

    lasting = {ME: f"{PERSON}{players.name}", **lasting_names(members, adapters, model)}
    names = {role: lasting[one] for role, one in who.items()}

    def seat_of(role: str, seat: Seat) -> Seat:
        if role in people:
            person = people[role]
            return replace(seat, name=ME, client=person, adapter=POLICY, trainable=False)
        return cast.seat(who[role], seat)

    limits, key = EngineLimits(), players.api_key
    with cast_of(arena, members, adapters, model=model, limits=limits, api_key=key) as cast:
        try:
            yield arena.with_players([*who], seat_of), names
        finally:
            runner.run(cast.aclose())
