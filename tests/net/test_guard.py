"""No address that a model or a page can write leads to this machine or its network, in any spelling."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from retinue.net.fetcher import Fetcher
from retinue.net.guard import AddressRefused, FetchFailed, Guard, Unreachable, UrlRefused, is_public
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.net.pages_example import client_tls, server_tls

PUBLIC = "93.184.216.34"

LOOPBACK = [
    "http://127.0.0.1:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://127.255.255.254:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.1:PORT/",
    "http://0x7f.0x0.0x0.0x1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://017700000001:PORT/",
    "http://127.0.0.01:PORT/",
    "http://0:PORT/",
    "http://0.0.0.0:PORT/",
    "http://localhost:PORT/",
    "http://localhost.:PORT/",
    "http://LocalHost:PORT/",
    "http://any.localhost:PORT/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/",
    "http://①②⑦.⓪.⓪.①:PORT/",
    "http://127。0。0。1:PORT/",
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11:PORT/",
    "http://[::1]:PORT/",
    "http://[0:0:0:0:0:0:0:1]:PORT/",
    "http://[::]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::127.0.0.1]:PORT/",
    "http://[::1%25lo]:PORT/",
    "http://[::1%lo]:PORT/",
]
EMBEDDED = [
    "http://[64:ff9b::127.0.0.1]:PORT/",
    "http://[64:ff9b::a9fe:a9fe]:PORT/",
    "http://[64:ff9b:1::7f00:1]:PORT/",
    "http://[2002:7f00:1::1]:PORT/",
    "http://[2002:a9fe:a9fe::]:PORT/",
    "http://[2001:0:7f00:1:0:0:80ff:fffe]:PORT/",
    "http://[::ffff:0:127.0.0.1]:PORT/",
]
PRIVATE = [
    "http://10.0.0.1:PORT/",
    "http://172.16.0.1:PORT/",
    "http://172.31.255.255:PORT/",
    "http://192.168.1.1:PORT/",
    "http://100.64.0.1:PORT/",
    "http://100.100.100.200:PORT/latest/meta-data/",
    "http://192.0.0.192:PORT/latest/",
    "http://168.63.129.16:PORT/machine?comp=goalstate",
    "http://0250.0x3f.33040:PORT/",
    "http://[::ffff:168.63.129.16]:PORT/",
    "http://[64:ff9b::a83f:8110]:PORT/",
    "http://[fd00:ec2::254]:PORT/latest/meta-data/",
    "http://[fd00:c1::a9fe:a9fe]:PORT/opc/v2/",
    "http://161.26.0.10:PORT/",
    "http://166.9.1.1:PORT/",
    "http://199.36.153.5:PORT/",
    "http://199.36.153.11:PORT/",
    "http://metadata.google.internal:PORT/computeMetadata/v1/",
    "http://198.18.0.1:PORT/",
    "http://192.0.2.1:PORT/",
    "http://224.0.0.1:PORT/",
    "http://240.0.0.1:PORT/",
    "http://255.255.255.255:PORT/",
    "http://[fc00::1]:PORT/",
    "http://[fe80::1]:PORT/",
    "http://[fe80::1%25eth0]:PORT/",
    "http://[fec0::1]:PORT/",
    "http://[ff02::1]:PORT/",
    "http://[2001:db8::1]:PORT/",
    "http://router.lan:PORT/",
    "http://printer.local:PORT/",
    "http://intranet:PORT/",
]
METADATA = [
    "http://169.254.169.254:PORT/latest/meta-data/",
    "http://2852039166:PORT/latest/meta-data/",
    "http://0xA9FEA9FE:PORT/",
    "http://[::ffff:a9fe:a9fe]:PORT/",
    "http://[fd00:ec2::254]:PORT/",
    "http://100.100.100.200:PORT/",
    "http://192.0.0.192:PORT/",
    "http://metadata.google.internal:PORT/",
]
DISGUISED = [
    "http://example.org@127.0.0.1:PORT/",
    "http://example.org:80@127.0.0.1:PORT/",
    "http://user:secret@example.org:PORT/",
    "http://127.0.0.1:PORT\\@example.org/",
    "http://example.org\\@127.0.0.1:PORT/",
    "http://%31%32%37.0.0.1:PORT/",
    "http://127.0.0.1%00.example.org:PORT/",
    "http://127.0.0.1:PORT%2f@example.org/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_GET",
    "ftp://127.0.0.1:PORT/",
    "unix:///var/run/docker.sock",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
]
DIRECT_ONLY = [  # not sent by a server as the target of a redirect, or harmless there
    "http://127.0.0.1:PORT/\r\nX-Mine: 1",
    "http://127.0.0.1\t:PORT/",
    "http://exam\nple.org:PORT/",
    "http:127.0.0.1:PORT/",
    "http:///127.0.0.1:PORT/",
    "//127.0.0.1:PORT/",
    "127.0.0.1:PORT",
    "http://example.org:22/",
    "http://example.org:0/",
    "http://example.org:99999/",
    "http://example.org:http/",
    "http://" + "a" * 5000 + ".org:PORT/",
    "http://[",
    "",
    "   ",
    "not an address",
]
FORMS = [*LOOPBACK, *EMBEDDED, *PRIVATE, *METADATA, *DISGUISED]

NAMES: dict[str, list[str]] = {
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "two-faces.example": [PUBLIC, "127.0.0.1"],
    "two-faces6.example": ["2606:4700::1111", "fe80::1%lo"],
    "metadata.example": ["169.254.169.254"],
    "private.example": ["10.0.0.7"],
    "translated.example": ["64:ff9b::10.0.0.7"],
    "scoped.example": ["2606:4700::1111%lo"],
    "nonsense.example": ["nowhere"],
}


class Names:
    """A resolver that records the names it was asked for, and returns the answers for a name one after the other."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {name.replace("_", "-"): list(each) for name, each in answers.items()}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host in NAMES:
            return NAMES[host]
        if host not in self._answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        remaining = self._answers[host]
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record every connection attempt; those that would leave this machine fail."""
    recorded: list[tuple[str, int]] = []
    connect = socket.socket.connect

    def record(self: socket.socket, address: Any) -> None:
        recorded.append((address[0], address[1]))
        if address[0] != "127.0.0.1":
            raise ConnectionRefusedError("there is no network here")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", record)
    return recorded


@asynccontextmanager
async def serve(answer: FakeResponse | None = None) -> AsyncGenerator[tuple[FakeServer, int]]:
    async with FakeServer(
        lambda _: answer or FakeResponse(headers={"Content-Type": "text/plain"}, pieces=(b"secret",))
    ) as server:
        yield server, URL(server.url).port or 0


def fetcher(port: int, names: Names | None = None, trusted: Sequence[str] = ()) -> Fetcher:
    """A guarded fetcher that would reach the port of the test's server, if the address were allowed."""
    return Fetcher(Guard(ports={80, 443, port}, lookup=names or Names(), trusted=trusted))


