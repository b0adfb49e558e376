"""Model calls that wait for the batch API of their vendor: collected, submitted together, journaled and polled.

A call is known by its run, turn and model. What was submitted is journaled before and after the vendor is asked, so
that a run that makes the same call again after a crash waits for the same batch. Results stay with the vendor.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_in

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import Decision
from retinue.core.errors import ProviderError
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.messages import Reply, StartDelta
from retinue.core.ports import Clock, KeyValue, Publish, Request
from retinue.providers.batch.vendors import AnsweredRequest, BatchApi, ItemResult, NotAnswered, item_id
from retinue.providers.http import HttpProvider
from retinue.providers.http_errors import error_response
from retinue.providers.key_mask import AnswerMask

log = logger("retinue.batch")

SPACE = "batches"
"""The key-value namespace of the records."""

WINDOW, MAX_WINDOW = 2.0, 30.0
"""Seconds without another call, and seconds in all, after which the calls so far are submitted."""

FIRST_PAUSE, MAX_PAUSE = 5.0, 60.0
"""Seconds between two looks at a batch: at first, and later."""

GRACE = 5.0
"""Seconds after which a batch that no call waits for is looked at: a process that ends leaves its batches alone."""

KEPT = 35 * 86_400.0
"""Seconds that a record is kept: longer than the vendors keep results."""

CLOCK_SKEW = 600.0
"""Seconds by which the clock of the vendor may be behind."""

_AMBIGUOUS = frozenset({"cut", "timeout", "unreachable", "overloaded"})
"""Faults of a submission that the vendor may have taken all the same."""


class BatchRecord(Struct, frozen=True, omit_defaults=True):
    """A batch in the journal: its calls in their order, and the vendor's id once it is known.

    `failed` are the numbers of calls that got no answer: when they are made again, they go into another batch.
    """

    key: str
    provider: str
    model: str
    at: float
    calls: tuple[str, ...]
    batch_id: str = ""
    failed: tuple[int, ...] = ()
    ended: bool = False


_decode_record = msgspec.json.Decoder(BatchRecord).decode


def call_key(request: Request) -> str:
    """What identifies a call, also after a crash."""
    return f"{request.run_id} {request.turn} {request.purpose} {request.model}"


def run_of(call: str) -> RunId:
    return call.partition(" ")[0]


async def batch_records(key_value: KeyValue) -> list[BatchRecord]:
    """The batches in the journal, newest first."""
    found = [_decode_record(value) for value in (await key_value.look(SPACE)).values()]
    return sorted(found, key=lambda record: record.at, reverse=True)


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits, with the body of its request."""

    key: str
    body: bytes
    result: asyncio.Future[ItemResult]
    live: _Live | None = None
    number: int = 0


@dataclass(slots=True, eq=False)
class _Group:
    """Calls that will be submitted together."""

    calls: list[_Call] = field(default_factory=list["_Call"])
    begun: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Live:
    """A batch that calls of this process wait for; `bodies` are those of a batch that is not submitted yet."""

    record: BatchRecord
    api: BatchApi
    waiting: dict[int, _Call]
    bodies: Sequence[bytes] = ()
    is_guess: bool = False
    """Whether the vendor's id may be that of another batch."""
    task: asyncio.Task[None] | None = None

    def claim(self) -> None:
        """Let the waiting calls know their batch."""
        for number, call in self.waiting.items():
            call.live, call.number = self, number


