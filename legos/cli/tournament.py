"""``legos tournament``: who is stronger, and how sure that is."""

from collections.abc import Mapping
from typing import Any

from legos.cli.output import Flag, show, show_line
from legos.cli.overrides import Count, EvaluationPlay, Integer, Key, dotted
from legos.cli.ratings import interval, show_cycle, show_members


def tournament(
    *members: str,
    arena: str | None = None,
    plays: Integer | None = None,
    seed: Integer = 0,
    temperature: float | None = None,
    snapshots: Count = 8,
    model: str | None = None,
    api_key: Key = None,
    json: Flag = False,
    play: EvaluationPlay = None,
) -> None:
    """Let every member meet every other one in every seat, and rate them.

    A game whose states can be listed is computed exactly, without a play, unless --plays or
    --temperature is given.

    For example:

        legos tournament nim-1 nim-1@50 random optimal
        legos tournament tictactoe-1@all random --snapshots 5
        legos tournament base talk-1 talk-2 --plays 200

    Args:
        members: random, optimal (small games), base (the model without an adapter), RUN, RUN@STEP,
            RUN@best, RUN@vN, RUN@all (several of its adapters), an adapter folder, a bot of your
            own, FILE.py:Class, the address of a server, URL or URL#NAME, or person:NAME, with the
            plays of legos play --name NAME.
        arena: Name of an arena, FILE.py:Class, or package.module:Class; by default that of the
            first RUN, with its settings.
        plays: Plays of each pair; half of them with the seats swapped. By default 100.
        seed: Seed of the tasks and plays; the same seed gives the same ones.
        temperature: Sampling temperature of models; by default that of the run's evaluations.
        snapshots: Number of adapters of RUN@all, spread over its steps.
        model: A model folder, a name on the hub, or "builtin"; by default that of the run.
        api_key: File with the API key of the servers.
        json: Print one JSON object.
        play: Settings of the arena.
    """
    from legos.apps.tournament import tournament as run

    shorthands = {
        "--plays": ("loop.evaluation_plays", plays),
        "--temperature": ("loop.evaluation_temperature", temperature),
    }
    found = run(
        members,
        arena=arena,
        seed=seed,
        model=model,
        snapshots=snapshots,
        api_key=api_key,
        overrides=dotted({"play": play}, shorthands),
    )
    if json:
        show(found, json=True)
    else:
        _show_tables(found)


def _show_tables(found: Mapping[str, Any]) -> None:
    """The ratings, the mean rewards of all pairs, and what ratings alone do not tell."""
    exact, ratings = found["exact"], found["ratings"]
    counts = ", ".join(f"{found[name]} {name}" for name in ("plays", "failed", "void"))
    show_line(f"{found['arena']}: {'exact, without a play' if exact else counts}")
    if found["unit"]:
        show_line(f"a gain of {found['unit']:g} counts as a whole win, and less as a part of one")
    show_line("")
    columns = ["plays"] + ["forfeits"] * any(rated["forfeits"] for rated in ratings.values())
    rows: dict[str, Mapping[str, object]] = {}
    for member, rated in ratings.items():
        sampled = {"95 %": interval(rated)} | {column: rated[column] for column in columns}
        rows[member] = {"rating": f"{round(rated['rating']):+d}", **({} if exact else sampled)}
    rewards = {
        mine: {theirs: f"{one['reward']:+.3g}" for theirs, one in cells.items()}
        for mine, cells in found["matrix"].items()
    }
    show_members(rows, "mean reward against", rewards)
    mixture = (f"{member} {share:.2g}" for member, share in found["nash"].items() if share >= 0.005)
    show_line(f"\nNash mixture: {', '.join(mixture) or 'not computed, as some members never met'}")
    show_line(f"cyclic share: {found['cyclic_share']:.2g}")
    show_cycle(found["cycle"])
