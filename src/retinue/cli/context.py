"""`retinue context`: sessions and their shared context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.cli.options import JsonFlag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.app.sessions import Sessions

app = typer.Typer(
    name="context",
    help="Sessions and their shared context: list, show, create, snapshot, archive, delete.",
    epilog="Examples:\n\nretinue context list\n\nretinue run --session audit PROMPT\n\nretinue context show audit",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A session.")]
LabelOption = Annotated[str, typer.Option("--label", metavar="L", help="What the snapshot is to be called.")]
SnapshotOption = Annotated[
    str | None, typer.Option("--snapshot", metavar="L", help="What was there when this snapshot was taken.")
]


@app.command("list", epilog="Example: retinue context list --json")
def list_sessions(json: JsonFlag = False) -> int:
    """List sessions, oldest first, with the size of their shared context."""
    from retinue.cli.output.terminal import answer_json, say

    async def work(sessions: Sessions) -> None:
        rows: list[dict[str, Any]] = await sessions.list()
        if json:
            answer_json(rows)
        elif not rows:
            say("no sessions yet; create one with: retinue context create NAME")
        else:
            _table(rows)

    return _with_sessions(work)


@app.command(epilog="Example: retinue context show audit --json")
def show(name: NameArgument, snapshot: SnapshotOption = None, json: JsonFlag = False) -> int:
    """Show everything in a session's shared context, values included, or what was there at a snapshot."""
    from retinue.cli.output.terminal import answer, answer_json
    from retinue.core.text import clean

    async def work(sessions: Sessions) -> None:
        context: dict[str, Any] = await sessions.context(name, snapshot=snapshot)
        if json:
            answer_json(context)
            return
        archived = ", archived" if context["archived"] else ""
        taken = f", snapshot {clean(snapshot)} of {context['taken_at']}" if snapshot is not None else ""
        answer(f"session {clean(name)}{archived}{taken}, {_entries(len(context['entries']))}")
        if labels := context.get("snapshots"):
            answer(f"snapshots: {', '.join(map(clean, labels))}")
        for entry in context["entries"]:
            origin = f"{entry['written_by']}, {entry['written_at']}, version {entry['version']}"
            answer(f"\n-- {entry['key']} ({clean(origin)})\n{clean(entry['value'])}")

    return _with_sessions(work)


@app.command(epilog="Example: retinue context create audit")
def create(name: NameArgument) -> int:
    """Create an empty session."""
    if not name.strip():
        raise typer.BadParameter("the name of the session is empty")
    return _with_sessions(lambda sessions: sessions.create(name), f"created session {name}")


@app.command(epilog="Example: retinue context snapshot audit --label before-the-change")
def snapshot(name: NameArgument, label: LabelOption) -> int:
    """Keep a session's shared context as it is now under a label."""
    from retinue.cli.output.terminal import say

    async def work(sessions: Sessions) -> None:
        say(f"kept {_entries(await sessions.snapshot(name, label))} of session {name} as {label}")

    return _with_sessions(work)


@app.command(epilog="Example: retinue context archive audit")
def archive(name: NameArgument) -> int:
    """Make a session read-only."""
    return _with_sessions(lambda sessions: sessions.archive(name), f"archived session {name}")


@app.command(epilog="Example: retinue context delete audit")
def delete(name: NameArgument) -> int:
    """Delete a session with its shared context and agents; its runs stay on record."""
    return _with_sessions(lambda sessions: sessions.delete(name), f"deleted session {name}")


def _with_sessions(work: Callable[[Sessions], Awaitable[None]], done: str = "") -> int:
    from retinue.app.open import open_read_only
    from retinue.cli.event_loop import perform
    from retinue.cli.output.terminal import say

    async def main() -> int:
        async with open_read_only() as client:
            await work(client.sessions)
        if done:
            say(done)
        return 0

    return perform(main())


def _entries(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def _table(rows: list[dict[str, Any]]) -> None:
    from retinue.cli.output.table import Column, print_table
    from retinue.core.text import clean

    columns: list[Column[dict[str, Any]]] = [
        Column(title="SESSION", cell=lambda row: clean(row["session_id"]), shrinks=True),
        Column(title="STATE", cell=lambda row: "archived" if row["archived"] else "open"),
        Column(title="KEYS", cell=lambda row: str(row["key_count"]), right=True),
        Column(title="TOKENS", cell=lambda row: str(row["total_size_tokens"]), right=True),
    ]
    print_table(rows, columns)
