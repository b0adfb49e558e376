"""`ToolSurface`: the tools of dialects for a program that has its own loop and its own model.

A surface is a hosted root run. Calls are made in its name, so that all that they start hangs in one tree, within one
policy and one budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.agent import ToolSpec
from retinue.core.commands import RunQuery
from retinue.core.errors import RunIsOver, TreeCancelled
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.inbox import Close
from retinue.core.messages import Message
from retinue.core.policy import Policy, allows
from retinue.core.ports import HostedCall, Tool, ToolResult
from retinue.core.run import HOST, Approval, Limits, is_hosted
from retinue.dialects import registry
from retinue.dialects.registry import DEFAULT
from retinue.engine import RunView
from retinue.tools.builtin import BUILTIN

GRACE = 1.0
"""Seconds that a call may take beyond `max_wait` before it is answered without its result."""

CLOSE_SECONDS = 5.0


class ToolHints(Struct, frozen=True):
    """What is true of all calls of a tool; None where that is not known.

    `destructive` and `open_world` of a tool that starts runs are about the tools that these runs may have.

    >>> ToolHints(read_only=True).destructive is None
    True
    """

    read_only: bool = False
    destructive: bool | None = None
    open_world: bool | None = None
    waits: bool = False


class SurfaceResult(Struct, frozen=True):
    """The result of a call: `text` is what the model should read, `failed` marks a refusal or a failure.

    >>> SurfaceResult('{"run":"r1","state":"working"}').failed
    False
    """

    text: str
    failed: bool = False


class _Call(NamedTuple):
    """A call at work, and what it has started."""

    task: asyncio.Task[ToolResult]
    host: HostedCall


class ToolSurface:
    """The delegation tools of one or more dialects, for a loop that is not retinue's; made by `retinue.surface`.

    >>> import asyncio, json, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("researcher", says("It has 10 connections.")))
    ...     team = [retinue.Agent(name="researcher", description="Looks things up")]
    ...     async with retinue.surface(provider=model, agents=team, home=retinue.MEMORY) as surface:
    ...         print([tool["name"] for tool in surface.anthropic()])
    ...         task = {"action": "spawn", "agent": "researcher", "task": "How large is the pool?"}
    ...         await surface.call("subagent", task)
    ...         await surface.call("subagent", {"action": "wait", "task_ids": ["t_01"]})
    ...         result = await surface.call("subagent", {"action": "collect", "task_id": "t_01"})
    ...         print(json.loads(result.text)["result"])
    >>> asyncio.run(main())
    ['subagent', 'shared_context']
    It has 10 connections.
    """

    def __init__(
        self,
        retinue: Retinue,
        run_id: RunId,
        session_id: SessionId,
        dialects: Sequence[str],
        *,
        identified: bool = True,
    ) -> None:
        self.run_id = run_id
        """The hosted root run."""
        self._retinue = retinue
        self._dialects = tuple(dialects)
        self._supervisor = retinue.supervisor
        self._session_id = session_id
        self._names = frozenset(name for dialect in dialects for name in registry.entry(dialect).tool_names)
        self._waiting: dict[tuple[str, str], _Call] = {}
        """Calls that took longer than their caller waits, by tool and arguments."""
        self._is_left = False
        self._identified = identified
        """Whether there is one caller; several ones that are not told apart cannot list runs or join calls."""

    # Definitions

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools with their descriptions and JSON Schemas."""
        live = self._supervisor.live(self.run_id)
        if live is None:
            raise TreeCancelled(self.run_id)
        return tuple(spec for spec in live.tool_specs if spec.name in self._names)

    def openai(self, *, responses: bool = False) -> list[dict[str, Any]]:
        """The tools as OpenAI's chat completions take them, or with `responses` as its Responses API does."""
        functions = [
            {"name": spec.name, "description": spec.description, "parameters": _schema(spec)} for spec in self.tools
        ]
        if responses:
            return [{"type": "function", **function} for function in functions]
        return [{"type": "function", "function": function} for function in functions]

    def anthropic(self) -> list[dict[str, Any]]:
        """The tools as Anthropic's Messages API takes them."""
        return [
            {"name": spec.name, "description": spec.description, "input_schema": _schema(spec)} for spec in self.tools
        ]

    def gemini(self) -> list[dict[str, Any]]:
        """The tools as Gemini's `generateContent` takes them: one entry with all declarations."""
        declarations = [
            {"name": spec.name, "description": spec.description, "parametersJsonSchema": _schema(spec)}
            for spec in self.tools
        ]
        return [{"functionDeclarations": declarations}]

    def hints(self) -> dict[str, ToolHints]:
        """What is true of all calls of each tool."""
        below = self._tools_below()
        destructive = any(tool.kind != "pure" for tool in below)
        open_world = any(not _is_closed(tool) for tool in below)
        found: dict[str, ToolHints] = {}
        for spec in self.tools:
            tool = self._retinue.find_tool(spec.name, self._dialects)
            assert tool is not None
            match tool.effect:
                case _ if tool.kind == "pure":
                    hints = ToolHints(read_only=True, destructive=False, open_world=False, waits=tool.waits)
                case "starts":
                    hints = ToolHints(destructive=destructive, open_world=open_world, waits=tool.waits)
                case "stops":
                    hints = ToolHints(destructive=True, open_world=False)
                case _:
                    hints = ToolHints(waits=tool.waits)
            found[spec.name] = hints
        return found

    def _tools_below(self) -> list[Tool]:
        """The tools that runs of this surface may have, without those of its dialects.

        An agent program is among them whatever the policy is: it can act before it says so.
        """
        live = self._supervisor.live(self.run_id)
        if live is None:
            raise TreeCancelled(self.run_id)
        named = (*live.run.run_spec.offered, *(name for agent in self._retinue.agents.values() for name in agent.tools))
        names = (name for name in dict.fromkeys(named) if name not in self._names and allows(live.run.policy, name))
        offered = [tool for name in names if (tool := self._retinue.find_tool(name, self._dialects)) is not None]
        return offered + self._retinue.providers.own_tools()

    async def runs(self) -> list[RunView]:
        """The runs below the hosted root runs of the session, newest first; none for callers without an identity."""
        if not self._identified:
            return []
        roots = await self._supervisor.stored.runs(RunQuery(session_id=self._session_id, roots_only=True))
        hosted = {row.run_id for row in roots if is_hosted(row.label)}
        every = await self._supervisor.list(RunQuery(session_id=self._session_id))
        return [view for view in every if view.root_id in hosted and view.parent_id is not None]

    async def find(self, run_id: RunId) -> RunView | None:
        """One of these runs; None for an id of another session, and for an unknown one."""
        view = await self._supervisor.look(run_id)
        if view is None or view.session_id != self._session_id or view.parent_id is None:
            return None
        root = await self._supervisor.stored.run(view.root_id)
        return view if root is not None and is_hosted(root.label) else None

    async def questions(self) -> list[Approval]:
        """The tool calls of these runs that wait for a person; none for callers without an identity."""
        if not self._identified:
            return []
        found: list[Approval] = []
        for row in await self._supervisor.stored.runs(RunQuery(session_id=self._session_id, phase="parked")):
            if await self.find(row.run_id) is not None:
                found += await self._supervisor.open_questions(row.run_id)
        return found

    async def messages(self, run_id: RunId) -> Sequence[Message]:
        """The conversation of a run; raises `UnknownName`, or `NotKept` if it was deleted."""
        return (await self._supervisor.replay(run_id)).history

    # Calls

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        key: Key | None = None,
        max_wait: float | None = None,
    ) -> SurfaceResult:
        """Make one call and return its result; whatever a model wrote is answered, never raised.

        - `arguments`: an object, or the text that the model wrote.
        - `key`: identifies the call. A call with a key that was used before continues what it had begun, also in an
          earlier process: pass the id that your own record has for the call.
        - `max_wait`: seconds after which the call returns although runs go on; the result says which call is next.

        Cancelling this cancels the runs that the call has started and waits for.
        """
        if name not in self._names:
            listed = ", ".join(spec.name for spec in self.tools)
            return SurfaceResult(f"There is no tool named {name[:100]!r}. Valid: {listed}.", failed=True)
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        joined = self._waiting.pop((name, text), None) if self._identified else None
        call = joined or self._begin(name, text, key, max_wait)
        try:
            await asyncio.wait({call.task}, timeout=None if max_wait is None else max_wait + GRACE)
        except asyncio.CancelledError:
            await self._cancel(call)
            raise
        if not call.task.done():
            self._keep(name, text, call)
            return SurfaceResult(_unfinished(name, call.host.started))
        result = call.task.result()
        return SurfaceResult(result.text, result.failed)

    def _keep(self, name: str, text: str, call: _Call) -> None:
        """Own a call that goes on, until the same call is made again, or for callers without an identity its end."""
        if self._identified:
            self._waiting[name, text] = call
            return
        place = (name, self._supervisor.new_id())
        self._waiting[place] = call
        call.task.add_done_callback(lambda _: self._waiting.pop(place, None))

    def _begin(self, name: str, arguments: str, key: Key | None, max_wait: float | None) -> _Call:
        host = HostedCall(max_wait=max_wait, identified=self._identified)
        # A key of the caller is valid in its session, also in a later process; another one is used once.
        full_key = f"{self._session_id}/call/{key}" if key is not None else f"{self.run_id}/{self._supervisor.new_id()}"
        work = self._supervisor.call_for_host(
            self.run_id, name, arguments, key=full_key, host=host, again=key is not None
        )
        return _Call(asyncio.get_running_loop().create_task(work, name=f"retinue-call-{name}"), host)

    async def _cancel(self, call: _Call) -> None:
        """Stop a call whose caller is gone, and the runs that it waits for; not if the whole surface is left."""
        call.task.cancel()
        await asyncio.wait({call.task})
        for run_id in () if self._is_left else tuple(call.host.started):
            accepted = await self._supervisor.acceptance(run_id)
            if accepted is not None and accepted.lifecycle.awaited:
                await self._supervisor.cancel(run_id, note="the caller cancelled its call")

    def leave(self) -> None:
        """Let the runs go on whose calls are cancelled from now on: the process ends, or the client is gone."""
        self._is_left = True

    async def close(self) -> None:
        """End the hosted run. Children that still work keep it open; a later process can go on with them."""
        self.leave()
        tasks = [call.task for call in self._waiting.values()]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        live = self._supervisor.live(self.run_id)
        if live is None:
            return
        with suppress(RunIsOver):
            await self._supervisor.post(self.run_id, Close(key="close"), durable=True)
        if not live.children:
            await self._supervisor.wait([self.run_id], timeout=CLOSE_SECONDS)


