"""The routes of the API below `/api/v1`: runs, their trees, transcripts and events, approvals, agents."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retinue.app.engine_types import RunView
from retinue.app.handle import RunHandle
from retinue.app.json_rows import event_row, run_row
from retinue.app.launch.start import Launch
from retinue.app.read_only import MIN_LENGTH, ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.app.transcript import entries
from retinue.config.settings import Settings
from retinue.core.errors import BadInput, NotAdoptable, Refused, RetinueError, RunIsOver, StoreError, UnknownName
from retinue.core.ids import RunId
from retinue.version import __version__
from retinue.web import messages
from retinue.web.access import BodyTooLarge

B = TypeVar("B", bound=Struct)

PAGE, MAX_PAGE = 50, 500
"""Runs of a page where the request names no limit, and at most."""
LOOKED_AT = 2000
"""Runs that a search looks at before it answers with what it has found and a cursor."""
RESUME_SECONDS = 10.0
"""Before the event that a client has read last: events of other runs that may have come after it."""

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the routes work with; without a model, `retinue` and `launch` are None and `no_model` says why."""

    client: ReadOnlyClient
    settings: Settings
    retinue: Retinue | None = None
    launch: Launch | None = None
    no_model: str = ""

    def driver(self) -> tuple[Retinue, Launch]:
        """What starts and continues runs; raises `BadInput` without a model."""
        if self.retinue is None or self.launch is None:
            raise BadInput(self.no_model)
        return self.retinue, self.launch


