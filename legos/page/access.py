"""Who may see the page: anybody on this machine, and others with a key."""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legos.server.access import bearer_key, check_host
from legos.server.options import ServerOptions
from legos.server.problems import Problem

__all__ = ["PageAccess"]

_API = "/api/"
_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-cache",
}
"""What a browser enforces even if a text of a play reached the page as markup."""


class PageAccess:
    """Checks the host and the key of each request; the program of the page itself is no secret."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        """Wrap an application; of the options, the key and the allowed hosts are used."""
        self._app, self._options = app, options
        self._key = None if options.api_key is None else options.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
                sent = {name.lower() for name, _ in headers}
                more = [(name, value) for name, value in _HEADERS.items() if name not in sent]
                message["headers"] = [*headers, *more]
            await send(message)

        try:
            check_host(scope, self._options.allowed_hosts)
            self._check_key(scope)
        except Problem as problem:
            await problem.response()(scope, receive, secured)
        else:
            await self._app(scope, receive, secured)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or not scope["path"].startswith(_API):
            return
        if not hmac.compare_digest(bearer_key(scope), self._key):
            raise Problem(
                401,
                "the key is missing or wrong; it is what --api-key or LEGOS_API_KEY was set to "
                "where `legos view` was started",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
