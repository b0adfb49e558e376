"""An editor for tests: starts `retinue acp`, and compares what it sends with the models of the protocol."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from acp import schema
from pydantic import BaseModel

from tests.mcp_server.harness import environment

RESULTS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/prompt": schema.PromptResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
    "session/close": schema.CloseSessionResponse,
}
SENT: dict[str, type[BaseModel]] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
}


def strictly(model: type[BaseModel], value: dict[str, Any]) -> None:
    """Raise for a value that the model does not accept, or of which it does not know a part."""
    assert model.model_validate(value).model_dump(mode="json", by_alias=True, exclude_unset=True) == value


class Refused(Exception):
    """An error answer."""


class Editor:
    """A running `retinue acp` in a folder, whose model plays lines."""

    def __init__(
        self,
        folder: Path,
        *lines: Mapping[str, Any],
        flags: Sequence[str] = (),
        answer: str | None = "allow",
        agents: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        self.folder = folder
        self.answer = answer
        self.updates: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self._count = 0
        script = folder.parent / "lines.json"
        if lines or agents:
            script.write_text(json.dumps({"main": lines, **(agents or {})}))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "retinue", "acp", "--model", f"scripted:{script}", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(folder.parent) | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
            cwd=folder.parent,
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> Editor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()
            assert self.process.stdout is not None
            self._reader.join(10)
            self.process.stdout.close()

    def write(self, message: object) -> None:
        assert self.process.stdin is not None
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(body + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message that is no update; questions are answered."""
        while True:
            line = self._lines.get(timeout=60)
            if line is None:
                assert self.process.stderr is not None
                raise EOFError(self.process.stderr.read().decode())
            message: dict[str, Any] = json.loads(line)
            method = message.get("method")
            if method is None:
                return message
            strictly(SENT[method], message["params"])
            if method == "session/update":
                self.updates.append(message["params"]["update"])
                continue
            self.asked.append(message["params"])
            if self.answer is None:
                return message
            outcome = {"outcome": "selected", "optionId": self.answer}
            self.write({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}})

    def send(self, method: str, **params: Any) -> int:
        self._count += 1
        self.write({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
        return self._count

    def result(self, id: int, method: str) -> dict[str, Any]:
        message = self.receive()
        assert message.get("id") == id, message
        if "error" in message:
            raise Refused(message["error"]["message"])
        strictly(RESULTS[method], message["result"])
        return message["result"]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.result(self.send(method, **params), method)

    def begin(self, **params: Any) -> str:
        """Greet the agent and open a session; its id."""
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        return self.ask("session/new", **{"cwd": str(self.folder), "mcpServers": []} | params)["sessionId"]

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def text(self) -> str:
        """What the agent has written."""
        chunks = [each for each in self.updates if each["sessionUpdate"] == "agent_message_chunk"]
        return "".join(each["content"]["text"] for each in chunks)

    def kinds(self) -> list[str]:
        """The kinds of updates, each once where several follow one another."""
        kinds = [each["sessionUpdate"] for each in self.updates]
        return [kind for place, kind in enumerate(kinds) if not place or kinds[place - 1] != kind]
