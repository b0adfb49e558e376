"""Model prices, context windows and longest replies: the vendors' lists, configured values, the cost of one call.

Prices are dollars per million tokens, as vendors publish them; costs are whole nanodollars. A model without a price has
the cost None, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.model_options import ModelOptions
from retinue.core.ports import (
    Provider,
    Publish,
    Request,
    Tool,
    cached_price_of,
    counts_exactly,
    defaults_of,
    longest_reply_of,
    own_tools_of,
    price_of,
    window_of,
)
from retinue.core.usage import MAX_COST, Spent, Usage, add_cost, attach_spent, spent_of
from retinue.providers.text_calls import CALL_MARKS, with_text_calls

T = TypeVar("T")

HOUR_WRITE = 1.6
"""How much more it costs to write to a cache for an hour than for the usual five minutes: vendors charge twice the
price of input in place of a quarter more."""

PICO = 1_000_000
"""Picodollars per token for each dollar per million tokens; sums in these are exact."""

_VENDOR = re.compile(r".*/")
# A date, a numbered or early version: the same model at the same price. Any other suffix means another model.
_VERSION = re.compile(r"(?:[-@](?:\d{8}|\d{4}-\d{2}-\d{2})|-00\d|-latest|-preview(?:-\d{2}-(?:\d{2}|\d{4}))?|@default)")


class LongContextRates(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Prices for every token of a call whose input is longer than `above` tokens."""

    above: int
    input: float
    output: float
    cached: float | None = None


