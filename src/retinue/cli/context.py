"""`retinue context`: sessions and their shared context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.cli import completion
from retinue.cli.event_loop import perform_on_store
from retinue.cli.options import JsonFlag, option
from retinue.cli.output.terminal import HEADING, answer_json, answer_lines, say
from retinue.core.text import clean_body

if TYPE_CHECKING:
    from retinue.app.read_only import ReadOnlyClient

app = typer.Typer(
    name="context",
    help="Sessions and their shared context: list, show, create, snapshot, archive, delete.",
    epilog="Examples:\n\nretinue context list\n\nretinue run --session audit PROMPT\n\nretinue context show audit",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A session.", autocompletion=completion.sessions)]
LabelOption = Annotated[str, option("--label", metavar="L", help="The label of the snapshot.")]
SnapshotOption = Annotated[str | None, option("--snapshot", metavar="L", help="Show the snapshot with this label.")]


@app.command("list", epilog="Example: retinue context list --json")
def list_sessions(
    all_sessions: Annotated[bool, option("--all", help="Also sessions that were made for a single run.")] = False,
    json: JsonFlag = False,
) -> int:
    """List sessions, oldest first, with the size of their shared context."""

    async def work(client: ReadOnlyClient) -> None:
        rows: list[dict[str, Any]] = await client.sessions.list(everyone=all_sessions)
        if json:
            answer_json(rows)
        elif not rows:
            say("no sessions yet; create one with: retinue context create NAME")
        else:
            _table(rows)

    return perform_on_store(work)


@app.command(epilog="Example: retinue context show audit --json")
def show(name: NameArgument, snapshot: SnapshotOption = None, json: JsonFlag = False) -> int:
    """Show a session's shared context with its values, now or as of a snapshot."""

    async def work(client: ReadOnlyClient) -> None:
        context: dict[str, Any] = await client.sessions.context(name, snapshot=snapshot)
        if json:
            answer_json(context)
            return
        archived = ", archived" if context["archived"] else ""
        taken = f", snapshot {snapshot} of {context['taken_at']}" if snapshot is not None else ""
        answer_lines(f"session {name}{archived}{taken}, {_entries(len(context['entries']))}")
        if labels := context.get("snapshots"):
            answer_lines(f"snapshots: {', '.join(labels)}")
        for entry in context["entries"]:
            origin = f"{entry['written_by']}, {entry['written_at']}, version {entry['version']}"
            answer_lines("", f"{HEADING}{entry['key']} ({origin})", *clean_body(entry["value"], HEADING).split("\n"))

    return perform_on_store(work)


@app.command(epilog="Example: retinue context create audit")
def create(name: NameArgument) -> int:
    """Create an empty session."""
    if not name.strip():
        raise typer.BadParameter("the name of the session is empty")
    return perform_on_store(lambda client: client.sessions.create(name), f"created session {name}")


@app.command(epilog="Example: retinue context snapshot audit --label before-the-change")
def snapshot(name: NameArgument, label: LabelOption) -> int:
    """Store a session's current shared context under a label."""

    async def work(client: ReadOnlyClient) -> None:
        say(f"kept {_entries(await client.sessions.snapshot(name, label))} of session {name} as {label}")

    return perform_on_store(work)


@app.command(epilog="Example: retinue context archive audit")
def archive(name: NameArgument) -> int:
    """Make a session read-only."""
    return perform_on_store(lambda client: client.sessions.archive(name), f"archived session {name}")


@app.command(epilog="Example: retinue context delete audit")
def delete(name: NameArgument) -> int:
    """Delete a session with its shared context and agents; its runs stay in the store."""
    return perform_on_store(lambda client: client.sessions.delete(name), f"deleted session {name}")


def _entries(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def _table(rows: list[dict[str, Any]]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[dict[str, Any]]] = [
        Column(title="SESSION", cell=lambda row: row["session_id"], shrinks=True),
        Column(title="STATE", cell=lambda row: "archived" if row["archived"] else "open"),
        Column(title="KEYS", cell=lambda row: str(row["key_count"]), right=True),
        Column(title="TOKENS", cell=lambda row: str(row["total_size_tokens"]), right=True),
    ]
    print_table(rows, columns)
