"""What the routes of the API share: the open store, reading of requests, and answers in JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from retinue.app.engine_types import RunView
from retinue.app.json_rows import run_row
from retinue.app.launch.start import Launch
from retinue.app.read_only import ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.config.settings import Settings
from retinue.core.errors import BadInput, NotAdoptable, Refused, RetinueError, RunIsOver, StoreError, UnknownName
from retinue.core.ids import RunId
from retinue.core.text import NOT_JSON
from retinue.web import bodies
from retinue.web.access import BodyTooLarge

B = TypeVar("B", bound=Struct)

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
RouteRow: TypeAlias = tuple[str, str, Handler]
"""Method, path and handler of a route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the routes work with; without a model, `retinue` and `launch` are None and `no_model` says why."""

    client: ReadOnlyClient
    settings: Settings
    retinue: Retinue | None = None
    launch: Launch | None = None
    no_model: str = ""
    run_job: Callable[[str], Awaitable[object]] | None = None
    """Executes a cron job now, in a process of its own; None where jobs are only shown."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: its streams end then."""

    def driver(self) -> tuple[Retinue, Launch]:
        """What starts and continues runs; raises `BadInput` without a model."""
        if self.retinue is None or self.launch is None:
            raise BadInput(self.no_model)
        return self.retinue, self.launch


def as_run(view: RunView) -> bodies.Run:
    return msgspec.convert(run_row(view), bodies.Run)


def as_cursor(place: tuple[float, RunId]) -> str:
    """A place in a list of runs, as a client gives it back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def cursor_place(cursor: str | None) -> tuple[float, RunId] | None:
    """The place that a cursor means; raises `BadInput`."""
    if cursor is None:
        return None
    try:
        padded = cursor[:400] + "=" * (-len(cursor[:400]) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise BadInput("cursor: expected the text of `next` of the page before") from None


def integer(text: str | None, default: int, name: str, most: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadInput(f"{name}: found {text[:20]!r}; expected a number from 1 to {most}")
    return int(text)


async def body_of(request: Request, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except NOT_JSON as error:
        raise BadInput(str(error)) from None


def as_json(value: Struct, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


class EventStream(StreamingResponse):
    """Server-sent events; the stream ends when the server stops, and clients connect again."""

    def __init__(self, events: AsyncIterator[bytes], stopping: asyncio.Event) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(super().__call__(scope, receive, send))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_cut = not sending.done()
            sending.cancel()
            stopping.cancel()
            await asyncio.gather(sending, stopping, return_exceptions=True)
        if is_cut:
            await send({"type": "http.response.body", "body": b""})
        else:
            sending.result()


def answering(handler: Handler) -> Handler:
    """The handler with errors of requests as JSON answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except UnknownName as error:
            return as_json(bodies.Problem(error=str(error)), status=404)
        except BodyTooLarge:
            return as_json(bodies.Problem(error="the body is too large"), status=413)
        except (TimeoutError, ClientDisconnect):
            return as_json(bodies.Problem(error="the body did not arrive"), status=408)
        except (RunIsOver, NotAdoptable, Refused) as error:
            return as_json(bodies.Problem(error=str(error)), status=409)
        except StoreError as error:
            return as_json(bodies.Problem(error=str(error)), status=503)
        except RetinueError as error:
            return as_json(bodies.Problem(error=str(error)), status=400)

    return answer