class Api:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client

    def routes(self) -> list[Route]:
        """Every route below `/api/v1`."""
        run = "/api/v1/runs/{run_id}"
        table: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/api/v1/runs", self.list_runs),
            ("POST", "/api/v1/runs", self.start_run),
            ("GET", run, self.show_run),
            ("GET", f"{run}/tree", self.show_tree),
            ("GET", f"{run}/transcript", self.show_transcript),
            ("GET", f"{run}/events", self.stream_events),
            ("POST", f"{run}/messages", self.send_message),
            ("POST", f"{run}/cancel", self.cancel_run),
            ("POST", f"{run}/resume", self.resume_run),
            ("POST", f"{run}/fork", self.fork_run),
            ("GET", "/api/v1/approvals", self.list_approvals),
            ("POST", "/api/v1/approvals/{approval_id:path}", self.answer_approval),
            ("GET", "/api/v1/agents", self.list_agents),
        )
        return [Route(path, _answering(handler), methods=[method]) for method, path, handler in table]

    # ---- runs --------------------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        query = request.query_params
        limit = _integer(query.get("limit"), PAGE, "limit", MAX_PAGE)
        wanted = query.getlist("state")
        words = query.get("q", "")[:1000].lower().split()
        before = _cursor(query.get("cursor"))
        found: list[RunView] = []
        looked_at = 0
        is_last = False
        while len(found) < limit and looked_at < LOOKED_AT and not is_last:
            step = limit if not wanted and not words else MAX_PAGE
            views = await self._client.list(before=before, limit=step)
            is_last = len(views) < step
            for place, view in enumerate(views):
                before = (view.started_at, view.run_id)
                looked_at += 1
                if _matches(view, wanted, words):
                    found.append(view)
                if len(found) == limit:
                    is_last = is_last and place == len(views) - 1
                    break
        cursor = None if is_last or before is None else _as_cursor(before)
        return _json(messages.Runs(items=tuple(map(_run, found)), next=cursor))

    async def start_run(self, request: Request) -> Response:
        asked = await _body(request, messages.NewRun)
        retinue, launch = self._service.driver()
        if asked.agent is not None and asked.agent not in self._service.settings.agents:
            raise UnknownName("agent", asked.agent, tuple(self._service.settings.agents))
        handle = await retinue.spawn(
            asked.task,
            agent=asked.agent,
            limits=launch.limits if asked.agent is None else None,
            dialects=asked.dialects,
            tools=launch.tools if asked.tools is None and asked.agent is None else asked.tools,
            model=asked.model or (launch.model_choice.full_name if asked.agent is None else None),
            session=asked.session or retinue.supervisor.new_id(),
        )
        return _json(await self._started(handle.run_id), status=201)

    async def show_run(self, request: Request) -> Response:
        view = await self._found(request)
        run = None
        with suppress(RetinueError):  # the messages of an ended run may have been deleted
            run = await self._client.replay(view.run_id)
        last = run.text if run is not None else ""
        details = run_row(view) | {
            "text": view.outcome.text if view.outcome is not None else last,
            "error": view.outcome.error if view.outcome is not None else "",
            "model": run.run_spec.model if run is not None else "",
            "provider": run.run_spec.provider if run is not None else "",
        }
        return _json(msgspec.convert(details, messages.RunDetails))

    async def show_tree(self, request: Request) -> Response:
        top = await self._found(request)
        views = sorted(await self._client.tree(top.root_id), key=lambda each: (each.started_at, each.depth))
        below = {top.run_id}
        for view in views:
            if view.parent_id in below:
                below.add(view.run_id)
        return _json(messages.Tree(items=tuple(_run(view) for view in views if view.run_id in below)))

    async def show_transcript(self, request: Request) -> Response:
        view = await self._found(request)
        items = msgspec.to_builtins(entries(await self._client.events(view.run_id)))
        return _json(messages.Transcript(items=msgspec.convert(items, tuple[messages.Entry, ...])))

    async def stream_events(self, request: Request) -> Response:
        view = await self._found(request)
        tree = request.query_params.get("tree", "0") not in ("", "0", "false")
        after = await self._position(view, request.headers.get("last-event-id", ""), tree=tree)
        stream = self._events(view.run_id, after, tree=tree)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self, run_id: RunId, after: Mapping[RunId, int], *, tree: bool) -> AsyncIterator[bytes]:
        yield b": ok\n\n"
        try:
            async for item in self._client.supervisor.tree_events(run_id, tree=tree, after=after):
                number = f"id: {item.run}/{item.seq}\n" if item.seq else ""
                yield f"{number}data: ".encode() + msgspec.json.encode(event_row(item)) + b"\n\n"
        except StoreError as error:
            yield b"event: error\ndata: " + msgspec.json.encode({"error": str(error)}) + b"\n\n"

    async def _position(self, view: RunView, last: str, *, tree: bool) -> Mapping[RunId, int]:
        """How far each run was read, given the id of the last event that the client has.

        Clocks of processes differ: events of other runs shortly before it are sent again, with the same ids.
        """
        run_id, _, number = last.partition("/")
        if not number.isdigit() or len(number) > 18:
            return {}
        read = {run_id: int(number)}
        if not tree:
            return read
        events = dict(await self._client.supervisor.stored.events(run_id))
        if int(number) not in events:
            return {}
        since = events[int(number)].at - RESUME_SECONDS
        for other in await self._client.tree(view.root_id):
            if other.run_id != run_id:
                stored = await self._client.supervisor.stored.events(other.run_id)
                read[other.run_id] = max((seq for seq, event in stored if event.at < since), default=0)
        return read

    async def send_message(self, request: Request) -> Response:
        view = await self._found(request)
        await self._handle(view.run_id).send((await _body(request, messages.Message)).text)
        return _json(await self._started(view.run_id))

    async def cancel_run(self, request: Request) -> Response:
        view = await self._found(request)
        if view.outcome is not None and view.outcome.result != "cancelled":
            raise RunIsOver(view.run_id, view.outcome.result)
        cancelled = await self._client.cancel(view.run_id, note="cancelled by hand")
        return _json(messages.Cancelled(run_id=view.run_id, cancelled=cancelled))

    async def resume_run(self, request: Request) -> Response:
        view = await self._found(request)
        retinue, _ = self._service.driver()
        await retinue.resume(view.run_id)
        return _json(await self._started(view.run_id))

    async def fork_run(self, request: Request) -> Response:
        asked = await _body(request, messages.Fork)
        view = await self._found(request)
        retinue, _ = self._service.driver()
        handle = await retinue.fork(view.run_id, asked.task, turn=asked.turn)
        return _json(await self._started(handle.run_id), status=201)

    async def _started(self, run_id: RunId) -> messages.Started:
        view = await self._client.look(run_id)
        return messages.Started(run_id=run_id, state=view.state)

    async def _found(self, request: Request) -> RunView:
        return await self._client.find(str(request.path_params["run_id"])[:100])

    def _handle(self, run_id: RunId) -> RunHandle:
        return RunHandle(self._client.supervisor, run_id)

    # ---- approvals and agents ----------------------------------------------------------------------------------------

    async def list_approvals(self, request: Request) -> Response:
        items = [
            messages.ApprovalRequest(
                id=each.id,
                run_id=each.run_id,
                path=each.path,
                tool=each.tool,
                arguments=each.arguments,
                reason=each.reason,
            )
            for each in await self._client.approvals.open()
        ]
        return _json(messages.ApprovalRequests(items=tuple(items)))

    async def answer_approval(self, request: Request) -> Response:
        answer = await _body(request, messages.Answer)
        question = await self._client.approvals.find(str(request.path_params["approval_id"])[:200])
        first = await self._client.approvals.answer(question, allow=answer.allow, note=answer.note)
        return _json(messages.Answered(id=question.id, first=first))

    async def list_agents(self, request: Request) -> Response:
        items = [
            messages.AgentInfo(
                name=name,
                description=agent.description,
                model=agent.qualified_model or None,
                tools=agent.tools or (),
            )
            for name, agent in self._service.settings.agents.items()
            if agent.enabled
        ]
        return _json(messages.Agents(items=tuple(items)))


