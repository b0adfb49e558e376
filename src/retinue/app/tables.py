"""What a process has, by name: tools, providers, and the dialects that add tools of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Protocol

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

    def __call__(self, desk: Desk) -> Dialect:
        """The dialect, at work at this desk."""
        ...


def make_dialect(name: str, desk: Desk) -> Dialect:
    """The dialect of that name."""
    place = DIALECTS.get(name)
    if place is None:
        raise UnknownName("dialect", name, tuple(DIALECTS))
    module, _, attribute = place.partition(":")
    maker: MakesDialect = getattr(import_module(module), attribute)
    return maker(desk)


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
    """The providers of a process."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self.known = dict(providers)

    def find(self, name: str) -> Provider | None:
        """The provider of that name."""
        return self.known.get(name)

    def split(self, model: str, default: str) -> tuple[str, str]:
        """Provider and name of a model: `wire:name` where the wire is one we have, else a name on `default`."""
        wire, colon, name = model.partition(":")
        if colon and wire in self.known:
            return wire, name
        return default, model
