"""What a dialect is: a set of tools for delegating, and the words that explain them to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from retinue.core.agent import Agent
from retinue.core.ports import Tool


class Dialect(Protocol):
    """A tool surface. It holds no state of its own: whatever has to be remembered is the engine's."""

    @property
    def name(self) -> str:
        """The dialect's own name, as settings and `--dialect` spell it."""
        ...

    def tools(self) -> Mapping[str, Tool]:
        """Every tool that this dialect can offer, by name, in the order of its document."""
        ...

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """The tools that a run at this depth is shown because the dialect is on; the root has depth 0."""
        ...

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """What the root's system text says about these tools, given the registered agents; empty for nothing."""
        ...

    def around(self, tool: Tool) -> Tool:
        """The tool as runs with this dialect call it: watched in some way, or just as it is."""
        ...
