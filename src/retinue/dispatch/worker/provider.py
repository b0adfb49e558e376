"""A provider that answers from a process of its own: `retinue call`, with tools there, is one reply here.

So the whole conversation of the child is one turn of its run, and what holds for every model call holds for it: limits,
deadline, cancellation, and being asked again after a crash of this process. What the child may do is what its run may
do; it hears of that by a descriptor and not from the words that it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.ids import RunId
from retinue.core.messages import AssistantMessage, Reply, StartDelta, TextDelta, UserMessage
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.core.text import cut
from retinue.dispatch.worker.grant import Grant, Reaching, Tally
from retinue.dispatch.worker.process import Child, ProcessPool
from retinue.dispatch.worker.stream import CallStream
from retinue.engine.supervisor import Supervisor
from retinue.engine.tool_calls import take_action
from retinue.tools.dependencies import ToolOptions

TEMPERATURE = 0.8
"""What a child is told when nobody has said anything about it."""

MARGIN = 5.0
"""Seconds that a child has to say by itself that its time is over."""

LINGER = 1.0
"""Seconds in which a child that has ended may still be heard."""

LONGEST_REASON = 2000


class Order(Struct, frozen=True, kw_only=True):
    """What a child reads on its stdin; the fields of the public contract, in their order."""

    model: str
    provider: str
    url: str
    api_key_name: str | None
    prompt: str
    system_prompt: str
    tool_subset: tuple[str, ...]
    think: bool
    temperature: float
    max_tokens: int | None


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """What all children of a process share: the state folder, how tools work, and how many seconds a call may take."""

    home: str = ""
    tool_options: ToolOptions = ToolOptions()
    seconds: float = 900.0


class ProcessProvider:
    """Asks another provider's models, each time in a process of its own.

    `reaching` says how a model is reached from there, and `price` what it costs.
    """

    def __init__(
        self,
        nursery: ProcessPool,
        supervisor: Supervisor,
        surroundings: ProcessSettings,
        *,
        reaching: Callable[[str], Reaching],
        price: Callable[[str], tuple[int, int] | None],
    ) -> None:
        self._nursery = nursery
        self._supervisor = supervisor
        self._surroundings = surroundings
        self._reaching = reaching
        self.price = price

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """All that the child says, as one reply; a child that fails raises `ProviderError` with its own reason."""
        reaching = self._reaching(request.model)
        grant = self._grant(request.run_id, reaching)
        order = _order(request, reaching, tools=self._supervisor.registry.live[request.run_id].run.run_spec.offered)
        try:
            child = self._nursery.take()
        except OSError as error:
            reason = f"Subagent process could not be started: {error.strerror or error}"
            raise ProviderError(reason, fault="internal") from None
        stream, patience = CallStream(), asyncio.timeout(self._surroundings.seconds + MARGIN)
        try:
            async with patience:
                code, complaint = await self._conversation(child, grant, order, stream, publish)
        except TimeoutError:
            if not patience.expired():
                raise
            reason = f"Subagent did not finish within {self._surroundings.seconds:g} s and was killed"
            raise _failure(reason, stream, child.tally()) from None
        except ProviderError as error:
            raise _failure(str(error), stream, child.tally()) from None
        finally:
            self._nursery.give_back(child)
        tally = child.tally()
        if code != 0:
            reason = stream.reason or _last_error(complaint) or f"Subagent exited with code {code}"
            raise _failure(reason, stream, tally)
        if not stream.complete:
            raise _failure("Subagent ended without a complete answer", stream, tally)
        message = AssistantMessage(text=stream.text)
        return Reply(message, usage=tally.usage, cost=tally.cost, stop=tally.stop, model=request.model)

    async def close(self) -> None:
        """Let no child outlive this."""
        await self._nursery.close()

    async def _conversation(
        self, child: Child, grant: Grant, order: Order, stream: CallStream, publish: Publish
    ) -> tuple[int, str]:
        """Hear the child out; its exit code and complaints."""
        publish(StartDelta())
        words = asyncio.ensure_future(self._hear(child, stream, publish))
        complaints = asyncio.ensure_future(child.stderr())
        actions = asyncio.ensure_future(self._count_actions(child, grant.run_id))
        end = asyncio.ensure_future(child.code())
        try:
            await child.tell(grant.line(), msgspec.json.encode(order))
            await asyncio.wait((words, end), return_when=asyncio.FIRST_COMPLETED)
            if words.done():
                words.result()  # raises what cannot be read
            code = await end
            # What it started and left behind may still hold its pipes: nobody waits for that.
            await asyncio.wait((words, complaints), timeout=LINGER)
            if words.done():
                words.result()
            return code, complaints.result() if complaints.done() else ""
        finally:
            for task in (words, complaints, actions, end):
                task.cancel()
            await asyncio.gather(words, complaints, actions, end, return_exceptions=True)

    async def _count_actions(self, child: Child, run_id: RunId) -> None:
        """Let the child act as often as its run may, which shares its windows with the runs above it."""
        async for _ in child.asks():
            live = self._supervisor.registry.live.get(run_id)
            await child.answer(allow=live is not None and await take_action(live, self._supervisor.engine))

    async def _hear(self, child: Child, stream: CallStream, publish: Publish) -> None:
        async for piece in child.stdout():
            # While this one talks to its model there is time to get the next one ready.
            self._nursery.refill()
            for words in stream.feed(piece):
                publish(TextDelta(words))
        for words in stream.end():
            publish(TextDelta(words))

    def _grant(self, run_id: RunId, reaching: Reaching) -> Grant:
        live = self._supervisor.registry.live.get(run_id)
        if live is None:
            raise ProviderError(f"run {run_id or 'without a name'} is not driven here", fault="internal")
        run_spec = live.run.run_spec
        return Grant(
            run_id=run_id,
            policy=live.run.policy,
            limits=self._limits(run_id),
            workspace=run_spec.workspace,
            identity=run_spec.identity or live.run.accepted.agent,
            memory_from=run_spec.memory_from,
            home=self._surroundings.home,
            tool_options=self._surroundings.tool_options,
            reaching=reaching,
            counts=self._supervisor.engine.accounts.counts_actions(run_id),
        )

    def _limits(self, run_id: RunId) -> Limits:
        """What the run was given and has not used; the hold of this very call is not taken off."""
        accounts = self._supervisor.engine.accounts
        seconds = self._surroundings.seconds
        if not accounts.is_capped(run_id):
            return Limits(seconds=seconds)
        standing = accounts.ledger.account_state(run_id)
        caps, spent = standing.caps, standing.spent
        return Limits(
            max_input_tokens=_left(caps.input, spent.input),
            max_output_tokens=_left(caps.output, spent.output),
            max_tokens=_left(caps.tokens, spent.tokens),
            max_cost=_left(caps.cost, spent.cost),
            seconds=seconds,
        )


def _order(request: Request, reaching: Reaching, *, tools: tuple[str, ...]) -> Order:
    return Order(
        model=request.model,
        provider=reaching.wire,
        url=reaching.url,
        api_key_name=reaching.api_key_env or None,
        prompt="\n\n".join(message.text for message in request.messages if isinstance(message, UserMessage)),
        system_prompt=request.system,
        tool_subset=tools,
        think=request.think,
        temperature=TEMPERATURE if request.temperature is None else request.temperature,
        max_tokens=request.max_output,
    )


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _failure(reason: str, stream: CallStream, tally: Tally) -> ProviderError:
    # Not worth another attempt here: the child has made all that were worth making.
    shown = cut(reason, LONGEST_REASON, "...").text
    return ProviderError(shown, fault="internal", partial=stream.text, usage=tally.usage, cost=tally.cost)


def _last_error(complaint: str) -> str:
    """The last line in which a child said what is wrong.

    >>> _last_error("noise\\nerror: unknown provider: 'x'\\n"), _last_error("Segmentation fault\\n")
    ("unknown provider: 'x'", '')
    """
    errors = [line for line in complaint.splitlines() if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else ""
