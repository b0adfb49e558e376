"""How `retinue call` answers: a retinue in memory with one run, told on stdout as it happens.

A parent that is retinue itself hands over a grant, by a descriptor that nobody else has: what this process may do and
use. Without one it may read, and change nothing.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.open import SystemClock, default_home
from retinue.app.open import open as open_retinue
from retinue.cli.call.request import PROVIDERS, CallOrder, read_order
from retinue.cli.event_loop import INTERRUPTED, interrupts, perform
from retinue.cli.output.sse import SseStream
from retinue.cli.output.stdout_writer import Outlet
from retinue.cli.output.terminal import say, write
from retinue.core.agent import RunSpec
from retinue.core.events import Event, ReplyReceived
from retinue.core.messages import Delta
from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import CallContext, Tool, ToolResult, ToolWrapper, assess_call
from retinue.core.run import Outcome
from retinue.core.usage import NO_USAGE, add_cost
from retinue.dispatch.worker import (
    GRANT_FD,
    MAY_I_ACT,
    NOTHING,
    USAGE_FD,
    YES,
    Grant,
    Reaching,
    Tally,
    inherited,
    read_grant,
)
from retinue.engine.admission import SpawnRequest
from retinue.engine.tool_calls import NO_ACTIONS_LEFT
from retinue.providers.catalog import WIRES, ProviderConfig, create_provider, provider_config
from retinue.store.memory import MemoryStore
from retinue.tools.builtin import Builtin
from retinue.tools.dependencies import NoKeyValue, ToolDependencies

PATIENCE = 2.0
"""Seconds that the work has to stop when the parent is gone, before everything here is killed."""


class Parent:
    """Whoever holds the other ends of the two descriptors: `granted` to hear it, and `told` to speak to it."""

    def __init__(self, granted: int, told: int | None) -> None:
        self._granted = granted
        self._told = told
        self._questions: deque[asyncio.Future[bool]] = deque()

    def watch(self, asked_to_stop: asyncio.Event) -> None:
        """Stop when the parent lets go of the grant, or is no more; and leave in any case, whatever hangs here."""
        loop = asyncio.get_running_loop()

        def listen() -> None:
            with suppress(OSError, RuntimeError):  # the loop is closed: this is over anyway
                while said := os.read(self._granted, 4096):
                    loop.call_soon_threadsafe(self._hear, said)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(asked_to_stop.set)
            time.sleep(PATIENCE)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=listen, name="retinue-parent", daemon=True).start()

    def _hear(self, said: bytes) -> None:
        for answer in said:
            if self._questions and not (question := self._questions.popleft()).done():
                question.set_result(answer == YES[0])

    async def may_act(self) -> bool:
        """Ask for one more action; it counts for the parent as if that had performed it."""
        if self._told is None:
            return False
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        try:
            os.write(self._told, MAY_I_ACT)
        except OSError:
            return False  # nobody is there to say yes
        return await question


class Counted(ToolWrapper):
    """A tool that asks the parent before each of its actions."""

    def __init__(self, tool: Tool, parent: Parent) -> None:
        super().__init__(tool)
        self._parent = parent

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call, if it changes nothing or may be made once more."""
        if assess_call(self.tool, arguments).acts and not await self._parent.may_act():
            return ToolResult(NO_ACTIONS_LEFT, failed=True)
        return await self.tool.call(arguments, context)


ROUNDS = 10
"""How often tools are used; if the model then asks for them again, that is an error."""

AGENT = "subagent"
NEEDED_LATER = ("uvloop", "retinue.sandbox.probe")


def carry_out(stdin: BinaryIO) -> int:
    """Read the order, answer it, and return the exit status; raises `BadInput` for an order that makes no sense."""
    granted, told = inherited(GRANT_FD), inherited(USAGE_FD)
    grant = None
    if granted is not None:
        if not _is_wanted(granted):
            _make_ready()
        grant = read_grant(granted)
        if grant is None:
            return 1  # whoever started this has gone without a word
    order = read_order(stdin.read())
    given = grant or _plain(order)
    parent = None if granted is None else Parent(granted, told)
    return perform(_answer(order, _provider(order, given.reaching), given, parent, _tallies(told)))


def _is_wanted(granted: int) -> bool:
    """Whether somebody waits for this process already."""
    return bool(select.select([granted], [], [], 0)[0])


def _make_ready() -> None:
    """Load what may be needed, while nobody waits for it."""
    for provider in PROVIDERS:
        WIRES[provider].load()
    for name in NEEDED_LATER:
        with suppress(ImportError):
            import_module(name)


def _plain(order: CallOrder) -> Grant:
    """What a call may do that nobody has granted anything: read, here.

    Of the settings of the folder, those about tools count, and how Responses are written.
    """
    plain = Grant(
        run_id="", policy=Policy(autonomy=Autonomy.READONLY), workspace=str(Path.cwd()), home=str(default_home())
    )
    if not any(os.path.lexists(f"retinue.{kind}") for kind in ("toml", "yaml", "yml")):
        return plain
    from retinue.app.settings_file import load_settings

    settings = load_settings()
    known = settings.providers.get(order.provider)
    reaching = Reaching(
        wire=order.provider, url=order.url, responses_wire=known.responses_wire if known is not None else None
    )
    return replace(plain, tool_options=settings.tool_options, reaching=reaching)


