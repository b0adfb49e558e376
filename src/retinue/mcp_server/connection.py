"""One MCP client: its calls, resources and prompts, on a surface of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from retinue.app.json_rows import run_row
from retinue.app.retinue import Retinue
from retinue.app.surface import ToolSurface
from retinue.core.errors import BadInput, RetinueError
from retinue.core.messages import AssistantMessage, Message
from retinue.core.text import name_list
from retinue.mcp_server import answers

PROGRESS_SECONDS = 2.0
"""Time between two progress notifications of a call that waits."""

SCHEME = "retinue://runs/"
MAX_LISTED = 50

Report = Callable[[float, str], Awaitable[None]]
"""Sends a progress notification: seconds since the begin of the call, and a sentence."""


class Connection:
    """What one client can ask for. Errors about its requests are `BadInput`."""

    def __init__(self, retinue: Retinue, surface: ToolSurface, *, max_wait: float) -> None:
        self._retinue = retinue
        self._surface = surface
        self._max_wait = max_wait
        self._ending: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End the client's root run. Runs that still work are left to a later process."""
        self._surface.leave()
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._surface.close()

    def leave(self) -> None:
        """The client is gone: calls that are cancelled from now on leave their runs at work."""
        self._surface.leave()

    # Tools

    def tool_list(self) -> dict[str, Any]:
        return answers.tool_list(self._surface)

    async def call(self, name: str, arguments: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """Make a call, with a progress notification every two seconds.

        When this is cancelled, so are the runs that the call waits for. They are stopped by a task of their own: the
        cancelled one may not wait for anything any more.
        """
        call = asyncio.get_running_loop().create_task(self._surface.call(name, arguments, max_wait=self._max_wait))
        self._ending.add(call)
        call.add_done_callback(self._ending.discard)
        began = asyncio.get_running_loop().time()
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=PROGRESS_SECONDS)
                if not call.done():
                    seconds = asyncio.get_running_loop().time() - began
                    await report(seconds, f"{name} has been at work for {seconds:.0f} s")
        except asyncio.CancelledError:
            call.cancel()
            raise
        try:
            return answers.call_result(call.result())
        except RetinueError as error:
            text = msgspec.json.encode({"error": str(error)}).decode()
            return answers.call_result(answers.SurfaceResult(text, failed=True))

    # Prompts

    def prompt_list(self) -> dict[str, Any]:
        return answers.prompt_list(self._retinue.agents.values())

    def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        agent = self._retinue.agents.get(name)
        if agent is None:
            raise BadInput(f"There is no prompt {name[:100]!r}. Valid: {name_list(tuple(self._retinue.agents))}.")
        if not arguments.get("task"):
            raise BadInput("The argument 'task' is missing.")
        return answers.prompt(agent, arguments["task"])

    # Resources

    async def resource_list(self) -> dict[str, Any]:
        """The results of the latest runs."""
        runs = (await self._surface.runs())[:MAX_LISTED]
        resources = [
            {"uri": f"{SCHEME}{view.run_id}", "name": f"{view.agent} {view.run_id}", "mimeType": "application/json"}
            for view in runs
        ]
        return {"resources": resources, "resultType": "complete"}

    def resource_templates(self) -> dict[str, Any]:
        listed = [
            ("{id}", "run", "State, outcome and answer of a run.", "application/json"),
            ("{id}/transcript", "transcript", "The conversation of a run.", "text/plain"),
            ("{id}/tree", "tree", "A run and all below it.", "application/json"),
        ]
        templates = [
            {"uriTemplate": f"{SCHEME}{path}", "name": name, "description": about, "mimeType": kind}
            for path, name, about, kind in listed
        ]
        return {"resourceTemplates": templates, "resultType": "complete"}

    async def resource(self, uri: str) -> dict[str, Any]:
        """The content of a resource; raises `BadInput` for one that the client does not have."""
        run_id, _, part = uri.removeprefix(SCHEME).partition("/")
        view = await self._surface.find(run_id) if uri.startswith(SCHEME) else None
        if view is None or part not in ("", "transcript", "tree"):
            raise BadInput(f"There is no resource {uri[:200]!r}. Valid: {SCHEME}ID, .../transcript and .../tree.")
        if part == "transcript":
            text = "\n\n".join(map(_line, await self._surface.messages(run_id)))
            return _content(uri, "text/plain", text)
        if part == "tree":
            below = [each for each in await self._surface.runs() if each.path.startswith(f"{view.path}/")]
            rows = [run_row(each) for each in (view, *below) if each.root_id == view.root_id]
            return _content(uri, "application/json", msgspec.json.encode(rows).decode())
        outcome = view.outcome
        row = run_row(view) | {
            "answer": None if outcome is None else outcome.text,
            "error": None if outcome is None else outcome.error,
        }
        return _content(uri, "application/json", msgspec.json.encode(row).decode())


def _content(uri: str, kind: str, text: str) -> dict[str, Any]:
    return {"contents": [{"uri": uri, "mimeType": kind, "text": text}], "resultType": "complete"}


def _line(message: Message) -> str:
    """A message of a transcript: its role, its text, and the names of its calls."""
    role = type(message).__name__.removesuffix("Message").lower()
    calls = (
        [f"[calls {call.name} {call.arguments}]" for call in message.calls]
        if isinstance(message, AssistantMessage)
        else []
    )
    return f"{role}: " + "\n".join(part for part in (message.text, *calls) if part)
