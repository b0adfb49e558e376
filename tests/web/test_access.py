"""Attacks on the server: without the token, from another site, by another host name, with wrong bodies and texts."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from retinue.app.read_only import ReadOnlyClient
from retinue.core.errors import BadInput
from retinue.web import access
from retinue.web import server as web_server
from retinue.web.access import COOKIE, MAX_BODY, public_origin, stored_token, token_from
from retinue.web.static_files import SCRIPTS
from tests.web.harness import ACT, READ, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

LINES = {"main": [{"say": "<script>alert(1)</script>"}]}

READING = [
    "/",
    "/openapi.json",
    "/static/app.js",
    "/static/style.css",
    "/static/index.html",
    "/api/v1/runs",
    "/api/v1/runs?limit=1",
    "/api/v1/counts",
    "/api/v1/runs/any",
    "/api/v1/runs/any/tree",
    "/api/v1/runs/any/transcript",
    "/api/v1/runs/any/events",
    "/api/v1/runs/any/events?tree=1",
    "/api/v1/runs/any/timeline",
    "/api/v1/runs/any/changes",
    "/api/v1/approvals",
    "/api/v1/agents",
    "/api/v1/models",
    "/api/v1/settings",
    "/api/v1/usage",
    "/api/v1/search?q=key",
    "/api/v1/sessions",
    "/api/v1/sessions/any",
    "/api/v1/cron",
    "/api/v1/cron/any/executions",
    "//api/v1/runs",
    "/api/v1/../v1/runs",
    "/healthz/../api/v1/runs",
    "/healthz%2f..%2fapi/v1/runs",
    "/api/v1/runs;x=/healthz",
]
ACTING = [
    "/api/v1/runs",
    "/api/v1/runs/any/messages",
    "/api/v1/runs/any/cancel",
    "/api/v1/runs/any/resume",
    "/api/v1/runs/any/fork",
    "/api/v1/approvals/any/1/0",
    "/api/v1/sessions",
    "/api/v1/sessions/any/snapshots",
    "/api/v1/sessions/any/archive",
    "/api/v1/sessions/any/delete",
    "/api/v1/cron",
    "/api/v1/cron/any/run-now",
    "/api/v1/cron/any/pause",
    "/api/v1/cron/any/resume",
    "/api/v1/cron/any/remove",
]
WRONG_CREDENTIALS = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer wrong-token-0123456789"},
    {"Authorization": f"Basic {ACT}"},
    {"Authorization": ACT},
    {"Authorization": f"Bearer {ACT}x"},
    {"Authorization": f"Bearer {ACT[:-1]}"},
    {"Authorization": f"Bearer {ACT.upper()}"},
    {"Cookie": f"{COOKIE}=wrong-token-0123456789"},
    {"Cookie": f"{COOKIE}="},
    {"Cookie": f"{COOKIE}x={ACT}"},
    {"Cookie": "=;;;=" * 1000},
    {"X-Token": ACT},
    {"Authorization": "Bearer \xff\xfe"},
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8420",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "[evil.example",
    "[not-an-address]",
]
OTHER_SITES = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Origin": "http://[evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


async def test_without_the_token_nothing_can_be_read(folder: Path) -> None:
    async with site(folder, LINES) as server:
        refused = [(await server.get(path, token=None)).status for path in READING]
        by_token_of_another = [(await server.get("/?token=wrong")).status, (await server.get("/?token=")).status]

    assert refused == [401] * len(READING)
    assert by_token_of_another[0] == 401


@pytest.mark.parametrize("headers", WRONG_CREDENTIALS, ids=lambda headers: str(headers)[:60])
async def test_wrong_credentials_are_refused(folder: Path, headers: dict[str, str]) -> None:
    async with site(folder, LINES) as server:
        assert (await server.get("/api/v1/runs", token=None, headers=headers)).status == 401


async def test_without_the_token_nothing_can_be_done(folder: Path) -> None:
    async with site(folder, LINES) as server:
        anonymous = [(await server.post(path, {"task": "x"}, token=None)).status for path in ACTING]
        reader = [(await server.post(path, {"task": "x"}, token=READ)).status for path in ACTING]
        listed = (await server.get("/api/v1/runs", token=READ)).json

    assert (anonymous, reader) == ([401] * len(ACTING), [403] * len(ACTING))
    assert listed["items"] == []


async def test_a_link_sets_a_cookie_that_scripts_and_other_sites_cannot_use(folder: Path) -> None:
    async with site(folder, LINES) as server:
        entered = await server.get(f"/?token={ACT}", token=None)
        cookie = {"Cookie": f"{COOKIE}={ACT}"}
        page = await server.get("/", token=None, headers=cookie)
        own = {"Origin": server.url, **cookie}
        started = await server.post("/api/v1/runs", {"task": "hi"}, token=None, headers=own)

    assert (entered.status, entered.headers["location"]) == (303, "/")
    assert entered.headers["set-cookie"] == f"{COOKIE}={ACT}; HttpOnly; SameSite=Strict; Path=/"
    assert (page.status, started.status) == (200, 201)
    assert ACT not in page.text


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_another_host_name_is_refused(folder: Path, host: str) -> None:
    async with site(folder, LINES) as server:
        read = await server.get("/api/v1/runs", headers={"Host": host})
        health = await server.get("/healthz", headers={"Host": host})

    assert (read.status, health.status) == (421, 421)


@pytest.mark.parametrize("headers", OTHER_SITES, ids=str)
async def test_a_page_of_another_site_changes_nothing(folder: Path, headers: dict[str, str]) -> None:
    async with site(folder, LINES) as server:
        given = {"Cookie": f"{COOKIE}={ACT}", **headers}
        answer = await server.post("/api/v1/runs", {"task": "x"}, token=None, headers=given)
        listed = (await server.get("/api/v1/runs")).json

    assert (answer.status, listed["items"]) == (403, [])


PROXY = "https://retinue.example.org"


@pytest.mark.parametrize("host", ["retinue.example.org", "retinue.example.org:443", "127.0.0.1:8420"])
async def test_a_page_behind_a_proxy_works_at_its_public_url(folder: Path, host: str) -> None:
    async with site(folder, LINES, public=PROXY) as server:
        entered = await server.get(f"/?token={ACT}", token=None, headers={"Host": host})
        browser = {"Host": host, "Cookie": f"{COOKIE}={ACT}", "Sec-Fetch-Site": "same-origin"}
        listed = await server.get("/api/v1/runs", token=None, headers=browser)
        started = await server.post("/api/v1/runs", {"task": "x"}, token=None, headers={**browser, "Origin": PROXY})
        foreign = [
            (await server.post("/api/v1/runs", {"task": "x"}, token=None, headers={**browser, "Origin": origin})).status
            for origin in ("https://evil.example", "https://retinue.example.org.evil.example", f"{PROXY}:8443", "null")
        ]
        other_name = await server.get("/api/v1/runs", headers={"Host": "evil.example"})

    assert entered.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/; Secure")
    assert (listed.status, started.status, foreign, other_name.status) == (200, 201, [403] * 4, 421)


async def test_a_server_is_reached_by_the_host_name_that_it_was_given(folder: Path) -> None:
    async with site(folder, LINES, host="Box.example") as server:
        own = {"Host": "box.example:8420", "Origin": "http://box.example:8420"}
        started = await server.post("/api/v1/runs", {"task": "x"}, headers=own)
        by_address = await server.get("/api/v1/runs", headers={"Host": "10.0.0.1:8420"})
        other = await server.get("/api/v1/runs", headers={"Host": "other.example:8420"})

    assert (started.status, by_address.status, other.status) == (201, 200, 421)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Retinue.Example.org/", "https://retinue.example.org"),
        ("https://retinue.example.org:443", "https://retinue.example.org"),
        ("http://retinue.example.org:8080", "http://retinue.example.org:8080"),
        ("https://[2001:db8::1]:8443/", "https://[2001:db8::1]:8443"),
    ],
)
def test_a_public_url_is_an_origin_as_browsers_write_it(url: str, origin: str) -> None:
    assert public_origin(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "", "retinue.example.org", "ftp://retinue.example.org", "https://", "https://a.example/retinue",
        "https://a.example?x", "https://u:p@a.example", "https://a.example:x", "https://[a", "https://a b.example",
    ],
)  # fmt: skip
def test_a_wrong_public_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is no public URL"):
        public_origin(url)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_form_of_another_site_is_no_json(folder: Path, kind: str) -> None:
    async with site(folder, LINES) as server:
        answer = await server.request("POST", "/api/v1/runs", data=b'{"task":"x"}', headers={"Content-Type": kind})

    assert answer.status == 415


async def test_large_bodies_are_refused_with_and_without_a_length(folder: Path) -> None:
    async with site(folder, LINES) as server:
        known = await _raw(server, f"Content-Length: {MAX_BODY + 1}", b'{"task":"x')
        unknown = await _chunked(server, b"x" * (MAX_BODY + 1))
        bad_length = await _raw(server, "Content-Length: 99999999999999999999", b"{}")
        deep = await server.request("POST", "/api/v1/runs", data=b'{"task":' + b"[" * 100_000)

    assert (known, unknown, deep.status) == (413, 413, 400)
    assert bad_length in (400, 413)


async def _chunked(server: Site, body: bytes) -> int:
    return await _raw(server, "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))


async def _raw(server: Site, header: str, body: bytes) -> int:
    """The status of a request that is written by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = (
        "POST /api/v1/runs HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Authorization: Bearer {ACT}",
        "Content-Type: application/json",
        header,
        "Connection: close",
    )
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: a\r\n", b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 9000],
)
async def test_a_client_that_sends_its_headers_slowly_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.2)
    async with site(folder, LINES) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        left = await asyncio.wait_for(reader.read(), 300)
        writer.close()
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 60.0)
        health = await server.get("/healthz", token=None)

    assert (left, health.status) == (b"", 200)


