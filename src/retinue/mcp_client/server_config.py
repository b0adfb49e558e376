"""How an MCP server is started or reached, and the JSON files of other programs that say so."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.log_context import logger
from retinue.core.policy import Risk, WorkspaceRights
from retinue.core.ports import Ended, Talk
from retinue.core.text import NOT_JSON, clean_line
from retinue.net.loopback import check_encrypted, check_values_encrypted, is_secret_name

NAME = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
"""Names of servers; two underscores separate the parts of the name of a tool."""

log = logger("retinue.mcp")

MAX_FILE = 1 << 20
TIMEOUT = 60.0


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server: a program that speaks on stdin and stdout (`command`), or an address (`url`).

    - `cwd`: the folder in which the program starts. Without the sandbox no agent may write there; by default it is
      `folder`, the folder of the settings file, or an empty one if agents may write there.
    - `env`, `headers`: names of environment variables; for headers by the name of the header. Their values are read
      when the server is started, and stored nowhere. `values` and `header_values` have literal ones.
    - `timeout`: seconds that a call may take.
    - `allow`, `deny`: patterns of the server's own names of tools; a tool that `deny` matches is left out.
    - `risk`: the risk of tools by such patterns, in place of what the server says about them.
    - `sandbox`: whether the program runs in the sandbox, within the policy of the run that uses it. There it sees the
      workspace and of everything else only the system, `readable` and `writable`, and has the network by `network`.

    >>> McpServer(name="docs", command="docs-server", deny=("delete_*",)).offers("delete_page")
    False
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    values: Mapping[str, str] = {}
    cwd: str = ""
    folder: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    header_values: Mapping[str, str] = {}
    timeout: float = TIMEOUT
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    risk: Mapping[str, Risk] = {}
    sandbox: bool = False
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = True

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or len(self.name) > 32:
            raise BadInput(
                f"the name {self.name[:100]!r} of an MCP server is not valid: use up to 32 letters, digits, - and _, "
                "and no two _ in a row"
            )
        if bool(self.command) == bool(self.url):
            raise BadInput(f"the MCP server {self.name!r} needs either a command or a url")
        if self.url and (self.args or self.env or self.values or self.cwd):
            raise BadInput(f"args, env and cwd of the MCP server {self.name!r} are for a server with a command")
        if self.url and self.sandbox:
            raise BadInput(f"sandbox of the MCP server {self.name!r} is for a server with a command")
        if not self.sandbox and (self.readable or self.writable or not self.network):
            raise BadInput(
                f"readable, writable and network of the MCP server {self.name!r} are for a server with sandbox = true"
            )
        if self.command and (self.headers or self.header_values):
            raise BadInput(f"headers of the MCP server {self.name!r} are for a server with a url")
        if self.url and not re.match(r"https?://[^\s/]", self.url):
            raise BadInput(f"the url of the MCP server {self.name!r} has to begin with http:// or https://")
        check_encrypted(self.url, None, {**self.headers, **self.header_values})
        for header, variable in self.headers.items():
            check_values_encrypted(self.url, f"header {header}", [variable])

    def offers(self, tool: str) -> bool:
        """Whether the settings let agents have a tool of the server."""
        allowed = not self.allow or any(fnmatchcase(tool, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(tool, pattern) for pattern in self.deny)

    def risk_of(self, tool: str) -> Risk | None:
        """The risk that the settings give a tool."""
        return next((risk for pattern, risk in self.risk.items() if fnmatchcase(tool, pattern)), None)

    @property
    def identity(self) -> str:
        """A hash of what is started or reached: another program under the same name is another server."""
        parts = (self.command, *self.args, self.cwd, self.url)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def environment(self) -> dict[str, str]:
        """The variables of its process: those that every program needs, the named ones, and literal values."""
        names = (*_USUAL, *self.env)
        return {name: os.environ[name] for name in names if name in os.environ} | dict(self.values)

    def request_headers(self) -> dict[str, str]:
        """The headers of requests; raises `BadInput` if a variable is not set."""
        for header, variable in self.headers.items():
            if variable not in os.environ:
                raise BadInput(f"the variable {variable} for the header {header} is not set")
        return {header: os.environ[variable] for header, variable in self.headers.items()} | dict(self.header_values)


Converse = Callable[[McpServer, WorkspaceRights, Talk], Awaitable[Ended]]
"""Runs the program of a server in the sandbox, within the rights of runs in a workspace, until the talk ends."""

_USUAL = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "SYSTEMROOT", "APPDATA")
"""Variables that every program is given; keys of model vendors are not among them."""


FileCheck = Callable[[Path, int, bytes], None]
"""Raises `ConfigError` for an open file that must not be obeyed."""


def read_server_file(path: Path, check: FileCheck | None = None) -> tuple[McpServer, ...]:
    """The servers of a JSON file: `mcpServers` of Claude Code and Cursor, or `servers` of VS Code.

    `${NAME}`, `${NAME:-default}` and `${env:NAME}` in values are environment variables. A server that cannot be used is
    left out with a warning, and one that is switched off without. Raises `BadInput` if nothing in the file can be used,
    with the place of the error. `check` sees the open file before it is obeyed.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{path}: expected a file, and it is something else")
            body = file.read(MAX_FILE + 1)
            if check is not None:
                check(path, file.fileno(), body)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    if len(body) > MAX_FILE:
        raise BadInput(f"{path}: larger than {MAX_FILE >> 20} MiB")
    try:
        document: object = msgspec.json.decode(_without_comments(body.decode("utf-8-sig")))
    except NOT_JSON as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    tables = _tables(document)
    if tables is None:
        raise BadInput(f"{path}: has neither mcpServers nor servers")
    found: dict[str, McpServer] = {}
    refusals: list[BadInput] = []
    for name, table in tables:
        try:
            server = _server(path, name, table)
            if server is not None and server.name in found:
                raise BadInput(f"{path}: two servers are named {server.name!r}")
        except BadInput as refusal:
            refusals.append(refusal)
        else:
            found |= {} if server is None else {server.name: server}
    if refusals and not found:
        raise refusals[0]
    for refusal in refusals:
        log.warning("%s; this server is left out", refusal)
    return tuple(found.values())


