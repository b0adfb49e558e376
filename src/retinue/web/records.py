"""The routes of the API beside runs: sessions and their shared context, cron jobs, usage, agents, models, settings."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from retinue.app.json_rows import usage_row
from retinue.app.model_lists import ask_providers, provider_row
from retinue.app.settings_view import settings_view, without_credentials
from retinue.app.usage_report import usage_report
from retinue.core.usage import dollars
from retinue.dispatch.cron.new_job import new_job
from retinue.dispatch.cron.rows import entry_row, job_row
from retinue.dispatch.cron.table import CronTable
from retinue.web import messages
from retinue.web.service import RouteRow, Service, as_json, body_of, integer

DAYS, MAX_DAYS = 30, 366
"""Days of a report on usage where the request names no number, and at most."""
EXECUTIONS = 20
"""Executions of a cron job where the request names no number; 100 are kept."""
MODELS_SECONDS = 60.0
"""How long the answers of providers are kept: a page may ask as often as it likes."""


class Records:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self._sessions = service.client.sessions
        self._cron = CronTable(service.client.key_value)
        self._models: tuple[float, messages.Models] | None = None
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
        return as_json(messages.Sessions(items=msgspec.convert(rows, tuple[messages.Session, ...])))

    async def create_session(self, request: Request) -> Response:
        asked = await body_of(request, messages.NewSession)
        await self._sessions.create(asked.session_id)
        return as_json(messages.Done(name=asked.session_id), status=201)

    async def show_context(self, request: Request) -> Response:
        name = _name(request, "session_id")
        context = await self._sessions.context(name)
        entries = [
            {"key": key, "versions": versions} for key, versions in (await self._sessions.histories(name)).items()
        ]
        shown = {"snapshots": (), **context, "entries": entries}
        return as_json(msgspec.convert(shown, messages.SharedContext))

    async def take_snapshot(self, request: Request) -> Response:
        asked = await body_of(request, messages.NewSnapshot)
        entries = await self._sessions.snapshot(_name(request, "session_id"), asked.label)
        return as_json(messages.Snapshot(label=asked.label, entries=entries), status=201)

    async def archive_session(self, request: Request) -> Response:
        name = _name(request, "session_id")
        await self._sessions.archive(name)
        return as_json(messages.Done(name=name))

    async def delete_session(self, request: Request) -> Response:
        name = _name(request, "session_id")
        await self._sessions.delete(name)
        return as_json(messages.Done(name=name))

    # ---- cron jobs ---------------------------------------------------------------------------------------------------

    async def list_jobs(self, request: Request) -> Response:
        table = await self._cron.table()
        rows = [job_row(table, table.jobs[name]) for name in sorted(table.jobs)]
        return as_json(messages.CronJobs(items=msgspec.convert(rows, tuple[messages.CronJob, ...])))

    async def add_job(self, request: Request) -> Response:
        asked = msgspec.structs.asdict(await body_of(request, messages.NewCronJob))
        source = self._service.settings.source
        config = None if source is None else str(source)
        job, _ = await asyncio.to_thread(lambda: new_job(asked.pop("name"), **asked, config=config))
        await self._cron.add(job)
        return as_json(messages.Done(name=job.name), status=201)

    async def list_executions(self, request: Request) -> Response:
        limit = integer(request.query_params.get("limit"), EXECUTIONS, "limit", 100)
        job = await self._cron.job(_name(request, "job"))
        rows = [entry_row(entry) for entry in await self._cron.history(job.name)]
        return as_json(messages.CronExecutions(items=msgspec.convert(rows[:limit], tuple[messages.CronExecution, ...])))

    async def pause_job(self, request: Request) -> Response:
        await self._cron.pause(name := _name(request, "job"))
        return as_json(messages.Done(name=name))

    async def resume_job(self, request: Request) -> Response:
        await self._cron.resume(name := _name(request, "job"), now=time.time())
        return as_json(messages.Done(name=name))

    async def remove_job(self, request: Request) -> Response:
        await self._cron.remove(name := _name(request, "job"))
        return as_json(messages.Done(name=name))

    # ---- usage, agents, models and settings --------------------------------------------------------------------------

    async def show_usage(self, request: Request) -> Response:
        days = integer(request.query_params.get("days"), DAYS, "days", MAX_DAYS)
        report = await usage_report(self._client, days=days, now=time.time())
        rows = [
            msgspec.structs.asdict(row) | {"usage": usage_row(row.usage), "cost": dollars(row.cost)}
            for row in report.rows
        ]
        items = msgspec.convert(rows, tuple[messages.UsageOf, ...])
        return as_json(messages.UsageReport(items=items, complete=report.is_complete))

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
        return as_json(messages.Agents(items=tuple(items)))

    async def list_models(self, request: Request) -> Response:
        async with self._asking:  # many requests at once ask the servers once
            if self._models is None or time.monotonic() - self._models[0] > MODELS_SECONDS:
                rows = [provider_row(each) for each in await ask_providers(self._service.settings)]
                rows = [row | {"base_url": without_credentials(str(row["base_url"]))} for row in rows]
                models = messages.Models(items=msgspec.convert(rows, tuple[messages.ProviderModels, ...]))
                self._models = (time.monotonic(), models)
            return as_json(self._models[1])

    async def show_settings(self, request: Request) -> Response:
        view = settings_view(self._service.settings, os.environ)
        return as_json(msgspec.convert(msgspec.to_builtins(view), messages.SettingsRead))


def _name(request: Request, parameter: str) -> str:
    return str(request.path_params[parameter])[:200]
