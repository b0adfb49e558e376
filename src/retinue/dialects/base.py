"""What a dialect is: a set of tools for delegating, and the words that explain them to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from retinue.core.agent import Agent, ToolKind
from retinue.core.events import RunAccepted
from retinue.core.ports import Tool
from retinue.core.run import Outcome


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


class DialectTool(Tool):
    """Base class of the dialects' tools.

    After a crash a call is made again and finds by its key what it had begun. The risk is low: what the runs that it
    starts do is assessed when they do it.
    """

    kind: ToolKind = "keyed"


@runtime_checkable
class Announces(Protocol):
    """A dialect whose children tell their parents of their ends, in its own words."""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """What a parent's model reads of a child that has ended."""
        ...


@runtime_checkable
class HandsOver(Protocol):
    """A dialect whose tasks may wait for each other."""

    def handover(self, outcome: Outcome) -> tuple[bool, str]:
        """Whether a task did what others wait for, and its result or the reason, as they read it."""
        ...


@runtime_checkable
class SuppliesTools(Protocol):
    """A dialect in which an agent that names no tools is not without."""

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """The tools of an agent that names none; its policy may take some of them away."""
        ...
