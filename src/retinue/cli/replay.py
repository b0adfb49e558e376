"""`retinue replay`: print stored conversations of subagents of a dialect that stores them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from retinue.cli.event_loop import perform
from retinue.cli.options import option
from retinue.cli.output.terminal import answer, say
from retinue.core.errors import BadInput
from retinue.dialects import registry

if TYPE_CHECKING:
    from retinue.core.ports import Store

NOT_MET = 1
HELP = f"Show stored conversations of subagents of the dialect {registry.REPLAY} (persistence_enabled)."


def replay(
    id: Annotated[str | None, option("--id", "-i", metavar="ID", help="Show one conversation.")] = None,
    listed: Annotated[bool, option("--list", "-l", help="List conversations, newest first.")] = False,
    tree: Annotated[bool, option("--tree", "-t", help="Show a tree; with --id, the tree below that one.")] = False,
    limit: Annotated[int, option("--limit", metavar="N", min=0, help="The maximum number; 10 by default.")] = 10,
    offset: Annotated[int, option("--offset", metavar="N", min=0, help="The number to skip first.")] = 0,
    db_path: Annotated[
        str | None, option("--db-path", metavar="FILE", help="A database instead of that in the state folder.")
    ] = None,
) -> int:
    """Show stored conversations of subagents."""
    if id is None and not listed and not tree:
        say("Error: Must specify --list or --id")
        return NOT_MET
    return perform(_replay(id, listed=listed, tree=tree, limit=limit, offset=offset, db_path=db_path))


async def _replay(id: str | None, *, listed: bool, tree: bool, limit: int, offset: int, db_path: str | None) -> int:
    from retinue.app.open import open_read_only

    make_transcripts = registry.entry(registry.REPLAY).transcripts
    assert make_transcripts is not None
    async with open_read_only(store=_store(db_path)) as client:
        transcripts = make_transcripts.load()(client.supervisor)
        if listed:
            text = await transcripts.listing(limit=limit, offset=offset)
        elif tree or id is None:
            text = await transcripts.tree(id, limit=limit, offset=offset)
        else:
            text = await transcripts.conversation(id)
    if text is None:
        say(f"Error: Conversation {id or ''} not found")
        return NOT_MET
    answer(text)
    return 0


def _store(db_path: str | None) -> Store | None:
    """The store in that file; raises if there is no such file."""
    if db_path is None:
        return None
    from retinue.store.sqlite import open_or_read_only

    path = Path(db_path).expanduser()
    if not path.is_file():
        raise BadInput(f"there is no database at {path}")
    return open_or_read_only(path)