async def test_a_second_request_on_a_connection_may_not_be_slow_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(folder, LINES) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\nGET /heal".encode())
        first = await asyncio.wait_for(reader.readuntil(b'"ok"'), 300)
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.2)
        writer.write(b"thz HT")
        rest = await asyncio.wait_for(reader.read(), 300)
        writer.close()

    assert first.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1" not in first[8:] + rest


async def test_a_client_that_sends_its_body_slowly_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WHOLE_BODY_SECONDS", 0.2)
    async with site(folder, LINES) as server:
        status = await _raw(server, "Content-Length: 100", b'{"task"')

    assert status == 408


@pytest.mark.parametrize("path", ["/api/v1/runs/any/events?tree=1", "/api/v1/runs/any/changes"])
async def test_a_stream_needs_credentials_and_a_host_of_this_server(folder: Path, path: str) -> None:
    async with site(folder, LINES) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "x"})).json["run_id"]
        real = path.replace("any", run_id)
        refused = [
            (await server.get(real, token=None)).status,
            (await server.get(real, token=None, headers={"Cookie": f"{COOKIE}=wrong"})).status,
            (await server.get(f"{real}?token={ACT}", token=None)).status,
            (await server.get(real, headers={"Host": "evil.example"})).status,
        ]

    assert refused == [401, 401, 401, 421]


