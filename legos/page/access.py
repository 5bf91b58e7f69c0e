"""Who may see the page: anybody on this machine, and others with a key."""

import hmac

from fastapi import FastAPI
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from legos.server.access import bearer_key, check_host, wrong_key
from legos.server.options import ServerOptions
from legos.server.problems import Problem

_API = "/api/"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""What a browser enforces even if a text of a play reached the page as markup."""


def guard(app: FastAPI, options: ServerOptions) -> None:
    """Check the host and the key of each request; the program of the page itself is no secret.

    Args:
        app: the application.
        options: its key and its allowed hosts are used.
    """
    key = None if options.api_key is None else options.api_key.encode()

    @app.middleware("http")
    async def guarded(request: Request, call_next: RequestResponseEndpoint) -> Response:
        try:
            check_host(request.scope, options.allowed_hosts)
            if key is not None and request.scope["path"].startswith(_API):
                _check_key(request, key)
            response = await call_next(request)
        except Problem as problem:
            response = problem.response()
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _check_key(request: Request, key: bytes) -> None:
    if not hmac.compare_digest(bearer_key(request.scope), key):
        raise wrong_key(
            "the key is missing or wrong; it is what --api-key-file or LEGOS_API_KEY named where "
            "`legos view` was started"
        )
