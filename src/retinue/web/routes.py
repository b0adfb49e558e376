"""The routes of the HTTP API, with their handlers: runs, approvals and search; sessions, cron jobs, usage, settings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from retinue.app.call_details import readable_arguments
from retinue.app.engine_types import RunView
from retinue.app.handle import RunHandle
from retinue.app.json_rows import event_row, run_row, usage_row
from retinue.app.model_lists import ask_providers, provider_row
from retinue.app.read_only import MIN_LENGTH
from retinue.app.retinue import Retinue
from retinue.app.search import search
from retinue.app.settings_view import settings_view, without_credentials
from retinue.app.timeline import TimedRun, timeline
from retinue.app.transcript import entries
from retinue.app.usage_report import usage_report
from retinue.core.errors import BadInput, RetinueError, RunIsOver, StoreError, UnknownName
from retinue.core.ids import RunId
from retinue.core.run import Approval
from retinue.core.usage import dollars
from retinue.dispatch.cron.new_job import new_job
from retinue.dispatch.cron.rows import entry_row, job_row
from retinue.dispatch.cron.table import CronTable
from retinue.version import __version__
from retinue.web import bodies
from retinue.web.current_calls import open_calls
from retinue.web.live import LiveTrees, tree_row
from retinue.web.service import (
    EventStream,
    RouteRow,
    Service,
    as_cursor,
    as_json,
    as_run,
    body_of,
    cursor_place,
    integer,
)

PAGE, MAX_PAGE = 50, 500
"""Runs of a page where the request names no limit, and at most."""
LOOKED_AT = 2000
"""Runs that a list with a filter looks at before it answers with what it has found and a cursor."""
RESUME_SECONDS = 10.0
"""Before the event that a client has read last: events of other runs that may have come after it."""
HITS = 20
"""Entries of a page of a search where the request names no limit."""
RECENT = 1.0
"""Seconds for which an answer is good for a client that allows it, with `Cache-Control: max-age`."""
MAX_RECENT = 50
"""Answers that are kept for such clients."""
DAYS, MAX_DAYS = 30, 366
"""Days of a report on usage where the request names no number, and at most."""
EXECUTIONS = 20
"""Executions of a cron job where the request names no number; 100 are kept."""
MODELS_SECONDS = 60.0
"""How long the answers of providers are kept: a page may ask as often as it likes."""


class RunRoutes:
    """The routes of runs, approvals and the search."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self._live = LiveTrees(service.client)
        self._recent: dict[str, tuple[float, bytes]] = {}
        """Answers by path and query, with the time at which they were made; many pages ask the same."""

    def routes(self) -> tuple[RouteRow, ...]:
        """Method, path and handler of every route."""
        run = "/api/v1/runs/{run_id}"
        return (
            ("GET", "/api/v1/runs", self.list_runs),
            ("POST", "/api/v1/runs", self.start_run),
            ("GET", "/api/v1/counts", self.count_runs),
            ("GET", run, self.show_run),
            ("GET", f"{run}/tree", self.show_tree),
            ("GET", f"{run}/transcript", self.show_transcript),
            ("GET", f"{run}/timeline", self.show_timeline),
            ("GET", f"{run}/events", self.stream_events),
            ("GET", f"{run}/changes", self.stream_changes),
            ("POST", f"{run}/messages", self.send_message),
            ("POST", f"{run}/cancel", self.cancel_run),
            ("POST", f"{run}/resume", self.resume_run),
            ("POST", f"{run}/fork", self.fork_run),
            ("GET", "/api/v1/approvals", self.list_approvals),
            ("POST", "/api/v1/approvals/{approval_id:path}", self.answer_approval),
            ("GET", "/api/v1/search", self.search_texts),
        )

    # ---- answers that many pages ask for -----------------------------------------------------------------------------

    def _known(self, request: Request) -> Response | None:
        """A recent answer to the same request, if the client says that one is enough."""
        given = request.headers.get("cache-control", "")
        found = self._recent.get(_place(request)) if given.startswith("max-age=") else None
        if found is None or time.monotonic() - found[0] > RECENT:
            return None
        return Response(found[1], media_type="application/json")

    def _remembered(self, request: Request, answer: Response) -> Response:
        if len(self._recent) >= MAX_RECENT:
            self._recent.clear()
        self._recent[_place(request)] = (time.monotonic(), bytes(answer.body))
        return answer

    # ---- runs --------------------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        if (known := self._known(request)) is not None:
            return known
        query = request.query_params
        limit = integer(query.get("limit"), PAGE, "limit", MAX_PAGE)
        wanted = query.getlist("state")
        words = query.get("q", "")[:1000].lower().split()
        before = cursor_place(query.get("cursor"))
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
        cursor = None if is_last or before is None else as_cursor(before)
        return self._remembered(request, as_json(bodies.Runs(items=tuple(map(as_run, found)), next=cursor)))

    async def count_runs(self, request: Request) -> Response:
        if (known := self._known(request)) is not None:
            return known
        counts = bodies.Counts(
            runs=await self._client.count(everyone=False),
            unfinished=await self._client.count(everyone=False, unfinished=True),
        )
        return self._remembered(request, as_json(counts))

    async def start_run(self, request: Request) -> Response:
        asked = await body_of(request, bodies.NewRun)
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
            approvals=asked.approvals,
        )
        return as_json(await self._started(handle.run_id), status=201)

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
        return as_json(msgspec.convert(details, bodies.RunDetails))

    async def show_tree(self, request: Request) -> Response:
        top = await self._found(request)
        views = await self._below(top)
        calls = await open_calls(self._client, top.root_id, views)
        rows = [tree_row(self._client, view, calls.get(view.run_id)) for view in views]
        return as_json(bodies.Tree(items=msgspec.convert(rows, tuple[bodies.TreeRun, ...])))

    async def _below(self, top: RunView) -> list[RunView]:
        """A run and its descendants, parents first."""
        views = sorted(await self._client.tree(top.root_id), key=lambda each: (each.started_at, each.depth))
        below = {top.run_id}
        for view in views:
            if view.parent_id in below:
                below.add(view.run_id)
        return [view for view in views if view.run_id in below]

    async def show_transcript(self, request: Request) -> Response:
        view = await self._found(request)
        items = msgspec.to_builtins(entries(await self._client.events(view.run_id)))
        return as_json(bodies.Transcript(items=msgspec.convert(items, tuple[bodies.Entry, ...])))

    async def show_timeline(self, request: Request) -> Response:
        top = await self._found(request)
        views = await self._below(top)
        runs = [
            TimedRun(
                run_id=view.run_id,
                parent_id=view.parent_id,
                started_at=view.started_at,
                # An interrupted run has no driver that could be at work: its time ends with its last event.
                ended_at=view.ended_at if view.state != "interrupted" else max(event.at for event in events),
                events=events,
            )
            for view, events in [(view, await self._client.events(view.run_id)) for view in views]
        ]
        spans = await asyncio.to_thread(timeline, runs)
        items = (bodies.TimelineSpan(**msgspec.structs.asdict(span)) for span in spans)
        return as_json(bodies.Timeline(items=tuple(items)))

    async def stream_changes(self, request: Request) -> Response:
        view = await self._found(request)
        stream = self._live.changes(view.root_id, view.run_id)
        return EventStream(stream, self._service.stopping)

    async def stream_events(self, request: Request) -> Response:
        view = await self._found(request)
        tree = request.query_params.get("tree", "0") not in ("", "0", "false")
        after = await self._position(view, request.headers.get("last-event-id", ""), tree=tree)
        stream = self._events(view.run_id, after, tree=tree)
        return EventStream(stream, self._service.stopping)

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
        await self._handle(view.run_id).send((await body_of(request, bodies.Message)).text)
        return as_json(await self._started(view.run_id))

    async def cancel_run(self, request: Request) -> Response:
        view = await self._found(request)
        if view.outcome is not None and view.outcome.result != "cancelled":
            raise RunIsOver(view.run_id, view.outcome.result)
        cancelled = await self._client.cancel(view.run_id, note="cancelled by hand")
        return as_json(bodies.Cancelled(run_id=view.run_id, cancelled=cancelled))

    async def resume_run(self, request: Request) -> Response:
        view = await self._found(request)
        retinue, _ = self._service.driver()
        await resume(self._service, retinue, view)
        return as_json(await self._started(view.run_id))

    async def fork_run(self, request: Request) -> Response:
        asked = await body_of(request, bodies.Fork)
        view = await self._found(request)
        retinue, _ = self._service.driver()
        handle = await retinue.fork(view.run_id, asked.task, turn=asked.turn)
        return as_json(await self._started(handle.run_id), status=201)

    async def _started(self, run_id: RunId) -> bodies.Started:
        view = await self._client.look(run_id)
        return bodies.Started(run_id=run_id, state=view.state)

    async def _found(self, request: Request) -> RunView:
        return await self._client.find(str(request.path_params["run_id"])[:100])

    def _handle(self, run_id: RunId) -> RunHandle:
        return RunHandle(self._client.supervisor, run_id)

    # ---- approvals and agents ----------------------------------------------------------------------------------------

    async def list_approvals(self, request: Request) -> Response:
        if (known := self._known(request)) is not None:
            return known
        items = [
            bodies.ApprovalRequest(
                id=each.id,
                run_id=each.run_id,
                path=each.path,
                tool=each.tool,
                arguments=each.arguments,
                reason=each.reason,
                details=await self._details(each),
            )
            for each in await self._client.approvals.open()
        ]
        return self._remembered(request, as_json(bodies.ApprovalRequests(items=tuple(items))))

    async def _details(self, question: Approval) -> str:
        """The arguments to read; `readable_arguments` opens files of the run's workspace alone."""
        workspace = ""
        if question.tool == "file_write":  # only what is written is compared with what is there
            with suppress(RetinueError):  # the run may have ended meanwhile
                workspace = await self._client.supervisor.folder(question.run_id)
        return await asyncio.to_thread(readable_arguments, question.tool, question.arguments, workspace)

    async def answer_approval(self, request: Request) -> Response:
        answer = await body_of(request, bodies.Answer)
        question = await self._client.approvals.find(str(request.path_params["approval_id"])[:200])
        first = await self._client.approvals.answer(question, allow=answer.allow, note=answer.note)
        return as_json(bodies.Answered(id=question.id, first=first))

    # ---- search ------------------------------------------------------------------------------------------------------

    async def search_texts(self, request: Request) -> Response:
        query = request.query_params
        words = query.get("q", "")[:1000].split()
        if not words:
            raise BadInput("q: expected words to look for")
        limit = integer(query.get("limit"), HITS, "limit", MAX_PAGE)
        found = await search(self._client, words, before=cursor_place(query.get("cursor")), limit=limit)
        items = (
            bodies.SearchHit(run=as_run(hit.view), kind=hit.entry.kind, turn=hit.entry.turn, excerpt=hit.excerpt)
            for hit in found.hits
        )
        cursor = None if found.before is None else as_cursor(found.before)
        return as_json(bodies.SearchHits(items=tuple(items), next=cursor, runs_read=found.runs_read))