class BatchQueue:
    """The calls of one provider that wait for batches. `is_over` says whether a run has ended."""

    def __init__(
        self,
        name: str,
        provider: HttpProvider,
        key_value: KeyValue,
        clock: Clock,
        is_over: Callable[[RunId], Awaitable[bool]],
    ) -> None:
        self._name = name
        self._provider = provider
        self._key_value = key_value
        self._clock = clock
        self._is_over = is_over
        self._groups: dict[tuple[str, tuple[tuple[str, str], ...]], _Group] = {}
        self._live: dict[str, _Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply, once its batch has ended; raises `ProviderError`, also after the hours of the request."""
        provider = self._provider
        request = request.with_defaults(provider.defaults)
        hours = request.options.batch_hours or 24.0
        request = replace_in(request, options=replace(request.options, stream=False))
        rejected_now: frozenset[str] = frozenset()
        try:
            async with asyncio.timeout(hours * 3600):
                while True:
                    unsupported = provider.unsupported(request.model) | rejected_now
                    body = provider.encode(request, unsupported)
                    result = await self._result(call_key(request), request, body)
                    if isinstance(result, AnsweredRequest):
                        return self._reply(request, result.body, publish)
                    error = self._error(request, result)
                    rejected = provider.rejected(request, unsupported, error)
                    if rejected is None or rejected in unsupported:
                        raise error
                    rejected_now |= {rejected}
        except TimeoutError:
            raise ProviderError(f"the batch gave no answer within {hours:g} h", fault="internal") from None

    def _reply(self, request: Request, body: bytes, publish: Publish) -> Reply:
        decoder = self._provider.decoder(request.model)
        mask = AnswerMask(self._provider.secrets())
        receive = mask.publisher(publish) if mask else publish
        deltas = decoder.feed_whole(body)
        receive(StartDelta(decoder.response_id))
        for delta in deltas:
            receive(delta)
        reply = decoder.finish()
        return mask.finish(reply) if mask else reply

    def _error(self, request: Request, result: NotAnswered) -> ProviderError:
        match result.why:
            case "expired":
                return ProviderError("the batch expired at the vendor before this request was answered")
            case "cancelled":
                return ProviderError("the batch was cancelled before this request was answered")
            case "errored":
                info = replace_in(self._provider.info, model=request.model)
                secrets = self._provider.secrets()
                return error_response(result.status, {}, result.body, reason="", endpoint=info, secrets=secrets)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def _result(self, key: str, request: Request, body: bytes) -> ItemResult:
        headers = tuple(sorted(self._provider.headers_of(request).items()))
        call = _Call(key, body, asyncio.get_running_loop().create_future())
        group = self._groups.setdefault((request.model, headers), _Group())
        self._collect(group, call, request.model, headers)
        try:
            return await call.result
        finally:
            self._leave(group, call)

    def _collect(self, group: _Group, call: _Call, model: str, headers: tuple[tuple[str, str], ...]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        group.begun = group.begun if group.calls else now
        group.calls.append(call)
        if group.timer is not None:
            group.timer.cancel()
        group.timer = loop.call_at(min(now + WINDOW, group.begun + MAX_WINDOW), self._close_group, (model, headers))

    def _close_group(self, place: tuple[str, tuple[tuple[str, str], ...]]) -> None:
        group = self._groups.pop(place, None)
        if group is not None and group.calls:
            self._start(self._submit(group.calls, *place))

    def _leave(self, group: _Group, call: _Call) -> None:
        """Forget a call that waits no longer; a batch without calls is looked at later."""
        if call in group.calls:
            group.calls.remove(call)
        live = call.live
        if live is not None and live.waiting.get(call.number) is call:
            del live.waiting[call.number]
            if not live.waiting and self._live.get(live.record.key) is live:
                self._start(self._abandon(live))

    async def _abandon(self, live: _Live) -> None:
        """Cancel a batch whose runs have all ended."""
        await asyncio.sleep(GRACE)
        if live.waiting or self._live.get(live.record.key) is not live:
            return
        for run_id in {run_of(call) for call in live.record.calls}:
            if not await self._is_over(run_id):
                return
        self._drop(live)
        if live.record.batch_id and not live.is_guess:
            await live.api.cancel(live.record.batch_id)
        await self._give_up(live.record)

    async def cancel_abandoned(self) -> None:
        """Cancel batches that no process waits for and whose runs have all ended; raises `ProviderError`."""
        for record in await batch_records(self._key_value):
            if record.provider != self._name or record.ended or record.key in self._live or not record.batch_id:
                continue
            if all([await self._is_over(run_id) for run_id in {run_of(call) for call in record.calls}]):
                await self._api({}).cancel(record.batch_id)
                await self._give_up(record)

    def _drop(self, live: _Live) -> None:
        self._live.pop(live.record.key, None)
        if live.task is not None and live.task is not asyncio.current_task():
            live.task.cancel()

    # ---- submitting --------------------------------------------------------------------------------------------------

    async def _submit(self, calls: list[_Call], model: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Let calls that were submitted before wait for their batches, and submit the others."""
        try:
            api = self._api(dict(headers))
            known = self._known(await batch_records(self._key_value))
            fresh = [call for call in calls if call.key not in known]
            joined: dict[str, list[tuple[int, _Call]]] = {}
            for call in calls:
                if call.key in known:
                    record, number = known[call.key]
                    joined.setdefault(record.key, []).append((number, call))
            for waiting in joined.values():
                self._join(known[waiting[0][1].key][0], dict(waiting), api)
            for part in _parts(fresh, api):
                record = BatchRecord(
                    secrets.token_hex(8), self._name, model, self._clock.now(), tuple(call.key for call in part)
                )
                await self._write(record)
                self._watch(_Live(record, api, dict(enumerate(part)), bodies=[call.body for call in part]))
        except ProviderError as error:
            _fail(calls, error)

    def _api(self, headers: dict[str, str]) -> BatchApi:
        make: Callable[[dict[str, str]], BatchApi | None] | None = getattr(self._provider, "batch_api", None)
        api = None if make is None else make(headers)
        if api is None:
            raise ProviderError("the provider has no batch API", fault="bad_request")
        return api

    def _known(self, records: Iterable[BatchRecord]) -> dict[str, tuple[BatchRecord, int]]:
        """The record of each call that was submitted before and did not fail; the newest one."""
        known: dict[str, tuple[BatchRecord, int]] = {}
        for record in records:
            if record.provider == self._name:
                failed = set(record.failed)
                for number, call in enumerate(record.calls):
                    if number not in failed:
                        known.setdefault(call, (record, number))
        return known

    def _join(self, record: BatchRecord, waiting: dict[int, _Call], api: BatchApi) -> None:
        live = self._live.get(record.key)
        if live is None:
            self._watch(_Live(record, api, waiting))
        else:
            live.waiting |= waiting
            live.claim()

    def _watch(self, live: _Live) -> None:
        self._live[live.record.key] = live
        live.claim()
        live.task = self._start(self._follow(live))

    async def _follow(self, live: _Live) -> None:
        """Submit a batch or find it again, wait for its end, and hand out its results."""
        try:
            if not live.record.batch_id:
                batch_id = await self._batch_id(live)
                live.record = replace(live.record, batch_id=batch_id)
                await self._write(live.record)
            live.bodies = ()
            await self._wait_for_end(live)
            await self._hand_out(live)
        except ProviderError as error:
            if not live.record.batch_id or live.is_guess:
                await self._give_up(replace(live.record, batch_id=""))
            _fail(live.waiting.values(), error)
        finally:
            if self._live.get(live.record.key) is live:
                del self._live[live.record.key]

    async def _batch_id(self, live: _Live) -> str:
        record, api = live.record, live.api
        if live.bodies:
            try:
                return await api.submit(record.key, record.model, live.bodies)
            except ProviderError as error:
                if error.fault not in _AMBIGUOUS:
                    raise
                failure = error
        else:
            failure = ProviderError("the batch that was begun before the crash is not at the vendor", fault="cut")
        taken = {other.batch_id for other in await batch_records(self._key_value)}
        found = await api.find(record.key, since=record.at - CLOCK_SKEW, count=len(record.calls))
        found = [batch_id for batch_id in found if batch_id not in taken]
        if not found:
            raise failure
        live.is_guess = not api.finds_by_key
        return found[-1]  # the oldest, which is the nearest to the submission

    async def _wait_for_end(self, live: _Live) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                found = await live.api.state(live.record.batch_id)
            except ProviderError as error:
                if not error.transient:
                    raise
                log.info("batch %s: %s", live.record.key, error)
            else:
                if found.state == "failed":
                    raise ProviderError(f"the vendor refused the batch: {found.error}", fault="bad_request")
                if found.state == "ended":
                    return
            pause = min(pause * 1.5, MAX_PAUSE)

    async def _hand_out(self, live: _Live) -> None:
        record = live.record
        numbers = {item_id(record.key, number): number for number in range(len(record.calls))}
        found: dict[int, ItemResult] = {}
        failed: list[int] = []
        async for custom_id, result in live.api.results(record.batch_id):
            number = numbers.pop(custom_id, None)
            if number is None:
                continue
            if isinstance(result, NotAnswered):
                failed.append(number)
            if number in live.waiting:
                found[number] = result
        if live.is_guess and len(numbers) == len(record.calls):
            raise ProviderError("the batch that was begun before the crash is not at the vendor", fault="cut")
        missing = NotAnswered("expired")
        failed += numbers.values()
        # A call that is made again goes into another batch, also after a crash between here and the next turn.
        live.record = replace(record, ended=True, failed=tuple(sorted(failed)))
        await self._write(live.record)
        for number, call in live.waiting.items():
            if not call.result.done():
                call.result.set_result(found.get(number, missing))

    # ---- the journal and the tasks -----------------------------------------------------------------------------------

    async def _give_up(self, record: BatchRecord) -> None:
        """Journal that no call of a batch will get an answer from it."""
        await self._write(replace(record, ended=True, failed=tuple(range(len(record.calls)))))

    async def _write(self, record: BatchRecord) -> None:
        value, now = msgspec.json.encode(record), self._clock.now()

        def decide(content: Mapping[str, bytes]) -> Decision:
            old = tuple(key for key, each in content.items() if _decode_record(each).at < now - KEPT)
            return Decision(answer=b"", puts={record.key: value}, drops=old)

        await self._key_value.change(SPACE, decide)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except ProviderError as error:
                log.warning("batch: %s", error)

        task = asyncio.get_running_loop().create_task(guarded(), name="retinue-batch")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop waiting. Batches go on at the vendor, and runs that are resumed wait for them again."""
        for group in self._groups.values():
            if group.timer is not None:
                group.timer.cancel()
        self._groups.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _parts(calls: Sequence[_Call], api: BatchApi) -> Iterable[list[_Call]]:
    """The calls in batches of a size that the vendor takes."""
    part: list[_Call] = []
    size = 0
    for call in calls:
        if part and (len(part) >= api.max_items or size + len(call.body) > api.max_bytes):
            yield part
            part, size = [], 0
        part.append(call)
        size += len(call.body) + 200
    if part:
        yield part


def _fail(calls: Iterable[_Call], error: ProviderError) -> None:
    """End calls with an error, each with its own: the engine adds what a call has used."""
    for call in tuple(calls):
        if not call.result.done():
            call.result.set_exception(
                ProviderError(str(error), fault=error.fault, status=error.status, retry_after=error.retry_after)
            )