async def answer_to(server: Site, sent: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the answer to a request that is written by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    head, _, body = (await asyncio.wait_for(reader.read(), 300)).decode().partition("\r\n\r\n")
    writer.close()
    first, *lines = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        b"GET /healthz/\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
    ids=["words", "no-host", "two-hosts", "length", "bytes", "long"],
)
async def test_what_is_not_http_is_refused_in_json_with_the_security_headers(folder: Path, sent: bytes) -> None:
    async with site(folder, LINES) as server:
        status, headers, body = await answer_to(server, sent)

    assert (status, headers["content-type"], set(body)) == (400, "application/json", {"error"})
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_too_many_connections_are_refused_in_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(folder, LINES) as server:
        monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 3)
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
        ask = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        status, headers, body = await answer_to(server, ask)
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 1000)
        later, _, _ = await answer_to(server, ask)

    assert (status, headers["content-type"], later) == (503, "application/json", 200)
    assert "too many connections" in body["error"]


async def test_another_method_is_refused_with_those_of_the_path(folder: Path) -> None:
    async with site(folder, LINES) as server:
        refused = [
            await server.request("PUT", "/api/v1/runs", body={}),
            await server.request("OPTIONS", "/api/v1/runs/any/cancel"),
            await server.request("POST", "/healthz", body={}),
        ]
        slash = await server.get("/api/v1/runs/")

    allowed = [(answer.status, set(answer.headers["allow"].split(", "))) for answer in refused]
    assert allowed == [(405, {"GET", "HEAD", "POST"}), (405, {"POST"}), (405, {"GET", "HEAD"})]
    assert all(set(answer.json) == {"error"} for answer in refused)
    assert slash.status == 404


