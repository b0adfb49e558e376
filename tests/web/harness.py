"""A server in the test's own event loop on a free port of this machine, with a scripted model and a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from retinue.app.launch.start import LaunchOptions, prepare, settings_for
from retinue.app.read_only import ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.dispatch.cron.daemon import jobs_on_request
from retinue.dispatch.cron.table import CronTable
from retinue.web.access import AccessTokens
from retinue.web.server import application, listen, serve
from retinue.web.service import Service

ACT, READ = "act-token-0123456789", "read-token-0123456789"


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Site:
    """A running server and a client for it."""

    def __init__(self, port: int, retinue: Retinue, settings: Settings, session: aiohttp.ClientSession) -> None:
        self.port = port
        self.retinue = retinue
        self.settings = settings
        self._session = session

    @property
    def client(self) -> ReadOnlyClient:
        return ReadOnlyClient(self.retinue.supervisor)

    async def parked(self, run_id: str, number: int = 1) -> None:
        """Wait until so many calls of the tree wait for a person."""
        async for item in self.retinue.events(run_id, tree=True):
            number -= type(item.event).__name__ == "CallParked"
            if not number:
                return

    async def ended(self, run_id: str) -> None:
        """Wait until the whole tree of a root has ended; children that are cancelled with it end after it."""
        await self.retinue.wait(run_id)
        await self.retinue.wait(*(view.run_id for view in await self.client.tree(run_id)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = ACT,
        body: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Make a request; by default with the token that may act, and with a body of JSON."""
        given = dict(headers or {})
        if token is not None:
            given.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            given.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, f"{self.url}{path}", data=data, headers=given, allow_redirects=False
        ) as answer:
            lower = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status, lower, await answer.text())

    async def get(self, path: str, **how: Any) -> Reply:
        return await self.request("GET", path, **how)

    async def post(self, path: str, body: object = None, **how: Any) -> Reply:
        return await self.request("POST", path, body={} if body is None else body, **how)

    async def events(self, path: str, *, last: str = "") -> list[tuple[str, Any]]:
        """The events of a stream until it ends, each with its id."""
        headers = {"Last-Event-ID": last} if last else {}
        return [(fields.get("id", ""), json.loads(fields["data"])) for fields in await self._stream(path, headers)]

    async def named_events(self, path: str) -> list[tuple[str, Any]]:
        """The events of a stream until it ends, each with its name."""
        return [(fields.get("event", ""), json.loads(fields["data"])) for fields in await self._stream(path, {})]

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncGenerator[aiohttp.StreamReader]:
        """A stream of events, as bytes."""
        given = {"Authorization": f"Bearer {ACT}"}
        async with self._session.get(f"{self.url}{path}", headers=given) as answer:
            yield answer.content

    async def rows(self, run_id: str) -> AsyncGenerator[dict[str, Any]]:
        """The rows of a tree as a page that follows it has them: after the first ones, and after each change."""
        known: dict[str, Any] = {}
        async with self.stream(f"/api/v1/runs/{run_id}/changes") as content:
            name = ""
            async for line in content:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: ") and name == "rows":
                    known |= {row["run_id"]: row for row in json.loads(line[6:])}
                    yield known

    async def _stream(self, path: str, headers: Mapping[str, str]) -> list[dict[str, str]]:
        given = {"Authorization": f"Bearer {ACT}", **headers}
        async with self._session.get(f"{self.url}{path}", headers=given) as answer:
            text = await answer.text()
        found: list[dict[str, str]] = []
        for block in text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
            if "data" in lines:
                found.append(lines)
        return found


@asynccontextmanager
async def site(
    folder: Path,
    lines: Mapping[str, object],
    *,
    vendor: Flags | None = None,
    tools: tuple[str, ...] = (),
    host: str = "127.0.0.1",
    public: str = "",
) -> AsyncGenerator[Site]:
    """A server whose model plays these lines, or is that of a vendor, and has these tools.

    `folder` is the current one, with a state folder of its own. `host` is the name that it was given, and `public` the
    origin at which browsers reach it; it always listens on this machine alone.
    """
    (folder / "lines.json").write_text(json.dumps(lines))
    settings = settings_for(None, agent=None)
    flags = vendor or Flags(provider="scripted", model=str(folder / "lines.json"))
    launch = await prepare(settings, LaunchOptions(flags=flags, tools=tools))
    listener = listen("127.0.0.1", 0)
    stop = asyncio.Event()
    async with launch.open(approvals="wait") as retinue, aiohttp.ClientSession() as session:
        service = Service(
            client=ReadOnlyClient(retinue.supervisor), settings=settings, retinue=retinue, launch=launch, stopping=stop
        )
        async with jobs_on_request(CronTable(service.client.key_value), lambda _: None) as run_job:
            app = application(replace(service, run_job=run_job), AccessTokens(ACT, READ), host=host, public=public)
            serving = asyncio.create_task(serve(app, listener, stop))
            try:
                yield Site(listener.getsockname()[1], retinue, settings, session)
            finally:
                stop.set()
                await serving
                listener.close()