async def healthz(request: Request) -> Response:
    """That the server answers; needs no token and says nothing about runs."""
    return _json(messages.Health(version=__version__))


def _run(view: RunView) -> messages.Run:
    return msgspec.convert(run_row(view), messages.Run)


def _matches(view: RunView, wanted: list[str], words: list[str]) -> bool:
    states = {view.state, view.outcome.result if view.outcome is not None else view.state}
    if wanted and not states & set(wanted):
        return False
    text = f"{view.task} {view.agent} {view.label}".lower()
    return all(word in text or (len(word) >= MIN_LENGTH and word in view.run_id) for word in words)


def _as_cursor(place: tuple[float, RunId]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _cursor(text: str | None) -> tuple[float, RunId] | None:
    if text is None:
        return None
    try:
        padded = text[:400] + "=" * (-len(text[:400]) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise BadInput("cursor: expected the text of `next` of the page before") from None


def _integer(text: str | None, default: int, name: str, most: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadInput(f"{name}: found {text[:20]!r}; expected a number from 1 to {most}")
    return int(text)


async def _body(request: Request, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.DecodeError as error:
        raise BadInput(str(error)) from None


def _json(value: Struct, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _answering(handler: Handler) -> Handler:
    """The handler with errors of requests as JSON answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except UnknownName as error:
            return _json(messages.Problem(error=str(error)), status=404)
        except BodyTooLarge:
            return _json(messages.Problem(error="the body is too large"), status=413)
        except (TimeoutError, ClientDisconnect):
            return _json(messages.Problem(error="the body did not arrive"), status=408)
        except (RunIsOver, NotAdoptable, Refused) as error:
            return _json(messages.Problem(error=str(error)), status=409)
        except StoreError as error:
            return _json(messages.Problem(error=str(error)), status=503)
        except RetinueError as error:
            return _json(messages.Problem(error=str(error)), status=400)

    return answer
