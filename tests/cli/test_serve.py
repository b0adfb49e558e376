"""`retinue serve` as a process: the link, tokens, wrong flags, a port in use, Ctrl-C, and runs it finds interrupted."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retinue.web.server import listen
from tests.cli.stage import Command, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

TOKEN, READ_TOKEN = "act-token-0123456789", "read-token-0123456789"
LINES = {"main": [{"say": "It is the pool."}]}
SLOW = {"main": [{"say": "one two three", "every": 60.0}]}


class Served:
    """A running server and a client that has its token."""

    def __init__(self, command: Command, printed: str, session: aiohttp.ClientSession) -> None:
        self.command = command
        self.printed = printed
        self.url, _, self.token = printed.strip().partition("/?token=")
        self.url = self.url.rstrip("/")
        self._session = session

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with self._session.request(
            method, f"{self.url}{path}", json=body, headers=given | headers, allow_redirects=False
        ) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.text()

    async def ended(self, run_id: str) -> Any:
        """The run, once its stream has ended."""
        await self.ask("GET", f"/api/v1/runs/{run_id}/events")
        return (await self.ask("GET", f"/api/v1/runs/{run_id}"))[1]


@asynccontextmanager
async def served(*flags: str, lines: object = LINES, env: dict[str, str] | None = None) -> AsyncGenerator[Served]:
    """`retinue serve` on a free port, stopped by Ctrl-C with the block if it still runs."""
    _write(lines)
    model = ("--provider", "scripted", "--model", "lines.json") if lines is not None else ()
    command = await Command.start("serve", "--port", "0", *model, *flags, env=env)
    try:
        printed = await command.expect_stderr("://")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Served(command, printed, session)
    finally:
        if not command.is_over:
            command.signal(signal.SIGINT)
        await command.ended()


def _write(lines: object) -> None:
    Path("lines.json").write_text(json.dumps(lines))


async def test_the_link_has_the_token_which_stays_and_is_private(home: Path) -> None:
    async with served() as first:
        entered = await first.ask("GET", f"/?token={first.token}", Authorization="")
        without = await first.ask("GET", "/api/v1/runs", Authorization="")
        status, started = await first.ask("POST", "/api/v1/runs", {"task": "Why is it slow?"})
        run = await first.ended(started["run_id"])
    async with served() as second:
        _, listed = await second.ask("GET", "/api/v1/runs")

    assert first.url.startswith("http://127.0.0.1:")
    assert (entered[0], without[0], status) == (303, 401, 201)
    assert (run["outcome"], run["text"]) == ("completed", "It is the pool.")
    assert (second.token, len(first.token) >= 32) == (first.token, True)
    assert [each["run_id"] for each in listed["items"]] == [started["run_id"]]
    assert stat.S_IMODE((home / "web_token").stat().st_mode) == 0o600


async def test_tokens_of_the_environment_are_not_printed(home: Path) -> None:
    flags = ("--token-env", "MY_TOKEN", "--read-token-env", "MY_READER")
    async with served(*flags, env={"MY_TOKEN": TOKEN, "MY_READER": READ_TOKEN}) as server:
        reads = [
            (await server.ask("GET", "/api/v1/runs", Authorization=f"Bearer {one}"))[0] for one in (TOKEN, READ_TOKEN)
        ]
        acts = [
            (await server.ask("POST", "/api/v1/runs", {"task": "x"}, Authorization=f"Bearer {one}"))[0]
            for one in (TOKEN, READ_TOKEN)
        ]
        server.command.signal(signal.SIGINT)
        ended = await server.command.ended()

    assert (reads, acts, server.token) == ([200, 200], [201, 403], "")
    assert not {word for word in (TOKEN, READ_TOKEN) if word in ended.stderr + ended.stdout}
    assert not (home / "web_token").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host", "0.0.0.0"), "--host 0.0.0.0 is beyond this machine: give a token with --token-env NAME"),
        (("--host", "box.example"), "--host box.example is beyond this machine"),
        (("--token-env", "NOT_SET"), "the environment variable NOT_SET needs a token"),
        (("--token-env", "SHORT"), "the environment variable SHORT needs a token"),
        (("--read-token-env", "NOT_SET"), "the environment variable NOT_SET needs a token"),
        (("--public-url", "retinue.example.org"), "'retinue.example.org' is no public URL"),
        (("--public-url", "https://example.org/retinue"), "expected https://NAME or https://NAME:PORT"),
        (("--port", "70000"), "--port"),
        (("--host", "127.0.0.1", "--port", "x"), "--port"),
        (("--colour", "red"), "--colour"),
    ],
    ids=str,
)
async def test_wrong_flags_are_refused_before_the_server_listens(flags: tuple[str, ...], words: str) -> None:
    refused = await retinue("serve", "--port", "0", *flags, env={"SHORT": "secret"})

    assert (refused.code, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert "http://" not in refused.stderr
    assert "secret" not in refused.stderr


async def test_a_port_in_use_is_named() -> None:
    taken = listen("127.0.0.1", 0)
    try:
        port = taken.getsockname()[1]
        refused = await retinue("serve", "--port", str(port))
    finally:
        taken.close()

    assert refused.code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port" in refused.stderr


async def test_without_a_model_the_server_only_shows() -> None:
    async with served() as server:
        _, started = await server.ask("POST", "/api/v1/runs", {"task": "Why?"})
        await server.ended(started["run_id"])
    async with served(lines=None) as server:
        _, listed = await server.ask("GET", "/api/v1/runs")
        refused = await server.ask("POST", "/api/v1/runs", {"task": "More"})
        server.command.signal(signal.SIGINT)
        ended = await server.command.ended()

    assert [each["task"] for each in listed["items"]] == ["Why?"]
    assert (refused[0], "model" in refused[1]["error"]) == (400, True)
    assert "no runs can be started here: " in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_streams_and_leaves_runs_to_be_adopted(number: signal.Signals) -> None:
    async with served(lines=SLOW) as server:
        _, started = await server.ask("POST", "/api/v1/runs", {"task": "Count"})
        run_id = started["run_id"]
        address = f"{server.url}/api/v1/runs/{run_id}/changes"
        given = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(headers=given) as session, session.get(address) as stream:
            await stream.content.readuntil(b"event: rows")
            server.command.signal(number)
            ended = await server.command.ended()
            rest = await stream.content.read()
    async with served(lines=LINES) as server:
        before = (await server.ask("GET", f"/api/v1/runs/{run_id}"))[1]
    async with served("--adopt", lines=LINES) as server:
        after = await server.ended(run_id)
        server.command.signal(signal.SIGINT)
        adopting = await server.command.ended()

    assert (ended.code, "Traceback" in ended.stderr) == (0, False)
    assert b"event: end" not in rest
    assert (before["state"], before["outcome"]) == ("interrupted", None), "looking alone continues nothing"
    assert (after["outcome"], after["text"]) == ("completed", "It is the pool.")
    assert f"continuing run {run_id}" in adopting.stderr


async def test_a_public_url_is_printed_and_answered() -> None:
    async with served("--public-url", "https://Retinue.example.org/") as server:
        token = server.token
        assert server.url == "https://retinue.example.org"
    # The port is not in that link: another server is asked where it listens.
    free = listen("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    async with served("--public-url", "https://retinue.example.org", "--port", str(port)) as server:
        server.url = f"http://127.0.0.1:{port}"
        named = await server.ask("GET", "/api/v1/runs", Host="retinue.example.org")
        other = await server.ask("GET", "/api/v1/runs", Host="other.example.org")
        origin = {"Host": "retinue.example.org", "Origin": "https://retinue.example.org"}
        started = await server.ask("POST", "/api/v1/runs", {"task": "x"}, **origin)

    assert (server.token, named[0], other[0], started[0]) == (token, 200, 421, 201)