_CLOSED_MODULES = frozenset(f"retinue.tools.{name}" for name in ("search", "files", "todo", "memory", "artifacts"))


def _is_closed(tool: Tool) -> bool:
    """Whether a tool only reads what is on this machine, as far as is known of the built-in ones."""
    return tool.kind == "pure" and BUILTIN.get(tool.spec.name) in _CLOSED_MODULES


def _schema(spec: ToolSpec) -> dict[str, Any]:
    return msgspec.json.decode(spec.parameters)


def _unfinished(name: str, started: Sequence[RunId]) -> str:
    """The answer about a call that goes on: the run, its state, and the next call."""
    runs: dict[str, object] = {"run": started[0]} if started else {}
    sentence = f"Call {name} again with the same arguments to go on waiting."
    return msgspec.json.encode({**runs, "state": "working", "next": sentence}).decode()


async def host(
    retinue: Retinue,
    *,
    dialects: Sequence[str],
    agent: str | None = None,
    tools: Sequence[str] | None = None,
    model: str | None = None,
    limits: Limits | None = None,
    policy: Policy | None = None,
    session: str | None = None,
    ceiling: bool = True,
    label: str = HOST,
    identified: bool = True,
) -> ToolSurface:
    """Start a hosted root run in an open retinue and return its surface; the arguments are those of `Retinue.host`.

    With `identified=False` the surface is for several callers that are not told apart, and shows none the others' runs.
    """
    run_id = await retinue.host(
        dialects=dialects,
        agent=agent,
        tools=tools,
        model=model,
        limits=limits,
        policy=policy,
        session=session,
        ceiling=ceiling,
        label=label,
    )
    return ToolSurface(retinue, run_id, session or retinue.session_id, dialects, identified=identified)


