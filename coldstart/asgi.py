"""Health checks for applications that speak ASGI: FastAPI, Starlette, or none of them.

Decides how a request of ASGI becomes a question, and an answer a response. It depends on no framework
and must not know what is answered; that is ``healthchecks.py``'s. The protocol is ASGI 3.0
(https://asgi.readthedocs.io/en/latest/specs/main.html).

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(HealthRoutes, checks=checks)       # or, for any ASGI application:
    app = HealthRoutes(app, checks=checks)                # or, below a path of your own:
    app.mount("/internal", HealthRoutes(checks=checks))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import cast

from coldstart.healthchecks import Answer, Asked, HealthChecks

Scope = MutableMapping[str, object]
Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[..., Awaitable[None]]

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


class HealthRoutes:
    """Answers the paths of ``checks`` itself, and leaves everything else to ``app``.

    It is outside of the application's own middleware if it is added last, so that health checks need no
    credentials and are not logged as requests. Without ``app`` everything else is not found.
    """

    def __init__(self, app: App | None = None, *, checks: HealthChecks) -> None:
        self._app = app
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "http":
            answer = self._checks.answer(asked := _asked(scope))
            if answer is None or answer.status != 404 or self._app is None:
                await _respond(answer or await self._checks.drained(), asked, send)
                return
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})


def _asked(scope: Scope) -> Asked:
    """The question; what an application is mounted under is no part of its path."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    client = cast("tuple[str, int] | None", scope.get("client"))
    headers = cast("Iterable[tuple[bytes, bytes]]", scope["headers"])
    forwarded = any(name in _FORWARDED for name, _ in headers)
    return Asked(str(scope["method"]), path, client[0] if client else "", forwarded)


async def _respond(answer: Answer, asked: Asked, send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if answer.allow:
        headers.append((b"allow", answer.allow.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if asked.method == "HEAD" else answer.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing to begin and nothing to end."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
