"""Helpers for tests of the command line: commands as processes, fake vendors in threads, and stored runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from retinue.app.open import open as open_retinue
from retinue.core.agent import Agent
from retinue.providers.catalog import api_key_variables
from retinue.providers.scripted import ScriptedProvider
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeServer

Vendor = TypeVar("Vendor", bound=FakeServer)

VARIABLES = (
    *api_key_variables({}),
    "RETINUE_MODEL",
    "RETINUE_PROVIDER",
    "RETINUE_BASE_URL",
    "RETINUE_API_KEY_ENV",
    "RETINUE_STORE",
    "RETINUE_LOG",
    "RUST_LOG",
    "RETINUE_LOG_PAYLOADS",
    "NO_COLOR",
    "FORCE_COLOR",
)


@contextmanager
def serving(played: Playable) -> Generator[FakeChat]:
    """A fake vendor in a thread; the command line runs in this one."""
    with open_in_a_thread(FakeChat(played)) as vendor:
        yield vendor


@contextmanager
def open_in_a_thread(vendor: Vendor) -> Generator[Vendor]:
    """Any fake vendor in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(vendor.open(), loop).result()
        yield vendor
    finally:
        asyncio.run_coroutine_threadsafe(vendor.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The JSON on stdout."""
        return msgspec.json.decode(self.stdout)


class Command:
    """A running command in a process group of its own, as a shell would start it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stderr: list[str] = []

    @classmethod
    async def start(
        cls,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
    ) -> Command:
        """Start a command; `stdin` is its whole input."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "retinue",
            *arguments,
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | (env or {}),
            cwd=cwd,
            start_new_session=True,
        )
        if process.stdin is not None:
            process.stdin.write(stdin or b"")
            process.stdin.close()
        return cls(process)

    async def expect_stdout(self, words: str) -> str:
        """Wait for a line on stdout that contains `words`; all output up to it."""
        assert self._process.stdout is not None
        printed = ""
        while line := (await self._process.stdout.readline()).decode():
            printed += line
            if words in line:
                return printed
        raise AssertionError(f"{words!r} was not printed: {printed}")

    async def expect_stderr(self, words: str) -> str:
        """Wait for a line on stderr that contains `words`."""
        assert self._process.stderr is not None
        while line := (await self._process.stderr.readline()).decode():
            self._stderr.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} was not printed: {''.join(self._stderr)}")

    def close_stdout(self) -> None:
        """Close the read end of stdout."""
        transport: Any = getattr(self._process, "_transport")  # noqa: B009 there is no other way to it
        transport.get_pipe_transport(1).close()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended and was waited for."""
        return self._process.returncode is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, as a terminal does."""
        os.killpg(self._process.pid, number)

    async def ended(self) -> Ended:
        """Wait for the end."""
        stdout, stderr = await self._process.communicate()
        return Ended(self._process.returncode or 0, stdout.decode(), "".join(self._stderr) + stderr.decode())


async def retinue(*arguments: str, **options: Any) -> Ended:
    """Run one command to its end; options are those of `Command.start`."""
    return await (await Command.start(*arguments, **options)).ended()


async def finished_run(home: Path, provider: ScriptedProvider, task: str = "Find it.", **options: Any) -> str:
    """Run a task with the Python API; the id of the ended run."""
    agents = options.pop("agents", (Agent(name="dig", description="Digs.", system_prompt="You dig."),))
    async with open_retinue(provider=provider, home=home, agents=agents, **options) as opened:
        run = await opened.spawn(task)
        await run.wait()
        return run.run_id
