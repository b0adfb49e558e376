"""A tool around another: the same to a model and to the engine, until a class below says what is different."""

from __future__ import annotations

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallContext, KnowsWhyHidden, Tool, ToolResult, Weight, closed_by, does_wait, weight_of


class Wrapped:
    """Hands on everything that a tool can be asked, also what not every tool knows."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        return self.tool.spec

    @property
    def kind(self) -> ToolKind:
        """What a crash in the middle means."""
        return self.tool.kind

    @property
    def risk(self) -> Risk:
        """How much there is to lose."""
        return self.tool.risk

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take."""
        return self.tool.timeout

    @property
    def waits(self) -> bool:
        """Whether the call waits for other runs."""
        return self.tool.waits

    @property
    def stoppable(self) -> bool:
        """Whether cancelling the call stops the work."""
        return self.tool.stoppable

    @property
    def companion(self) -> str | None:
        """The tool that is offered with it, if there is one."""
        return getattr(self.tool, "companion", None)

    def weigh(self, arguments: str) -> Weight:
        """What there is to lose by this call."""
        return weight_of(self.tool, arguments)

    def closed_by(self, policy: Policy, arguments: str) -> str | None:
        """Why a policy closes this call, as far as the tool can tell."""
        return closed_by(policy, self.tool, arguments)

    def waits_with(self, arguments: str) -> bool:
        """Whether this call waits for other runs."""
        return does_wait(self.tool, arguments)

    def why_hidden(self, context: CallContext) -> str | None:
        """What a run reads that calls it without being offered it; None for the usual words."""
        return self.tool.why_hidden(context) if isinstance(self.tool, KnowsWhyHidden) else None

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call."""
        return await self.tool.call(arguments, context)