def _provider(order: CallOrder, known: Reaching | None) -> ProviderConfig:
    """Whom to ask, at the very address that was given."""
    reached = provider_config(
        order.provider,
        wire=(known.settled if known is not None else "") or order.provider,
        base_url=order.url,
        api_key_env=order.api_key_name,
        headers=known.headers if known is not None else None,
        prices=known.prices if known is not None else None,
        responses_wire=known.responses_wire if known is not None else None,
        full_url=True,
    )
    return replace(reached, base_url=order.url)


async def _answer(
    order: CallOrder, where: ProviderConfig, grant: Grant, parent: Parent | None, tell: Callable[[Tally], None]
) -> int:
    retinue = open_retinue(
        provider=where.name,
        providers={where.name: create_provider(where, explicit=True, full_url=True)},
        tools=_tools(order, grant, parent),
        tool_options=grant.tool_options,
        policy=grant.policy,
        dialects=(),
        store=MemoryStore(),
        home=grant.home or None,
    )
    with interrupts() as asked_to_stop:
        if parent is not None:
            parent.watch(asked_to_stop)
        async with retinue:
            started = await retinue.supervisor.spawn(_spawn_request(order, where, grant), session_id=retinue.session_id)
            run = RunHandle(retinue.supervisor, started.run_id)
            outcome = await _told(run, asked_to_stop, wire=order.provider, tell=tell)
    if outcome is None:
        say("error: interrupted")
        return INTERRUPTED
    if outcome.result != "completed":
        say(f"error: {' '.join((outcome.error or outcome.reason).split())}")
        return 1
    return 0


def _spawn_request(order: CallOrder, where: ProviderConfig, grant: Grant) -> SpawnRequest:
    run_spec = RunSpec(
        agent=AGENT,
        system=order.system_prompt,
        offered=order.tools,
        provider=where.name,
        model=order.model,
        max_output=order.max_tokens,
        temperature=order.temperature,
        think=order.think,
        workspace=grant.workspace,
        identity=grant.identity,
        memory_from=grant.memory_from,
    )
    limits = replace(grant.limits, max_turns=ROUNDS + 1)
    return SpawnRequest(agent=AGENT, run_spec=run_spec, task=order.prompt, limits=limits)


def _tools(order: CallOrder, grant: Grant, parent: Parent | None) -> list[Tool]:
    """The tools of the order and no others, not even one to read on with."""
    options = grant.tool_options

    def dependencies() -> ToolDependencies:
        from retinue.sandbox.probe import choose

        return ToolDependencies(
            sandbox=choose(options.sandbox),
            key_value=NoKeyValue(),
            clock=SystemClock(),
            home=Path(grant.home) if grant.home else None,
            network=options.network,
            fenced=options.sandbox != "off",
            web_search=options.web_search,
            memory=options.memory,
            max_result=options.max_result,
            program_memory_mb=options.program_memory_mb,
            settings=tuple(map(Path, options.protected)),
        )

    builtin = Builtin(dependencies)
    tools = [tool for name in order.tools if (tool := builtin.find(name)) is not None]
    return [Counted(tool, parent) for tool in tools] if grant.counts and parent is not None else tools


async def _told(
    run: RunHandle, asked_to_stop: asyncio.Event, *, wire: str, tell: Callable[[Tally], None]
) -> Outcome | None:
    """How the run ended, with what happens in it on stdout meanwhile; None if nobody wants to know any more."""
    outlet = Outlet(write)
    stream = SseStream(outlet.write, wire=wire)
    working = asyncio.ensure_future(run.wait())
    following = asyncio.ensure_future(stream.follow(_counted(run.events(), tell)))
    others = (asyncio.ensure_future(outlet.gone()), asyncio.ensure_future(asked_to_stop.wait()))
    outcome = None
    try:
        await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            outcome = working.result()
            await following
            tell(_tally(outcome))
    finally:
        for task in (working, following, *others):
            task.cancel()
        await asyncio.gather(working, following, *others, return_exceptions=True)
        # Not a word is an answer too, in this contract.
        is_silence = outcome is not None and outcome.reason == "empty"
        stream.end(replace(outcome, reason="answered") if outcome is not None and is_silence else outcome)
        try:
            await outlet.close()
        except OSError:
            outcome = None  # an answer that nobody could be given is none
    return outcome


async def _counted(
    happenings: AsyncIterator[Event | Delta], tell: Callable[[Tally], None]
) -> AsyncIterator[Event | Delta]:
    """What happens, with what was used told after each reply: a process that is killed has spent it all the same."""
    sums = NOTHING
    async for what in happenings:
        if isinstance(what, ReplyReceived):
            usage = sums.usage + (what.reply.usage or NO_USAGE)
            sums = Tally(usage=usage, cost=add_cost(sums.cost, what.reply.cost), turns=what.turn)
            tell(sums)
        yield what


def _tally(outcome: Outcome) -> Tally:
    stop = "length" if outcome.reason == "length" else "end"
    return Tally(usage=outcome.usage, cost=outcome.cost, turns=outcome.turns, stop=stop)


def _tallies(told: int | None) -> Callable[[Tally], None]:
    def tell(tally: Tally) -> None:
        if told is not None:
            with suppress(OSError):  # nobody wants to know any more
                os.write(told, tally.line())

    return tell
