"""The requests of the view of plays: the table, one play, its tokens and its exact values."""

from collections.abc import Container
from typing import Annotated, Any

from fastapi import APIRouter, Query
from msgspec import UNSET
from starlette.responses import Response

from legos.errors import ModelError
from legos.page.answers import answer
from legos.page.exact import NO_SETTINGS, SolvedGames
from legos.page.one_play import play_values
from legos.page.pieces import Pieces
from legos.page.play_search import PlayQuery, group_of, row_values, same_task
from legos.page.policy import answers_over_steps
from legos.page.run_view import RunView
from legos.page.shown import ShownRuns
from legos.run.episodes import StoredEpisode, turns_of

_BESIDE = 64  # plays of the same group
_POSITIONS = 24  # that are shown of a policy
_STEPS = 24  # plays of the same task


def plays_router(runs: ShownRuns, games: SolvedGames) -> APIRouter:
    """The requests.

    Args:
        runs: the runs.
        games: solves their games.
    """
    router, texts = APIRouter(), Pieces()

    @router.get("/plays")
    def table(request: Annotated[PlayQuery, Query()]) -> Response:
        return answer(_part(runs.get(request.run), request))

    @router.get("/plays/{number}")
    def one(run: str, number: int) -> Response:
        view = runs.get(run)
        values = play_values(view.play(number))
        number = values["number"]
        waiting, _ = view.refresh_plays()
        group = group_of(view.plays, number, most=_BESIDE)
        others = same_task(view.plays, number, most=_STEPS)
        values |= {"group": [*map(row_values, group)], "same_task": [*map(row_values, others)]}
        return answer({**values, "waiting": waiting})

    @router.get("/policy")
    def policy(run: str) -> Response:
        return answer(_policy(runs.get(run), games))

    @router.get("/plays/{number}/pieces")
    def pieces(run: str, number: int) -> Response:
        view = runs.get(run)
        episode, config = view.play(number), view.read().config
        if config is None:
            return answer({"turns": None, "why": NO_SETTINGS})
        try:
            return answer({"turns": texts.of_play(config.model, episode), "why": None})
        except ModelError as error:
            return answer({"turns": None, "why": str(error)})

    @router.get("/plays/{number}/exact")
    def exact(run: str, number: int) -> Response:
        view = runs.get(run)
        play = view.play(number)
        found = games.values_in(view.read().config, play)
        return answer({**found, "sampled": _sampled(view, play, found["turns"])})

    return router


def _part(view: RunView, request: PlayQuery) -> dict[str, Any]:
    """A part of the table."""
    waiting, problems = view.refresh_plays()
    page = slice(request.offset, request.offset + request.limit)
    found = view.plays.search(**request.wanted(), page=page)
    return {
        "total": len(found.numbers),
        "waiting": waiting,
        "damaged": view.plays.damaged,
        "problems": problems,
        "rows": [row_values(play) for play in found.plays],
        **view.plays.named(),
    }


def _sampled(
    view: RunView, play: StoredEpisode, turns: Container[int]
) -> dict[int, dict[str, float]]:
    """For some turns of trained seats: move -> its mean probability in the plays of the step."""
    if play.step is UNSET:
        return {}
    view.refresh_plays()
    return {
        number: view.plays.sampled_moves(play.step, play.arena, seat.role, turn.asked)
        for number, (seat, turn) in enumerate(turns_of(play))
        if seat.policy and number in turns
    }


def _policy(view: RunView, games: SolvedGames) -> dict[str, Any]:
    """The positions and tasks that were played most."""
    config = view.read().config
    waiting, _ = view.refresh_plays()
    positions: list[dict[str, Any]] = []
    for position in view.plays.most_played_positions(_POSITIONS):
        optimal = games.moves_at(config, position.arena, position.role, position.asked)
        positions.append({**position._asdict(), "optimal": optimal})
    tasks = answers_over_steps(view.plays)
    return {"positions": positions, "tasks": tasks, "waiting": waiting}