def _tables(document: object) -> list[tuple[str, object]] | None:
    if not isinstance(document, dict):
        return None
    values = cast("dict[str, object]", document)
    if isinstance(inner := values.get("mcp"), dict) and "servers" in inner:  # settings.json of VS Code
        values = cast("dict[str, object]", inner)
    tables = values.get("mcpServers", values.get("servers"))
    return list(cast("dict[str, object]", tables).items()) if isinstance(tables, dict) else None


class _Entry(Struct):
    """One server as the files have it; keys that only their own programs know are ignored."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    type: str = ""
    timeout: float | None = None
    disabled: bool = False
    enabled: bool = True


def _server(path: Path, name: str, table: object) -> McpServer | None:
    """A server of a file; None for one that is switched off."""
    where = f"{path}: server {clean_line(name)[:100]!r}"
    try:
        entry = msgspec.convert(table, _Entry, strict=True)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}") from error
    if entry.disabled or not entry.enabled:
        return None
    if entry.type == "sse":
        raise BadInput(f"{where}: the transport sse is not supported; use http")
    folder = str(path.parent.absolute())

    def filled(text: str) -> str:
        return _filled(text, where, folder)

    url = filled(entry.url)
    for key, value in entry.headers.items():
        check_values_encrypted(url, f"header {clean_line(key)[:100]} of {where}", _variables(value))
    check_values_encrypted(url, f"url of {where}", filter(is_secret_name, _variables(entry.url)))
    return McpServer(
        name=re.sub("_+", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name)).strip("_")[:32] or "server",
        command=filled(entry.command),
        args=tuple(map(filled, entry.args)),
        values={key: filled(value) for key, value in entry.env.items()},
        cwd=filled(entry.cwd),
        folder=folder if entry.command else "",
        url=url,
        header_values={key: filled(value) for key, value in entry.headers.items()},
        # Claude Code counts milliseconds, others seconds.
        timeout=TIMEOUT if entry.timeout is None else entry.timeout / (1000 if entry.timeout >= 1000 else 1),
    )


_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_FOLDERS = ("${workspaceFolder}", "${CLAUDE_PROJECT_DIR}")


def _filled(text: str, where: str, folder: str) -> str:
    for name in _FOLDERS:
        text = text.replace(name, folder)
    if "${input:" in text:
        raise BadInput(f"{where}: ${{input:...}} asks a person, which only its own program can; use ${{env:NAME}}")

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if (set_value := os.environ.get(name)) is not None:
            return set_value
        if default is None:
            raise BadInput(f"{where}: the environment variable {name} is not set")
        return default

    return _VARIABLE.sub(value, text)


def _variables(text: str) -> list[str]:
    """The environment variables whose values `_filled` puts into a text."""
    return [found[1] for found in _VARIABLE.finditer(text) if found[1] in os.environ]


def _without_comments(text: str) -> str:
    """JSON with comments and trailing commas, as VS Code writes it, without both."""
    return re.sub(r",(\s*[}\]])", r"\1", "".join(_parts(text))) if "//" in text or "/*" in text else text


_TOKEN: Any = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def _parts(text: str) -> Iterator[str]:
    end = 0
    for found in _TOKEN.finditer(text):
        yield text[end : found.start()]
        yield found[0] if found[0].startswith('"') else " "
        end = found.end()
    yield text[end:]