class Rates(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The prices of a model, in dollars per million tokens.

    `cached` is the price of input read from the vendor's cache, `cache_write` of input written to it for five minutes;
    what is written for an hour costs `HOUR_WRITE` times that. Without them the input price applies. In a long call all
    keep their ratio to the input price.

    >>> sonnet = Rates(input=3.0, output=15.0, cached=0.3, cache_write=3.75)
    >>> sonnet.cost(Usage(input=1_000, output=100, cached=600, written=200))
    3030000
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    long: LongContextRates | None = None

    def cost(self, usage: Usage) -> int:
        """The cost of a call in nanodollars, rounded up, and at most `MAX_COST`."""
        rates = self.long if self.long is not None and usage.input > self.long.above else self
        cached = min(usage.cached, usage.input)
        written = min(usage.written, usage.input - cached) if self.cache_write is not None else 0
        pico = (usage.input - cached - written) * _pico(rates.input) + usage.output * _pico(rates.output)
        pico += cached * _pico(rates.input if rates.cached is None else rates.cached)
        if written and self.cache_write is not None:
            write = self.cache_write * (rates.input / self.input if self.input else 1.0)
            hour = min(usage.written_1h, written)
            pico += (written - hour) * _pico(write) + (hour * _pico(write * HOUR_WRITE) if hour else 0)
        return min(-(-pico // 1000), MAX_COST)

    def highest(self) -> tuple[int, int]:
        """The highest price of one input token and of one output token in an ordinary call, in nanodollars."""
        input_price = max(self.input, self.cache_write or 0.0)
        return -(-_pico(input_price) // 1000), -(-_pico(self.output) // 1000)

    def cached_input(self) -> int:
        """The price of one input token from the vendor's cache in an ordinary call, in nanodollars."""
        return -(-_pico(self.input if self.cached is None else self.cached) // 1000)


FREE = Rates(input=0.0, output=0.0, cached=0.0)
"""The price of a model on the user's own machine."""


_OPENAI_PRIORITY: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"gpt-5\.5"), 2.5),
    (re.compile(r"gpt-5-mini"), 1.8),
    (re.compile(r"gpt-4\.1-nano"), 2.0),
    (re.compile(r"gpt-4\.1|o3|gpt-4o-2024-05-13"), 1.75),
    (re.compile(r"gpt-4o-mini"), 5 / 3),
    (re.compile(r"gpt-4o"), 1.7),
    (re.compile(r"o4-mini"), 2 / 1.1),
)
"""How much more OpenAI's models cost with priority; most cost twice as much."""


def openai_tier(tier: str, model: str) -> float:
    """How much a call costs in a tier of OpenAI, as a multiple of the list price.

    >>> [openai_tier(tier, "gpt-5.2") for tier in ("flex", "priority", "default")], openai_tier("priority", "gpt-4o")
    ([0.5, 2.0, 1.0], 1.7)
    """
    if tier != "priority":
        return 0.5 if tier == "flex" else 1.0
    return next((factor for pattern, factor in _OPENAI_PRIORITY if pattern.match(model)), 2.0)


def bedrock_tier(tier: str, model: str) -> float:
    """The same in a tier of Bedrock."""
    return {"flex": 0.5, "priority": 1.75}.get(tier, 1.0)


class PriceList(Struct, frozen=True):
    """A table of prices, and the day on which they were read."""

    as_of: str
    models: dict[str, Rates]
    sources: dict[str, str] = {}
    """The data sets that they were read from, with their versions."""
    aliases: dict[str, str] = {}

    def rates(self, model: str) -> Rates | None:
        """The prices of a model, by its name or the name of one of its versions."""
        return find_model(self.models, model, self.aliases)


@cache
def list_prices() -> PriceList:
    """The vendors' list prices; read on first use."""
    return msgspec.json.decode(Path(__file__).with_name("prices.json").read_bytes(), type=PriceList)


class HostedModel(Struct, frozen=True):
    """A model at a vendor that serves models of others: its price there, and its sizes, as far as they are known."""

    price: Rates
    window: int | None = None
    output: int | None = None


class HostList(Struct, frozen=True):
    """The models of such vendors, each under `VENDOR/MODEL`."""

    as_of: str
    models: dict[str, HostedModel]
    sources: dict[str, str] = {}

    def find(self, host: str, model: str) -> HostedModel | None:
        """A model at a vendor, by its exact name or in small letters.

        >>> hosted_models().find("groq", "openai/gpt-oss-120b").price
        Rates(input=0.15, output=0.6, cached=0.075, cache_write=None, long=None)
        >>> hosted_models().find("groq", "my-own-model")
        """
        return self.models.get(f"{host}/{model}") or self.models.get(f"{host}/{model.lower()}")


@cache
def hosted_models() -> HostList:
    """The models of vendors that serve models of others; read on first use."""
    return msgspec.json.decode(Path(__file__).with_name("hosts.json").read_bytes(), type=HostList)


def find_model(models: Mapping[str, T], model: str, aliases: Mapping[str, str] | None = None) -> T | None:
    """The entry of a model in a table: under its exact name, else without a vendor prefix, else without its version.

    >>> sonnet = {"claude-sonnet-4": Rates(input=3.0, output=15.0)}
    >>> find_model(sonnet, "anthropic/claude-sonnet-4-20250514") is sonnet["claude-sonnet-4"]
    True
    >>> find_model(sonnet, "claude-sonnet-4-5") is None
    True
    """
    bare = _VENDOR.sub("", model).lower()
    for name in (model, bare, *_without_versions(bare)):
        entry = models.get(name) or models.get((aliases or {}).get(name, ""))
        if entry is not None:
            return entry
    return None


def _without_versions(name: str) -> list[str]:
    """The name without its version suffixes, the longest result first.

    >>> _without_versions("gemini-2.5-flash-preview-09-2025")
    ['gemini-2.5-flash']
    """
    ends = (match.start() for match in _VERSION.finditer(name) if _VERSION.fullmatch(name, match.start()))
    return [name[:end] for end in sorted(ends, reverse=True)]


class ModelPrices:
    """The prices of one provider's models: configured ones first, then zero if `free`, else the list prices, or those
    of the vendor `host` that serves models of others.

    >>> ModelPrices().price("gpt-5-mini"), ModelPrices().price("my-own-model")
    ((250, 2000), None)
    """

    def __init__(self, configured: Mapping[str, Rates] | None = None, *, free: bool = False, host: str = "") -> None:
        self._configured = dict(configured or {})
        self._free = free
        self._host = host
        self._known: dict[str, Rates | None] = {}

    def is_configured(self, model: str) -> bool:
        """Whether the price of a model is that of the settings, and not one of a list."""
        return bool(self._configured) and find_model(self._configured, model) is not None

    def rates(self, model: str) -> Rates | None:
        if model not in self._known:
            rates = find_model(self._configured, model)
            self._known[model] = rates or (FREE if self._free else self._listed(model))
        return self._known[model]

    def _listed(self, model: str) -> Rates | None:
        if not self._host:
            return list_prices().rates(model)
        hosted = hosted_models().find(self._host, model)
        return None if hosted is None else hosted.price

    def price(self, model: str) -> tuple[int, int] | None:
        """The highest price of one input token and of one output token, in nanodollars, or None if unknown."""
        rates = self.rates(model)
        return None if rates is None else rates.highest()

    def cached_price(self, model: str) -> int | None:
        """The price of one cached input token, in nanodollars, or None if unknown."""
        rates = self.rates(model)
        return None if rates is None else rates.cached_input()


def server_tool_cost(prices: Mapping[str, int], request: Request, reply: Reply) -> int:
    """What the uses of a vendor's tools in a reply cost, at the prices of the settings, else those of the vendor."""
    configured = {tool.name: tool.price_nano for tool in request.server_tools}
    cost = 0
    for name, uses in reply.server_tools:
        price = configured.get(name)
        cost += (prices.get(name, 0) if price is None else price) * uses
    return min(cost, MAX_COST)


@dataclass(frozen=True, slots=True, repr=False)
class PricedProvider:
    """A provider that adds the cost to the replies of another one, and knows the context windows of its models.

    A reply that has a cost keeps it. A model is looked up by the name in the request, then by the name in the reply.
    With `calls_in_text`, calls that a model wrote as text become calls of its reply.

    >>> import asyncio
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("a", says("hi", usage=Usage(input=100, output=10))))
    >>> priced = PricedProvider(model, ModelPrices({"mine": Rates(input=1.0, output=2.0)}))
    >>> ask = Request(model="mine", system="", messages=[], agent="a", path="a")
    >>> asyncio.run(priced.answer(ask, lambda delta: None)).cost, priced.price("mine")
    (120000, (1000, 2000))
    """

    provider: Provider
    prices: ModelPrices
    windows: Callable[[str], int | None] | None = None
    longest_replies: Callable[[str], int | None] | None = None
    calls_in_text: bool = False
    server_tool_prices: Mapping[str, int] | None = None
    """Nanodollars for one use of a tool that the vendor runs, by its kind."""
    check: Callable[[Request], None] | None = None
    """Raises `ProviderError` for a request with a server tool that the vendor does not have."""
    batch: Callable[[Request, Publish], Awaitable[Reply]] | None = None
    """Answers a request that may wait for a batch of the vendor, at half the price."""
    tier: Callable[[str, str], float] | None = None
    """How much a tier of service costs for a model, as a multiple of the list price."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        if request.server_tools and self.check is not None:
            self.check(request)
        in_batch = request.options.batch_hours is not None
        try:
            reply = await (self._answer_in_batch if in_batch else self.provider.answer)(request, publish)
        except ProviderError as error:
            if error.usage.total and not error.cost and not error.is_priced:
                error.cost = self._cost(error.usage, request, "", in_batch=in_batch)
            raise
        except BaseException as stopped:  # cancelled; asyncio is not loaded for its name
            spent = spent_of(stopped)
            if spent.usage.total and spent.cost is None:
                attach_spent(stopped, Spent(spent.usage, self._cost(spent.usage, request, "", in_batch=in_batch)))
            raise
        if reply.cost is None and reply.usage is not None:
            reply = self._priced(reply, reply.usage, request, in_batch=in_batch)
        may_have_calls = self.calls_in_text and any(mark in reply.message.text for mark in CALL_MARKS)
        return with_text_calls(reply, request) if may_have_calls else reply

    def _priced(self, reply: Reply, usage: Usage, request: Request, *, in_batch: bool) -> Reply:
        """The reply with its cost, if the prices of its model are known."""
        cost = self._cost(usage, request, reply.model, in_batch=in_batch)
        if cost is None:
            return reply
        used = server_tool_cost(self.server_tool_prices or {}, request, reply) if reply.server_tools else 0
        return replace(reply, cost=add_cost(cost, used))

    def _cost(self, usage: Usage, request: Request, named: str, *, in_batch: bool) -> int | None:
        """The cost of tokens at the prices of the requested model, or of the one that the server `named`."""
        rates = self.prices.rates(request.model) or (self.prices.rates(named) if named else None)
        if rates is None:
            return None
        cost = rates.cost(usage)
        if in_batch:
            return (cost + 1) // 2
        return cost if (factor := self.price_factor(request)) == 1 else min(ceil(cost * factor), MAX_COST)

    def price_factor(self, request: Request) -> float:
        """What the request's tier of service costs, as a multiple of the price of its model."""
        tier = request.options.service_tier or self.defaults.service_tier
        if not tier or self.tier is None or self.prices.is_configured(request.model):
            return 1.0
        return self.tier(tier, request.model)

    async def _answer_in_batch(self, request: Request, publish: Publish) -> Reply:
        if self.batch is None:
            raise ProviderError(f"{self.provider!r} has no batches: leave batch_hours out", fault="bad_request")
        return await self.batch(request, publish)

    @property
    def counts_are_exact(self) -> bool:
        return counts_exactly(self.provider)

    @property
    def defaults(self) -> ModelOptions:
        return defaults_of(self.provider)

    @property
    def tools(self) -> Mapping[str, Tool]:
        return own_tools_of(self.provider)

    def price(self, model: str) -> tuple[int, int] | None:
        known = self.prices.price(model)
        return price_of(self.provider, model) if known is None else known

    def cached_price(self, model: str) -> int | None:
        known = self.prices.cached_price(model)
        return cached_price_of(self.provider, model) if known is None else known

    def window(self, model: str) -> int | None:
        known = None if self.windows is None else self.windows(model)
        return window_of(self.provider, model) if known is None else known

    def longest_reply(self, model: str) -> int | None:
        known = None if self.longest_replies is None else self.longest_replies(model)
        return longest_reply_of(self.provider, model) if known is None else known

    async def close(self) -> None:
        close = getattr(self.provider, "close", None)
        if close is not None:
            await close()

    def __repr__(self) -> str:
        return repr(self.provider)


def _pico(dollars: float) -> int:
    return round(dollars * PICO)


class WindowList(Struct, frozen=True):
    """A table of context windows and of the longest replies, and the day on which they were read."""

    as_of: str
    models: dict[str, int]
    sources: dict[str, str] = {}
    outputs: dict[str, int] = {}

    def window(self, model: str) -> int | None:
        """The window of a model, by its name or the name of one of its versions.

        >>> listed_windows().window("anthropic/claude-sonnet-4-5-20250929"), listed_windows().window("my-own-model")
        (200000, None)
        """
        return find_model(self.models, model, list_prices().aliases)

    def longest_reply(self, model: str) -> int | None:
        """The tokens of a model's longest reply, by the same names.

        >>> listed_windows().longest_reply("claude-3-opus-20240229"), listed_windows().longest_reply("my-own-model")
        (4096, None)
        """
        return find_model(self.outputs, model, list_prices().aliases)


@cache
def listed_windows() -> WindowList:
    """The vendors' context windows; read on first use."""
    return msgspec.json.decode(Path(__file__).with_name("windows.json").read_bytes(), type=WindowList)


class ContextWindows:
    """The context windows of one provider's models: the configured one, else the listed ones.

    A local server is not `listed`: it gives a model as much context as it likes, whatever the model could read.

    >>> ContextWindows(32_768).window("qwen3"), ContextWindows(listed=False).window("gpt-4o")
    (32768, None)
    """

    def __init__(self, configured: int | None = None, *, listed: bool = True, host: str = "") -> None:
        self._configured = configured
        self._listed = listed
        self._host = host
        self._known: dict[str, int | None] = {}
        self._replies: dict[str, int | None] = {}

    def window(self, model: str) -> int | None:
        """The context window of a model, in tokens, or None if unknown."""
        if self._configured is not None or not self._listed:
            return self._configured
        if model not in self._known:  # looked up for every run, and mostly for the same model
            hosted = hosted_models().find(self._host, model) if self._host else None
            self._known[model] = hosted.window if hosted is not None else listed_windows().window(model)
        return self._known[model]

    def longest_reply(self, model: str) -> int | None:
        """The tokens of a model's longest reply, or None if unknown."""
        if model not in self._replies:
            hosted = hosted_models().find(self._host, model) if self._host else None
            known = hosted.output if hosted is not None else listed_windows().longest_reply(model)
            self._replies[model] = known if self._listed else None
        return self._replies[model]
