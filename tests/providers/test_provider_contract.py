"""The provider contract notices providers that break it: each fault here is caught by the promise it breaks."""

import asyncio
import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from retinue.core.messages import AssistantMessage, Delta, Reply, TextDelta
from retinue.core.ports import Provider, Publish, Request
from retinue.providers.scripted import Line, Script, ScriptedProvider
from retinue.testing.contracts import provider as contract


class Broken:
    """A provider that does one thing wrong to what a good one does."""

    def __init__(self, good: Provider) -> None:
        self.good = good

    async def answer(self, request: Request, publish: Publish) -> Reply:
        return await self.good.answer(request, publish)


class Trims(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        stripped = msgspec.structs.replace(reply.message, text=reply.message.text.strip())
        return msgspec.structs.replace(reply, message=stripped)


class DressesUp(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        if reply.message == AssistantMessage():
            return msgspec.structs.replace(reply, message=AssistantMessage("(no answer)"))
        return reply


class SortsCalls(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        ordered = tuple(sorted(reply.message.calls, key=lambda call: call.name))
        return msgspec.structs.replace(reply, message=msgspec.structs.replace(reply.message, calls=ordered))


class LosesUsage(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        return msgspec.structs.replace(await self.good.answer(request, publish), usage=None)


class Whispers(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        return await self.good.answer(request, lambda _: None)


class Repeats(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        def twice(delta: Delta) -> None:
            publish(delta)
            publish(delta)

        return await self.good.answer(request, twice)


class SpeaksLate(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        asyncio.get_running_loop().call_soon(publish, TextDelta("and another thing"))
        return reply


class ForgetsWhy(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except Exception as error:
            raise type(error)("it failed") from error


class SwallowsCancel(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            return Reply(AssistantMessage("never mind"))


class HoldsOn(Broken):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            await asyncio.sleep(contract.PROMPTLY * 2)
            raise


class Jams(Broken):
    jammed = False

    async def answer(self, request: Request, publish: Publish) -> Reply:
        if self.jammed:
            return Reply(AssistantMessage())
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            self.jammed = True
            raise


class MixesUp(Broken):
    last: Publish | None = None

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.last = publish

        def to_the_last(delta: Delta) -> None:
            if self.last is not None:
                self.last(delta)

        return await self.good.answer(request, to_the_last)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Trims, contract.a_text_arrives_whole),
        (DressesUp, contract.an_empty_answer_stays_empty),
        (SortsCalls, contract.several_calls_keep_their_order),
        (LosesUsage, contract.usage_is_what_the_model_reports),
        (Whispers, contract.what_is_published_adds_up_to_the_reply),
        (Whispers, contract.a_broken_answer_leaves_what_had_arrived),
        (Repeats, contract.what_is_published_adds_up_to_the_reply),
        (SpeaksLate, contract.nothing_is_published_after_the_reply),
        (ForgetsWhy, contract.a_failure_is_a_provider_error_with_its_fault),
        (ForgetsWhy, contract.a_wish_to_wait_is_passed_on),
        (SwallowsCancel, contract.cancelling_lets_go_at_once),
        (HoldsOn, contract.cancelling_lets_go_at_once),
        (Jams, contract.after_a_cancelled_call_the_next_is_answered),
        (MixesUp, contract.answers_at_the_same_time_do_not_mix),
    ],
)
async def test_a_provider_that_breaks_a_promise_is_caught(broken: type[Broken], promise: contract.Promise) -> None:
    @asynccontextmanager
    async def stage(line: Line) -> AsyncGenerator[Provider]:
        yield broken(ScriptedProvider(Script().play(contract.ASKER, line)))

    with pytest.raises(AssertionError):
        await promise(stage)
    await asyncio.sleep(contract.PROMPTLY * 4)  # held time: whoever held on has let go by now


def test_every_promise_is_listed() -> None:
    checks = {name for name, check in vars(contract).items() if inspect.iscoroutinefunction(check) and name[0] != "_"}

    assert {getattr(promise, "__name__", "") for promise in contract.PROMISES} == checks
