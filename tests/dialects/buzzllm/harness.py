"""A harness for the `buzzllm` dialect: fake vendors of every wire, a scripted root, and real child processes.

See test_call for `retinue call` by itself.
"""

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import retinue
from retinue.__main__ import main
from retinue.app.retinue import Retinue
from retinue.core.events import CallReturned
from retinue.providers.scripted import Line, ScriptedReply, calls
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.output.test_sse import SseEvent, events
from tests.cli.stage import open_in_a_thread
from tests.internals import engine_of
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.responses import FakeResponses

AnyVendor = FakeChat | FakeResponses | FakeAnthropic

MODEL = "fake-1"
PROMPT = "Find it."


class Wire(NamedTuple):
    """A vendor, the provider that speaks to it, and the whole address of its models."""

    name: str
    vendor: Callable[[Playable], AnyVendor]
    base: Callable[[AnyVendor], str]
    path: str

    def url(self, vendor: AnyVendor) -> str:
        """The `url` of a request."""
        return self.base(vendor) + self.path


def _base(vendor: AnyVendor) -> str:
    return vendor.base_url


def _google(vendor: AnyVendor) -> str:
    assert isinstance(vendor, FakeAnthropic)
    return vendor.google_url


WIRES = [
    Wire("openai-chat", FakeChat, _base, "/chat/completions"),
    Wire("openai-responses", FakeResponses, _base, "/responses"),
    Wire("anthropic", FakeAnthropic, _base, "/v1/messages"),
    Wire("vertexai-anthropic", FakeAnthropic, _google, f"/publishers/anthropic/models/{MODEL}:streamRawPredict"),
]
CHAT = WIRES[0]
RESPONSES = WIRES[1]
over_every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


# ---- retinue call ---------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """The result of the command."""

    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> list[SseEvent]:
        """The events, but for those that only frame others."""
        return [told for told in events(self.stdout) if told.type != "response_start"]

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(told.delta for told in events(self.stdout) if told.type == "output_text")


@dataclass
class Command:
    """`retinue call` in this process, which is much faster than in one of its own."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def raw(self, stdin: bytes) -> Ended:
        """Run the command with this input."""
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(["call"])
        finally:
            logger = logging.getLogger("retinue")
            logger.handlers.clear()
            logger.setLevel(logging.NOTSET)
        said = self.capsys.readouterr()
        return Ended(code, said.out, said.err)

    def __call__(self, **order: object) -> Ended:
        """Run the command with a request of these fields."""
        return self.raw(json.dumps(order).encode())


def order(wire: Wire, vendor: AnyVendor, **fields: object) -> dict[str, object]:
    """The required fields of a request, and more."""
    return {"model": MODEL, "provider": wire.name, "url": wire.url(vendor), "prompt": PROMPT} | fields


@contextmanager
def serving(played: Playable, wire: Wire = CHAT) -> Generator[AnyVendor]:
    """A vendor in a thread of its own."""
    with open_in_a_thread(wire.vendor(played)) as vendor:
        yield vendor


def one_by_one(*lines: Line | FakeResponse) -> Callable[[ReceivedRequest], Line | FakeResponse]:
    """A line for each request in turn."""
    left = iter(lines)
    return lambda _: next(left)


# ---- call_subagent --------------------------------------------------------------------------------------------------


def call_subagent(prompt: str = PROMPT, **more: object) -> ScriptedReply:
    """A call of `call_subagent`."""
    return calls("call_subagent", prompt=prompt, **more)


def is_root(request: ReceivedRequest) -> bool:
    """Whether the request is the root's: only the root has the tool."""
    return any("call_subagent" in json.dumps(tool) for tool in request.body.get("tools") or ())


class Cast:
    """Lines of the root, turn by turn, and of its children; their requests are recorded in order."""

    def __init__(self, root: tuple[Line | FakeResponse, ...], child: Playable) -> None:
        self._root = iter(root)
        self._child = child
        self.children: list[ReceivedRequest] = []
        self.root: list[ReceivedRequest] = []

    def __call__(self, request: ReceivedRequest) -> Line | FakeResponse:
        if is_root(request):
            self.root.append(request)
            return next(self._root)
        self.children.append(request)
        return self._child(request) if callable(self._child) else self._child


class BuzzllmHarness:
    """A retinue over HTTP to a vendor that plays the root and the children."""

    def __init__(self, opened: Retinue, root_id: str = "") -> None:
        self.retinue = opened
        self.root_id = root_id

    async def play(self, **how: Any) -> retinue.Outcome:
        run = await self.retinue.spawn("Go.", output=None, **how)
        self.root_id = run.run_id
        return await run.wait()

    def read(self) -> list[str]:
        """The results of the root's calls."""
        events = engine_of(self.retinue).store.events(self.root_id)
        return [event.text for _, event in events if isinstance(event, CallReturned)]


def opened(wire: Wire, vendor: AnyVendor, **options: Any) -> Retinue:
    """A retinue with the dialect that uses this vendor."""
    options = {"home": retinue.MEMORY, "dialects": ["buzzllm"], "model": MODEL} | options
    return retinue.open(provider=wire.name, base_url=wire.base(vendor), **options)


# ---- processes ------------------------------------------------------------------------------------------------------


def below(pid: int, *, without: Collection[int] = ()) -> set[int]:
    """Every process that descends from this one, those that have left its group too; `without` these and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z" and int(entry.name) not in without:
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def exists(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_of(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def callers(pid: int | None = None) -> set[int]:
    """The processes of `retinue call` below this one."""
    return {each for each in below(pid or os.getpid()) if " call " in command_of(each)}


__all__ = [
    "CHAT",
    "MODEL",
    "PROMPT",
    "RESPONSES",
    "WIRES",
    "AnyVendor",
    "BuzzllmHarness",
    "Cast",
    "Command",
    "Ended",
    "FakeServer",
    "SseEvent",
    "Wire",
    "below",
    "call_subagent",
    "callers",
    "exists",
    "is_root",
    "one_by_one",
    "opened",
    "order",
    "over_every_wire",
    "serving",
]  # fmt: skip
