"""A few plays of a run that show what it has learned, small enough for a file to send around."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from legos.errors import CheckpointError
from legos.page.one_play import play_values
from legos.page.run_view import RunView
from legos.run.index.rows import IndexedPlay

_MOST_ARENAS = 4
_LOOKED_AT = 1000  # plays among which the arenas of a step, or a failed one, are looked for


def sample_plays(run: RunView) -> list[dict[str, Any]]:
    """The best, a typical and the worst play of the first and of the last step, and a failed one.

    They are plays of evaluations, which have the same tasks each time, where plays of two
    evaluations are stored; otherwise plays of training. Rewards are those of trained seats.

    Returns:
        ``why`` each was chosen: "best", "typical", "worst" or "failed", or several of these;
        ``plays``: number of plays among which it was chosen; ``play``: as ``play_values`` gives it.

    Raises:
        CheckpointError: a file of plays cannot be read.
    """
    run.plays.refresh()
    found: list[dict[str, Any]] = []
    for ends in filter(None, (_ends(run, evaluation=True), _ends(run, evaluation=False))):
        steps = list(dict.fromkeys(play.step for play in ends))
        if len(steps) > 1 or not ends[0].evaluation:
            found = [each for step in steps for each in _of_step(run, step, ends[0].evaluation)]
            break
    stopped = run.plays.search(failure=True, page=slice(_LOOKED_AT)).plays
    for play in [play for play in stopped if play.failure != "void"][:1]:
        found += _read(run, {play.number: ["failed"]}, 1)
    return found


def _ends(run: RunView, *, evaluation: bool) -> list[IndexedPlay]:
    """The first and the last stored play that did not fail; none if there is none."""
    wanted: dict[str, Any] = {"evaluation": evaluation, "failure": False, "page": slice(1)}
    return [
        play
        for order in ("oldest", "newest")
        for play in run.plays.search(order=order, **wanted).plays
    ]


def _of_step(run: RunView, step: int | None, evaluation: bool) -> Iterator[dict[str, Any]]:
    wanted: dict[str, Any] = {"step": step, "evaluation": evaluation, "failure": False}
    plays = run.plays.search(page=slice(_LOOKED_AT), **wanted).plays
    for arena in sorted({play.arena for play in plays})[:_MOST_ARENAS]:
        best = run.plays.search(arena=arena, order="best", page=slice(0), **wanted).numbers
        worst = run.plays.search(arena=arena, order="worst", page=slice(0), **wanted).numbers
        reasons: dict[int, list[str]] = {}
        if best:
            chosen = {"best": best[0], "typical": best[len(best) // 2], "worst": worst[0]}
            for why, number in chosen.items():
                reasons.setdefault(number, []).append(why)
        yield from _read(run, reasons, len(best))


def _read(
    run: RunView, reasons: Mapping[int, Sequence[str]], plays: int
) -> Iterator[dict[str, Any]]:
    for number, why in reasons.items():
        try:
            episode = run.folder.episode(number)
        except CheckpointError:  # its file was removed meanwhile
            continue
        yield {"why": ", ".join(why), "plays": plays, "play": play_values(episode)}


def shortened(play: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A play without what is known of single tokens, and with texts that are cut in the middle.

    Args:
        play: as ``play_values`` gives it.
        most: maximum number of characters of a text.
    """
    return {
        **_cut({n: value for n, value in play.items() if n not in ("turns", "children")}, most),
        "turns": [_turn(turn, most) for turn in play["turns"]],
        "children": [shortened(child, most) for child in play["children"]],
    }


def _turn(turn: Mapping[str, Any], most: int) -> dict[str, Any]:
    left_out = ("choices", "token_ids", "logprobs")
    values = {name: value for name, value in turn.items() if name not in left_out}
    trained = turn["trained"] and {"advantage": turn["trained"].get("advantage")}
    values |= {"tokens": len(turn["token_ids"]), "versions": sorted(set(turn["versions"]))}
    return _cut(values | {"trained": trained}, most)


def _cut(value: Any, most: int) -> Any:
    """A text, or all texts in lists and dictionaries, cut in the middle."""
    if isinstance(value, list):
        return [_cut(each, most) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _cut(each, most) for name, each in cast("dict[str, Any]", value).items()}
    if not isinstance(value, str) or len(value) <= most:
        return value
    kept = most // 2
    return f"{value[:kept]}\n[… {len(value) - 2 * kept} characters are left out …]\n{value[-kept:]}"
