"""The bus on Redis or Valkey; the only module that knows redis-py.

Decides how a call reaches the store: its connection, its deadline, and the one line that says what
went wrong. What a call means is decided inside the store by ``scripts.py``; what its answer means by
``replies.py``. It must not know phases or transports. The story goes on in ``runner.py``.

redis-py's own retries are off: with them a lost reply was applied twice in 20 of 20 trials. An error
here means unknown, never not done, and the caller repeats the same nonce. A connection carries one
call at a time and is dropped when that call is cancelled or late, so no reply can reach another call.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain
from typing import Protocol, Self

import anyio
import msgspec
from redis import exceptions as failures
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from coldstart.bus import replies, scripts
from coldstart.bus.address import Address, parse
from coldstart.bus.description import Description, described
from coldstart.bus.limits import check_ids, check_letter, check_truth
from coldstart.errors import BusError, ConfigError
from coldstart.ports import Advert, Claim, ClaimOutcome, Cursor, Heard, Standing

CALL_SECONDS = 2.0
"""Deadline of one call, connecting included: the whole budget that coordination may cost."""

BLOCK_SECONDS = 2.0
"""Longest single blocking read: a drained worker stops listening this soon even if nothing comes."""

CONNECTIONS = 8
"""Calls in flight at once; more wait their turn, inside their own deadline."""

_SOCKET_SECONDS = 1.5
_CONNECT_SECONDS = 1.0
_REDIRECTS = 2
_NAMESPACE = re.compile(r"\A[A-Za-z0-9_.:-]{1,64}\Z")


class RedisBus:
    """One worker's way to the store. Open it with :meth:`open`, close it with :meth:`aclose`.

    ``dropped`` counts letters that were oversized or malformed and therefore not delivered.
    """

    def __init__(self, server: _Server, namespace: str, local_address: str, seconds: float) -> None:
        self.dropped = 0
        self._server = server
        self._namespace = namespace
        self._local_address = local_address
        self._seconds = seconds
        self._closed = False
        self._idle: dict[_Node, list[_Link]] = defaultdict(list)
        self._routes: dict[str, _Node] = {}
        self._turns = anyio.Semaphore(CONNECTIONS)
        self._ear = _Link(server.connection(BLOCK_SECONDS + _SOCKET_SECONDS))
        self._ear_node: _Node = None
        self._listening = False
        self._proven: tuple[int, str, str] | None = None

    @classmethod
    async def open(cls, url: str, namespace: str = "cs", *, seconds: float = CALL_SECONDS, probe: bool = True) -> Self:
        """A bus on the server at ``url`` (``redis://``, ``rediss://`` or ``unix://``).

        Args:
            namespace: first part of every key.
            seconds: deadline of one call.
            probe: connect now; false defers every failure but a malformed URL to the first call.

        Raises:
            ConfigError: the URL or the namespace is malformed.
            BusError: the server refuses, is silent, or does not accept the credentials.
        """
        if not _NAMESPACE.match(namespace):
            raise ConfigError(f"namespace {namespace[:70]!r} is malformed", advice="use [A-Za-z0-9_.:-]{1,64}")
        address = parse(url)
        server = _Server(address)
        with anyio.move_on_after(seconds):
            bus = cls(server, namespace, await address.local(), seconds)
            if probe:
                await bus._run(scripts.SHARDS, bus._index)
            return bus
        raise server.late("connecting", seconds)

    @property
    def local_address(self) -> str:
        return self._local_address

    async def warm(self) -> None:
        """Connect now what the first handshake needs, so that it need not wait for it.

        Raises:
            BusError: the server refuses, is silent, or does not accept the credentials.
        """
        links = [_Link(self._server.connection(_SOCKET_SECONDS)) for _ in range(2)]
        self._idle[None].extend(links)  # a link that fails to connect is as good as new, and closed with the rest
        async with self._deadline("connecting", self._seconds):
            for link in (self._ear, *links):
                await link.ready()

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_ids(shard=claim.shard, layout=claim.layout, worker=claim.worker, transfer=claim.transfer)
        check_letter(claim.hello, "hello")
        fields = await self._on_shard(
            scripts.CLAIM,
            claim.shard,
            claim.layout,
            claim.worker,
            claim.transfer,
            claim.hello,
            _milliseconds(claim.slot_seconds),
            _milliseconds(claim.lead_seconds),
            claim.luck,
            msgspec.json.encode(claim.exclude),
            msgspec.json.encode(claim.transports),
        )
        return replies.claim_outcome(fields)

    async def release(self, shard: str, source: str, transfer: str) -> Advert | None:
        check_ids(shard=shard, source=source, transfer=transfer)
        fields = await self._on_shard(scripts.RELEASE, shard, source, transfer)
        return fields.advert() if fields else None

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        check_ids(shard=shard, layout=layout, worker=worker)
        fields = await self._on_shard(scripts.LEAD, shard, layout, worker, _milliseconds(seconds))
        return fields.number() == 1

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        check_ids(shard=shard, layout=advert.layout, worker=advert.worker, inbox=advert.inbox)
        for transfer in (*held, *ended):
            check_ids(transfer=transfer)
        fields = await self._on_shard(
            scripts.ADVERTISE,
            shard,
            advert.worker,
            msgspec.json.encode(msgspec.structs.replace(advert, used=0, struck=False)),
            _milliseconds(seconds),
            advert.layout,
            advert.incarnation,
            advert.proof,
            len(held),
            *held,
            *ended,
        )
        await self._run(scripts.INDEX, self._index, shard)
        return Standing(fields.epoch, fields.text(), bool(fields.number()))

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        await self._on_shard(scripts.WITHDRAW, shard, worker, incarnation)

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        check_letter(letter, "letter")
        await self._on_shard(scripts.STRIKE, shard, worker, incarnation, proof, letter)

    async def publish_truth(self, shard: str, layout: str, root: str, truth: bytes) -> tuple[str, ...]:
        check_ids(shard=shard, layout=layout, root=root)
        check_truth(truth)
        return (await self._on_shard(scripts.PUBLISH_TRUTH, shard, layout, root, truth)).texts()

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """The published truth; None before there is one, and in a conflict, where none is believed."""
        check_ids(shard=shard, layout=layout)
        fields = await self._on_shard(scripts.FETCH_TRUTH, shard, layout)
        return fields.blob() if fields else None

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        check_ids(shard=shard, inbox=inbox, nonce=nonce)
        check_letter(body, "letter")
        await self._on_shard(scripts.SEND, shard, inbox, nonce, body)

    async def listen(self, shard: str, inbox: str, cursor: Cursor, seconds: float) -> Heard:
        check_ids(shard=shard, inbox=inbox)
        if self._listening:
            raise BusError("two listeners on one bus object", advice="open a bus per listener")
        self._listening = True
        try:
            return await self._listen(shard, inbox, cursor, seconds)
        finally:
            self._listening = False

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        check_ids(shard=shard)
        for entry in entries:
            check_letter(entry, "journal entry")
        await self._on_shard(scripts.RECORD, shard, *entries)

    async def shards(self) -> Sequence[str]:
        reply = await self._run(scripts.SHARDS, self._index)
        return tuple(sorted(replies.Fields(reply, "shards").texts()))

    async def adverts(self, shard: str) -> Sequence[Advert]:
        check_ids(shard=shard)
        return replies.adverts(await self._on_shard(scripts.ADVERTS, shard))

    async def aclose(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            for link in (*chain.from_iterable(self._idle.values()), self._ear):
                await link.close()
            self._idle.clear()

    # ------------------------------------------------------------------------------- listening

    async def _listen(self, shard: str, inbox: str, cursor: Cursor, seconds: float) -> Heard:
        """Read from explicit cursors, and ask for the epoch whenever silence could mean amnesia.

        A store that restarted empty, or fell back to a replica that had less, hands out lower ids: a
        reader with an old cursor hears nothing and gets no error. So epoch and ids are compared after
        every connection and every empty read.
        """
        until = anyio.current_time() + seconds
        streams = self._key(shard, f"inbox:{inbox}"), self._key(shard, "fleet")
        silent = False
        while True:
            async with self._deadline("listen", self._seconds):
                standing = await self._prove(shard, inbox, cursor)
            if cursor.epoch not in ("", standing.epoch):
                return Heard(Cursor(epoch=standing.epoch), renewed=True)
            if (standing.inbox, standing.fleet) != (cursor.inbox, cursor.fleet):
                return Heard(standing, renewed=True)
            cursor = standing
            if silent and anyio.current_time() >= until:
                return Heard(cursor)
            left = min(max(until - anyio.current_time(), 0.0), BLOCK_SECONDS)
            # BLOCK 0 would mean for ever.
            patience = ("BLOCK", max(1, math.ceil(left * 1000))) if left > 0 else ()
            async with self._deadline("listen", left + _SOCKET_SECONDS):
                reply = await self._ear.call("XREAD", *patience, "STREAMS", *streams, cursor.inbox, cursor.fleet)
            heard = replies.mail(reply, streams[0].encode(), streams[1].encode())
            self.dropped += heard.dropped
            cursor = msgspec.structs.replace(
                cursor, inbox=heard.inbox or cursor.inbox, fleet=heard.fleet or cursor.fleet
            )
            if heard.letters or heard.fleet:
                return Heard(cursor, letters=heard.letters, fleet_changed=bool(heard.fleet))
            self._proven = None
            silent = True

    async def _prove(self, shard: str, inbox: str, cursor: Cursor) -> Cursor:
        """Where to go on, asked for unless this very connection has just confirmed ``cursor``'s epoch."""
        words = self._shard_words(shard)
        for attempt in range(_REDIRECTS + 1):
            node = self._routes.get(words[0])
            if node != self._ear_node:
                await self._ear.close()
                self._ear = _Link(self._server.connection(BLOCK_SECONDS + _SOCKET_SECONDS, node))
                self._ear_node, self._proven = node, None
            with self._routed(words[0], last=attempt == _REDIRECTS):
                life = await self._ear.ready()
                if self._proven == (life, shard, cursor.epoch):
                    return cursor
                reply = await self._ear.evaluate(scripts.TOUCH, *words, inbox, cursor.inbox, cursor.fleet)
                fields = replies.ShardFields(reply, "listen")
                self._proven = (life, shard, fields.epoch)
                return Cursor(inbox=fields.text(), fleet=fields.text(), epoch=fields.epoch)
        raise AssertionError("the last attempt returns or raises")

    # ---------------------------------------------------------------------------------- calling

    @property
    def _index(self) -> str:
        return f"{self._namespace}:shards"

    def _key(self, shard: str, name: str) -> str:
        return f"{self._namespace}:{{{shard}}}:{name}"

    async def _on_shard(self, script: scripts.Script, shard: str, *words: _Word) -> replies.ShardFields:
        return replies.ShardFields(await self._run(script, *self._shard_words(shard), *words), script.name)

    def _shard_words(self, shard: str) -> tuple[str, str, str]:
        """What every script about a shard begins with; the random word names a new life of the store."""
        prefix = self._key(shard, "")
        return f"{prefix}life", prefix, secrets.token_hex(8)

    async def _run(self, script: scripts.Script, key: str, *words: _Word) -> object:
        async with self._deadline(script.name, self._seconds), self._turns:
            for attempt in range(_REDIRECTS + 1):
                with self._routed(key, last=attempt == _REDIRECTS):
                    return await self._evaluate(self._routes.get(key), script, key, *words)
        raise AssertionError("the last attempt returns or raises")

    async def _evaluate(self, node: _Node, script: scripts.Script, key: str, *words: _Word) -> object:
        idle = self._idle[node]
        link = idle.pop() if idle else _Link(self._server.connection(_SOCKET_SECONDS, node))
        try:
            await link.ready()
            return await link.evaluate(script, key, *words)
        finally:
            if self._closed:
                await link.close()
            else:
                idle.append(link)

    @contextmanager
    def _routed(self, key: str, *, last: bool) -> Iterator[None]:
        """Learn which node of a cluster holds ``key``. A node that redirects has run nothing."""
        try:
            yield
        except failures.MovedError as moved:
            self._routes[key] = (str(moved.host), int(moved.port))
            if last:
                raise
        except (failures.ConnectionError, failures.TimeoutError):
            self._routes.pop(key, None)  # ask the node of the URL again
            raise

    @asynccontextmanager
    async def _deadline(self, operation: str, seconds: float) -> AsyncIterator[None]:
        if self._closed:
            raise BusError(f"{operation} on a bus that was closed")
        with self._server.explained(operation, seconds), anyio.fail_after(seconds):
            yield

    async def describe(self) -> Description:
        """What the server says about itself: product, version, memory and clock; for ``coldstart doctor``."""
        async with self._deadline("describe", self._seconds), self._turns:
            link = _Link(self._server.connection(_SOCKET_SECONDS))
            try:
                await link.ready()
                return described(await link.call("INFO"), await link.call("TIME"))
            finally:
                await link.close()


# ------------------------------------------------------------------------------------ connection

_Word = str | bytes | int
_Node = tuple[str, int] | None
"""A node of a cluster that another one has named; None is the server of the URL."""


class _Connection(Protocol):
    """What is used of a redis-py connection."""

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_command(self, *words: _Word) -> None: ...
    async def read_response(self) -> object: ...


class _Link:
    """A connection that carries one call at a time, and is dropped when out of step."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._life = 0

    async def ready(self) -> int:
        """Connect unless connected; returns a number that changes with every new connection."""
        try:
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

    async def call(self, *words: _Word) -> object:
        try:
            await self._connection.send_command(*words)
            return await self._connection.read_response()
        except failures.ResponseError:
            raise  # a complete reply: the connection is still in step
        except BaseException:
            await self._drop()
            raise

    async def evaluate(self, script: scripts.Script, key: str, *words: _Word) -> object:
        try:
            return await self.call("EVALSHA", script.sha, 1, key, *words)
        except failures.NoScriptError:
            # The server has run nothing, so this is no retry; EVAL also teaches it the script.
            return await self.call("EVAL", script.text, 1, key, *words)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), suppress(failures.RedisError, OSError):
            await self._connection.disconnect()

    async def _drop(self) -> None:
        with anyio.CancelScope(shield=True), suppress(failures.RedisError, OSError):
            await self._connection.disconnect(nowait=True)


# ---------------------------------------------------------------------------------------- server

_KINDS: dict[str, Callable[..., _Connection]] = {
    "redis": Connection,
    "rediss": SSLConnection,
    "unix": UnixDomainSocketConnection,
}

_MEANINGS: tuple[tuple[type[Exception], str, str], ...] = (
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


class _Server:
    """Where the store is, how to connect to it, and how to speak of its failures."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._name = f"the store at {address.shown}"
        try:
            self.connection(_SOCKET_SECONDS)
        except (TypeError, ValueError, failures.RedisError) as error:
            raise ConfigError(f"the bus URL for {address.shown} has options that cannot be used") from error

    def connection(self, seconds: float, node: _Node = None) -> _Connection:
        """A new connection, not yet connected, whose reads end after ``seconds`` at the latest."""
        elsewhere = {"host": node[0], "port": node[1]} if node else {}
        return _KINDS[self._address.scheme](
            **{**self._address.options, **elsewhere},
            protocol=3,
            client_name="coldstart",
            driver_info=None,
            socket_timeout=seconds,
            socket_connect_timeout=_CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )

    @contextmanager
    def explained(self, operation: str, seconds: float) -> Iterator[None]:
        """Turn whatever redis-py or the socket raises into one BusError."""
        try:
            yield
        except TimeoutError:
            raise self.late(operation, seconds) from None
        except (failures.RedisError, OSError, UnicodeError, ValueError) as error:
            raise self._explain(operation, error) from error

    def late(self, operation: str, seconds: float) -> BusError:
        return BusError(
            f"{self._name} gave no answer to {operation} within {seconds:g} s",
            advice="check that it runs and that nothing drops its packets",
        )

    def _explain(self, operation: str, error: Exception) -> BusError:
        # On a unix socket redis-py wraps the reason in a ConnectionError: look at the causes too.
        causes: list[BaseException] = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
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


def _milliseconds(seconds: float) -> int:
    return max(0, math.ceil(seconds * 1000))
