"""Fixtures of the sandbox tests: programs, and a pipe that they can write to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from retinue.core.ports import Program


class Calls(Protocol):
    """Makes a program that may write to the folder of the test."""

    def __call__(self, *argv: str, **grants: Any) -> Program: ...


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def program(work: Path) -> Calls:
    def make(*argv: str, **grants: Any) -> Program:
        plain = Program(argv=argv, folder=str(work), writable=(str(work),), seconds=20.0)
        return replace(plain, **grants)

    return make


class Line:
    """A named pipe in a folder; it ends when its last writer has closed it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o666)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def read(self) -> bytes:
        """The next data; empty if no process has the pipe open for writing."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._descriptor, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait_for(ready, 20)
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, 4096)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def line(work: Path) -> Iterator[Line]:
    made = Line(work / "line")
    yield made
    made.close()
