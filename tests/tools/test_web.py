"""The web tools: pages as Markdown, limits, and error messages."""

import asyncio
import errno
import gzip
import importlib.util
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.policy import Risk
from retinue.core.ports import CallRisk, Tool
from retinue.net.fetcher import Bounds, Fetched, Fetcher
from retinue.net.guard import Guard
from retinue.store.memory.store import MemoryStore
from retinue.testing.fake_server import FakeResponse, FakeServer
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.web.extract import MISSING, UnreadablePage, decoded, page_text
from retinue.tools.web.page_to_text import IMPORT_PATH, indented_size
from retinue.tools.web.search import SearchResult
from retinue.tools.web.web_tools import tools
from tests.tools.tool_calls import FixedClock, NoSandbox, StoreKeyValue, error_of, result_of

DEPENDENCIES = ToolDependencies(sandbox=NoSandbox(), key_value=StoreKeyValue(MemoryStore()), clock=FixedClock())
HTML = {"Content-Type": "text/html; charset=utf-8"}
TEXT = {"Content-Type": "text/plain; charset=utf-8"}

PAGE = """<!doctype html>
<html><head><title>Connection pools</title><script>steal()</script><style>p {color: red}</style></head>
<body><nav><a href="/">Home</a> <a href="/login">Log in</a></nav>
<article><h1>Connection pools</h1>
<p>A pool keeps connections open, so that a request need not wait for a new one to be made.</p>
<h2>Sizes</h2>
<ul><li>small pools wait</li><li>large pools cost</li></ul>
<p>See <a href="/more">the other page</a> for <b>numbers</b> and <code>max_size</code>.</p>
<table><tr><th>size</th><th>wait</th></tr><tr><td>5</td><td>20 ms</td></tr></table>
</article><footer>We use cookies</footer></body></html>
"""
IN_MARKDOWN = """# Connection pools

A pool keeps connections open, so that a request need not wait for a new one to be made.

## Sizes

- small pools wait
- large pools cost

See [the other page](SERVER/more) for **numbers** and `max_size`.

| size | wait |\x20
|---|---|
| 5 | 20 ms |"""


def web(
    server: FakeServer | None = None, bounds: Bounds | None = None, found: list[SearchResult] | None = None
) -> Mapping[str, Tool]:
    """The tools by name, with this server as the only one."""

    async def search(query: str) -> list[SearchResult]:
        return [*(found or []), SearchResult("you asked", "https://example.org/", query)]

    guard = Guard(trusted=[server.url] if server else [])
    return {tool.spec.name: tool for tool in tools(DEPENDENCIES, fetcher=Fetcher(guard, bounds), search=search)}


def serving(body: bytes | str, headers: Mapping[str, str] = HTML, **more: Any) -> FakeServer:
    sent = body.encode() if isinstance(body, str) else body
    return FakeServer(lambda _: FakeResponse(headers=headers, pieces=(sent,), **more))


def test_the_tools_only_read_and_may_run_again_after_a_crash() -> None:
    made = web()

    assert list(made) == ["search_web", "scrape_webpage", "fetch"]
    for tool in made.values():
        assert (tool.kind, tool.prepare("{}").risk, tool.stoppable) == ("idempotent", CallRisk(Risk.LOW), True)
        assert tool.timeout is not None
    assert [msgspec.json.decode(tool.spec.parameters)["required"] for tool in made.values()] == [
        ["query"],
        ["url"],
        ["url"],
    ]


async def test_a_search_gives_titles_addresses_and_descriptions() -> None:
    said = await result_of(web()["search_web"], query="  what \n is\x00 new\u202e? ")

    assert said == '[{"title":"you asked","url":"https://example.org/","description":"what is new?"}]'


@pytest.mark.parametrize("query", ["", "   ", "\n\t", "\x00\u200b"])
async def test_a_blank_search_finds_nothing(query: str) -> None:
    assert await result_of(web()["search_web"], query=query) == "[]"


