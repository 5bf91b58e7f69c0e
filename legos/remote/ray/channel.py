"""Frames between two processes of a run on a Ray cluster, on a TCP connection of their own.

A call of a Ray actor costs both processes about half a millisecond, more than the engine needs for
a move of one token. A frame costs a tenth of that, and takes along whatever waits at that moment.

The engine's end sends a beat each second. Where none comes, the process is gone or stopped, or its
node is gone.
"""

import hmac
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Address", "Channel", "Door", "connected"]

logger = logging.getLogger(__name__)

BEAT_S = 1.0  # time without a frame after which a beat is sent
SILENCE_S = 10.0  # time without a frame or a beat after which the other end counts as lost
CONNECT_S = 10.0  # how long a connection may take
KEY_BYTES = 32

Out = TypeVar("Out")
In = TypeVar("In")
Address = tuple[str, int, bytes]
"""Host, port and key of a ``Door``."""


class Channel(Generic[Out, In]):
    """One end of a connection; ``send`` returns at once, whatever the other end does."""

    def __init__(
        self,
        pack: Callable[[Sequence[Out]], bytes],
        unpack: Callable[[bytes], Iterable[In]],
        *,
        beats: bool,
    ) -> None:
        """Make an end without a connection; what is sent waits for one.

        Args:
            pack: turns the values that go out together into bytes.
            unpack: turns the bytes of the other end into values.
            beats: whether this end sends beats; the other end, which does not, waits for them.
        """
        self._pack, self._unpack = pack, unpack
        self._beats = beats
        self._out: SimpleQueue[Out | None] = SimpleQueue()
        self._connection: Connection | None = None
        self._closed = False

    def send(self, frame: Out) -> None:
        """Send a value; nothing happens once the connection has ended."""
        if not self._closed:
            self._out.put(frame)

    def close(self) -> None:
        """End the connection, and ``run``."""
        self._closed = True
        if self._connection is not None:
            _shut(self._connection)

    def run(self, connection: Connection, heard: Callable[[In], object]) -> Exception:
        """Send and receive until the connection ends; returns why it did.

        Args:
            connection: a connection to another channel.
            heard: called with each frame that comes, on the calling thread.
        """
        self._connection = connection
        writer = threading.Thread(
            target=self._write, args=(connection,), name="legos-ray-out", daemon=True
        )
        writer.start()
        try:
            while not self._closed:
                if not self._beats and not connection.poll(SILENCE_S):
                    return TimeoutError(f"no sign of life for {SILENCE_S:g} s")
                for frame in self._unpack(connection.recv_bytes()):
                    heard(frame)
        except (OSError, EOFError) as error:
            return error
        finally:
            self._closed = True
            _shut(connection)  # ends a writer that waits for the other end
            self._out.put(None)
            writer.join()
            connection.close()
        return ConnectionError("it was closed")

    def _write(self, connection: Connection) -> None:
        """Send what is in the queue, all that waits together, until there is a None."""
        pause_s = BEAT_S if self._beats else None
        try:
            while True:
                frames: list[Out] = []
                with suppress(Empty):
                    frame = self._out.get(timeout=pause_s)
                    while frame is not None:
                        frames.append(frame)
                        frame = self._out.get_nowait()
                    return
                connection.send_bytes(self._pack(frames))
        except OSError:
            return  # the thread that reads sees it too
        except Exception:  # of a value that cannot be packed
            logger.exception("what another process of the cluster waits for cannot be sent")
            _shut(connection)


class Door:
    """Accepts connections of processes that know its key."""

    def __init__(self, host: str, enter: Callable[[Connection], object]) -> None:
        """Listen at a free port.

        Args:
            host: address of this node, at which the others reach it.
            enter: called with each connection, on a thread of its own, which ends with the call.
        """
        self._listening = socket.create_server((host, 0))
        self._key = secrets.token_bytes(KEY_BYTES)
        self._enter = enter
        port: int = self._listening.getsockname()[1]
        self.address: Address = (host, port, self._key)
        threading.Thread(target=self._accept, name="legos-ray-door", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return  # it was closed
            threading.Thread(
                target=self._admit, args=(_connection(accepted),), name="legos-ray", daemon=True
            ).start()

    def _admit(self, connection: Connection) -> None:
        with connection, suppress(OSError, EOFError):
            knows = connection.poll(CONNECT_S) and hmac.compare_digest(
                connection.recv_bytes(KEY_BYTES), self._key
            )
            if knows:
                self._enter(connection)


def connected(address: Address) -> Connection:
    """Connect to a door.

    Raises:
        OSError: nobody listens there.
    """
    host, port, key = address
    connection = _connection(socket.create_connection((host, port), CONNECT_S))
    connection.send_bytes(key)
    return connection


def _connection(made: socket.socket) -> Connection:
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(made.detach())


def _shut(connection: Connection) -> None:
    """End a connection; threads that read or write it get an error, as closing would not do."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
