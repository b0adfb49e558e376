"""Base class of the wires' response decoders, and the token counts of vendors as `Usage`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Delta, Reply, Stop, Thinking, ToolCall
from retinue.core.usage import Usage
from retinue.providers.lenient_json import decode_lenient

NULL = msgspec.Raw(b"null")
"""The value of a raw JSON field that was absent."""

DONE = b"[DONE]"
"""The data of the last event, at many servers."""

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

    def _cut_error(self, *, begun: bool) -> ProviderError:
        when = "in the middle of the answer" if begun else "without an answer"
        return ProviderError(f"the stream ended {when}", fault="cut", partial=self.partial)

    def _reply(
        self, calls: tuple[ToolCall, ...], thinking: Sequence[Thinking], *, usage: Usage | None, stop: Stop | None
    ) -> Reply:
        """The reply; without a `stop` of its own, it ended with its calls, or because the model was done."""
        return Reply(
            message=AssistantMessage(self.partial, calls, tuple(thinking)),
            usage=usage,
            stop=stop or ("calls" if calls else "end"),
            model=self._model,
            response_id=self._id,
        )


class TokenDetails(Struct, gc=False):
    """Details of input or output tokens on OpenAI's wires; other servers add fields."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_DETAILS = TokenDetails()


def normalized_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    cached: int | None = None,
    reasoning: int | None = None,
    written: int | None = None,
) -> Usage | None:
    """The usage of one response; None if the server counted neither input nor output.

    >>> normalized_usage(10, 5, cached=12, reasoning=-1)
    Usage(input=10, output=5, cached=10, reasoning=0, written=0)
    >>> normalized_usage(None, None, cached=3) is None
    True
    """
    if input_tokens is None and output_tokens is None:
        return None
    total_in, total_out = max(0, input_tokens or 0), max(0, output_tokens or 0)
    from_cache = min(max(0, cached or 0), total_in)
    return Usage(
        input=total_in,
        output=total_out,
        cached=from_cache,
        reasoning=min(max(0, reasoning or 0), total_out),
        written=min(max(0, written or 0), total_in - from_cache),
    )