async def test_a_long_query_is_cut() -> None:
    (found,) = msgspec.json.decode(await result_of(web()["search_web"], query="x" * 1000))

    assert found["description"] == "x" * 400


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["scrape_webpage", "fetch"])
async def test_a_page_is_its_article_in_markdown(name: str) -> None:
    async with serving(gzip.compress(PAGE.encode()), {**HTML, "Content-Encoding": "gzip"}) as server:
        said = await result_of(web(server)[name], url=f"{server.url}/pools#sizes")

        assert said == IN_MARKDOWN.replace("SERVER", server.url)


@pytest.mark.real_time
async def test_a_page_without_an_article_is_all_its_text() -> None:
    async with serving("<html><body><ul><li><a href=/a>one</a></li><li>two</li></ul></body></html>") as server:
        assert (await result_of(web(server)["scrape_webpage"], url=server.url)).split() == ["one", "two"]


@pytest.mark.real_time
@pytest.mark.parametrize("html", ["Only a few words.", "<!doctype html><p>Only a few words."])
async def test_a_fragment_is_read_too(html: str) -> None:
    async with serving(html) as server:
        assert await result_of(web(server)["scrape_webpage"], url=server.url) == "Only a few words."


@pytest.mark.real_time
async def test_a_page_is_decoded_by_its_charset() -> None:
    page = "<html><head><meta charset='shift_jis'></head><body><p>日本語の文章です。読めますか。</p></body></html>"
    async with serving(page.encode("shift_jis"), {"Content-Type": "text/html"}) as server:
        assert await result_of(web(server)["scrape_webpage"], url=server.url) == "日本語の文章です。読めますか。"


@pytest.mark.real_time
async def test_invisible_characters_are_removed() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    page = f"<html><body><p>Plain words that stand here for everyone.\x1b[2J{hidden}\u202e</p></body></html>"
    async with serving(page) as server:
        said = await result_of(web(server)["scrape_webpage"], url=server.url)

        assert said == "Plain words that stand here for everyone.\\[2J"


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        ("text/plain", "one\r\ntwo\n", "one\ntwo"),
        ("text/markdown", "# Title\n", "# Title"),
        ("application/json", '{"a":[1,{"b":"ü"}]}', '{\n  "a": [\n    1,\n    {\n      "b": "ü"\n    }\n  ]\n}'),
        ("application/problem+json", '{"a":1}', '{\n  "a": 1\n}'),
        ("application/json", '{"a":', '{"a":'),
        ("application/rss+xml", "<rss><channel/></rss>", "<rss><channel/></rss>"),
    ],
)
async def test_text_without_calls_is_unchanged(content_type: str, body: str, said: str) -> None:
    async with serving(body, {"Content-Type": content_type}) as server:
        assert await result_of(web(server)["fetch"], url=server.url) == said


async def test_a_long_text_is_read_a_piece_at_a_time() -> None:
    async with serving("abcdefghij" * 3, TEXT) as server:
        fetch = web(server)["fetch"]

        assert await result_of(fetch, url=server.url) == "abcdefghij" * 3
        assert await result_of(fetch, url=server.url, limit=12) == (
            "abcdefghijab\n\n[characters 0 to 12 of 30; the next piece has offset 12]"
        )
        assert await result_of(fetch, url=server.url, offset=24, limit=12) == (
            "efghij\n\n[characters 24 to 30 of 30; this is the end]"
        )
        assert await result_of(fetch, url=server.url, offset=99) == "\n\n[characters 30 to 30 of 30; this is the end]"
        assert "limit" in await error_of(fetch, url=server.url, limit=0)
        assert "limit" in await error_of(fetch, url=server.url, limit=50_001)
        assert "offset" in await error_of(fetch, url=server.url, offset=-1)


async def test_a_scraped_text_is_cut_where_it_is_too_long() -> None:
    async with serving("x" * 100_001, TEXT) as server:
        said = await result_of(web(server)["scrape_webpage"], url=server.url)

        assert said == "x" * 100_000 + "\n\n[cut after 100000 of 100001 characters]"