def surface(
    *dialects: str,
    run_tools: Sequence[str] | None = None,
    limits: Limits | None = None,
    session: str | None = None,
    **options: Any,
) -> AbstractAsyncContextManager[ToolSurface]:
    """Offer the tools of dialects to a program with its own loop: `async with retinue.surface(...) as surface`.

    - `dialects`: names of dialects, by default the one of `retinue.open`.
    - `run_tools`: names of the tools that the runs below may have; all tools of the retinue by default.
    - `limits`: limits of all runs together.
    - `session`: the session with its agents, shared context and runs; by default a new one.
    - `options`: the arguments of `retinue.open`, such as `model`, `agents`, `tools`, `policy` and `home`.

    Runs that still work when the block ends stay in the store, and can be resumed.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider
    >>> async def main() -> list[str]:
    ...     async with surface(provider=ScriptedProvider(Script()), home=retinue.MEMORY) as tools:
    ...         return [spec.name for spec in tools.tools]
    >>> asyncio.run(main())
    ['subagent', 'shared_context']
    """
    return _opened(dialects or (DEFAULT,), run_tools, limits, session, options)


@asynccontextmanager
async def _opened(
    dialects: tuple[str, ...],
    run_tools: Sequence[str] | None,
    limits: Limits | None,
    session: str | None,
    options: dict[str, Any],
) -> AsyncGenerator[ToolSurface]:
    async with open_retinue(dialects=dialects, session=session, **options) as retinue:
        made = await host(retinue, dialects=dialects, tools=run_tools, limits=limits, session=session)
        try:
            yield made
        finally:
            await made.close()
