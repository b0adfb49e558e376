"""What the `meerkat` tools have in common: every refusal is an answer, in the words of the document."""

from __future__ import annotations

from retinue.core.errors import Refused
from retinue.core.ports import CallContext, ToolResult
from retinue.dialects.arguments import CallRefused, compact
from retinue.dialects.base import DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.meerkat import schema
from retinue.dialects.meerkat.relatives import Kin
from retinue.dialects.meerkat.requests import failed
from retinue.dialects.meerkat.settings import MeerkatSettings


class MeerkatTool(DialectTool):
    """A tool that answers with an object, or says why not."""

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Do what the model asks for."""
        try:
            return ToolResult(compact(await self._answer(arguments, context)))
        except CallRefused as refusal:
            return ToolResult(str(refusal), failed=True)
        except Refused as refusal:
            return ToolResult(str(failed(str(refusal))), failed=True)

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        raise NotImplementedError


class AgentTool(MeerkatTool):
    """A tool about sub-agents; its class says which."""

    tool = ""

    def __init__(self, dialect_context: DialectContext, settings: MeerkatSettings) -> None:
        self.spec = schema.specs(settings)[self.tool]
        self._dialect_context = dialect_context
        self._settings = settings
        self._supervisor = dialect_context.supervisor
        self._kin = Kin(dialect_context.supervisor)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Do what the model asks for."""
        # A fork may be shown tools that it does not have, so that its parent's cache is still good.
        if context.depth > 0 and not self._settings.nested_tools:
            return ToolResult(self.why_hidden(context), failed=True)
        return await super().call(arguments, context)

    def why_hidden(self, context: CallContext) -> str:
        """What a run reads that calls the tool without being offered it."""
        return str(failed(f"Tool access denied: {self.tool}"))