FAILURES = {
    "the server answered 404 Not Found": FakeResponse(status=404, headers=HTML),
    "the answer is not text but image/png": FakeResponse(headers={"Content-Type": "image/png"}, pieces=(b"\x89PNG",)),
    "the answer is not text but binary data": FakeResponse(headers=TEXT, pieces=(b"\x7fELF\x00\x01",)),
    "the answer is larger than 100000 bytes": FakeResponse(
        headers={**HTML, "Content-Encoding": "gzip"}, pieces=(gzip.compress(bytes(10_000_000)),)
    ),
    "no whole answer within 20 seconds": FakeResponse(headers=HTML, pieces=(b"<p>",), ending="silence"),
    "more than 5 redirects": FakeResponse(status=301, headers={"Location": "/"}),
    "no connection, or one that broke off": FakeResponse(status=0),
    "a.example is not on the public web": FakeResponse(status=302, headers={"Location": "http://a.example.localhost/"}),
}


@pytest.mark.parametrize("why", FAILURES)
async def test_errors_name_the_address_and_the_reason(why: str) -> None:
    async with FakeServer(lambda _: FAILURES[why]) as server:
        made, expected = web(server, Bounds(bytes=100_000)), why.replace("a.example is", "a.example.localhost is")

        assert await error_of(made["scrape_webpage"], url=server.url) == f"Error scraping {server.url}: {expected}"
        assert await error_of(made["fetch"], url=server.url) == f"cannot fetch {server.url}: {expected}"


async def test_an_address_of_this_machine_is_refused_without_a_connection() -> None:
    async with serving("secret", TEXT) as server:
        assert await error_of(web()["scrape_webpage"], url=f"http://127.0.0.1/\n{'x' * 500}") == (
            f"Error scraping http://127.0.0.1/ {'x' * 182}: "
            "the address has spaces, backslashes or control characters in it"
        )
        assert await error_of(web()["fetch"], url="http://127.0.0.1/") == (
            "cannot fetch http://127.0.0.1/: 127.0.0.1 is not on the public web"
        )

        assert server.requests == []


SLOW = "<body>" + "<ul><li>a</li></ul>" * 20_000


@pytest.mark.real_time
async def test_reading_a_malicious_page_stops_at_a_time_limit() -> None:
    page = Fetched(url="http://example.org/", content_type="text/html", charset=None, body=SLOW.encode())

    with pytest.raises(UnreadablePage, match=r"^the page could not be read within 0\.5 seconds$"):
        await page_text(page, seconds=0.5)