@pytest.mark.parametrize("form", [*FORMS, *DIRECT_ONLY])
async def test_no_form_of_a_private_address_is_connected_to(form: str, attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port):
        names = Names()
        with pytest.raises((UrlRefused, AddressRefused)):
            await fetcher(port, names).get(form.replace("PORT", str(port)))

        assert (attempts, server.requests, names.asked) == ([], [], [])


@pytest.mark.parametrize("form", FORMS)
async def test_no_redirect_leads_to_a_private_address(form: str, attempts: list[tuple[str, int]]) -> None:
    async with serve() as (victim, port):
        target = form.replace("PORT", str(port))
        async with serve(FakeResponse(status=302, headers={"Location": target})) as (page, _):
            with pytest.raises((UrlRefused, AddressRefused)):
                await fetcher(port, trusted=[page.url]).get(f"{page.url}/start")

            assert (len(page.requests), victim.requests, len(attempts)) == (1, [], 1)


@pytest.mark.parametrize("name", NAMES)
async def test_no_host_name_leads_to_a_private_address(name: str, attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port):
        with pytest.raises(AddressRefused) as refused:
            await fetcher(port).get(f"http://{name}:{port}/")

        assert (attempts, server.requests) == ([], [])
        assert refused.value.address in NAMES[name]
        assert str(refused.value) == f"{name} is not on the public web"


@pytest.mark.parametrize("name", NAMES)
async def test_no_redirect_to_a_host_name_leads_to_a_private_address(
    name: str, attempts: list[tuple[str, int]]
) -> None:
    async with (
        serve() as (victim, port),
        serve(FakeResponse(status=307, headers={"Location": f"//{name}:{port}/"})) as (page, _),
    ):
        with pytest.raises(AddressRefused):
            await fetcher(port, trusted=[page.url]).get(page.url)

        assert (len(page.requests), victim.requests, len(attempts)) == (1, [], 1)


async def test_a_host_name_is_resolved_once_against_dns_rebinding(attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port):
        names = Names(**{"rebinds.example": [[PUBLIC], ["127.0.0.1"]]})
        guarded_fetcher = fetcher(port, names)

        with pytest.raises(Unreachable):
            await guarded_fetcher.get(f"http://rebinds.example:{port}/")
        assert (attempts, names.asked) == ([(PUBLIC, port)], ["rebinds.example"])

        with pytest.raises(AddressRefused):
            await guarded_fetcher.get(f"http://rebinds.example:{port}/")
        assert (attempts, server.requests) == ([(PUBLIC, port)], [])