class AdminRoutes:
    """The routes beside runs: sessions and their shared context, cron jobs, usage, agents, models, settings."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self._sessions = service.client.sessions
        self._cron = CronTable(service.client.key_value)
        self._models: tuple[float, bodies.Models] | None = None
        self._asking = asyncio.Lock()

    def routes(self) -> tuple[RouteRow, ...]:
        """Method, path and handler of every route."""
        session, job = "/api/v1/sessions/{session_id:path}", "/api/v1/cron/{job}"
        return (
            ("GET", "/api/v1/sessions", self.list_sessions),
            ("POST", "/api/v1/sessions", self.create_session),
            ("POST", f"{session}/snapshots", self.take_snapshot),
            ("POST", f"{session}/archive", self.archive_session),
            ("POST", f"{session}/delete", self.delete_session),
            ("GET", session, self.show_context),
            ("GET", "/api/v1/cron", self.list_jobs),
            ("POST", "/api/v1/cron", self.add_job),
            ("GET", f"{job}/executions", self.list_executions),
            ("POST", f"{job}/run-now", self.run_job),
            ("POST", f"{job}/pause", self.pause_job),
            ("POST", f"{job}/resume", self.resume_job),
            ("POST", f"{job}/remove", self.remove_job),
            ("GET", "/api/v1/usage", self.show_usage),
            ("GET", "/api/v1/agents", self.list_agents),
            ("GET", "/api/v1/models", self.list_models),
            ("GET", "/api/v1/settings", self.show_settings),
        )

    # ---- sessions ----------------------------------------------------------------------------------------------------

    async def list_sessions(self, request: Request) -> Response:
        everyone = request.query_params.get("all", "0") not in ("", "0", "false")
        rows = await self._sessions.list(everyone=everyone)
        return as_json(bodies.Sessions(items=msgspec.convert(rows, tuple[bodies.Session, ...])))

    async def create_session(self, request: Request) -> Response:
        asked = await body_of(request, bodies.NewSession)
        await self._sessions.create(asked.session_id)
        return as_json(bodies.Done(name=asked.session_id), status=201)

    async def show_context(self, request: Request) -> Response:
        name = _name(request, "session_id")
        context = await self._sessions.context(name)
        entries = [
            {"key": key, "versions": versions} for key, versions in (await self._sessions.histories(name)).items()
        ]
        shown = {"snapshots": (), **context, "entries": entries}
        return as_json(msgspec.convert(shown, bodies.SharedContext))

    async def take_snapshot(self, request: Request) -> Response:
        asked = await body_of(request, bodies.NewSnapshot)
        entries = await self._sessions.snapshot(_name(request, "session_id"), asked.label)
        return as_json(bodies.Snapshot(label=asked.label, entries=entries), status=201)

    async def archive_session(self, request: Request) -> Response:
        name = _name(request, "session_id")
        await self._sessions.archive(name)
        return as_json(bodies.Done(name=name))

    async def delete_session(self, request: Request) -> Response:
        name = _name(request, "session_id")
        await self._sessions.delete(name)
        return as_json(bodies.Done(name=name))

    # ---- cron jobs ---------------------------------------------------------------------------------------------------

    async def list_jobs(self, request: Request) -> Response:
        table = await self._cron.table()
        rows = [job_row(table, table.jobs[name]) for name in sorted(table.jobs)]
        return as_json(bodies.CronJobs(items=msgspec.convert(rows, tuple[bodies.CronJob, ...])))

    async def add_job(self, request: Request) -> Response:
        asked = msgspec.structs.asdict(await body_of(request, bodies.NewCronJob))
        source = self._service.settings.source
        config = None if source is None else str(source)
        job, _ = await asyncio.to_thread(lambda: new_job(asked.pop("name"), **asked, config=config))
        await self._cron.add(job)
        return as_json(bodies.Done(name=job.name), status=201)

    async def list_executions(self, request: Request) -> Response:
        limit = integer(request.query_params.get("limit"), EXECUTIONS, "limit", 100)
        job = await self._cron.job(_name(request, "job"))
        rows = [entry_row(entry) for entry in await self._cron.history(job.name)]
        return as_json(bodies.CronExecutions(items=msgspec.convert(rows[:limit], tuple[bodies.CronExecution, ...])))

    async def run_job(self, request: Request) -> Response:
        name = _name(request, "job")
        if self._service.run_job is None:
            raise BadInput("this server executes no jobs")
        await self._service.run_job(name)
        return as_json(bodies.Done(name=name), status=202)

    async def pause_job(self, request: Request) -> Response:
        await self._cron.pause(name := _name(request, "job"))
        return as_json(bodies.Done(name=name))

    async def resume_job(self, request: Request) -> Response:
        await self._cron.resume(name := _name(request, "job"), now=time.time())
        return as_json(bodies.Done(name=name))

    async def remove_job(self, request: Request) -> Response:
        await self._cron.remove(name := _name(request, "job"))
        return as_json(bodies.Done(name=name))

    # ---- usage, agents, models and settings --------------------------------------------------------------------------

    async def show_usage(self, request: Request) -> Response:
        days = integer(request.query_params.get("days"), DAYS, "days", MAX_DAYS)
        report = await usage_report(self._client, days=days, now=time.time())
        rows = [
            msgspec.structs.asdict(row) | {"usage": usage_row(row.usage), "cost": dollars(row.cost)}
            for row in report.rows
        ]
        items = msgspec.convert(rows, tuple[bodies.UsageOf, ...])
        return as_json(bodies.UsageReport(items=items, complete=report.is_complete))

    async def list_agents(self, request: Request) -> Response:
        items = [
            bodies.AgentInfo(
                name=name,
                description=agent.description,
                model=agent.qualified_model or None,
                tools=agent.tools or (),
            )
            for name, agent in self._service.settings.agents.items()
            if agent.enabled
        ]
        return as_json(bodies.Agents(items=tuple(items)))

    async def list_models(self, request: Request) -> Response:
        async with self._asking:  # many requests at once ask the servers once
            if self._models is None or time.monotonic() - self._models[0] > MODELS_SECONDS:
                rows = [provider_row(each) for each in await ask_providers(self._service.settings)]
                rows = [row | {"base_url": without_credentials(str(row["base_url"]))} for row in rows]
                models = bodies.Models(items=msgspec.convert(rows, tuple[bodies.ProviderModels, ...]))
                self._models = (time.monotonic(), models)
            return as_json(self._models[1])

    async def show_settings(self, request: Request) -> Response:
        view = settings_view(self._service.settings, os.environ)
        return as_json(msgspec.convert(msgspec.to_builtins(view), bodies.SettingsRead))


async def resume(service: Service, retinue: Retinue, view: RunView) -> None:
    """Continue an interrupted tree; calls that need approval are refused again if it was started like this."""
    with suppress(RetinueError):  # the launch config may be of a newer version, or deleted
        config = await service.client.launch_config(view.root_id)
        if config is not None and config.approvals == "deny":
            retinue.supervisor.use_approver(view.root_id, "deny")
    await retinue.resume(view.run_id)


async def healthz(request: Request) -> Response:
    """That the server answers; needs no token and says nothing about runs."""
    return as_json(bodies.Health(version=__version__))


def _matches(view: RunView, wanted: list[str], words: list[str]) -> bool:
    states = {view.state, view.outcome.result if view.outcome is not None else view.state}
    if wanted and not states & set(wanted):
        return False
    text = f"{view.task} {view.agent} {view.label}".lower()
    return all(word in text or (len(word) >= MIN_LENGTH and word in view.run_id) for word in words)


def _place(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"[:2000]


def _name(request: Request, parameter: str) -> str:
    return str(request.path_params[parameter])[:200]