@pytest.mark.real_time
async def test_the_page_reader_has_no_keys_and_stops_when_its_call_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: asyncio.Queue[tuple[asyncio.subprocess.Process, dict[str, str]]] = asyncio.Queue()
    begin = asyncio.create_subprocess_exec

    async def noticed(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        process = await begin(*argv, **options)
        begun.put_nowait((process, options["env"]))
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noticed)
    monkeypatch.setenv("BRAVE_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    page = Fetched(url="http://example.org/", content_type="text/html", charset=None, body=SLOW.encode())
    reading = asyncio.create_task(page_text(page))
    reader, environment = await begun.get()

    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert reader.returncode == -signal.SIGKILL
    assert environment.keys() - {"LD_LIBRARY_PATH"} == {IMPORT_PATH}


@pytest.mark.real_time
async def test_a_page_reader_without_end_is_killed_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = asyncio.create_subprocess_exec

    async def begins_another(*_: str, **options: Any) -> asyncio.subprocess.Process:
        return await begin("/bin/sh", "-c", "cat > /dev/null; exec yes", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begins_another)
    page = Fetched(url="http://example.org/", content_type="text/html", charset=None, body=b"<p>hello")
    async with asyncio.timeout(20):
        with pytest.raises(UnreadablePage, match=r"^the page (could not be read within|is too large)"):
            await page_text(page, seconds=0.1)


@pytest.mark.real_time
async def test_a_reader_that_prints_very_much_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = asyncio.create_subprocess_exec

    async def begins_another(*_: str, **options: Any) -> asyncio.subprocess.Process:
        return await begin("/bin/sh", "-c", "cat > /dev/null; exec yes", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begins_another)
    page = Fetched(url="http://example.org/", content_type="text/html", charset=None, body=b"<p>hello")
    with pytest.raises(UnreadablePage, match=r"^the page is too large or too strange to be read$"):
        await page_text(page, seconds=60)


@pytest.mark.real_time
@pytest.mark.parametrize(("depth", "numbers"), [(900, 700_000), (20, 50_000), (900, 10)])
async def test_json_in_deep_brackets_stays_as_it_came(depth: int, numbers: int) -> None:
    text = "[" * depth + ",".join(["1"] * numbers) + "]" * depth
    page = Fetched(url="http://example.org/", content_type="application/json", charset=None, body=text.encode())
    assert await page_text(page) == text


leaves = st.none() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"]))
documents = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab:[{,", max_size=3), inner))


@given(documents)
def test_the_size_of_indented_json_is_known_before_it_is_made(value: object) -> None:
    data = msgspec.json.encode(value)
    assert len(msgspec.json.format(data, indent=2)) <= indented_size(data)


@pytest.mark.real_time
@pytest.mark.parametrize("html", ["", "<script>only()</script>"])
async def test_a_page_without_text_is_an_error(html: str) -> None:
    async with serving(html) as server:
        said = await error_of(web(server)["scrape_webpage"], url=server.url)

        assert said == f"Error scraping {server.url}: the page has no text"


async def test_a_machine_that_can_start_nothing_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: str, **__: Any) -> asyncio.subprocess.Process:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuses)
    async with serving(PAGE) as server:
        said = await error_of(web(server)["scrape_webpage"], url=server.url)

        assert said == f"Error scraping {server.url}: nothing can be started to read the page: Too many open files"


async def test_without_trafilatura_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_nothing(name: str) -> None:
        assert name == "trafilatura"

    monkeypatch.setattr(importlib.util, "find_spec", finds_nothing)
    async with serving(PAGE) as server:
        said = await error_of(web(server)["scrape_webpage"], url=server.url)

        assert said == f"Error scraping {server.url}: {MISSING}"
        assert "pip install '.[fetch]'" in said


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("grün".encode(), None, "grün"),
        ("grün".encode(), "utf-8", "grün"),
        ("grün".encode("latin-1"), "iso-8859-1", "grün"),
        ("grün".encode("latin-1"), None, "grün"),
        ("“grün”".encode("cp1252"), "ISO-8859-1", "“grün”"),
        ("день".encode("koi8-r"), "koi8-r", "день"),
        ("день".encode("cp1251"), "windows-1251", "день"),
        ("你好".encode("gb18030"), "gb2312", "你好"),
        ("\ufeffgrün".encode(), "latin-1", "grün"),
        ("grün".encode("utf-16"), None, "grün"),
        (b"gr\xc3", "utf-8", "gr\ufffd"),
        (b"plain", "no-such-charset", "plain"),
        (b"plain", "punycode", "plain"),
        (b"plain", "zlib", "plain"),
        (b"plain", "unicode_escape", "plain"),
        (b"plain", "x\x00y", "plain"),
        (
            b"<meta http-equiv=a content='text/html; charset=KOI8-R'>\xc4",
            None,
            "<meta http-equiv=a content='text/html; charset=KOI8-R'>д",
        ),
    ],
)
def test_charset_of_the_server_then_of_the_page_then_as_browsers_guess(
    body: bytes, charset: str | None, text: str
) -> None:
    page = Fetched(url="http://example.org/", content_type="text/html", charset=charset, body=body)

    assert decoded(page) == text


PLANTED = "import pathlib\npathlib.Path({ran!r}).touch()\n"


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["msgspec.py", "trafilatura.py", "sitecustomize.py", "json.py", "re.py"])
async def test_the_reader_of_pages_imports_nothing_from_a_folder_of_agents(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by variables of Python either, which may name the sources of the project."""
    ran = tmp_path / "code-of-the-agent-ran"
    work = tmp_path / "work"
    work.mkdir()
    (work / name).write_text(PLANTED.format(ran=str(ran)))
    (work / "startup.py").write_text(PLANTED.format(ran=str(ran)))
    monkeypatch.setenv("PYTHONPATH", str(work))
    monkeypatch.setenv("PYTHONSTARTUP", str(work / "startup.py"))
    monkeypatch.setattr(sys, "path", [str(work), *sys.path])
    page = Fetched(url="https://example.org/", content_type="application/json", charset=None, body=b'{"a":1}')

    assert await page_text(page, agents_write=(str(work),)) == '{\n  "a": 1\n}'
    assert not ran.exists()
