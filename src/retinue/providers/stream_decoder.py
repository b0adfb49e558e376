"""What the wires' decoders have in common; what the events of an answer mean is the wire's business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Delta, Reply, Stop, Thinking, ToolCall
from retinue.core.usage import Usage
from retinue.providers.lenient_json import read

NULL = msgspec.Raw(b"null")
"""JSON that is kept to be read later, where there was none."""

DONE = b"[DONE]"
"""What many servers send when nothing more will come."""

T = TypeVar("T")


class AnswerDecoder(ABC):
    """Takes the events of one answer and makes a reply of them.

    Its errors are `ProviderError`s, and know nothing of the place.
    """

    __slots__ = ("_id", "_model", "done")

    def __init__(self, *, model: str = "") -> None:
        self.done = False
        """Whether the answer said that nothing more will come."""
        self._id = ""
        self._model = model

    @property
    def response_id(self) -> str:
        """The vendor's name for the answer, as far as it is known."""
        return self._id

    @property
    @abstractmethod
    def partial(self) -> str:
        """The words so far."""

    @abstractmethod
    def feed(self, payload: bytes) -> Sequence[Delta]:
        """What the data of one event adds; raises `ProviderError` for nonsense, and for an error told in the stream."""

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        """What an answer says that came as one JSON object instead of a stream."""
        deltas = self.feed(body)
        self.done = True
        return deltas

    @abstractmethod
    def finish(self) -> Reply:
        """The whole reply; raises `ProviderError` with fault `cut` if the stream ended before it was whole."""

    def _look_again(self, decode: Callable[[bytes], T], payload: bytes, *, is_whole: bool) -> T | None:
        """What to make of data that is not quite JSON: half a character should not cost the whole answer, nor nonsense
        after its end.
        """
        data = payload.strip()
        if data == DONE:
            self.done = True
        if not data or data == DONE:
            return None
        try:
            return read(decode, data)
        except ProviderError:
            if is_whole:
                return None
            raise

    def _cut(self, *, begun: bool) -> ProviderError:
        """The error for a stream that ended too early."""
        how = "in the middle of the answer" if begun else "without an answer"
        return ProviderError(f"the stream ended {how}", fault="cut", partial=self.partial)

    def _reply(
        self, calls: tuple[ToolCall, ...], thinking: Sequence[Thinking], *, usage: Usage | None, stop: Stop | None
    ) -> Reply:
        """The words and what came along; if nothing else made the model `stop`, its calls did, or it had said all."""
        return Reply(
            message=AssistantMessage(self.partial, calls, tuple(thinking)),
            usage=usage,
            stop=stop or ("calls" if calls else "end"),
            model=self._model,
            response_id=self._id,
        )
