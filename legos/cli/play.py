"""``legos play``: play an arena in the terminal."""

from legos.cli.output import Flag, show_line
from legos.cli.overrides import Count, EvaluationPlay, Integer, Key, Several, dotted
from legos.config.resolve import resolve
from legos.errors import ConfigError


def play(
    arena: str,
    /,
    *,
    seat: Several = (),
    against: str = "base",
    name: str | None = None,
    model: str | None = None,
    api_key: Key = None,
    plays: Count = 1,
    seed: Integer | None = None,
    temperature: float = 1.0,
    thinking: Flag = False,
    play: EvaluationPlay = None,
) -> int:
    """Play an arena in the terminal: you, bots, models and servers in any seat.

    For example:

        legos play nim --against optimal
        legos play kuhn --seat second=me --against kuhn-1
        legos play nim --seat first=nim-1 --seat second=http://localhost:8000/v1

    Args:
        arena: Name of an arena, FILE.py:Class, or package.module:Class.
        seat: ROLE=WHO, once for each role. WHO is me, random, optimal (small games), base (the
            model without an adapter), RUN, RUN@STEP, RUN@best, an adapter folder, a bot of your
            own, FILE.py:Class, or the address of a server, URL or URL#NAME. If nobody is me, the
            first role that is not named is.
        against: WHO plays the other roles.
        name: Your name; keeps the plays in runs/people.jsonl, so that person:NAME can be a member
            of a tournament, and is rated by legos league.
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapters were trained on.
        api_key: File with the API key of the servers.
        plays: Number of plays.
        seed: Seed of the tasks and plays; the same seed gives the same ones.
        temperature: Sampling temperature of models; 0: the most probable token.
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
        if role in seats:
            raise ConfigError(f"--seat names the role {role!r} twice; name it once")
        seats[role] = who
    shorthands = {
        "ARENA": ("arena", arena),
        "--temperature": ("loop.evaluation_temperature", temperature),
    }
    settings = resolve(overrides=dotted({"play": play}, shorthands)).config.play
    return run(
        arena,
        Players(seats=seats, against=against, model=model, api_key=api_key, name=name),
        settings=settings,
        plays=plays,
        seed=seed,
        temperature=temperature,
        thinking=thinking,
        say=show_line,
    )
