"""What was too long for a model to read at once, kept so that it can be read page by page.

An artifact belongs to the tree whose run made it: all runs of the tree can read it, and those of a tree that goes on
with its conversation; nobody else can, and it is forgotten together with the tree. It is kept in pieces, so that a
page costs what the page weighs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from retinue.core.commands import Decide, Decision
from retinue.core.errors import ToolError
from retinue.core.ids import Key, RunId
from retinue.core.ports import CallContext, KeyValue, Tool
from retinue.tools.dependencies import Origins, ToolDependencies
from retinue.tools.function import FunctionTool

READER = "artifact_read"
"""The tool that pages through artifacts."""

SECONDS = 60.0

PAGE = 50_000
"""The most characters that are read at once."""

PIECE = 256 * 1024
"""Characters that are kept together."""

MOST = 20_000_000
"""Characters of one artifact that are kept; what comes after them is lost."""


class Artifact(Struct, frozen=True, kw_only=True):
    """What is known of a kept text: how long it was, how much of it was kept, and in pieces of which size."""

    size: int
    kept: int
    piece: int


def artifact_id(key: Key) -> str:
    """The name of what the call with this key made; the same call has the same name, however often it is entered.

    >>> artifact_id("r1/3/0")
    'a_71244fe8b7155225'
    """
    return f"a_{hashlib.sha256(key.encode()).hexdigest()[:16]}"


async def keep(key_value: KeyValue, text: str, *, root_id: RunId, name: str, most: int = MOST) -> Artifact:
    """Keep a text for the runs of a tree. What was kept under that name before is replaced."""
    artifact = Artifact(size=len(text), kept=min(len(text), most), piece=PIECE)
    for start in range(0, artifact.kept, PIECE):
        piece = text[start : min(start + PIECE, artifact.kept)].encode("utf-8", "replace")
        await key_value.change(f"{_space(root_id, name)}/{start // PIECE}", _put("text", piece))
    # Last, because it says that all the rest is there.
    await key_value.change(_space(root_id, name), _put("about", msgspec.json.encode(artifact)))
    return artifact


async def find(key_value: KeyValue, *, root_id: RunId, name: str) -> Artifact | None:
    """What is known of a text that was kept for a tree under that name."""
    # A name that a model made up could lead to another shelf: one that no text has is not looked for.
    about = (await key_value.look(_space(root_id, name))).get("about") if "/" not in name else None
    return None if about is None else msgspec.json.decode(about, type=Artifact)


async def page(key_value: KeyValue, artifact: Artifact, *, root_id: RunId, name: str, offset: int, limit: int) -> str:
    """Up to `limit` characters of a kept text, from `offset` on; raises `ToolError` when there are none."""
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
    """The tool `artifact_read`."""

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
        return text + _where(artifact, offset + len(text))

    return FunctionTool(artifact_read, name=READER, kind="pure", timeout=SECONDS)


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """The tool that reads what was cut."""
    return (reader(dependencies.key_value, dependencies.origins),)


def _where(artifact: Artifact, end: int) -> str:
    """What a reader is told after a page that ends there."""
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
