"""`retinue replay`: what subagents of the dialect `xzatoma` were told and said, where that was to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retinue.core.commands import RunRow
    from retinue.core.messages import Message
    from retinue.core.ports import Store
    from retinue.dialects.xzatoma import Conversation

NOT_MET = 1


def replay(
    id: Annotated[str | None, typer.Option("--id", "-i", metavar="ID", help="Show one conversation.")] = None,
    listed: Annotated[bool, typer.Option("--list", "-l", metavar="", help="List conversations, newest first.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", "-t", metavar="", help="Show who started whom; with --id, below that one.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="How many at most; 10 by default.")] = 10,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="How many to leave out first.")] = 0,
    db_path: Annotated[
        str | None, typer.Option("--db-path", metavar="FILE", help="Another database than that of the state folder.")
    ] = None,
) -> int:
    """Show conversations of subagents of the dialect xzatoma that were kept (persistence_enabled)."""
    from retinue.cli.event_loop import perform
    from retinue.cli.output.terminal import say

    if id is None and not listed and not tree:
        say("Error: Must specify --list or --id")
        return NOT_MET
    return perform(_replay(id, listed=listed, tree=tree, limit=limit, offset=offset, db_path=db_path))


async def _replay(id: str | None, *, listed: bool, tree: bool, limit: int, offset: int, db_path: str | None) -> int:
    from retinue.app.conversations import Conversations
    from retinue.app.open import open_read_only
    from retinue.cli.output.terminal import answer, say

    async with open_read_only(store=_store(db_path)) as client:
        conversations = Conversations(client.supervisor)
        if listed:
            page = (await conversations.rows())[offset : offset + limit]
            answer("\n".join(_list(await conversations.whole(page), limit, offset)))
            return 0
        found = None if id is None else await conversations.find(id)
        if id is not None and found is None:
            say(f"Error: Conversation {_clean(id)} not found")
            return NOT_MET
        if tree:
            rows = await conversations.rows()
            tops = [row for row in rows if (row.depth == 1 if found is None else row.run_id == found.id)]
            answer("\n".join(_tree(tops if found else tops[offset : offset + limit], rows)))
        elif found is not None:
            answer("\n".join(_whole(found)))
    return 0


def _store(db_path: str | None) -> Store | None:
    """The store in that file; one that is not there is not made."""
    if db_path is None:
        return None
    from pathlib import Path

    from retinue.core.errors import BadInput
    from retinue.store.sqlite import open_or_read_only

    path = Path(db_path).expanduser()
    if not path.is_file():
        raise BadInput(f"there is no database at {path}")
    return open_or_read_only(path)


def _list(page: Sequence[Conversation], limit: int, offset: int) -> Iterator[str]:
    from retinue.dialects.text import rfc3339

    yield f"Conversations (showing {limit} starting at {offset}):"
    for each in page:
        yield ""
        yield f"ID:     {each.id}"
        yield f"Label:  {_one_line(each.label)}"
        yield f"Depth:  {each.depth}"
        yield f"Status: {each.status}"
        yield f"Turns:  {each.turns_used}"
        yield f"Start:  {rfc3339(each.started_at)}"
        if each.parent_id is not None:
            yield f"Parent: {each.parent_id}"


def _whole(found: Conversation) -> Iterator[str]:
    import json

    from retinue.dialects.text import rfc3339

    yield f"=== Conversation {found.id} ==="
    yield f"Label: {_one_line(found.label)}"
    yield f"Depth: {found.depth}"
    yield f"Started: {rfc3339(found.started_at)}"
    if found.completed_at is not None:
        yield f"Completed: {rfc3339(found.completed_at)}"
    yield from ("", f"Task: {_clean(found.task)}", "", "=== Messages ===", "")
    for number, message in enumerate(found.messages, 1):
        yield f"--- Message {number} ({_role(message)}) ---"
        yield from _said(message)
        yield ""
    yield "=== Metadata ==="
    yield f"Turns Used: {found.turns_used}"
    yield f"Tokens Consumed: {found.tokens_consumed}"
    yield f"Status: {found.status}"
    yield f"Max Turns Reached: {str(found.max_turns_reached).lower()}"
    yield f"Allowed Tools: {json.dumps(found.allowed_tools, ensure_ascii=False)}"


def _role(message: Message) -> str:
    from retinue.core.messages import AssistantMessage, ToolMessage, UserMessage

    match message:
        case UserMessage():
            return "user"
        case AssistantMessage():
            return "assistant"
        case ToolMessage():
            return "tool"


def _said(message: Message) -> Iterator[str]:
    from retinue.core.messages import AssistantMessage

    yield _clean(message.text) or "(no content)"
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            yield f"Tool call: {_one_line(call.name)} {_clean(call.arguments)}"


def _tree(tops: Sequence[RunRow], rows: Sequence[RunRow]) -> Iterator[str]:
    below: dict[str | None, list[RunRow]] = {}
    for row in reversed(rows):  # oldest first, as things happened
        below.setdefault(row.parent_id, []).append(row)
    yield "Conversation tree:"
    waiting = [(row, 0) for row in reversed(tops)]
    while waiting:
        row, level = waiting.pop()
        turns = row.progress.turns
        yield f"{'  ' * level}├─ {row.run_id} [{_one_line(row.label)}] (depth={row.depth}, turns={turns})"
        waiting += [(child, level + 1) for child in reversed(below.get(row.run_id, []))]


def _one_line(text: str) -> str:
    return " ".join(_clean(text).split())


def _clean(text: str) -> str:
    from retinue.cli.output.format import clean

    return clean(text)
