"""One call of a model at a whole address: a run in memory, whose events are passed to an output as they happen.

It is what `retinue call` does with a JSON request on stdin, and `retinue buzz` with its arguments. A parent that is
retinue itself passes a grant on an inherited descriptor: what this process may do and use. Without a grant it may read,
and change nothing. Signals, stdout and exit codes are the commands'.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.open import default_home, tool_dependencies
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.agent import Output, RunSpec
from retinue.core.errors import BadInput, Refused, UnknownName
from retinue.core.events import Event, ReplyReceived
from retinue.core.messages import Delta, TextDelta
from retinue.core.policy import NO_ACTIONS_LEFT, Autonomy, Policy
from retinue.core.ports import CallContext, PreparedCall, Tool, ToolResult, ToolWrapper
from retinue.core.run import Outcome
from retinue.core.text import NOT_JSON
from retinue.core.usage import NO_USAGE, add_cost
from retinue.dialects import child_process, registry
from retinue.engine import SpawnRequest
from retinue.providers.catalog import (
    WIRES,
    ProviderConfig,
    check_key_address,
    check_temperature,
    create_provider,
    provider_class_of,
    provider_config,
)
from retinue.store.memory import MemoryStore
from retinue.tools.builtin import Builtin
from retinue.tools.dependencies import NoKeyValue, ToolDependencies
from retinue.tools.path_walk import Workspaces

if TYPE_CHECKING:
    from retinue.config.settings import Settings

PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "vertexai-anthropic")


class ResolvedCall(Struct, frozen=True, kw_only=True):
    """A request with a value for every field that was left out."""

    model: str
    provider: str
    url: str
    api_key_name: str
    prompt: str
    system_prompt: str
    tools: tuple[str, ...]
    think: bool
    temperature: float
    max_tokens: int | None
    delegation: tuple[str, ...] = ()
    """Tools with which the model delegates."""
    output: Output | None = None


def read_request(stdin: bytes) -> ResolvedCall:
    """The request in these bytes; raises `BadInput` with what is wrong with it.

    >>> call = read_request(b'{"model": "m", "provider": "anthropic", "url": "http://host/messages", "prompt": "Hi"}')
    >>> call.temperature, call.max_tokens, call.tools, call.api_key_name
    (0.8, None, (), '')
    """
    try:
        request = msgspec.json.decode(stdin, type=child_process.CallRequest)
    except NOT_JSON as error:
        raise BadInput(f"the request on stdin is not valid: {error}") from None
    return _resolve(request)


def _resolve(request: child_process.CallRequest) -> ResolvedCall:
    if request.provider not in PROVIDERS:
        raise UnknownName("provider", request.provider[:200], PROVIDERS)
    return ResolvedCall(
        model=request.model,
        provider=request.provider,
        url=request.url,
        api_key_name=(request.api_key_name or "").strip(),
        prompt=request.prompt,
        system_prompt=request.system_prompt or "",
        tools=_tool_names(request),
        think=bool(request.think),
        temperature=child_process.DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        max_tokens=request.max_tokens,
    )


def _tool_names(request: child_process.CallRequest) -> tuple[str, ...]:
    processes = registry.entry(registry.CALL).processes
    assert processes is not None
    try:
        return processes.tools.load()(request.tool_subset)
    except Refused as unknown:
        raise BadInput(str(unknown)) from None


# ---- the parent process ----------------------------------------------------------------------------------------------

STOP_SECONDS = 2.0
"""Seconds that the work has to stop when the parent is gone, before this process group is killed."""


class Parent:
    """The process that holds the other ends of the two descriptors: `grant` to read from it, `usage` to write to it."""

    def __init__(self, grant: int, usage: int | None) -> None:
        self._grant = grant
        self._usage = usage
        self._questions: deque[asyncio.Future[bool]] = deque()

    def watch(self, asked_to_stop: asyncio.Event) -> None:
        """Stop when the parent closes the grant or has exited; then leave in any case, whatever hangs here."""
        loop = asyncio.get_running_loop()

        def listen() -> None:
            with suppress(OSError, RuntimeError):  # RuntimeError: the loop is closed, the work is done
                while answers := os.read(self._grant, 4096):
                    loop.call_soon_threadsafe(self._receive, answers)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(asked_to_stop.set)
            time.sleep(STOP_SECONDS)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=listen, name="retinue-parent", daemon=True).start()

    def _receive(self, answers: bytes) -> None:
        for answer in answers:
            if self._questions and not (question := self._questions.popleft()).done():
                question.set_result(answer == child_process.YES[0])

    async def may_act(self) -> bool:
        """Ask for one more action; the parent counts it as its own."""
        if self._usage is None:
            return False
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        try:
            os.write(self._usage, child_process.MAY_I_ACT)
        except OSError:
            return False  # the parent has exited
        return await question

    def report(self, tally: child_process.Tally) -> None:
        """Write what was used so far."""
        if self._usage is not None:
            with suppress(OSError):  # the parent has exited
                os.write(self._usage, tally.line())


class CountedTool(ToolWrapper):
    """A tool that asks the parent before each of its actions."""

    def __init__(self, tool: Tool, parent: Parent) -> None:
        super().__init__(tool)
        self._parent = parent

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        if call.risk.acts and not await self._parent.may_act():
            return ToolResult(NO_ACTIONS_LEFT, failed=True)
        return await call.run(context)


class CallOutput(Protocol):
    """Where the events of a call go."""

    async def follow(self, events: AsyncIterator[Event | Delta], /) -> None:
        """Write events as they come, until there are no more."""

    def end(self, outcome: Outcome | None, /) -> None:
        """Write how the call ended; None for one that was stopped."""

    async def closed(self) -> None:
        """Return when the reader of the output is gone; raises what writing raised."""

    async def close(self) -> None:
        """Wait until everything is written; raises what writing raised."""


# ---- the call --------------------------------------------------------------------------------------------------------

ROUNDS = 10
"""Turns with tool calls; a request for more is an error."""

AGENT = "subagent"
NEEDED_LATER = ("uvloop", "retinue.sandbox.probe")


def read_call(stdin: BinaryIO) -> OneCall | None:
    """Read the grant and the request; None if the parent left without a grant. Raises `BadInput` for a bad request."""
    granted, usage = child_process.inherited(child_process.GRANT_FD), child_process.inherited(child_process.USAGE_FD)
    grant = None
    if granted is not None:
        if not select.select([granted], [], [], 0)[0]:  # the grant is not there yet
            _preload()
        grant = child_process.read_grant(granted)
        if grant is None:
            return None
    request = read_request(stdin.read())
    if grant is not None:  # the parent has decided where its key goes
        return _call(request, grant, None if granted is None else Parent(granted, usage))
    return _call_without_parent(request)


def command_call(request: child_process.CallRequest, *, output: Output | None = None) -> OneCall:
    """The call of a command line; raises `BadInput` for a bad request.

    The system prompt may be the name of a prompt. If tools belong to that prompt, the model has them and can delegate.
    """
    named = registry.prompt_named(request.system_prompt or "")
    resolved = _resolve(replace(request, system_prompt=named.text, tool_subset=named.tools))
    delegation = registry.entry(registry.CALL).tool_names if named.tools else ()
    resolved = replace(resolved, delegation=delegation, output=output)
    call = _call_without_parent(resolved)
    check_temperature(call.provider, resolved.temperature)
    return call


def _call(request: ResolvedCall, grant: child_process.Grant, parent: Parent | None) -> OneCall:
    return OneCall(request, grant, _provider(request, grant.reaching), parent)


def _call_without_parent(request: ResolvedCall) -> OneCall:
    """The call of a person or another program; raises `BadInput` for a key that may not go to the address."""
    settings = _settings_here()
    call = _call(request, _default_grant(request, settings), None)
    check_key_address(call.provider, () if settings is None else _configured(settings))
    return call


def _configured(settings: Settings) -> tuple[ProviderConfig, ...]:
    from retinue.app.settings_file import provider_configs

    return provider_configs(settings)


def _preload() -> None:
    """Import what may be needed, while the parent does not wait."""
    for provider in PROVIDERS:
        with suppress(ImportError):
            provider_class_of(WIRES[provider])
    for name in NEEDED_LATER:
        with suppress(ImportError):
            import_module(name)


def _settings_here() -> Settings | None:
    """The settings of the current folder; None if it has none, and nothing is imported to find out."""
    if not any(os.path.lexists(f"retinue.{kind}") for kind in ("toml", "yaml", "yml")):
        return None
    from retinue.app.settings_file import load_settings

    return load_settings(user=False)


def _default_grant(request: ResolvedCall, settings: Settings | None) -> child_process.Grant:
    """What a call without a grant may do: read, in the current folder.

    Of the settings of the folder, those about tools count, and how Responses are written.
    """
    plain = child_process.Grant(
        run_id="", policy=Policy(autonomy=Autonomy.READONLY), workspace=str(Path.cwd()), home=str(default_home())
    )
    if settings is None:
        return plain
    known = settings.providers.get(request.provider)
    reaching = child_process.Reaching(
        wire=request.provider, url=request.url, responses_wire=known.responses_wire if known is not None else None
    )
    return replace(plain, tool_options=settings.tool_options, reaching=reaching)


def _provider(request: ResolvedCall, known: child_process.Reaching | None) -> ProviderConfig:
    """The provider to use, at exactly the address of the request."""
    return provider_config(
        request.provider,
        wire=(known.configured_wire if known is not None else "") or request.provider,
        base_url=request.url,
        api_key_env=request.api_key_name,
        headers=known.headers if known is not None else None,
        prices=known.prices if known is not None else None,
        responses_wire=known.responses_wire if known is not None else None,
        calls_in_text=known is not None and known.calls_in_text,
        full_url=True,
    )


@dataclass(frozen=True, slots=True)
class OneCall:
    """One call, read and checked: open a retinue for it, then answer with that."""

    request: ResolvedCall
    grant: child_process.Grant
    provider: ProviderConfig
    parent: Parent | None

    def check_key(self, flag: str) -> None:
        """Raise `BadInput` if the environment variable of the key is not set; `flag` names it."""
        from retinue.app.launch.model_choice import check_key  # here, because `retinue call` has to start quickly

        check_key(self.provider, os.environ, flag=flag)

    def open(self) -> Retinue:
        """A retinue in memory, with the provider and the tools of the call and no others."""
        if self.grant.trace:
            os.environ["TRACEPARENT"] = self.grant.trace  # also for the processes that this one starts
        return open_retinue(
            provider=self.provider.name,
            providers={self.provider.name: create_provider(self.provider, explicit=True)},
            provider_configs=(self.provider,),  # of the processes to which the model delegates
            tools=_tools(self.request, self.grant, self.parent),
            tool_options=self.grant.tool_options,
            policy=self.grant.policy,
            dialects=_dialects(self.request),
            store=MemoryStore(),
            home=self.grant.home or None,
        )

    async def answer(
        self, retinue: Retinue, open_output: Callable[[], CallOutput], asked_to_stop: asyncio.Event
    ) -> Outcome | None:
        """How the call ended; None if it was stopped, or its output was not read to the end."""
        if self.parent is not None:
            self.parent.watch(asked_to_stop)
        async with retinue:
            spawn_request = _spawn_request(self.request, self.provider, self.grant)
            started = await retinue.supervisor.spawn(spawn_request, session_id=retinue.session_id)
            run = RunHandle(retinue.supervisor, started.run_id)
            return await self._follow(run, open_output(), asked_to_stop)

    async def _follow(self, run: RunHandle, output: CallOutput, asked_to_stop: asyncio.Event) -> Outcome | None:
        """Write the run's events until it ends, the reader is gone, or the process is asked to stop."""
        working = asyncio.ensure_future(run.wait())
        following = asyncio.ensure_future(output.follow(self._counted(run.events())))
        others = (asyncio.ensure_future(output.closed()), asyncio.ensure_future(asked_to_stop.wait()))
        outcome = None
        try:
            await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                outcome = working.result()
                await following
                self._report(_tally(outcome))
        finally:
            for task in (working, following, *others):
                task.cancel()
            await asyncio.gather(working, following, *others, return_exceptions=True)
            # In this contract an empty text is an answer too.
            is_empty = outcome is not None and outcome.reason == "empty"
            output.end(replace(outcome, reason="answered") if outcome is not None and is_empty else outcome)
            try:
                await output.close()
            except OSError:
                outcome = None  # the answer could not be written
        return outcome

    async def _counted(self, events: AsyncIterator[Event | Delta]) -> AsyncIterator[Event | Delta]:
        """The same events; usage is reported after each reply, because a process that is killed has used it too.

        Where calls may be written as text, a text waits for the end of its reply, and calls are left out of it.
        """
        sums = child_process.NO_TALLY
        async for event in events:
            if self.provider.calls_in_text and isinstance(event, TextDelta):
                continue
            if isinstance(event, ReplyReceived):
                if self.provider.calls_in_text and event.reply.message.text:
                    yield TextDelta(event.reply.message.text)
                usage = sums.usage + (event.reply.usage or NO_USAGE) + event.failed
                cost = add_cost(add_cost(sums.cost, event.reply.cost), event.failed_cost)
                sums = child_process.Tally(usage=usage, cost=cost, turns=event.turn)
                self._report(sums)
            yield event

    def _report(self, tally: child_process.Tally) -> None:
        if self.parent is not None:
            self.parent.report(tally)


