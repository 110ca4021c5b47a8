"""Connections to a Redis or Valkey; the only module that knows redis-py.

Decides how words reach the server and what is said when they do not: one line, without the password.
It must not know what the words mean. ``calls.py`` and ``ear.py`` speak through it.

redis-py's own retries are off: with them a lost reply was applied twice in 20 of 20 trials. An error
here means unknown, never not done. A connection carries one call at a time and is dropped when that
call is cancelled or late, so no reply can reach another call. Its time is limited by :meth:`Server.within`
alone: redis-py's own limits cost a task for each write and a timer for each read.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol

import anyio
import anyio.lowlevel
from redis import exceptions as failures
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from coldstart.bus.address import Address
from coldstart.errors import BusError, ConfigError

SOCKET_SECONDS = 1.5
"""A socket that is silent for so long, when an answer is due, is dead."""

REDIRECTS = 2
_CONNECT_SECONDS = 1.0
"""Half of what a call may take: a store that accepts nothing must leave time to say so."""

Word = str | bytes | int
Node = tuple[str, int] | None
"""A node of a cluster that another one has named; None is the server of the URL."""

UnknownScript = failures.NoScriptError
"""The server has not seen this script, and has run nothing."""

Refused = failures.ResponseError
"""A complete reply that says no: the connection is still in step."""


class _Connection(Protocol):
    """What is used of a redis-py connection."""

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None: ...
    async def read_response(self) -> object: ...

_FRESH_SECONDS = 0.01
"""A connection used within this needs no look before it is used again."""
_TURNS = 2
"""A loop that was busy elsewhere hears in so many turns that a connection was lost meanwhile; nothing else tells."""


class Link:
    """A connection that carries one call at a time, and is dropped when out of step."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._life = 0
        self._used = 0.0

    async def ready(self) -> int:
        """Connect unless connected; returns a number that changes with every new connection."""
        try:
            if anyio.current_time() - self._used > _FRESH_SECONDS:
                for _ in range(_TURNS):
                    await anyio.lowlevel.checkpoint()
            # Something to read between calls is the server's goodbye, or a reply nobody waits for.
            if self._connection.is_connected and await self._connection.can_read():
                await self._drop()
            if not self._connection.is_connected:
                self._life += 1
                await self._connection.connect()
        except BaseException:
            await self._drop()
            raise
        return self._life

    async def call(self, *words: Word) -> object:
        """One command and its reply."""
        await self.send(words)
        return await self.receive()

    async def send(self, *commands: Sequence[Word]) -> None:
        """Several commands in one go; each has a reply of its own to be received."""
        try:
            await self._connection.send_packed_command(_packed(commands), check_health=False)
        except BaseException:
            await self._drop()
            raise

    async def receive(self) -> object:
        try:
            return await self._connection.read_response()
        except failures.ResponseError:
            raise
        except BaseException:
            await self._drop()
            raise
        finally:
            self._used = anyio.current_time()

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), suppress(failures.RedisError, OSError):
            await self._connection.disconnect()

    async def _drop(self) -> None:
        with anyio.CancelScope(shield=True), suppress(failures.RedisError, OSError):
            await self._connection.disconnect(nowait=True)


