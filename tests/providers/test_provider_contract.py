"""Each broken provider here is caught by the contract check that it breaks."""

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


class BrokenProvider:
    """A provider that changes one thing about a correct one."""

    def __init__(self, good: Provider) -> None:
        self.good = good

    async def answer(self, request: Request, publish: Publish) -> Reply:
        return await self.good.answer(request, publish)


class TrimsText(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        stripped = msgspec.structs.replace(reply.message, text=reply.message.text.strip())
        return msgspec.structs.replace(reply, message=stripped)


class ReplacesEmptyAnswer(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        if reply.message == AssistantMessage():
            return msgspec.structs.replace(reply, message=AssistantMessage("(no answer)"))
        return reply


class SortsCalls(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        ordered = tuple(sorted(reply.message.calls, key=lambda call: call.name))
        return msgspec.structs.replace(reply, message=msgspec.structs.replace(reply.message, calls=ordered))


class LosesUsage(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        return msgspec.structs.replace(await self.good.answer(request, publish), usage=None)


class PublishesNothing(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        return await self.good.answer(request, lambda _: None)


class PublishesTwice(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        def twice(delta: Delta) -> None:
            publish(delta)
            publish(delta)

        return await self.good.answer(request, twice)


class PublishesLate(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await self.good.answer(request, publish)
        asyncio.get_running_loop().call_soon(publish, TextDelta("and another thing"))
        return reply


class DropsFault(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except Exception as error:
            raise type(error)("it failed") from error


class SwallowsCancel(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            return Reply(AssistantMessage("never mind"))


class DelaysCancel(BrokenProvider):
    async def answer(self, request: Request, publish: Publish) -> Reply:
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            await asyncio.sleep(contract.PROMPTLY * 2)
            raise


class FailsAfterCancel(BrokenProvider):
    was_cancelled = False

    async def answer(self, request: Request, publish: Publish) -> Reply:
        if self.was_cancelled:
            return Reply(AssistantMessage())
        try:
            return await self.good.answer(request, publish)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


class MixesListeners(BrokenProvider):
    last: Publish | None = None

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.last = publish

        def publish_to_last(delta: Delta) -> None:
            if self.last is not None:
                self.last(delta)

        return await self.good.answer(request, publish_to_last)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (TrimsText, contract.a_text_arrives_whole),
        (ReplacesEmptyAnswer, contract.an_empty_answer_stays_empty),
        (SortsCalls, contract.several_calls_keep_their_order),
        (LosesUsage, contract.usage_is_what_the_model_reports),
        (PublishesNothing, contract.deltas_add_up_to_the_reply),
        (PublishesNothing, contract.a_broken_stream_keeps_the_partial_text),
        (PublishesTwice, contract.deltas_add_up_to_the_reply),
        (PublishesLate, contract.nothing_is_published_after_the_reply),
        (DropsFault, contract.a_failure_is_a_provider_error_with_its_fault),
        (DropsFault, contract.retry_after_is_passed_on),
        (SwallowsCancel, contract.cancellation_is_prompt),
        (DelaysCancel, contract.cancellation_is_prompt),
        (FailsAfterCancel, contract.after_a_cancelled_call_the_next_is_answered),
        (MixesListeners, contract.concurrent_answers_do_not_mix),
    ],
)
async def test_a_provider_that_breaks_the_contract_is_caught(
    broken: type[BrokenProvider], promise: contract.Promise
) -> None:
    @asynccontextmanager
    async def connect(line: Line) -> AsyncGenerator[Provider]:
        yield broken(ScriptedProvider(Script().play(contract.AGENT, line)))

    with pytest.raises(AssertionError):
        await promise(connect)
    await asyncio.sleep(contract.PROMPTLY * 4)  # virtual time: a delayed cancellation is over by now


def test_every_contract_check_is_listed() -> None:
    checks = {name for name, check in vars(contract).items() if inspect.iscoroutinefunction(check) and name[0] != "_"}

    assert {getattr(promise, "__name__", "") for promise in contract.PROMISES} == checks
