"""Where the store is: reads the operator's URL, and finds our own address on the way there.

Decides which URLs are well-formed and how a server is named in messages: never with its password,
and never with the text of an error of ``urllib``, which quotes parts of the URL. It must not connect
to anything. ``redis.py`` makes connections of it.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import anyio
import msgspec

from coldstart.errors import ConfigError

LOOPBACK = "127.0.0.1"

_PORT = 6379
_ADVICE = "write redis://[USER:PASSWORD@]HOST[:PORT][/DB], the same with rediss://, or unix:///PATH[?db=N]"
_TEXTS = {"username", "password"}
_TLS = {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}


class Tls(msgspec.Struct, frozen=True):
    """Files for ``rediss://``: whom to trust (empty: whom the system trusts), and our own certificate with its key."""

    ca: str = ""
    cert: str = ""
    cert_key: str = ""

    def options(self, scheme: str, shown: str) -> dict[str, str]:
        """As keyword arguments of a connection; raises ConfigError where they would be ignored or cannot be read."""
        named = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.cert_key}
        given = {name: path for name, path in named.items() if path}
        if given and scheme != "rediss":
            raise ConfigError(
                f"certificates are given and {shown} is spoken to without TLS", advice="write rediss://, or give none"
            )
        if bool(self.cert) != bool(self.cert_key):
            raise ConfigError(
                "our own certificate and its key belong together",
                advice="set both COLDSTART_REDIS_CERT and COLDSTART_REDIS_CERT_KEY",
            )
        for path in given.values():
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}", advice="it is needed for TLS") from error
        return given


class Address(msgspec.Struct, frozen=True):
    """A server's address.

    ``shown`` is its name for people, ``options`` are the keyword arguments of a connection to it.
    """

    scheme: str
    shown: str
    options: dict[str, str | int]

    def redacted(self, text: str) -> str:
        """``text`` without the password, should a server have echoed it."""
        secret = str(self.options.get("password", ""))
        return text.replace(secret, "***") if secret else text

    async def local(self) -> str:
        """This machine's address on the route to the server; no packet is sent to find it."""
        if self.scheme == "unix":
            return LOOPBACK
        try:
            found = await anyio.getaddrinfo(
                str(self.options["host"]), int(self.options["port"]), type=socket.SOCK_DGRAM
            )
            family, kind, protocol, _, server = found[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(server)
                mine = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            return LOOPBACK
        return LOOPBACK if ipaddress.ip_address(mine).is_loopback else mine


def parse(url: str, tls: Tls | None = None) -> Address:
    """The address that ``url`` means, with the files for TLS; raises ConfigError in one line."""
    try:
        parts = urlsplit(url)
        port, host = parts.port or _PORT, parts.hostname or ""
    except ValueError:
        raise ConfigError("the bus URL is malformed (a password must be percent-encoded)", advice=_ADVICE) from None
    path = unquote(parts.path)
    options: dict[str, str | int] = {}
    match parts.scheme:
        case "unix" if path.startswith("/") and not host:
            shown, options["path"] = f"unix://{path}", path
        case "redis" | "rediss" if host:
            shown, options["host"], options["port"] = f"{parts.scheme}://{host}:{port}", unquote(host), port
        case "unix" | "redis" | "rediss":
            raise ConfigError(f"the bus URL {parts.scheme}:// names no server", advice=_ADVICE)
        case scheme:
            raise ConfigError(f"the bus URL has the scheme {scheme[:20]!r}", advice=_ADVICE)
    options |= _credentials(parts)
    if parts.scheme != "unix" and path.strip("/"):
        options["db"] = _database(path.strip("/"), shown)
    for name, value in parse_qs(parts.query, keep_blank_values=True).items():
        if name == "db":
            options["db"] = _database(value[0], shown)
        elif name in _TEXTS or (name in _TLS and parts.scheme == "rediss"):
            options[name] = value[0]
        else:
            raise ConfigError(f"the bus URL for {shown} has the unknown option {name[:40]!r}", advice=_ADVICE)
    if tls is not None:
        options |= tls.options(parts.scheme, shown)
    return Address(parts.scheme, shown, options)


def _credentials(parts: SplitResult) -> dict[str, str | int]:
    named = {"username": parts.username, "password": parts.password}
    return {name: unquote(text) for name, text in named.items() if text}


def _database(text: str, shown: str) -> int:
    if not (text.isdecimal() and text.isascii()):
        raise ConfigError(f"the bus URL for {shown} names the database {text[:20]!r}, not a number", advice=_ADVICE)
    return int(text)
