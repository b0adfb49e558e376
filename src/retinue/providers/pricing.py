"""What models cost: a dated table of the vendors' list prices, what the user says instead, and the sum for one call.

Prices are dollars for a million tokens, as the vendors write them; costs are whole nanodollars. A model that nobody has
priced has an unknown cost, which is None and never zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.messages import Reply
from retinue.core.ports import Provider, Publish, Request, price_of, window_of
from retinue.core.usage import Usage

PICO = 1_000_000
"""Picodollars for one token, for each dollar that a million of them cost; counting in these keeps every sum exact."""

_VENDOR = re.compile(r".*/")
# A date, a numbered or early version: the same model at the same price. Anything else behind a name is another model.
_VERSION = re.compile(r"(?:[-@](?:\d{8}|\d{4}-\d{2}-\d{2})|-00\d|-latest|-preview(?:-\d{2}-(?:\d{2}|\d{4}))?|@default)")


class Long(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Other prices, for every token of a call whose input is longer than `above` tokens."""

    above: int
    input: float
    output: float
    cached: float | None = None


class Rates(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a model costs, in dollars for a million tokens.

    `cached` is for input that the vendor remembers, `cache_write` for input that it will remember from now on; both are
    the full price where nothing is said, and in a long call in the same proportion to it as ever.

    >>> sonnet = Rates(input=3.0, output=15.0, cached=0.3, cache_write=3.75)
    >>> sonnet.cost(Usage(input=1_000, output=100, cached=600, written=200))
    3030000
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    long: Long | None = None

    def cost(self, usage: Usage) -> int:
        """What a call cost, in nanodollars; a fraction of one counts as one."""
        rates = self.long if self.long is not None and usage.input > self.long.above else self
        cached = min(usage.cached, usage.input)
        written = min(usage.written, usage.input - cached) if self.cache_write is not None else 0
        pico = (usage.input - cached - written) * _pico(rates.input) + usage.output * _pico(rates.output)
        pico += cached * _pico(rates.input if rates.cached is None else rates.cached)
        if written and self.cache_write is not None:
            pico += written * _pico(self.cache_write * (rates.input / self.input if self.input else 1.0))
        return -(-pico // 1000)

    def most(self) -> tuple[int, int]:
        """The most that a token of input and one of output may cost in an ordinary call, in nanodollars."""
        dearest = max(self.input, self.cache_write or 0.0)
        return -(-_pico(dearest) // 1000), -(-_pico(self.output) // 1000)


FREE = Rates(input=0.0, output=0.0, cached=0.0)
"""What a model costs that runs on one's own machine."""


class PriceList(Struct, frozen=True):
    """A table of prices, and the day on which they were seen."""

    as_of: str
    models: dict[str, Rates]
    aliases: dict[str, str] = {}

    def rates(self, model: str) -> Rates | None:
        """What a model costs, by its name or the name of one of its versions."""
        return rates_in(self.models, model, self.aliases)


@cache
def list_prices() -> PriceList:
    """The vendors' list prices; read when first needed."""
    return msgspec.json.decode(Path(__file__).with_name("prices.json").read_bytes(), type=PriceList)


def rates_in(models: Mapping[str, Rates], model: str, aliases: Mapping[str, str] | None = None) -> Rates | None:
    """The price of a model among these: under its whole name, else without what comes before a slash, else without its
    version.

    >>> sonnet = {"claude-sonnet-4": Rates(input=3.0, output=15.0)}
    >>> rates_in(sonnet, "anthropic/claude-sonnet-4-20250514") is sonnet["claude-sonnet-4"]
    True
    >>> rates_in(sonnet, "claude-sonnet-4-5") is None
    True
    """
    for name in names_of(model):
        found = models.get(name) or models.get((aliases or {}).get(name, ""))
        if found is not None:
            return found
    return None


def names_of(model: str) -> tuple[str, ...]:
    """The names under which a table may have a model, the exact one first.

    >>> names_of("anthropic/claude-sonnet-4-20250514")
    ('anthropic/claude-sonnet-4-20250514', 'claude-sonnet-4-20250514', 'claude-sonnet-4')
    """
    bare = _VENDOR.sub("", model).lower()
    return (model, bare, *_without_versions(bare))


def _without_versions(name: str) -> list[str]:
    """The name with less and less of a version at its end, the longest first.

    >>> _without_versions("gemini-2.5-flash-preview-09-2025")
    ['gemini-2.5-flash']
    """
    ends = (found.start() for found in _VERSION.finditer(name) if _VERSION.fullmatch(name, found.start()))
    return [name[:end] for end in sorted(ends, reverse=True)]


def cost(model: str, usage: Usage) -> int | None:
    """What a call of a well-known model cost by the list, in nanodollars; None if the list does not have it.

    >>> cost("claude-sonnet-4-5-20250929", Usage(input=1_000))
    3000000
    >>> cost("my-own-model", Usage(input=1)) is None
    True
    """
    rates = list_prices().rates(model)
    return None if rates is None else rates.cost(usage)


def price(model: str) -> tuple[int, int] | None:
    """The most that one token of input and one of output cost by the list, in nanodollars.

    >>> price("claude-sonnet-4-5"), price("gpt-5-mini"), price("my-own-model")
    ((3750, 15000), (250, 2000), None)
    """
    rates = list_prices().rates(model)
    return None if rates is None else rates.most()


class Tariff:
    """What the models of one provider cost: what the user says first, then the list, or nothing if they are `free`."""

    def __init__(self, said: Mapping[str, Rates] | None = None, *, free: bool = False) -> None:
        self._said = dict(said or {})
        self._free = free
        self._known: dict[str, Rates | None] = {}

    def rates(self, model: str) -> Rates | None:
        """What a model costs, or None if nobody knows."""
        if model not in self._known:
            found = rates_in(self._said, model)
            self._known[model] = found or (FREE if self._free else list_prices().rates(model))
        return self._known[model]

    def price(self, model: str) -> tuple[int, int] | None:
        """The most that one token of input and one of output cost, in nanodollars."""
        rates = self.rates(model)
        return None if rates is None else rates.most()


@dataclass(frozen=True, slots=True, repr=False)
class Priced:
    """A provider whose replies say what they cost, so that no wire has to know about money; nor about how much a model
    can read, which `windows` knows.

    A reply that has a cost keeps it. A model is looked up by the name it was asked by, then by the name it answered
    with.

    >>> import asyncio
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("a", says("hi", usage=Usage(input=100, output=10))))
    >>> priced = Priced(model, Tariff({"mine": Rates(input=1.0, output=2.0)}))
    >>> ask = Request(model="mine", system="", messages=[], agent="a", path="a")
    >>> asyncio.run(priced.answer(ask, lambda delta: None)).cost, priced.price("mine")
    (120000, (1000, 2000))
    """

    provider: Provider
    tariff: Tariff
    windows: Callable[[str], int | None] | None = None

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The provider's reply, with its cost."""
        reply = await self.provider.answer(request, publish)
        if reply.cost is not None or reply.usage is None:
            return reply
        rates = self.tariff.rates(request.model) or (self.tariff.rates(reply.model) if reply.model else None)
        return reply if rates is None else replace(reply, cost=rates.cost(reply.usage))

    def price(self, model: str) -> tuple[int, int] | None:
        """The most that one token of input and one of output cost, in nanodollars, or None where unknown."""
        known = self.tariff.price(model)
        return price_of(self.provider, model) if known is None else known

    def window(self, model: str) -> int | None:
        """The tokens that a question and its answer may have together, or None where unknown."""
        known = None if self.windows is None else self.windows(model)
        return window_of(self.provider, model) if known is None else known

    async def close(self) -> None:
        """Let go of connections."""
        close = getattr(self.provider, "close", None)
        if close is not None:
            await close()

    def __repr__(self) -> str:
        return repr(self.provider)


def _pico(dollars: float) -> int:
    return round(dollars * PICO)