def _packed(commands: Sequence[Sequence[Word]]) -> bytes:
    """Commands as they go over the wire."""
    parts: list[bytes] = []
    for words in commands:
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Routes:
    """Which node of a cluster holds which key, as learnt from redirects."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self.clustered = False
        """Whether anybody has ever redirected us."""

    def node(self, key: str) -> Node:
        return self._nodes.get(key)

    @contextmanager
    def following(self, key: str, *, last: bool) -> Iterator[None]:
        """Swallow a redirect, unless it is the ``last`` attempt. A node that redirects has run nothing."""
        try:
            yield
        except failures.MovedError as moved:
            self.clustered = True
            self._nodes[key] = (str(moved.host), int(moved.port))
            if last:
                raise
        except (failures.ConnectionError, failures.TimeoutError):
            self._nodes.pop(key, None)  # ask the node of the URL again
            raise


_KINDS: dict[str, Callable[..., _Connection]] = {
    "redis": Connection,
    "rediss": SSLConnection,
    "unix": UnixDomainSocketConnection,
}

_MEANINGS: tuple[tuple[type[Exception], str, str], ...] = (
    (ssl.SSLError, "and we do not agree on TLS", "check COLDSTART_REDIS_CA, _CERT and _CERT_KEY, and the URL's host"),
    (failures.AuthenticationError, "does not accept our credentials", "check user and password in the URL"),
    (failures.NoPermissionError, "denies this user a command or a key", "extend its ACL to the namespace"),
    (failures.OutOfMemoryError, "is out of memory", "raise maxmemory, and keep the policy noeviction"),
    (failures.ReadOnlyError, "is a read-only replica", "point the URL at the primary"),
    (failures.BusyLoadingError, "is still loading its data", "wait until it is up"),
    (failures.AskError, "is moving this shard to another node", "wait until the cluster has settled"),
    (failures.TimeoutError, "does not answer", "check that it runs and that nothing drops its packets"),
    (failures.ConnectionError, "cannot be reached", "check that it runs and that the URL is right"),
    (failures.ResponseError, "refuses", "check that it is Redis 6.2, Valkey 7.2 or newer"),
)


class Server:
    """Where the store is, how to connect to it, and how to speak of its failures.

    Raises:
        ConfigError: the URL has options that cannot be used.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._name = f"the store at {address.shown}"
        try:
            self.link()
        except (TypeError, ValueError, failures.RedisError) as error:
            raise ConfigError(f"the bus URL for {address.shown} has options that cannot be used") from error

    def link(self, node: Node = None) -> Link:
        """A new connection, not yet connected."""
        elsewhere = {"host": node[0], "port": node[1]} if node else {}
        return Link(
            _KINDS[self._address.scheme](
                **{**self._address.options, **elsewhere},
                protocol=3,
                client_name="coldstart",
                driver_info=None,
                socket_timeout=None,
                socket_connect_timeout=_CONNECT_SECONDS,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        )

    def within(self, operation: str, seconds: float) -> Within:
        """A block in which everything that redis-py or the socket raises is one BusError, and so is lateness."""
        return Within(self, operation, seconds)

    def late(self, operation: str, seconds: float) -> BusError:
        return BusError(
            f"{self._name} gave no answer to {operation} within {seconds:g} s",
            advice="check that it runs and that nothing drops its packets",
        )

    def explain(self, operation: str, error: BaseException) -> BusError:
        # On a unix socket and over TLS redis-py wraps the reason in a ConnectionError: look at the causes too.
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        for kind, meaning, advice in _MEANINGS:
            for cause in causes:
                if isinstance(cause, kind):
                    return BusError(f"{self._name} {meaning} ({operation}: {self._line(cause)})", advice=advice)
        return BusError(
            f"{self._name} cannot be used ({operation}: {self._line(error)})",
            advice="check that it is a Redis or Valkey server",
        )

    def _line(self, error: BaseException) -> str:
        """The error in one line; an old server echoes the arguments of HELLO, the password among them."""
        return self._address.redacted(" ".join(str(error).split()) or type(error).__name__)[:160]


class Within:
    """The time that an operation has, as :meth:`Server.within` gives it.

    A class, and no generator: every call enters one.
    """

    __slots__ = ("_operation", "_scope", "_seconds", "_server")

    def __init__(self, server: Server, operation: str, seconds: float) -> None:
        self._server, self._operation, self._seconds = server, operation, seconds

    def __enter__(self) -> None:
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + self._seconds)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scope.__exit__(kind, error, trace) or isinstance(error, TimeoutError):
            raise self._server.late(self._operation, self._seconds) from None
        if isinstance(error, _EXPLAINED):
            raise self._server.explain(self._operation, error) from error


_EXPLAINED = (failures.RedisError, OSError, UnicodeError, ValueError)
