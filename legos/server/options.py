"""Access rules and limits of a server: the API key, sizes, times and counts."""

from dataclasses import dataclass

from legos.clients.transport import LOOPBACK
from legos.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which requests are accepted, and how long they may take."""

    api_key: str | None = None  # required as a bearer token; None: no key is required
    allowed_hosts: tuple[str, ...] = ()  # accepted values of the Host header; (): any
    max_running: int = 256  # completions that the engine decodes at the same time
    max_queue: int = 1024  # further completions that may wait
    max_body_bytes: int = 4 * 2**20
    max_adapter_bytes: int = 2**30  # maximum size of a body that loads an adapter
    request_timeout_s: float = 600.0  # seconds to receive a body, and seconds to answer it
    body_pause_s: float = 30.0  # maximum seconds between two pieces of a body
    max_adapters: int = 64  # adapters that are loaded at the same time
    log_prompts: bool = False

    def __post_init__(self) -> None:
        """Refuse a key that no request can send; the command checks its numbers itself."""
        key = self.api_key or ""
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise ConfigError(
                "the API key has characters that no header can hold; use ASCII without line "
                "breaks, and no blanks around it"
            )
        if self.api_key == "":
            raise ConfigError("the API key is empty; give one, or none at all")

    @classmethod
    def for_host(cls, host: str, *, api_key: str | None, **options: object) -> "ServerOptions":
        """The options of a server that listens at an address.

        On loopback the Host header must name a loopback address, so that no web page reaches the
        server under its own host name (DNS rebinding).

        Raises:
            ConfigError: the address is not loopback and there is no key.
        """
        local = host in LOOPBACK
        if not local and api_key is None:
            raise ConfigError(
                f"host {host!r} can be reached by others; give --api-key-file or set "
                "LEGOS_API_KEY, or listen on 127.0.0.1"
            )
        hosts = (*LOOPBACK, "[::1]") if local else ()
        return cls(api_key=api_key, allowed_hosts=hosts, **options)  # pyrefly: ignore[bad-argument-type]
