"""The provider port: one method that answers one model request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from retinue.core.agent import Output, ToolSpec, ValidatedOutput
from retinue.core.ids import RunId
from retinue.core.messages import Delta, Message, Reply

Publish: TypeAlias = Callable[[Delta], None]


def _nobody_waits() -> None:
    """What a sign of life is for when no deadline runs."""


OutputValidator: TypeAlias = Callable[[Output, str], ValidatedOutput]
"""Holds a final answer against what was demanded; says the same about the same text, always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a model; `think` asks for reasoning where the model can.

    `output` is what the final answer has to be. A provider that can make its model keep to it does; the answer is
    checked in any case, and the model asked again where it is not of that form.

    `messages` is a live, append-only view: read it, keep nothing of it but the messages themselves. `run_id`, `agent`,
    `path` and `turn` say who asks, and `purpose` whether for a turn of the run or for a summary of its older ones; they
    go to no vendor. `memo` belongs to the wire for as long as the run lives, for what it has already encoded. `alive`
    is called for what comes from the server without being a piece of the answer, so that it does not seem silent.
    """

    model: str
    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    max_output: int | None = None
    temperature: float | None = None
    think: bool = False
    output: Output | None = None
    run_id: RunId = ""
    agent: str = ""
    path: str = ""
    turn: int = 1
    purpose: Literal["turn", "summary"] = "turn"
    memo: dict[str, object] = field(default_factory=dict[str, object])
    alive: Callable[[], None] = field(default=_nobody_waits, compare=False, repr=False)


class Provider(Protocol):
    """Who answers. Any object with this one method will do.

    `answer` makes one attempt. It calls `publish` for what streams in, in order, and returns the whole reply; it raises
    `ProviderError` when there is none, with what had arrived so far in `partial`. Being cancelled, it closes its
    connection and lets the cancellation through. It keeps no state between calls that a restart would lose.
    """

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`."""
        ...


@runtime_checkable
class Prices(Protocol):
    """A provider that knows what its models cost."""

    def price(self, model: str) -> tuple[int, int] | None:
        """Nanodollars per input and output token, or None where unknown."""
        ...


@runtime_checkable
class Windows(Protocol):
    """A provider that knows how much its models can read."""

    def window(self, model: str) -> int | None:
        """The tokens that a question and its answer may have together, or None where unknown."""
        ...


class Providers(Protocol):
    """All providers that this process can reach."""

    def find(self, name: str) -> Provider | None:
        """The provider of that name."""
        ...
