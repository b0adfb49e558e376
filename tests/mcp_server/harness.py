"""Servers as processes: parameters for the official client, and a client that writes raw lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mcp.client.stdio import StdioServerParameters

from tests.cli.stage import VARIABLES

LINES = {
    "general: find": [{"say": "It has 10 connections."}],
    "general: slow": [{"say": "one two three four five six", "every": 1.0}],
    "general: stuck": [{"say": "I am", "ending": "silence"}],
    "general: twice": [{"call": {"name": "task_list"}}, {"say": "Nothing to do."}],
    "general: print": [{"call": {"name": "noisy"}}, {"say": "Printed."}],
    "general: ship": [{"call": {"name": "deploy", "arguments": {"version": 2}}}, {"say": "Shipped."}],
    "reader": [{"say": "I read."}],
}

SETTINGS = """
[mcp]
max_wait = {max_wait}

[agents.reader]
description = "Reads logs"

[tools]
modules = ["./noisy.py"]
"""

NOISY = '''
import os
import signal
import subprocess
import sys

import retinue


@retinue.tool(kind="pure")
def noisy() -> str:
    """Print on stdout in three ways."""
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "from a child"], check=True)
    return "done"


@retinue.tool(risk="medium")
def deploy(version: int, note: str = "") -> str:
    """Deploy a version."""
    return f"version {version} is deployed"
'''


def folder(path: Path, lines: Mapping[str, object] = LINES, *, max_wait: float = 2) -> Path:
    """A project folder with settings, a tool that prints, and the lines of the models."""
    (path / "retinue.toml").write_text(SETTINGS.format(max_wait=max_wait))
    (path / "noisy.py").write_text(NOISY)
    (path / "lines.json").write_text(json.dumps(lines))
    return path


def environment(path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES and not name.startswith("COV_")}
    return kept | {"RETINUE_HOME": str(path / "home")}


def arguments(*more: str) -> list[str]:
    return ["-m", "retinue", "mcp", "--model", "scripted:lines.json", "--tools", "noisy,task_list", *more]


def parameters(path: Path, *more: str) -> StdioServerParameters:
    """How the official client starts a server in that folder."""
    return StdioServerParameters(command=sys.executable, args=arguments(*more), env=environment(path), cwd=path)


class RawClient:
    """A client that writes lines as they are, and reads answers by their ids."""

    def __init__(self, path: Path, *more: str) -> None:
        self._path = path
        self._more = more
        self.process: asyncio.subprocess.Process
        self.others: list[dict[str, Any]] = []
        """Messages that are no answers to `request`: notifications, and errors without an id."""
        self._next = 0

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments(*self._more),
            cwd=self._path,
            env=environment(self._path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._next += 1
        await self.write(json.dumps({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}).encode())
        return self._next

    async def notify(self, method: str, **params: Any) -> None:
        await self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    async def answer(self, id: int | None) -> dict[str, Any]:
        """The next answer with this id; None for one that is about no request."""
        assert self.process.stdout is not None
        while True:
            line = await asyncio.wait_for(self.process.stdout.readline(), 30)
            assert line, "the server has closed stdout"
            message = json.loads(line)
            if "method" not in message and message.get("id") == id:
                return message
            self.others.append(message)

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.answer(await self.begin(method, **params))

    async def handshake(self) -> dict[str, Any]:
        client = {"name": "raw", "version": "1"}
        answer = await self.request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        await self.notify("notifications/initialized")
        return answer["result"]

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a tool."""
        answer = await self.request("tools/call", name=name, arguments=arguments)
        return answer["result"]["structuredContent"]

    async def leave(self) -> int:
        """Close stdin, and return the exit code of the server."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), 10)


class HttpServer:
    """`retinue mcp --http` as a process on a free port of loopback; `url` is where it listens."""

    def __init__(self, path: Path, *more: str, variables: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._more = more
        self._variables = dict(variables or {})
        self.process: subprocess.Popen[bytes]
        self.url = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, *arguments("--http", "127.0.0.1:0", *self._more)],
            cwd=self._path,
            env=environment(self._path) | self._variables,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        assert "http://" in line, line
        self.url = line[line.index("http://") :].strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.stop(signal.SIGKILL)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(10)
