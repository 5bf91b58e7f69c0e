"""``legos league``: the opponents of a run, and where its policy stands among them."""

from collections.abc import Mapping
from typing import Any

from legos.apps.markdown import four_digits
from legos.cli.output import Flag, show, show_line, show_table
from legos.cli.ratings import interval, show_cycle, show_members


def league(run: str, *, snapshot: Flag = False, json: Flag = False) -> None:
    """Show who plays against the policy of a run, and who of them is stronger.

    A rating counts the plays of the policy since a snapshot as those of that snapshot. A random
    player has 0, and the oldest snapshot where nobody has met one. People are rated by the plays of
    legos play --name NAME. To let snapshots meet in fresh plays: legos tournament RUN@all. Below
    the scores stand the guards: what the newest snapshots are judged by, and from which value on
    there is an alarm.

    Args:
        run: Folder of the run, or its name in runs/.
        snapshot: Ask the run, while it trains, for a snapshot after its next step.
        json: Print one JSON object.
    """
    from legos.apps.league import ask_for_snapshot
    from legos.apps.league import league as found_of

    if snapshot:
        ask_for_snapshot(run)
        return
    found = found_of(run)
    if json:
        show(found, json=True)
        return
    for figures in found.values():
        _show(figures)


def _show(figures: Mapping[str, Any]) -> None:
    """The ratings, the scores of each pair that has met, and the guards."""
    forfeits = any(one["forfeits"] for one in figures["ratings"].values())
    show_line(f"{figures['arena']}, step {figures['step']}")
    show_members(
        {
            member: {
                "rating": f"{one['rating']:+.0f}",
                "95 %": interval(one),
                "plays": round(one["plays"]),
                **({"forfeits": four_digits(round(one["forfeits"], 1))} if forfeits else {}),
            }
            for member, one in figures["ratings"].items()
        },
        "score against",
        {
            mine: {theirs: f"{one['score']:.2f}" for theirs, one in cells.items()}
            for mine, cells in figures["matrix"].items()
        },
    )
    if figures["alone"]:
        show_line(f"\nmet nobody yet: {', '.join(figures['alone'])}")
    show_line("")
    show_cycle(figures["cycle"])
    if not (guards := figures["guards"]):
        show_line("no snapshot has been judged yet")
        return
    rows = {name: _guard(row) for name, row in guards.items()}
    show_table(f"guard, step {max(row['step'] for row in guards.values())}", rows)


def _guard(row: Mapping[str, Any]) -> dict[str, object]:
    """A metric, its limit, and whether it has reached it."""
    limit = f"{'at most' if row['below'] else 'at least'} {row['limit']:g}"
    lost_to = f": {', '.join(row['members'])}" if row["members"] else ""
    value = "too few plays" if row["value"] is None else f"{row['value']:.4g}"
    return {"value": value, "wrong if": limit, "alarm": f"{row['alarm'] or 'none'}{lost_to}"}
