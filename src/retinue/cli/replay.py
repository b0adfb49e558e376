"""`retinue replay`: print stored conversations of subagents of a dialect that stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retinue.dialects import registry

if TYPE_CHECKING:
    from retinue.core.ports import Store

NOT_MET = 1
HELP = f"Show conversations of subagents of the dialect {registry.REPLAY} that were kept (persistence_enabled)."


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
    """Show conversations of subagents that were kept."""
    from retinue.cli.event_loop import perform
    from retinue.cli.output.terminal import say

    if id is None and not listed and not tree:
        say("Error: Must specify --list or --id")
        return NOT_MET
    return perform(_replay(id, listed=listed, tree=tree, limit=limit, offset=offset, db_path=db_path))


async def _replay(id: str | None, *, listed: bool, tree: bool, limit: int, offset: int, db_path: str | None) -> int:
    from retinue.app.open import open_read_only
    from retinue.cli.output.terminal import answer, say
    from retinue.core.text import clean

    make_transcripts = registry.entry(registry.REPLAY).transcripts
    assert make_transcripts is not None
    async with open_read_only(store=_store(db_path)) as client:
        transcripts = make_transcripts.load()(client.supervisor, clean)
        if listed:
            text = await transcripts.listing(limit=limit, offset=offset)
        elif tree or id is None:
            text = await transcripts.tree(id, limit=limit, offset=offset)
        else:
            text = await transcripts.conversation(id)
    if text is None:
        say(f"Error: Conversation {clean(id or '')} not found")
        return NOT_MET
    answer(text)
    return 0


def _store(db_path: str | None) -> Store | None:
    """The store in that file; raises if there is no such file."""
    if db_path is None:
        return None
    from pathlib import Path

    from retinue.core.errors import BadInput
    from retinue.store.sqlite import open_or_read_only

    path = Path(db_path).expanduser()
    if not path.is_file():
        raise BadInput(f"there is no database at {path}")
    return open_or_read_only(path)