async def test_a_bug_is_answered_in_json_without_details(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*arguments: object, **named: object) -> None:
        raise RuntimeError("what only the log may have")

    async with site(folder, LINES) as server:
        monkeypatch.setattr(ReadOnlyClient, "list", broken)
        answer = await server.get("/api/v1/runs")

    assert (answer.status, set(answer.json)) == (500, {"error"})
    assert "only the log" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_websocket_is_refused(folder: Path) -> None:
    async with site(folder, LINES) as server:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = await server.get("/api/v1/runs", token=None, headers={**upgrade, "Sec-WebSocket-Key": "eA=="})

    assert answer.status == 401


async def test_every_answer_has_the_security_headers(folder: Path) -> None:
    async with site(folder, LINES) as server:
        answers = [await server.get(path) for path in ("/", "/api/v1/runs", "/nothing", "/healthz")]
        answers.append(await server.get("/", token=None))

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


SINKS = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "setHTML", "createContextualFragment", "DOMParser", "srcdoc",
    "document.write", "eval(", "Function(", "import(", "setTimeout(\"", "setTimeout('",
)  # fmt: skip
"""What makes markup or code of a text."""


async def test_texts_of_models_are_data_and_never_markup(folder: Path) -> None:
    async with site(folder, LINES) as server:
        task = "<img src=x onerror=alert(1)> javascript:alert(1)"
        run_id = (await server.post("/api/v1/runs", {"task": task})).json["run_id"]
        await server.retinue.wait(run_id)
        answer = await server.get(f"/api/v1/runs/{run_id}")
        page = await server.get("/")
        scripts = {name: (await server.get(f"/static/{name}")).text for name in SCRIPTS}

    assert (answer.headers["content-type"], answer.json["task"]) == ("application/json", task)
    assert "alert(1)" not in page.text
    assert all(text.startswith("// ") for text in scripts.values()), "every script was sent"
    assert [(name, sink) for name, text in scripts.items() for sink in SINKS if sink in text] == []


def test_the_stored_token_is_made_once_and_private(tmp_path: Path) -> None:
    first = stored_token(tmp_path)
    os.chmod(tmp_path / "web_token", 0o644)

    assert stored_token(tmp_path) == first
    assert len(first) >= 32
    assert stat.S_IMODE((tmp_path / "web_token").stat().st_mode) == 0o600


def test_a_token_file_that_is_a_link_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x" * 40)
    (tmp_path / "web_token").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        stored_token(tmp_path)

    (tmp_path / "web_token").unlink()
    (tmp_path / "web_token").write_text("")
    with pytest.raises(BadInput, match="remove it, and a new one is made"):
        stored_token(tmp_path)


@pytest.mark.parametrize(
    "token", ["", "short", "with spaces and more", 'quote"0123456789abcdef', "semi;0123456789abcdef"]
)
def test_tokens_of_the_environment_are_checked(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_TOKEN", token)

    with pytest.raises(BadInput, match="RETINUE_TOKEN needs a token"):
        token_from("RETINUE_TOKEN")
