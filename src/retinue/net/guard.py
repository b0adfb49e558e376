"""Where a request may go when others choose the address: the public web, and nothing of this machine or its network.

A model reads addresses on pages that strangers write, so an address is an attack until it is proven harmless. One
parser reads it, the name is looked up once, *every* answer has to be public, and the socket is opened to exactly what
was checked: a second lookup that says something else is never made.

This module decides and connects; what is asked and how much is read is the business of `retinue.net.fetcher`.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from retinue.core.errors import ToolError

PORTS = frozenset({80, 443, 8080, 8443})
"""Where web servers listen. Other ports belong to mail, databases and the like, even on public addresses."""

MAX_URL_CHARS = 4096

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a connection to this port; raises `OSError` when there are none."""

_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?\.?")
_NAMES_AT_HOME = ("localhost", "local", "internal", "intranet", "lan", "home", "corp", "home.arpa")
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")

# Listed here, because what `is_global` says of some of these has changed between versions of Python.
_NOT_PUBLIC_4 = tuple(
    ip_network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by providers' own networks; some clouds keep their metadata here
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; most clouds keep their metadata here
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    ip_network(block)
    for block in (
        "2001::/23",  # among them Teredo, which carries an IPv4 address inside
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries one too
        "3fff::/20",
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


class FetchFailed(ToolError):
    """A page could not be read; the message says why, and `url` is the address that was requested last."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url


class UrlRefused(FetchFailed):
    """An address that is not asked at all, by the look of it."""


class AddressRefused(FetchFailed):
    """A host that is not on the public web.

    `address` is what its name led to. The message does not tell: it is for a model, and what is in a private network
    is none of its business.
    """

    def __init__(self, url: str, *, host: str, address: str) -> None:
        super().__init__(url, f"{host[:100]} is not on the public web")
        self.host = host
        self.address = address


class Unreachable(FetchFailed):
    """No connection, no valid certificate, or an answer that broke off."""


def is_public(address: str) -> bool:
    """Whether an address, as a lookup gives it, belongs to the public internet.

    An IPv6 address that carries an IPv4 address inside is not, except where a network translates (NAT64): there every
    server without IPv6 looks like that, and the address inside decides.

    >>> [is_public(address) for address in ("8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "2606:4700::1111", "fe80::1%eth0")]
    [True, False, False, True, False]
    >>> [is_public(address) for address in ("64:ff9b::808:808", "64:ff9b::7f00:1")]
    [True, False]
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return parsed.is_global and not any(parsed in block for block in _NOT_PUBLIC_4)
    if parsed.scope_id is not None:
        return False
    if parsed in _NAT64:
        return is_public(str(IPv4Address(int(parsed) & 0xFFFFFFFF)))
    return parsed in _PUBLIC_6 and parsed.is_global and not any(parsed in block for block in _NOT_PUBLIC_6)


async def system_lookup(host: str, port: int) -> list[str]:
    """The addresses that this machine's own resolver knows, each once, in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


class Guard:
    """Decides which addresses may be requested, and connects to no others: the public web, on its usual ports.

    `trusted` are origins (`http://localhost:8888`) that are allowed without a check of name, port and address; they
    come from code or settings, never from a model or a page. `lookup` resolves names, `tls` verifies certificates.
    """

    __slots__ = ("_lookup", "_ports", "_tls", "_trusted")

    def __init__(
        self,
        *,
        trusted: Collection[str] = (),
        ports: Collection[int] = PORTS,
        lookup: Lookup = system_lookup,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._trusted = frozenset(URL(origin).origin() for origin in trusted)
        self._ports = frozenset(ports)
        self._lookup = lookup
        self._tls = tls

    def checked(self, address: str, *, base: URL | None = None) -> URL:
        """The parsed address, or with `base` the target of a redirect from there; raises `FetchFailed` if refused."""
        if base is None:
            address = address.strip()
        shown = address[:200]
        if not address or len(address) > MAX_URL_CHARS:
            raise UrlRefused(shown, f"the address has {len(address)} characters; expected 1 to {MAX_URL_CHARS}")
        if _UNFIT.search(address):
            raise UrlRefused(shown, "the address has spaces, backslashes or control characters in it")
        try:
            url = URL(address).with_fragment(None)
            url = base.join(url) if base else url
            _ = url.port  # refuses what is no number
        except ValueError as wrong:
            raise UrlRefused(shown, "the address cannot be understood") from wrong
        self._judge(url, base)
        return url

    def _judge(self, url: URL, base: URL | None) -> None:
        if url.scheme not in ("http", "https"):
            raise UrlRefused(str(url), "expected an address that begins with http:// or https://")
        if base is not None and (base.scheme, url.scheme) == ("https", "http"):
            raise UrlRefused(str(url), "a redirect leads from https to http")
        if not url.raw_host:
            raise UrlRefused(str(url), "expected an address like https://example.org/page")
        if url.raw_user is not None or url.raw_password is not None:
            raise UrlRefused(str(url.with_user(None)), "the address has a user name or password in it")
        if url.origin() in self._trusted:
            return
        if url.port not in self._ports:
            known = ", ".join(map(str, sorted(self._ports)))
            raise UrlRefused(str(url), f"port {url.port} is not read; those of the web are {known}")
        host = url.raw_host.lower()
        if _literal(host) is not None:
            if not is_public(host):
                raise AddressRefused(str(url), host=host, address=host)
        elif not _NAME.fullmatch(host) or len(host) > 253 or _is_at_home(host.rstrip(".")):
            # Also 2130706433, 0x7f.1, 0177.0.0.1 and 127.1: resolvers read them as addresses, each in its own way.
            raise AddressRefused(str(url), host=host, address="")

    async def addresses(self, url: URL) -> tuple[str, ...]:
        """The IP addresses of a checked address, looked up once.

        Raises `FetchFailed` if a single one is not public: a name with a public and a private address is an attack.
        """
        host = url.raw_host or ""
        if _literal(host) is not None:
            return (host,)  # judged when the address was read
        try:
            found = tuple(await self._lookup(host, url.port or 0))
        except (OSError, UnicodeError) as unknown:
            raise Unreachable(str(url), f"no address is known for {host}") from unknown
        if url.origin() not in self._trusted:
            for address in found:
                if not is_public(address):
                    raise AddressRefused(str(url), host=host, address=address)
        if not found:
            raise Unreachable(str(url), f"no address is known for {host}")
        return found

    def connector(self, url: URL, addresses: Collection[str]) -> aiohttp.TCPConnector:
        """A connector to these addresses at the port of `url`, and to no others.

        Certificates are verified against the name in `url`.
        """
        vetted = frozenset((ip_address(address), url.port) for address in addresses)

        def socket_to(where: _AddressInfo) -> socket.socket:
            family, kind, protocol, _, address = where
            if (ip_address(str(address[0])), address[1]) not in vetted:
                raise PermissionError(errno.EPERM, f"{address[0]} port {address[1]} was not checked")
            return socket.socket(family=family, type=kind, proto=protocol)

        return aiohttp.TCPConnector(
            resolver=_Pinned(addresses),
            socket_factory=socket_to,
            use_dns_cache=False,
            force_close=True,
            ssl=self._tls or True,
        )


_AddressInfo: TypeAlias = tuple[
    int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]
]


class _Pinned(AbstractResolver):
    """Answers with addresses that were judged, and asks nobody."""

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses = tuple(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """There is nothing to let go of."""


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_at_home(name: str) -> bool:
    return any(name == home or name.endswith(f".{home}") for home in _NAMES_AT_HOME)
