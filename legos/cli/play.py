"""``legos play`` and ``legos watch``: play an arena, and look at plays."""

import sys

from legos.cli.commands import Key, Several
from legos.cli.output import Flag, show
from legos.cli.overrides import PlaySettings, dotted
from legos.config.resolve import resolve
from legos.errors import ConfigError

__all__ = ["play", "watch"]


def play(
    arena: str,
    /,
    *,
    seat: Several = (),
    against: str = "base",
    model: str | None = None,
    api_key: Key = None,
    plays: int = 1,
    seed: int | None = None,
    temperature: float = 1.0,
    thinking: Flag = False,
    play: PlaySettings = None,
) -> int:
    """Play an arena in the terminal: you, bots, models and servers in any seat.

    For example:

        legos play nim --against optimal
        legos play kuhn --seat second=me --against kuhn-1
        legos play nim --seat first=nim-1 --seat second=http://localhost:8000/v1

    Args:
        arena: Name of an arena, FILE.py:Class, or package.module:Class.
        seat: ROLE=WHO, once for each role. WHO is me, random, optimal (small games), base (the
            model without an adapter), RUN, RUN@STEP, RUN@best, an adapter folder, or the address of
            a server, URL or URL#NAME. If nobody is me, the first role that is not named is.
        against: WHO plays the other roles.
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapters were trained on.
        api_key: API key of the servers.
        plays: Number of plays.
        seed: Seed of the tasks and plays; the same seed gives the same ones.
        temperature: Sampling temperature of models.
        thinking: Show what models think, where nobody is me.
        play: Settings of the arena.
    """
    from legos.apps.play import Players
    from legos.apps.play import play as run

    seats: dict[str, str] = {}
    for text in seat:
        role, equals, who = text.partition("=")
        if not equals or not who:
            raise ConfigError(f"--seat is {text!r}; expected ROLE=WHO, such as first=me")
        seats[role] = who
    settings = resolve(overrides=dotted({"play": play}, {"ARENA": ("arena", arena)})).config.play
    return run(
        arena,
        Players(seats=seats, against=against, model=model, api_key=api_key),
        settings=settings,
        plays=plays,
        seed=seed,
        temperature=temperature,
        thinking=thinking,
        say=_say,
    )


def watch(
    run: str,
    /,
    *,
    episode: int | None = None,
    last: int = 3,
    thinking: Flag = False,
) -> int:
    """Show the newest plays of a run and every further one that it writes, or replay one play.

    Args:
        run: Run folder, or its name in runs/.
        episode: Show only this play, turn by turn; Enter shows the next turn. The first is 1, the
            newest -1.
        last: Number of plays to show of those that are there already.
        thinking: Show what the models think.
    """
    from legos.apps.watch import replay
    from legos.apps.watch import watch as follow

    if episode is None:
        follow(run, last=last, thinking=thinking, say=_say)
        return 0

    def pause() -> None:
        if sys.stdin.isatty():
            sys.stdin.readline()

    replay(run, episode, thinking=thinking, say=_say, pause=pause)
    return 0


def _say(text: str) -> None:
    show(f"{text}\n")
