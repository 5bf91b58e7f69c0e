"""The FastAPI application of the page: its files, and the runs as JSON."""

from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from legos.errors import LegosError
from legos.installed import adding
from legos.page.access import guard
from legos.page.answers import answer
from legos.page.checkpoints import Checkpoints
from legos.page.curves import Axis, chosen_names, config_diff, metric_names, series
from legos.page.exact import SolvedGames
from legos.page.health import health
from legos.page.league import league
from legos.page.overview import ordered, overview
from legos.page.plays import plays_router
from legos.page.positions import positions_router
from legos.page.run_view import RunView
from legos.page.shown import ShownRuns
from legos.page.timeline import timeline
from legos.server.options import ServerOptions
from legos.server.problems import Problem, handle

_ERRORS = (RequestValidationError, HTTPException, LegosError, Exception)
_PLOTLY = f"plotly is not installed, which draws the curves; add it: {adding('view')}"
_MOST_CURVES = 400
Names = Annotated[list[str], Query(max_length=200)]


def make_page(
    runs: ShownRuns, options: ServerOptions, checkpoints: Checkpoints | None = None
) -> FastAPI:
    """Make the application that shows some runs.

    Args:
        runs: the runs.
        options: the key that is required, and the hosts that requests may name.
        checkpoints: answers for checkpoints of the runs; None: no model is loaded.
    """
    app = FastAPI(title="legos view", docs_url=None, redoc_url=None, openapi_url=None)
    for error in _ERRORS:
        app.add_exception_handler(error, handle)
    app.include_router(_run_router(runs), prefix="/api")
    games = SolvedGames()
    app.include_router(plays_router(runs, games), prefix="/api")
    app.include_router(positions_router(runs, games, checkpoints), prefix="/api")
    static = resources.files("legos.page") / "static"

    @app.get("/plotly.js")
    def plotly() -> Response:
        try:
            found = resources.files("plotly") / "package_data" / "plotly.min.js"
        except ModuleNotFoundError:
            raise Problem(404, _PLOTLY) from None
        path = Path(str(found))
        return FileResponse(path, media_type="text/javascript", headers=_CACHED)

    app.mount("/", StaticFiles(directory=str(static), html=True))
    guard(app, options)
    return app


_CACHED = {"cache-control": "max-age=86400"}


def _run_router(runs: ShownRuns) -> APIRouter:
    router = APIRouter()

    def chosen(names: list[str]) -> list[RunView]:
        known = runs.all()
        return [known.get(name) or runs.get(name) for name in dict.fromkeys(names)]

    def locked(name: str, values: Callable[[RunView], object]) -> Response:
        view = runs.get(name)
        with view.lock:
            return answer(values(view.read()))

    @router.get("/runs")
    def all_runs() -> Response:
        return answer({"runs": overview(runs.all()), "places": runs.places})

    @router.get("/names")
    def names() -> Response:
        return answer({"names": [run.name for run in ordered(runs.all())]})

    @router.get("/metrics")
    def metrics(run: Names) -> Response:
        known = metric_names(chosen(run))
        return answer({"names": known, "first": chosen_names(known)})

    @router.get("/curves")
    def curves(run: Names, name: Annotated[list[str], Query()], axis: Axis = "step") -> Response:
        return answer({"series": series(chosen(run), name[:_MOST_CURVES], axis)})

    @router.get("/settings")
    def settings(run: Names) -> Response:
        views = chosen(run)
        return answer({"runs": [view.name for view in views], "rows": config_diff(views)})

    @router.get("/health")
    def of_health(run: str) -> Response:
        return locked(run, health)

    @router.get("/league")
    def of_league(run: str) -> Response:
        return locked(run, league)

    @router.get("/timeline")
    def of_time(run: str, steps: Annotated[int, Query(ge=1, le=2000)] = 40) -> Response:
        return locked(run, partial(timeline, steps=steps))

    return router
