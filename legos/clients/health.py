"""Whether a server answers, asked on a connection of its own."""

from legos.clients.transport import Transport, server_root
from legos.errors import EndpointError, RequestError

ANSWER_S = 5.0  # maximum time of an answer


async def healthy(url: str, *, anything: bool = False) -> bool:
    """Whether a server answers ``GET /health`` within some seconds, and accepts requests.

    Args:
        url: its address, with or without ``/v1``.
        anything: a refusal is an answer too, as of a server that does not know this path.
    """
    server = Transport(server_root(url), api_key=None, timeout_s=ANSWER_S, retries=0)
    try:
        await server.request("GET", "/health", bytes)
    except EndpointError:
        return False
    except RequestError:
        return anything
    finally:
        await server.aclose()
    return True
