"""Base class of the wires' response decoders, and the token counts of vendors as `Usage`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.messages import MAX_CALLS, AssistantMessage, Delta, Reply, Stop, Thinking, ToolCall
from retinue.core.text import NOT_JSON
from retinue.core.usage import MAX_COST, MAX_TOKENS, NANO, Usage
from retinue.providers.wire_json import decode_lenient, decode_or_none

NULL = msgspec.Raw(b"null")
"""The value of a raw JSON field that was absent."""

EMPTY = msgspec.Raw(b"")
"""The value of a raw JSON field that was absent, where null means something else."""

DONE = b"[DONE]"
"""The data of the last event, at many servers."""

MAX_NAME_CHARS = 500
"""How much is kept of the names that a server gives the model and the response."""

MAX_CITATIONS = 1000
MAX_USES = 10_000
"""How many citations of a reply are kept, and how many uses of a server's tool are counted."""

T = TypeVar("T")


class StreamDecoder(ABC):
    """Decodes the events of one response into deltas and a reply; `Endpoint` adds the address to its errors."""

    __slots__ = ("_begun", "_id", "_model", "_text", "done")

    def __init__(self, *, model: str = "") -> None:
        self.done = False
        """Whether the response was marked as complete."""
        self._begun = False
        self._text: list[str] = []
        self._id = ""
        self._model = model

    @property
    def response_id(self) -> str:
        """The vendor's id of the response, once it is known."""
        return self._id

    @property
    def partial(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def usage(self) -> Usage | None:
        """What the server has counted so far; None if it has counted nothing."""
        return None

    def cost(self) -> int | None:
        """What the server has charged so far, in nanodollars; None if it does not say, as most do."""
        return None

    @abstractmethod
    def feed(self, payload: bytes) -> Sequence[Delta]:
        """The deltas in the data of one event; raises `ProviderError` for unreadable data and for an error event."""

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        """The deltas of a response that came as one JSON object instead of a stream."""
        deltas = self.feed(body)
        self.done = True
        return deltas

    @abstractmethod
    def finish(self) -> Reply:
        """The complete reply; raises `ProviderError` with fault `cut` if the stream ended too early."""

    def _decode_damaged(self, decode: Callable[[bytes], T], payload: bytes, *, is_complete: bool) -> T | None:
        """Decode data that is not valid JSON: None for an end mark, and for unreadable data after a complete answer."""
        data = payload.strip()
        if data == DONE:
            self.done = True
        if not data or data == DONE:
            return None
        try:
            return decode_lenient(decode, data)
        except ProviderError:
            if is_complete:
                return None
            raise

    def _check_calls(self, calls: int) -> None:
        """Raise `ProviderError` for a reply with more tool calls than any model makes."""
        if calls > MAX_CALLS:
            raise ProviderError(f"the reply has more than {MAX_CALLS} tool calls", fault="internal")

    def _cut_error(self, *, begun: bool) -> ProviderError:
        when = "in the middle of the answer" if begun else "without an answer"
        return ProviderError(f"the stream ended {when}", fault="cut", partial=self.partial)

    def _incomplete_error(self, reason: str) -> ProviderError:
        """The error for an answer whose finish reason is not known as an end: another attempt may be complete."""
        message = f"the answer is incomplete: the server ended it with the reason {reason[:MAX_NAME_CHARS]!r}"
        return ProviderError(message, fault="cut", partial=self.partial)

    def _reply(
        self, calls: tuple[ToolCall, ...], thinking: Sequence[Thinking], *, usage: Usage | None, stop: Stop | None
    ) -> Reply:
        """The reply; without a `stop` of its own, it ended with its calls, or because the model was done."""
        return Reply(
            message=AssistantMessage(self.partial, calls, tuple(thinking)),
            usage=usage,
            stop=stop or ("calls" if calls else "end"),
            model=self._model[:MAX_NAME_CHARS],
            response_id=self._id[:MAX_NAME_CHARS],
        )


class TokenDetails(Struct, gc=False):
    """Details of input or output tokens on OpenAI's wires; other servers add fields."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_DETAILS = TokenDetails()


def decode_counts(counts: type[T], raw: msgspec.Raw) -> T | None:
    """The token counts of a response, whatever a server puts in their place; None if it sent none.

    A number that is no whole number is rounded down; what is no number at all counts as absent.
    """
    try:
        found = cast("msgspec.json.Decoder[T | None]", _counts_decoder(counts)).decode(raw)
    except NOT_JSON:
        found = decode_or_none(lambda data: _plausible(counts, msgspec.json.decode(data)), raw)
    return found


@cache  # which loses the type
def _counts_decoder(counts: type) -> object:
    return msgspec.json.Decoder(counts | None)


def _plausible(counts: type[T], value: object) -> T:
    fields: dict[str, object] = {}
    for name, number in _numbers_in(value).items():
        try:
            msgspec.convert({name: number}, counts)
        except msgspec.ValidationError:
            continue
        fields[name] = number
    return msgspec.convert(fields, counts)


def _numbers_in(value: object, *, depth: int = 2) -> dict[str, object]:
    """The whole numbers of an object and of the objects in it.

    >>> _numbers_in({"a": 1.5, "b": "1", "c": {"d": 2, "e": []}, "f": True})
    {'a': 1, 'c': {'d': 2}}
    """
    found: dict[str, object] = {}
    for name, each in cast("dict[str, object]", value).items() if isinstance(value, dict) else ():
        if isinstance(each, dict) and depth:
            found[name] = _numbers_in(cast("object", each), depth=depth - 1)
        elif isinstance(each, int | float) and not isinstance(each, bool) and isfinite(each):
            found[name] = int(each)
    return found


def normalized_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    cached: int | None = None,
    reasoning: int | None = None,
    written: int | None = None,
    written_1h: int | None = None,
) -> Usage | None:
    """The usage of one response, each number within bounds; None if the server counted neither input nor output.

    >>> normalized_usage(10, 5, cached=12, reasoning=-1)
    Usage(input=10, output=5, cached=10)
    >>> normalized_usage(None, None, cached=3) is None
    True
    """
    if input_tokens is None and output_tokens is None:
        return None
    total_in, total_out = _within(input_tokens, MAX_TOKENS), _within(output_tokens, MAX_TOKENS)
    from_cache = _within(cached, total_in) if cached else 0
    into_cache = _within(written, total_in - from_cache) if written else 0
    return Usage(
        input=total_in,
        output=total_out,
        cached=from_cache,
        reasoning=_within(reasoning, total_out) if reasoning else 0,
        written=into_cache,
        written_1h=min(max(0, written_1h or 0), into_cache) if written_1h else 0,
    )


def _within(tokens: int | None, most: int) -> int:
    """A count from 0 to `most`, without `min` and `max`, which take longer."""
    return 0 if tokens is None or tokens < 0 else most if tokens > most else tokens


TICKS_PER_NANODOLLAR = 10
"""xAI states costs in ticks: ten thousand million of them are a dollar."""

_decode_dollars = msgspec.json.Decoder(float).decode


def stated_cost(dollars: msgspec.Raw, ticks: int | None) -> int | None:
    """The cost in nanodollars that a server states with its counts; None if it states none.

    `dollars` is that of OpenRouter, raw so that it is not rounded like a count, and `ticks` that of xAI.

    >>> stated_cost(msgspec.Raw(b"0.00123"), None), stated_cost(EMPTY, 37_756_000), stated_cost(EMPTY, None)
    (1230000, 3775600, None)
    """
    cost = decode_or_none(_decode_dollars, dollars) if dollars else None
    if cost is not None and isfinite(cost) and cost >= 0:
        return min(round(cost * NANO), MAX_COST)
    return None if not ticks else min(max(0, ticks) // TICKS_PER_NANODOLLAR, MAX_COST)