def _dialects(request: ResolvedCall) -> tuple[str, ...]:
    return (registry.CALL,) if request.delegation else ()


def _spawn_request(request: ResolvedCall, provider: ProviderConfig, grant: child_process.Grant) -> SpawnRequest:
    run_spec = RunSpec(
        agent=AGENT,
        system=request.system_prompt,
        offered=(*request.tools, *request.delegation),
        dialects=_dialects(request),
        provider=provider.name,
        model=request.model,
        max_output=request.max_tokens,
        temperature=request.temperature,
        think=request.think,
        output=request.output,
        workspace=grant.workspace,
        identity=grant.identity,
        memory_from=grant.memory_from,
    )
    limits = replace(grant.limits, max_turns=ROUNDS + 1, max_repeats=None)  # the rounds alone bound it
    return SpawnRequest(agent=AGENT, run_spec=run_spec, task=request.prompt, limits=limits)


def _tools(request: ResolvedCall, grant: child_process.Grant, parent: Parent | None) -> list[Tool]:
    """The tools of the request and no others, not even one that reads the rest of a long result."""
    home = Path(grant.home) if grant.home else None
    workspaces = Workspaces()
    workspaces.add_folders(grant.writable_folders)
    if grant.workspace_id is not None:
        workspaces.expect(grant.workspace, grant.workspace_id)

    def dependencies() -> ToolDependencies:
        made = tool_dependencies(grant.tool_options, key_value=NoKeyValue(), home=home)
        return dataclasses.replace(made, opened_workspaces=workspaces)

    builtin = Builtin(dependencies, grant.tool_options)
    tools = [tool for name in request.tools if (tool := builtin.find(name)) is not None]
    return [CountedTool(tool, parent) for tool in tools] if grant.counts and parent is not None else tools


def _tally(outcome: Outcome) -> child_process.Tally:
    stop = "length" if outcome.reason == "length" else "end"
    return child_process.Tally(usage=outcome.usage, cost=outcome.cost, turns=outcome.turns, stop=stop)
