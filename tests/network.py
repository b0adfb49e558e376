"""Networks in which each worker of a test can be cut off from its servers.

As root on Linux each worker has a network namespace and a pair of virtual interfaces: a cut drops packets without a
word, as a broken link does. Elsewhere each worker reaches the database through proxies, which end its connections.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from tests.postgres import PostgresServer
from tests.tcp_proxy import TcpProxy


class Network(Protocol):
    """Places for workers by number; `host` is the address on which servers listen that workers shall reach."""

    host: str

    def connect(self, servers: Sequence[PostgresServer]) -> None:
        """Let all places reach these servers; called once, when the servers run."""
        ...

    def command(self, place: int) -> Sequence[str]:
        """What a command begins with that runs in a place."""
        ...

    def servers_at(self, place: int) -> str:
        """The hosts and ports of the database servers, as they are reached from a place."""
        ...

    def cut(self, place: int) -> None: ...

    def heal(self, place: int) -> None: ...


class Namespaces:
    """Places are network namespaces; `host` is an address of this machine that all of them reach."""

    def __init__(self, places: int) -> None:
        # Names and addresses of this process alone: tests may run at the same time.
        number = os.getpid()
        self._subnet = f"10.{64 + number % 64}"
        self._name = f"rt{number % 100_000}"
        self._places = places
        self._ports: list[int] = []
        self.host = f"{self._subnet}.255.1"

    def open(self) -> None:
        _ip("addr", "add", f"{self.host}/32", "dev", "lo")
        for place in range(self._places):
            name, outside, inside = self._names(place)
            _ip("netns", "add", name)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
            _ip("addr", "add", f"{self._subnet}.{place}.1/30", "dev", outside)
            _ip("link", "set", outside, "up")
            _ip("-n", name, "addr", "add", f"{self._subnet}.{place}.2/30", "dev", inside)
            _ip("-n", name, "link", "set", inside, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "route", "add", "default", "via", f"{self._subnet}.{place}.1")

    def close(self) -> None:
        for place in range(self._places):
            name, outside, _ = self._names(place)
            _ip("link", "del", outside, check=False)
            _ip("netns", "del", name, check=False)
        _ip("addr", "del", f"{self.host}/32", "dev", "lo", check=False)

    def connect(self, servers: Sequence[PostgresServer]) -> None:
        self._ports = [server.port for server in servers]

    def command(self, place: int) -> Sequence[str]:
        return ("ip", "netns", "exec", self._names(place)[0])

    def servers_at(self, place: int) -> str:
        return ",".join(f"{self.host}:{port}" for port in self._ports)

    def cut(self, place: int) -> None:
        # The end inside: taking it down leaves the address and the route of this machine alone.
        name, _, inside = self._names(place)
        _ip("-n", name, "link", "set", inside, "down")

    def heal(self, place: int) -> None:
        name, _, inside = self._names(place)
        _ip("-n", name, "link", "set", inside, "up")
        _ip("-n", name, "route", "replace", "default", "via", f"{self._subnet}.{place}.1")

    def _names(self, place: int) -> tuple[str, str, str]:
        return f"{self._name}n{place}", f"{self._name}o{place}", f"{self._name}i{place}"


class Proxies:
    """Places are proxies in front of each server, on loopback."""

    def __init__(self, places: int, cleanup: ExitStack) -> None:
        self._places = places
        self._cleanup = cleanup
        self._proxies: list[list[TcpProxy]] = []
        self.host = "127.0.0.1"

    def connect(self, servers: Sequence[PostgresServer]) -> None:
        for _ in range(self._places):
            self._proxies.append([self._cleanup.enter_context(TcpProxy(server.socket)) for server in servers])

    def command(self, place: int) -> Sequence[str]:
        return ()

    def servers_at(self, place: int) -> str:
        return ",".join(f"{self.host}:{proxy.port}" for proxy in self._proxies[place])

    def cut(self, place: int) -> None:
        for proxy in self._proxies[place]:
            proxy.refuses = True
            proxy.cut()

    def heal(self, place: int) -> None:
        for proxy in self._proxies[place]:
            proxy.refuses = False


@contextmanager
def network(places: int) -> Generator[Network]:
    """Namespaces where this process may make them, else proxies."""
    with ExitStack() as cleanup:
        if os.geteuid() == 0 and shutil.which("ip") is not None:
            namespaces = Namespaces(places)
            cleanup.callback(namespaces.close)
            try:
                namespaces.open()
            except subprocess.CalledProcessError:
                cleanup.close()  # root of a container that may not change networks
            else:
                yield namespaces
                return
        yield Proxies(places, cleanup)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(("ip", *words), check=check, capture_output=True)