async def test_connections_go_to_the_checked_address_only(attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port):
        guard = Guard(ports={port})
        connector = guard.connector(URL(f"http://pages.example:{port}/"), [PUBLIC])
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(aiohttp.ClientConnectorError, match="was not checked"):
                await session.get(server.url)

        assert (attempts, server.requests) == ([], [])


@pytest.mark.parametrize("form", ["http://127.0.0.1:PORT/", "http://127。0。0。1:PORT/", "http://①②⑦.⓪.⓪.①:PORT/"])
async def test_a_plain_client_reaches_the_server_by_the_same_forms(form: str, attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port), aiohttp.ClientSession() as session:
        async with session.get(form.replace("PORT", str(port))) as response:
            assert await response.text() == "secret"

        assert (len(attempts), len(server.requests)) == (1, 1)


async def test_a_trusted_origin_is_reached_at_its_port_only(attempts: list[tuple[str, int]]) -> None:
    async with serve() as (server, port), serve() as (neighbour, other):
        guarded_fetcher = fetcher(
            other, Names(**{"own.example": [["127.0.0.1"]]}), [f"http://own.example:{port}", server.url]
        )

        assert (await guarded_fetcher.get(f"http://own.example:{port}/")).body == b"secret"
        assert (await guarded_fetcher.get(server.url)).body == b"secret"
        for elsewhere in (f"http://own.example:{other}/", neighbour.url, f"https://127.0.0.1:{port}/"):
            with pytest.raises(FetchFailed):
                await guarded_fetcher.get(elsewhere)

        assert attempts == [("127.0.0.1", port), ("127.0.0.1", port)]


async def test_an_unknown_host_name_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"^no address is known for missing\.example$"):
        await fetcher(80).get("http://missing.example/")
    with pytest.raises(Unreachable, match=r"^no address is known for empty\.example$"):
        await fetcher(80, Names(**{"empty.example": [()]})).get("http://empty.example/")


async def test_a_redirect_from_https_to_http_is_refused() -> None:
    guard = Guard()
    base = guard.checked("https://example.org/a/b?c#d")

    assert str(base) == "https://example.org/a/b?c"
    assert str(guard.checked("../e", base=base)) == "https://example.org/e"
    assert str(guard.checked("//www.example.org/", base=base)) == "https://www.example.org/"
    with pytest.raises(UrlRefused, match="from https to http"):
        guard.checked("http://example.org/", base=base)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("https://example.org", "https://example.org"),
        (" http://example.org:8080/x?q=%20#top ", "http://example.org:8080/x?q=%20"),
        ("https://münchen.example/straße", "https://xn--mnchen-3ya.example/stra%C3%9Fe"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://[2606:4700::1111]/", "http://[2606:4700::1111]/"),
        ("http://_dmarc.example.org./", "http://_dmarc.example.org./"),
        ("https://example.org/@user/50%25", "https://example.org/@user/50%25"),
    ],
)
def test_public_addresses_are_accepted(written: str, read: str) -> None:
    assert str(Guard().checked(written)) == read


async def test_the_certificate_is_checked_against_the_name_of_a_pinned_address() -> None:
    served = await asyncio.start_server(answer_hello, "127.0.0.1", 0, ssl=server_tls())
    port = served.sockets[0].getsockname()[1]
    names = Names(**{"pages.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]})
    origins = [f"https://pages.example:{port}", f"https://other.example:{port}"]
    async with served:
        trusting = Fetcher(Guard(trusted=origins, lookup=names, tls=client_tls()))
        assert (await trusting.get(f"https://pages.example:{port}/")).body == b"hello"
        with pytest.raises(Unreachable, match="certificate"):
            await trusting.get(f"https://other.example:{port}/")
        with pytest.raises(Unreachable, match="certificate"):  # signed by an unknown authority
            await Fetcher(Guard(trusted=origins, lookup=names)).get(f"https://pages.example:{port}/")


async def answer_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # a client that rejects the certificate disconnects
    finally:
        writer.close()


@given(st.ip_addresses(v=4))
def test_an_embedded_ipv4_address_is_no_more_public_than_outside(address: Any) -> None:
    inside = [
        f"::ffff:{address}",
        f"::{address}",
        f"64:ff9b:1::{address}",
        f"2002:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}::",
    ]

    assert not any(map(is_public, inside))
    assert is_public(f"64:ff9b::{address}") == is_public(str(address))
    assert is_public(str(address)) <= address.is_global


@given(st.text(max_size=40), st.sampled_from(["http://", "https://", "//", ""]))
def test_any_text_is_an_address_or_a_refusal(text: str, before: str) -> None:
    try:
        url = Guard().checked(before + text)
    except (UrlRefused, AddressRefused):
        return
    assert (url.scheme in ("http", "https"), url.user, url.port in (80, 443, 8080, 8443)) == (True, None, True)
