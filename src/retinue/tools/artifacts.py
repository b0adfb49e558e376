"""Artifacts: long tool results that are cut for the model, kept whole, and read page by page.

An artifact belongs to the tree whose run made it: all runs of the tree can read it, and those of a tree that continues
its conversation; no other run can, and it is deleted together with the tree. It is stored in pieces, for cheap pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.core.commands import Decide, Decision
from retinue.core.errors import ToolError
from retinue.core.ids import Key, RunId
from retinue.core.policy import allows
from retinue.core.ports import CallContext, KeyValue, PreparedCall, Tool, ToolResult, ToolWrapper
from retinue.core.text import cut, whole_lines
from retinue.tools.dependencies import READER, Origins, ToolDependencies
from retinue.tools.function import FunctionTool

SECONDS = 60.0

PAGE = 50_000
"""Characters that one call returns at most."""

PIECE = 256 * 1024
"""Characters that are stored together."""

MAX_KEPT = 20_000_000
"""Characters of one artifact that are stored; what comes after them is lost."""


class Artifact(Struct, frozen=True, kw_only=True):
    """Record of a stored text: its length, how much of it was stored, and the size of the pieces."""

    size: int
    kept: int
    piece: int


def artifact_id(key: Key) -> str:
    """The name of the result of the call with this key; the same when recovery makes the call again.

    >>> artifact_id("r1/3/0")
    'a_71244fe8b7155225'
    """
    return f"a_{hashlib.sha256(key.encode()).hexdigest()[:16]}"


async def keep(key_value: KeyValue, text: str, *, root_id: RunId, name: str, limit: int = MAX_KEPT) -> Artifact:
    """Store a text for the runs of a tree, in place of an earlier one with that name."""
    artifact = Artifact(size=len(text), kept=min(len(text), limit), piece=PIECE)
    for start in range(0, artifact.kept, PIECE):
        piece = text[start : min(start + PIECE, artifact.kept)].encode("utf-8", "replace")
        await key_value.change(f"{_space(root_id, name)}/{start // PIECE}", _put("text", piece))
    # Written last: the record means that all pieces are stored.
    await key_value.change(_space(root_id, name), _put("about", msgspec.json.encode(artifact)))
    return artifact


async def find(key_value: KeyValue, *, root_id: RunId, name: str) -> Artifact | None:
    """The record of a text that was stored for a tree under that name."""
    # A name that a model made up could lead to another namespace.
    about = (await key_value.look(_space(root_id, name))).get("about") if "/" not in name else None
    return None if about is None else msgspec.json.decode(about, type=Artifact)


async def page(key_value: KeyValue, artifact: Artifact, *, root_id: RunId, name: str, offset: int, limit: int) -> str:
    """Up to `limit` characters of a stored text, from `offset` on; raises `ToolError` if there are none."""
    if offset >= artifact.kept:
        raise ToolError(f"Offset {offset} is past the end: artifact {name} has {artifact.kept} characters.")
    end = min(offset + limit, artifact.kept)
    first = offset // artifact.piece
    pieces = [
        (await key_value.look(f"{_space(root_id, name)}/{number}"))["text"].decode()
        for number in range(first, (end - 1) // artifact.piece + 1)
    ]
    before = first * artifact.piece
    return "".join(pieces)[offset - before : end - before]


def reader(key_value: KeyValue, origins: Origins) -> Tool:

    async def artifact_read(
        context: CallContext,
        id: str,
        offset: Annotated[int, Meta(ge=0)] = 0,
        limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE,
    ) -> str:
        """Read a part of a long result that was cut.

        Args:
            id: the artifact, as the cut result names it
            offset: how many characters to leave out
            limit: how many characters to read
        """
        root_id = context.root_id
        artifact = await find(key_value, root_id=root_id, name=id)
        if artifact is None:
            for root_id in await origins(context.root_id):
                if (artifact := await find(key_value, root_id=root_id, name=id)) is not None:
                    break
            else:
                raise ToolError(f"There is no artifact {id!r}. Artifacts belong to the tree of runs that made them.")
        text = await page(key_value, artifact, root_id=root_id, name=id, offset=offset, limit=limit)
        return text + _continuation(artifact, offset + len(text))

    return FunctionTool(artifact_read, name=READER, kind="pure", timeout=SECONDS)


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`artifact_read`."""
    return (reader(dependencies.key_value, dependencies.origins),)


def _continuation(artifact: Artifact, end: int) -> str:
    """The notice after a page that ends at `end`."""
    if end < artifact.kept:
        return f"\n[{end} of {artifact.kept} characters read. Read on with offset {end}.]"
    if artifact.kept < artifact.size:
        return f"\n[The end of what was kept: {artifact.kept} of {artifact.size} characters. The rest is lost.]"
    return ""


def _space(root_id: RunId, name: str) -> str:
    return f"artifact/{root_id}/{name}"


def _put(name: str, value: bytes) -> Decide:
    def decide(key_value: Mapping[str, bytes]) -> Decision:
        return Decision(answer=b"", puts={name: value})

    return decide


class TruncatingTool(ToolWrapper):
    """A tool whose results, failures too, have at most `limit` characters and a notice.

    A longer result is cut, at the end of a line where one is near; the whole text becomes an artifact that the model
    reads on with `artifact_read`. For a run that is not offered this tool, or whose policy refuses it, nothing is
    stored, and the notice asks for a smaller request.
    """

    def __init__(self, tool: Tool, key_value: KeyValue, limit: int = PAGE, *, max_kept: int = MAX_KEPT) -> None:
        super().__init__(tool)
        self._key_value = key_value
        self._limit = limit
        self._max_kept = max_kept

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}, at most {self._limit} characters>"

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        try:
            result = await call.run(context)
        except ToolError as error:
            if len(str(error)) <= self._limit:
                raise
            result = ToolResult(str(error), failed=True)
        if len(result.text) <= self._limit:
            return result
        return replace(result, text=await self._cut(result.text, context))

    async def _cut(self, text: str, context: CallContext) -> str:
        shown = whole_lines(text, self._limit)
        if not self._can_be_read_on(context):
            return cut(text, shown, f"\n[Cut: {shown} of {len(text)} characters are shown. Ask for less.]").text
        name = artifact_id(context.key)
        artifact = await keep(self._key_value, text, root_id=context.root_id, name=name, limit=self._max_kept)
        lost = "" if artifact.kept == artifact.size else f" Only the first {artifact.kept} were kept."
        call = f'{READER} {{"id": "{name}", "offset": {shown}}}'
        notice = f"\n[Cut: {shown} of {artifact.size} characters are shown.{lost} Read on with {call}.]"
        return cut(text, shown, notice).text

    def _can_be_read_on(self, context: CallContext) -> bool:
        return READER in context.offered and allows(context.policy, READER)
