"""Protection against server-side request forgery: only public web addresses are reached, nothing private or local.

A model takes URLs from untrusted pages. A URL is parsed once, its host is looked up once, *every* address found must be
public, and the socket connects only to a checked address, so a second lookup cannot change the target.
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
"""Ports of web servers; others belong to mail, databases and the like, even on public addresses."""

MAX_URL_CHARS = 4096

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks up the addresses of a host for a port; raises `OSError` if there are none."""

_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?\.?")
_LOCAL_NAMES = ("localhost", "local", "internal", "intranet", "lan", "home", "corp", "home.arpa")
_FORBIDDEN_CHARS = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")

# Listed here, because `is_global` differs for some of these between versions of Python.
_NOT_PUBLIC_4 = tuple(
    ip_network(block)
    for block in (
        *("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
        *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "100.64.0.0/10",  # carrier-grade NAT; some clouds keep their metadata here
        "169.254.0.0/16",  # link-local; most clouds keep their metadata here
        # Registered as public, and reached only from inside a cloud, where they are that cloud's own services:
        "168.63.129.16/32",  # Azure: name server, and the agent of a virtual machine
        "161.26.0.0/16",  # IBM Cloud: services of its infrastructure
        "166.8.0.0/14",  # IBM Cloud: private endpoints of its services
        "199.36.153.4/30",  # Google Cloud: its interfaces without the public internet (restricted.googleapis.com)
        "199.36.153.8/30",  # Google Cloud: the same (private.googleapis.com)
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
    """The URL itself is not allowed; no request was made."""


class AddressRefused(FetchFailed):
    """The host is not on the public web; `address` is what its name resolved to.

    The message, which a model reads, does not name the address: it would reveal the private network.
    """

    def __init__(self, url: str, *, host: str, address: str) -> None:
        super().__init__(url, f"{host[:100]} is not on the public web")
        self.host = host
        self.address = address


class Unreachable(FetchFailed):
    """No connection, no valid certificate, or an incomplete response."""


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet.

    An IPv6 address with an embedded IPv4 address does not, except for NAT64, where the embedded address decides.

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
    """The addresses that the system's resolver returns, in its order, without repetitions."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


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
        if _FORBIDDEN_CHARS.search(address):
            raise UrlRefused(shown, "the address has spaces, backslashes or control characters in it")
        try:
            url = URL(address).with_fragment(None)
            url = base.join(url) if base else url
            _ = url.port  # raises if it is not a number
        except ValueError as error:
            raise UrlRefused(shown, "the address cannot be understood") from error
        self._check(url, base)
        return url

    def _check(self, url: URL, base: URL | None) -> None:
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
        elif not _NAME.fullmatch(host) or len(host) > 253 or _is_local(host.rstrip(".")):
            # Also 2130706433, 0x7f.1, 0177.0.0.1 and 127.1, which resolvers take for addresses in different ways.
            raise AddressRefused(str(url), host=host, address="")

    async def addresses(self, url: URL) -> tuple[str, ...]:
        """The IP addresses of a checked address, looked up once.

        Raises `FetchFailed` if a single one is not public: a name with a public and a private address is an attack.
        """
        host = url.raw_host or ""
        if _literal(host) is not None:
            return (host,)  # checked by `checked`
        try:
            addresses = tuple(await self._lookup(host, url.port or 0))
        except (OSError, UnicodeError) as unknown:
            raise Unreachable(str(url), f"no address is known for {host}") from unknown
        if url.origin() not in self._trusted:
            for address in addresses:
                if not is_public(address):
                    raise AddressRefused(str(url), host=host, address=address)
        if not addresses:
            raise Unreachable(str(url), f"no address is known for {host}")
        return addresses

    def connector(self, url: URL, addresses: Collection[str]) -> aiohttp.TCPConnector:
        """A connector to these addresses at the port of `url`, and to no others.

        Certificates are verified against the name in `url`.
        """
        allowed = frozenset((ip_address(address), url.port) for address in addresses)

        def open_socket(info: _AddressInfo) -> socket.socket:
            family, kind, protocol, _, address = info
            if (ip_address(str(address[0])), address[1]) not in allowed:
                raise PermissionError(errno.EPERM, f"{address[0]} port {address[1]} was not checked")
            return socket.socket(family=family, type=kind, proto=protocol)

        return aiohttp.TCPConnector(
            resolver=_PinnedResolver(addresses),
            socket_factory=open_socket,
            use_dns_cache=False,
            force_close=True,
            ssl=self._tls or True,
        )


_AddressInfo: TypeAlias = tuple[
    int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]
]


class _PinnedResolver(AbstractResolver):
    """Returns the checked addresses without a lookup."""

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

    async def close(self) -> None: ...


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_local(name: str) -> bool:
    return any(name == local or name.endswith(f".{local}") for local in _LOCAL_NAMES)
