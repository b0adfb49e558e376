"""A tool whose results never flood a model: what is too long is cut, and the whole is kept for reading on."""

from __future__ import annotations

from retinue.core.errors import ToolError
from retinue.core.policy import Risk, Verdict, verdict
from retinue.core.ports import CallContext, KeyValue, PreparedCall, Tool, ToolResult, ToolWrapper
from retinue.core.text import cut, whole_lines
from retinue.tools.artifacts import MOST, PAGE, READER, Artifact, artifact_id, keep


class TruncatingTool(ToolWrapper):
    """Another tool, with results of at most `limit` characters and a notice.

    Up to there they pass untouched, failures too. A longer one is cut, at the end of a line where one is near; the
    whole text becomes an artifact that the model reads on with `artifact_read`. `companion` names that tool where runs
    that are offered this one are offered it as well; a run that has no such tool, or whose policy refuses it, is told
    to ask for less, and nothing is kept.
    """

    def __init__(
        self, tool: Tool, key_value: KeyValue, limit: int = PAGE, *, companion: bool = True, most: int = MOST
    ) -> None:
        super().__init__(tool)
        self.companion = READER if companion else None
        self._key_value = key_value
        self._limit = limit
        self._most = most

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}, at most {self._limit} characters>"

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        """Make the call and cut its result at the limit."""
        try:
            result = await call.run(context)
        except ToolError as error:
            if len(str(error)) <= self._limit:
                raise
            result = ToolResult(str(error), failed=True)
        if len(result.text) <= self._limit:
            return result
        return ToolResult(await self._shortened(result.text, context), result.failed)

    async def _shortened(self, text: str, context: CallContext) -> str:
        shown = whole_lines(text, self._limit)
        if not self._can_be_read_on(context):
            return cut(text, shown, f"\n[Cut: {shown} of {len(text)} characters are shown. Ask for less.]").text
        name = artifact_id(context.key)
        kept = await keep(self._key_value, text, root_id=context.root_id, name=name, most=self._most)
        return cut(text, shown, _how_to_read_on(kept, shown, name)).text

    def _can_be_read_on(self, context: CallContext) -> bool:
        offered = self.companion is not None or READER in context.offered
        return offered and verdict(context.policy, tool=READER, risk=Risk.LOW).verdict is not Verdict.REFUSE


def _how_to_read_on(artifact: Artifact, shown: int, name: str) -> str:
    lost = "" if artifact.kept == artifact.size else f" Only the first {artifact.kept} were kept."
    call = f'{READER} {{"id": "{name}", "offset": {shown}}}'
    return f"\n[Cut: {shown} of {artifact.size} characters are shown.{lost} Read on with {call}.]"
