"""The requests of the view of plays: the table, one play, its tokens and its exact values."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from legos.errors import CheckpointError, ModelError
from legos.page.answers import answer
from legos.page.exact import SolvedGames
from legos.page.one_play import play_values
from legos.page.pieces import Pieces
from legos.page.play_row import PlayQuery, row_values
from legos.page.policy import answers_over_steps, optimal_moves
from legos.page.run_view import RunView
from legos.page.shown import ShownRuns
from legos.run.episodes import EpisodesTail, StoredEpisode
from legos.server.problems import Problem

__all__ = ["plays_router"]

_NO_SETTINGS = "the settings of the run cannot be read"
_BESIDE = 64  # plays of the same group
_POSITIONS = 24  # that are shown of a policy
_STEPS = 24  # plays of the same task


class _Table(PlayQuery):
    """A part of the table."""

    run: str
    sort: Literal["number", "step", "reward", "tokens", "turns"] = "number"
    descending: bool = True
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=200)


def plays_router(runs: ShownRuns) -> APIRouter:
    """The requests, which begin with /plays."""
    router, texts, games = APIRouter(), Pieces(), SolvedGames()

    def stored(run: str, number: int) -> tuple[RunView, int, StoredEpisode]:
        view = runs.get(run)
        try:
            return view, *EpisodesTail(view.folder.episodes).read_one(number)
        except CheckpointError as error:
            raise Problem(404, str(error)) from error

    @router.get("/plays")
    def table(request: Annotated[_Table, Query()]) -> Response:
        return answer(_part(runs.get(request.run), request))

    @router.get("/plays/{number}")
    def one(run: str, number: int) -> Response:
        view, number, episode = stored(run, number)
        values = play_values(number, episode)
        with view.lock:
            view.plays.read()
            beside = [row_values(row) for row in view.plays.group_of(number)]
            others = [row_values(row) for row in view.plays.same_task(number, most=_STEPS)]
            values["waiting"] = view.plays.waiting
        return answer({**values, "group": beside[:_BESIDE], "same_task": others})

    @router.get("/policy")
    def policy(run: str) -> Response:
        return answer(_policy(runs.get(run), games))

    @router.get("/plays/{number}/pieces")
    def pieces(run: str, number: int) -> Response:
        view, _, episode = stored(run, number)
        config = view.read().config
        if config is None:
            return answer({"turns": None, "why": _NO_SETTINGS})
        try:
            return answer({"turns": texts.of_play(config.model, episode), "why": None})
        except ModelError as error:
            return answer({"turns": None, "why": str(error)})

    @router.get("/plays/{number}/exact")
    def exact(run: str, number: int) -> Response:
        view, _, episode = stored(run, number)
        config = view.read().config
        if config is None:
            return answer({"turns": {}, "why": _NO_SETTINGS})
        return answer(games.values_in(config, episode))

    return router


def _part(view: RunView, request: _Table) -> dict[str, Any]:
    """A part of the table."""
    with view.lock:
        plays = view.plays
        plays.read()
        found = plays.search(request, sort=request.sort, descending=request.descending)
        shown = found[request.offset : request.offset + request.limit]
        return {
            "total": len(found),
            "waiting": plays.waiting,
            "damaged": plays.damaged,
            "problems": [plays.problem] if plays.problem else [],
            "rows": [row_values(row) for row in shown],
            **plays.named(),
        }


def _policy(view: RunView, games: SolvedGames) -> dict[str, Any]:
    """The positions and tasks that were played most."""
    with view.lock:
        config, plays = view.read().config, view.plays
        plays.read()
        positions = plays.positions.most_played(_POSITIONS)
        tasks, waiting = answers_over_steps(plays.rows()), plays.waiting
    for position in positions:
        solved = games.solution(config, position["arena"]) if config else _NO_SETTINGS
        position["optimal"] = optimal_moves(position, solved)
    return {"positions": positions, "tasks": tasks, "waiting": waiting}
