"""The provider port: one method that answers one model request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from retinue.core.agent import Output, ToolSpec, ValidatedOutput
from retinue.core.ids import RunId
from retinue.core.messages import Delta, Message, Reply
from retinue.core.model_options import NO_OPTIONS, NO_REQUEST_OPTIONS, Effort, ModelOptions, RequestOptions
from retinue.core.ports.tool import Tool

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

Publish: TypeAlias = Callable[[Delta], None]
"""Receives each piece of a reply as it streams in."""

OutputValidator: TypeAlias = Callable[[Output, str], ValidatedOutput]
"""Checks a final answer against the demanded output; returns the same for the same text, always."""


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a model; `think` asks for reasoning where the model supports it, `effort` for how much of it.

    `output` is the form that the final answer must have. A provider enforces it where its API can; the engine checks
    the answer in any case and asks the model again if it does not fit.

    `messages` is a live, append-only view: read it, and keep references to the messages only. `run_id`, `agent`, `path`
    and `turn` identify the caller, and `purpose` is a turn of the run or a summary of its older turns; none of them is
    sent to a vendor. `memo` is the provider's own, for the lifetime of the run: a place for what it has already
    encoded. `alive` is called for whatever arrives without being part of the answer, so that no timeout for silence
    expires.

    `withheld_tools` are the tools of earlier turns, in a turn that may not call any: `tools` is then empty. A provider
    may send them and forbid calls, so that the vendor's prompt cache still fits.

    `server_tools` are tools that the vendor runs; a provider without one of them raises `ProviderError`.

    `options` are options that only some vendors have; a provider leaves out what its vendor lacks. `cache_key` is the
    same for runs whose requests begin in the same way. `trace` is the W3C trace context of the call, empty without
    tracing; it is not sent to vendors.
    """

    model: str
    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    withheld_tools: tuple[ToolSpec, ...] = ()
    server_tools: tuple[ServerToolSpec, ...] = ()
    max_output: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    think: bool = False
    effort: Effort | None = None
    options: RequestOptions = NO_REQUEST_OPTIONS
    output: Output | None = None
    run_id: RunId = ""
    agent: str = ""
    path: str = ""
    cache_key: str = ""
    turn: int = 1
    purpose: Literal["turn", "summary"] = "turn"
    trace: str = ""
    memo: dict[str, object] = field(default_factory=dict[str, object])
    alive: Callable[[], None] = field(default=_ignore, compare=False, repr=False)

    def with_defaults(self, defaults: ModelOptions) -> Request:
        """The request with these options where it sets none."""
        options = self.options
        if (more := defaults.request_options) is not NO_REQUEST_OPTIONS:
            options = options.over(more)
        return replace(
            self,
            max_output=self.max_output or defaults.max_output_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            effort=self.effort or (None if self.think else defaults.effort),
            options=options,
        )

    @property
    def forced_tool(self) -> str:
        """The name of the tool that the reply has to call, or `required` for any; empty if it need not call one."""
        choice = self.options.tool_choice
        return choice if self.turn == 1 and self.tools and choice not in ("", "auto", "none") else ""

    @property
    def chosen_effort(self) -> Effort | None:
        """The effort that was asked for: `think` alone asks for a high one; None leaves it to the model."""
        return self.effort or ("high" if self.think else None)

    @property
    def thinks(self) -> bool:
        """Whether thinking was asked for."""
        return self.effort != "none" if self.effort else self.think


class Provider(Protocol):
    """A model API. Any object with this one method can be a provider.

    `answer` makes one attempt. It calls `publish` for each piece that streams in, in order, and returns the whole
    reply. It raises `ProviderError` if there is none, with the text that had arrived in `partial`. When cancelled, it
    closes its connection and re-raises. It keeps no state between calls that a restart would lose.

    A provider may have four more methods, which `price_of`, `cached_price_of`, `window_of` and `longest_reply_of` call:
    `price(model)` returns nanodollars per input and per output token, `cached_price(model)` those per input token from
    the vendor's cache, `window(model)` the tokens that a request and its reply may have together, and
    `longest_reply(model)` those of a reply. All return None for a model that they do not know. `price_factor(request)`
    is what the options of a request make of its price. A provider whose
    `counts_are_exact` is true, such as a script of tests, is charged what it reports; others are charged at least a
    part of an estimate.

    A provider may have `defaults`, the `ModelOptions` of requests that set none: limits hold what these allow.

    A provider whose model makes tool calls of its own, such as an agent program, has them in `tools`, by name. A reply
    may call them, although no request offers them; the policy of the run holds for them as for any other tool.
    """

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`."""
        ...


def price_of(provider: Provider, model: str) -> tuple[int, int] | None:
    """Nanodollars per input and per output token; None if the provider does not know."""
    price: Callable[[str], tuple[int, int] | None] | None = getattr(provider, "price", None)
    return None if price is None else price(model)


def cached_price_of(provider: Provider, model: str) -> int | None:
    """Nanodollars per input token that the vendor has cached; None if the provider does not know."""
    cached_price: Callable[[str], int | None] | None = getattr(provider, "cached_price", None)
    return None if cached_price is None else cached_price(model)


def window_of(provider: Provider, model: str) -> int | None:
    """Tokens that a request and its reply may have together; None if the provider does not know."""
    window: Callable[[str], int | None] | None = getattr(provider, "window", None)
    return None if window is None else window(model)


def longest_reply_of(provider: Provider, model: str) -> int | None:
    """Tokens that a reply can have where the request sets no limit; None if the provider does not know."""
    longest_reply: Callable[[str], int | None] | None = getattr(provider, "longest_reply", None)
    return None if longest_reply is None else longest_reply(model)


def price_factor_of(provider: Provider, request: Request) -> float:
    """What the options of a request make of the price of its model, such as its tier of service; 1 for most."""
    price_factor: Callable[[Request], float] | None = getattr(provider, "price_factor", None)
    return 1.0 if price_factor is None else price_factor(request)


def counts_exactly(provider: Provider) -> bool:
    """Whether the usage that a provider reports is charged as it is."""
    return getattr(provider, "counts_are_exact", False) is True


def defaults_of(provider: Provider) -> ModelOptions:
    """The options that the provider adds to requests that set none of their own."""
    defaults = getattr(provider, "defaults", NO_OPTIONS)
    return defaults if isinstance(defaults, ModelOptions) else NO_OPTIONS


def own_tools_of(provider: Provider) -> Mapping[str, Tool]:
    """The tools that the provider's own model has, by name; most have none."""
    tools: Mapping[str, Tool] | None = getattr(provider, "tools", None)
    return {} if tools is None else tools


class Providers(Protocol):
    """All providers that this process can reach."""

    def find(self, name: str) -> Provider | None:
        """The provider of that name."""
        ...
