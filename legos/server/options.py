"""What a server lets in: sizes, times, numbers, keys."""

from dataclasses import dataclass, fields
from pathlib import Path

from legos.errors import ConfigError

__all__ = ["LOOPBACK", "ServerOptions"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What is let in, and how long it may take."""

    api_key: str | None = None  # asked for as a bearer token; None: everybody may ask
    allowed_hosts: tuple[str, ...] = ()  # names that a Host header may say; (): any
    max_running: int = 256  # completions that the engine decodes at once
    max_queue: int = 1024  # completions that may wait beyond those
    max_body_bytes: int = 4 * 2**20
    max_adapter_bytes: int = 2**30  # of the body of a load
    request_timeout_s: float = 600.0  # from a request to its answer, and for its body to come
    head_timeout_s: float = 10.0  # for the head of a request to come
    body_pause_s: float = 30.0  # between two pieces of a body
    max_head_bytes: int = 64 * 2**10
    max_connections: int = 2048
    max_adapters: int = 64  # live at once
    adapter_folder: Path | None = None  # adapters may be loaded from here; None: from nowhere
    log_prompts: bool = False

    def __post_init__(self) -> None:
        """Refuse limits that nothing passes.

        Raises:
            ConfigError: naming the limit.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, float) and value <= 0 and field.name != "max_queue":
                raise ConfigError(f"{field.name} is {value}; expected more than 0")
        if self.max_queue < 0:
            raise ConfigError(f"max_queue is {self.max_queue}; expected 0 or more")
        if self.api_key is not None and not self.api_key.isascii():
            raise ConfigError("the API key has characters that no header can hold; use ASCII")
        if self.api_key == "":
            raise ConfigError("the API key is empty; give one, or none at all")
        if self.adapter_folder is not None and not self.adapter_folder.is_dir():
            raise ConfigError(f"adapter folder {self.adapter_folder} does not exist")

    @classmethod
    def for_host(cls, host: str, *, api_key: str | None, **options: object) -> "ServerOptions":
        """The options of a server that listens at an address.

        On loopback a Host header must name it, so that no web page reaches the server under a name
        of its own.

        Raises:
            ConfigError: others can reach the address and there is no key.
        """
        local = host in LOOPBACK
        if not local and api_key is None:
            raise ConfigError(
                f"host {host!r} can be reached by others; set --api-key or LEGOS_API_KEY, or "
                "listen on 127.0.0.1"
            )
        hosts = (*LOOPBACK, "[::1]") if local else ()
        return cls(api_key=api_key, allowed_hosts=hosts, **options)  # pyright: ignore[reportArgumentType]
