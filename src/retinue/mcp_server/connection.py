"""One MCP client: its calls, resources and prompts, on a surface of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.engine_types import RunView
from retinue.app.json_rows import run_row
from retinue.app.retinue import Retinue
from retinue.app.surface import SurfaceResult, ToolSurface
from retinue.core.errors import BadInput, RetinueError, UnknownName
from retinue.core.messages import AssistantMessage, Message
from retinue.core.run import Approval
from retinue.core.text import name_list, rfc3339
from retinue.mcp_server import answers
from retinue.mcp_server.sampling import SamplingProvider

PROGRESS_SECONDS = 2.0
"""Time between two progress notifications of a call that waits."""

LOOK_SECONDS = 1.0
"""Time between two looks at approvals and at resources."""

SCHEME = "retinue://runs/"
MAX_LISTED, MAX_WATCHED, MAX_PAUSED = 50, 100, 100

ReportProgress = Callable[[float, str], Awaitable[None]]
"""Sends a progress notification: seconds since the begin of the call, and a sentence."""


RUN, RESULT, CANCEL = "run_agent", "agent_result", "cancel_agent"
"""Tools of the dialect that hosts get by default, with which tasks are started, read and cancelled."""

ENDED = ("completed", "failed", "timed_out", "exhausted")

Ask = Callable[[Approval], Awaitable[bool | None]]
"""Asks a person whether a tool call may be made; None if there is no answer."""


class PausedCall(NamedTuple):
    """A call that waits for answers of a person; the token continues it."""

    token: str
    questions: tuple[Approval, ...]


class _PausedCall(Struct, frozen=True):
    name: str
    call: asyncio.Task[SurfaceResult]
    questions: tuple[Approval, ...] = ()
    asked: frozenset[str] = frozenset()


class ClientConnection:
    """What one client can ask for. Errors about its requests are `BadInput`."""

    def __init__(
        self, retinue: Retinue, surface: ToolSurface, *, max_wait: float, sampling: SamplingProvider | None = None
    ) -> None:
        self.sampling = sampling
        """Answers model requests with the model of the client; None where there are several clients."""
        self.log_level: str | None = None
        """The least severe level of log messages that the client asked for; it is sent none before that."""
        self._retinue = retinue
        self._surface = surface
        self._max_wait = max_wait
        self._ending: set[asyncio.Task[Any]] = set()
        self._asking: set[str] = set()
        """Approvals about which the person at the client is asked now."""
        self._paused: dict[str, _PausedCall] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """End the client's root run. Runs that still work are left to a later process."""
        self._surface.leave()
        tasks = (*self._ending, *self._watching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._surface.close()

    def leave(self) -> None:
        """The client is gone: calls that are cancelled from now on leave their runs at work."""
        self._surface.leave()

    # Tools

    def tool_list(self) -> dict[str, Any]:
        return answers.tool_list(self._surface)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        report: ReportProgress,
        *,
        ask: Ask | None = None,
        pauses: bool = False,
    ) -> dict[str, Any] | PausedCall:
        """Make a call, with a progress notification every two seconds.

        - `ask`: asks the person at the client about a tool call that waits for approval; None if the client cannot.
        - `pauses`: return such questions instead, as a `PausedCall`; `resume` goes on with the call.

        When this is cancelled, so are the runs that the call waits for. They are stopped by a task of their own: the
        cancelled one may not wait for anything any more.
        """
        call = asyncio.get_running_loop().create_task(self._surface.call(name, arguments, max_wait=self._max_wait))
        self._ending.add(call)
        call.add_done_callback(self._ending.discard)
        return await self._waited(_PausedCall(name, call), report, ask=ask, pauses=pauses)

    async def resume(
        self, token: str, given: Mapping[str, bool | None], report: ReportProgress
    ) -> dict[str, Any] | PausedCall:
        """Go on with a call that was paused: answer its questions, and wait for its result."""
        paused = self._paused.pop(token, None)
        if paused is None:
            return _failed("This call is not known any more: list_agents shows its run.")
        for question in paused.questions:
            if (allow := given.get(question.id)) is not None:
                await self._answer(question, allow=allow)
        return await self._waited(replace(paused, questions=()), report, ask=None, pauses=True)

    async def _waited(
        self, paused: _PausedCall, report: ReportProgress, *, ask: Ask | None, pauses: bool
    ) -> dict[str, Any] | PausedCall:
        call, loop = paused.call, asyncio.get_running_loop()
        asking = None if ask is None else loop.create_task(self._ask(ask))
        began, reported = loop.time(), 0.0
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=LOOK_SECONDS)
                seconds = loop.time() - began
                if not call.done() and seconds - reported >= PROGRESS_SECONDS - LOOK_SECONDS / 2:
                    reported = seconds
                    await report(seconds, f"{paused.name} has been at work for {seconds:.0f} s")
                if pauses and not call.done() and (questions := await self._new_questions(paused.asked)):
                    return self._pause(paused, questions)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        try:
            return answers.call_result(call.result())
        except RetinueError as error:
            return _failed(str(error))

    # Approvals

    def _pause(self, paused: _PausedCall, questions: list[Approval]) -> PausedCall:
        token = secrets.token_urlsafe(16)
        asked = paused.asked | {question.id for question in questions}
        self._paused[token] = replace(paused, questions=tuple(questions), asked=asked)
        while len(self._paused) > MAX_PAUSED:
            self._paused.pop(next(iter(self._paused)))
        return PausedCall(token, tuple(questions))

    async def _new_questions(self, asked: Set[str]) -> list[Approval]:
        return [question for question in await self._surface.questions() if question.id not in asked]

    async def _ask(self, ask: Ask) -> None:
        """Ask about each tool call that waits for approval, once in this call, one after the other."""
        asked: set[str] = set()
        while True:
            for question in await self._new_questions(asked | self._asking):
                asked.add(question.id)
                self._asking.add(question.id)
                try:
                    if (allow := await ask(question)) is not None:
                        await self._answer(question, allow=allow)
                finally:
                    self._asking.discard(question.id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, question: Approval, *, allow: bool) -> None:
        with suppress(UnknownName):  # another person was faster
            await self._retinue.approve(question, allow=allow, note="" if allow else "denied in the MCP host")

    # Tasks: a run of run_agent is the task of its call, and the run's id the id of the task

    async def start_task(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run as a task; the result of the call itself if it is refused."""
        started = await self._surface.call(RUN, {**arguments, "background": True}, max_wait=self._max_wait)
        if started.failed:
            return answers.call_result(started)
        return {"resultType": "task", **await self.task(msgspec.json.decode(started.text)["run"], asks=False)}

    async def task(self, task_id: str, *, asks: bool) -> dict[str, Any]:
        """The state of a task, with its result if it has ended; with `asks` also its open questions."""
        view = await self._task_run(task_id)
        result = await self._surface.call(RESULT, {"run": task_id})
        state = "failed" if result.failed else str(msgspec.json.decode(result.text)["state"])
        task: dict[str, Any] = {
            "taskId": task_id,
            "status": state if state == "cancelled" else "completed" if state in ENDED else "working",
            "statusMessage": state,
            "createdAt": rfc3339(view.started_at),
            "lastUpdatedAt": rfc3339(time.time() if view.ended_at is None else view.ended_at),
            "ttlMs": None,
            "pollIntervalMs": round(PROGRESS_SECONDS * 1000),
        }
        if task["status"] == "completed":
            ended = SurfaceResult(result.text, failed=state != "completed")
            return task | {"result": answers.call_result(ended)}
        questions = [each for each in await self._surface.questions() if asks and _is_below(each, view)]
        if questions and task["status"] == "working":
            requests = {question.id: answers.question_request(question) for question in questions}
            return task | {"status": "input_required", "inputRequests": requests}
        return task

    async def answer_task(self, task_id: str, given: Mapping[str, bool | None]) -> None:
        """Answer questions of a task."""
        view = await self._task_run(task_id)
        for question in await self._surface.questions():
            allow = given.get(question.id)
            if allow is not None and _is_below(question, view):
                await self._answer(question, allow=allow)

    async def cancel_task(self, task_id: str) -> None:
        await self._task_run(task_id)
        await self._surface.call(CANCEL, {"run": task_id})

    async def _task_run(self, task_id: str) -> RunView:
        view = await self._surface.find(task_id)
        if view is None:
            raise BadInput(f"There is no task {task_id[:100]!r}.")
        return view

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

    # Completion

    async def completions(self, uri: str, argument: str, begun: str) -> dict[str, Any]:
        """Ids of runs for the template `uri`; no values for all else: a task is free text."""
        if not uri.startswith(SCHEME) or argument != "id":
            return answers.completion(())
        return answers.completion([view.run_id for view in await self._surface.runs() if view.run_id.startswith(begun)])

    # Resources

    async def watch(self, uris: Sequence[str], changed: Callable[[str], Awaitable[None]]) -> None:
        """Call `changed` with each of these resources that has changed; runs until it is cancelled."""
        marks = {uri: await self._mark(uri) for uri in uris[:MAX_WATCHED]}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for uri, before in tuple(marks.items()):
                if (now := await self._mark(uri)) != before:
                    marks[uri] = now
                    await changed(uri)

    async def subscribe(self, uri: str, changed: Callable[[str], Awaitable[None]]) -> None:
        """Watch a resource until `unsubscribe`; raises `BadInput` for one that the client does not have."""
        await self.resource(uri)
        if uri not in self._watching and len(self._watching) < MAX_WATCHED:
            self._watching[uri] = asyncio.get_running_loop().create_task(self.watch([uri], changed))

    def unsubscribe(self, uri: str) -> None:
        if (task := self._watching.pop(uri, None)) is not None:
            task.cancel()

    async def _mark(self, uri: str) -> object:
        """A value that differs if the resource does."""
        run_id, _, part = uri.removeprefix(SCHEME).partition("/")
        view = await self._surface.find(run_id) if uri.startswith(SCHEME) else None
        if view is None:
            return None
        views = [view, *(await self._below(view) if part == "tree" else ())]
        return [(each.run_id, each.state, each.waiting_for, each.turns, each.outcome is None) for each in views]

    async def _below(self, view: RunView) -> list[RunView]:
        below = [each for each in await self._surface.runs() if each.path.startswith(f"{view.path}/")]
        return [each for each in below if each.root_id == view.root_id]

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
            rows = [run_row(each) for each in (view, *await self._below(view))]
            return _content(uri, "application/json", msgspec.json.encode(rows).decode())
        outcome = view.outcome
        row = run_row(view) | {
            "answer": None if outcome is None else outcome.text,
            "error": None if outcome is None else outcome.error,
        }
        return _content(uri, "application/json", msgspec.json.encode(row).decode())


def _is_below(question: Approval, view: RunView) -> bool:
    return question.run_id == view.run_id or question.path.startswith(f"{view.path}/")


def _failed(text: str) -> dict[str, Any]:
    return answers.call_result(SurfaceResult(msgspec.json.encode({"error": text}).decode(), failed=True))


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
