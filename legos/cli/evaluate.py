"""``legos eval``: evaluate an adapter of a run."""

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from legos.cli.output import Flag, show, show_line, show_table
from legos.cli.overrides import EvaluationPlay, Key, Several, dotted


def evaluate(
    run: str,
    /,
    *,
    adapter: str | None = None,
    against: Several = (),
    plays: Annotated[int | None, Parameter(("--plays", "--loop.evaluation-plays"))] = None,
    temperature: Annotated[
        float | None, Parameter(("--temperature", "--loop.evaluation-temperature"))
    ] = None,
    api_key: Key = None,
    json: Flag = False,
    play: EvaluationPlay = None,
) -> None:
    """Evaluate the newest adapter of a run, exactly where the game allows it.

    Settings that are not given keep the values of the run.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP, RUN@best or RUN@vN for another adapter.
        adapter: Evaluate this one on the run's arena: an adapter folder, or another run.
        against: Who has the other seats, in place of the policy itself: random, optimal, base, a
            RUN, RUN@STEP, an adapter folder, FILE.py:Class, or the address of a server; may be
            repeated. Every seat is evaluated.
        plays: Number of plays, in arenas that cannot be evaluated exactly.
        temperature: Sampling temperature of these plays; 0: the most probable token.
        api_key: File with the API key of the servers.
        json: Print one JSON object.
        play: Settings of the arena.
    """
    shorthands = {
        "--plays": ("loop.evaluation_plays", plays),
        "--temperature": ("loop.evaluation_temperature", temperature),
    }
    overrides = dotted({"play": play}, shorthands)
    if against:
        from legos.apps.tournament import evaluate_against

        found = evaluate_against(
            run, against, adapter=adapter, overrides=overrides, api_key=api_key
        )
        return show(found, json=True) if json else _show_against(found)
    from legos.apps.evaluate import evaluate_run

    metrics = evaluate_run(run, adapter=adapter, overrides=overrides)
    known = {name: value for name, value in metrics.items() if value is not None}
    return show(metrics if json else known, json=json)


def _show_against(found: Mapping[str, Any]) -> None:
    """Results against each member, in all roles and in each."""
    counts = ", ".join(f"{found[name]} {name}" for name in ("plays", "failed", "void"))
    show_line(f"{found['arena']}: {'exact, without a play' if found['exact'] else counts}\n")
    rows: dict[str, Mapping[str, object]] = {}
    for member, all_roles in found["against"].items():
        roles = {f"{member}, as {role}": own for role, own in all_roles["roles"].items()}
        for name, own in {member: all_roles, **roles}.items():
            row = {key: own[key] for key in ("win", "draw", "loss", "reward")}
            if not found["exact"]:
                row["95 %"] = f"{own['low']:+.3g} to {own['high']:+.3g}"
                row |= {key: own[key] for key in ("plays", "forfeits")}
            rows[name] = row
    show_table("against", rows)
