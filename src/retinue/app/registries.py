"""What a process has, by name: tools, providers, and the dialects that add tools of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from typing import Any, Protocol, runtime_checkable

from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import Provider, Tool
from retinue.dialects.base import Dialect
from retinue.dialects.context import DialectContext
from retinue.providers.catalog import WIRES, ProviderConfig, canonical_name, create_provider, provider_config
from retinue.tools.builtin import BUILTIN, Builtin

DIALECTS: dict[str, str] = {
    "spec": "retinue.dialects.spec.dialect:SpecDialect",
    "xzatoma": "retinue.dialects.xzatoma.dialect:XzatomaDialect",
    "meerkat": "retinue.dialects.meerkat.dialect:MeerkatDialect",
    "buzzllm": "retinue.dialects.buzzllm.dialect:BuzzllmDialect",
    "zeroclaw": "retinue.dialects.zeroclaw.dialect:ZeroclawDialect",
}
"""Where each dialect lives; imported when it is chosen."""


class MakesDialect(Protocol):
    """A dialect's class."""

    def __call__(self, dialect_context: DialectContext, settings: Any = ...) -> Dialect:
        """The dialect, at work at this desk."""
        ...


def make_dialect(name: str, dialect_context: DialectContext, settings: object = None) -> Dialect:
    """The dialect of that name, with its own settings if there are any."""
    place = DIALECTS.get(name)
    if place is None:
        raise UnknownName("dialect", name, tuple(DIALECTS))
    module, _, attribute = place.partition(":")
    maker: MakesDialect = getattr(import_module(module), attribute)
    return maker(dialect_context) if settings is None else maker(dialect_context, settings)


class ToolRegistry:
    """The tools of a process: its own, those that come with retinue, and for runs with a dialect that dialect's.

    A tool of one's own hides a built-in one of its name. `named` are the built-in tools that everyone is offered who
    has no list of their own.
    """

    def __init__(self, tools: Iterable[Tool], *, named: Sequence[str] = (), builtin: Builtin | None = None) -> None:
        self.own: dict[str, Tool] = {}
        self._builtin = builtin
        for tool in tools:
            if tool.spec.name in self.own:
                raise BadInput(f"two tools are named {tool.spec.name!r}: rename one of them")
            self.own[tool.spec.name] = tool
        self.offered = tuple(dict.fromkeys((*self.own, *named)))
        """What a run without a list of its own is offered."""
        self.names = tuple(dict.fromkeys((*self.own, *(BUILTIN if builtin is not None else ()))))
        """Every tool that an agent can be given, delegation left out."""
        self._dialects: dict[str, Dialect] = {}
        self._delegation: dict[str, Mapping[str, Tool]] = {}

    def add(self, dialect: Dialect) -> None:
        """A dialect's tools."""
        self._dialects[dialect.name] = dialect
        self._delegation[dialect.name] = dialect.tools()

    def check_together(self, dialects: Sequence[str]) -> None:
        """A name that two dialects of one run have cannot be told apart by a model."""
        for this, other in combinations(dialects, 2):
            if shared := sorted(self._delegation[this].keys() & self._delegation[other].keys()):
                raise BadInput(f"dialects {this!r} and {other!r} both have a tool named {shared[0]!r}: choose one")

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects sees and calls it."""
        present = [dialect for dialect in dialects if dialect in self._dialects]
        theirs = (self._delegation[dialect].get(name) for dialect in present)
        tool = next((tool for tool in theirs if tool is not None), None) or self._registered(name)
        if tool is not None:
            for dialect in present:
                tool = self._dialects[dialect].around(tool)
        return tool

    def _registered(self, name: str) -> Tool | None:
        if self._builtin is None:
            return self.own.get(name)
        tool = self.own.get(name) or self._builtin.find(name)
        return None if tool is None else self._builtin.bounded(tool)


class ProviderRegistry:
    """The providers of a process: objects that were handed in, and contacts that are reached when first asked."""

    def __init__(self, providers: Mapping[str, Provider], provider_configs: Iterable[ProviderConfig] = ()) -> None:
        self._reached = dict(providers)
        self._provider_configs = {each.name: each for each in provider_configs}
        self._lent: dict[str, Callable[[str], Provider | None]] = {}

    def lend(self, kind: str, make: Callable[[str], Provider | None]) -> None:
        """Let a provider `kind:NAME` be made of the one called NAME, when it is first asked for."""
        self._lent[kind] = make

    def __bool__(self) -> bool:
        return bool(self._reached or self._provider_configs)

    @property
    def first(self) -> str:
        """The provider that answers when nobody says which."""
        return next(iter((*self._reached, *self._provider_configs)))

    @property
    def names(self) -> tuple[str, ...]:
        """Everyone who was handed in or settled."""
        return tuple(dict.fromkeys((*self._reached, *self._provider_configs)))

    @property
    def provider_configs(self) -> tuple[ProviderConfig, ...]:
        """What another process needs to reach the same providers."""
        return tuple(self._provider_configs.values())

    def has(self, name: str) -> bool:
        """Whether it was handed in or settled, and is not just a vendor that could be asked."""
        return name in self._reached or name in self._provider_configs

    def is_reached(self, name: str) -> bool:
        """Whether it has been asked for before, or is an object that was handed in."""
        return name in self._reached

    def find(self, name: str) -> Provider | None:
        """The provider of that name; a wire that nobody configured is its vendor's."""
        if name in self._reached:  # asked in every turn
            return self._reached[name]
        name = self._called(name)
        if name not in self._reached and name in (*self._provider_configs, *WIRES):
            self._reached[name] = create_provider(self._provider_configs.get(name) or provider_config(name))
        kind, colon, other = name.partition(":")
        if name not in self._reached and colon and kind in self._lent:
            made = self._lent[kind](other)
            if made is not None:
                self._reached[name] = made
        return self._reached.get(name)

    def split(self, model: str, default: str) -> tuple[str, str]:
        """Provider and name of a model: `wire:name` where there is such a provider, else a name on `default`."""
        wire, colon, name = model.partition(":")
        wire = self._called(wire)
        if colon and (wire in self._reached or wire in self._provider_configs or wire in WIRES):
            return wire, name
        return default, model

    def _called(self, name: str) -> str:
        return canonical_name(name, (*self._reached, *self._provider_configs))

    def temperature(self, name: str) -> float | None:
        """What the settings say for a provider."""
        return self._provider_configs[name].temperature if name in self._provider_configs else None

    async def close(self) -> None:
        """Let go of connections."""
        for provider in self._reached.values():
            if isinstance(provider, Closes):
                await provider.close()


@runtime_checkable
class Closes(Protocol):
    """A provider with connections to let go of."""

    async def close(self) -> None:
        """Let go of them."""
        ...
