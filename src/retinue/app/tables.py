"""What a process has, by name: tools, providers, and the dialects that add tools of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from retinue.app.wires import WIRES, Contact, called, contact, reach
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import Provider, Tool
from retinue.dialects.base import Dialect
from retinue.dialects.desk import Desk

DIALECTS: dict[str, str] = {
    "spec": "retinue.dialects.spec:SpecDialect",
    "xzatoma": "retinue.dialects.xzatoma:XzatomaDialect",
}
"""Where each dialect lives; imported when it is chosen."""


class MakesDialect(Protocol):
    """A dialect's class."""

    def __call__(self, desk: Desk, settings: Any = ...) -> Dialect:
        """The dialect, at work at this desk."""
        ...


def make_dialect(name: str, desk: Desk, settings: object = None) -> Dialect:
    """The dialect of that name, with its own settings if there are any."""
    place = DIALECTS.get(name)
    if place is None:
        raise UnknownName("dialect", name, tuple(DIALECTS))
    module, _, attribute = place.partition(":")
    maker: MakesDialect = getattr(import_module(module), attribute)
    return maker(desk) if settings is None else maker(desk, settings)


class Toolset:
    """The tools of a process: its own, and for runs with a dialect that dialect's."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.own: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self.own:
                raise BadInput(f"two tools are named {tool.spec.name!r}: rename one of them")
            self.own[tool.spec.name] = tool
        self._dialects: dict[str, Dialect] = {}
        self._delegation: dict[str, Mapping[str, Tool]] = {}

    def add(self, dialect: Dialect) -> None:
        """A dialect's tools; a name that another dialect has too cannot be told apart by a model."""
        tools = dialect.tools()
        for other, theirs in self._delegation.items():
            if shared := sorted(tools.keys() & theirs.keys()):
                raise BadInput(
                    f"dialects {other!r} and {dialect.name!r} both have a tool named {shared[0]!r}: choose one"
                )
        self._dialects[dialect.name] = dialect
        self._delegation[dialect.name] = tools

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects sees and calls it."""
        present = [dialect for dialect in dialects if dialect in self._dialects]
        theirs = (self._delegation[dialect].get(name) for dialect in present)
        tool = next((tool for tool in theirs if tool is not None), self.own.get(name))
        if tool is not None:
            for dialect in present:
                tool = self._dialects[dialect].around(tool)
        return tool


class ProviderTable:
    """The providers of a process: objects that were handed in, and contacts that are reached when first asked."""

    def __init__(self, providers: Mapping[str, Provider], contacts: Iterable[Contact] = ()) -> None:
        self._reached = dict(providers)
        self._contacts = {each.name: each for each in contacts}

    def __bool__(self) -> bool:
        return bool(self._reached or self._contacts)

    @property
    def first(self) -> str:
        """The provider that answers when nobody says which."""
        return next(iter((*self._reached, *self._contacts)))

    @property
    def contacts(self) -> tuple[Contact, ...]:
        """What another process needs to reach the same providers."""
        return tuple(self._contacts.values())

    def find(self, name: str) -> Provider | None:
        """The provider of that name; a wire that nobody configured is its vendor's."""
        name = self._called(name)
        if name not in self._reached and name in (*self._contacts, *WIRES):
            self._reached[name] = reach(self._contacts.get(name) or contact(name))
        return self._reached.get(name)

    def split(self, model: str, default: str) -> tuple[str, str]:
        """Provider and name of a model: `wire:name` where there is such a provider, else a name on `default`."""
        wire, colon, name = model.partition(":")
        wire = self._called(wire)
        if colon and (wire in self._reached or wire in self._contacts or wire in WIRES):
            return wire, name
        return default, model

    def _called(self, name: str) -> str:
        return called(name, (*self._reached, *self._contacts))

    def temperature(self, name: str) -> float | None:
        """What the settings say for a provider."""
        return self._contacts[name].temperature if name in self._contacts else None

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
