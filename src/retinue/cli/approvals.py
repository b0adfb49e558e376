"""`retinue approvals`, `approve` and `deny`: list and answer the calls of all runs that need an approval."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.cli.event_loop import perform
from retinue.cli.options import JsonFlag, option
from retinue.cli.output.terminal import answer_json, answer_lines, prompt, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.core.run import Approval

QuestionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The approval's id, or 4 or more characters of its run's id if that has one approval."
    ),
]
OptionalQuestionArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Show this call with all its arguments.", show_default=False)
]
DoNotAskFlag = Annotated[bool, option("--yes", help="Do not ask on a terminal.")]
NoteFlag = Annotated[
    str, option("--note", metavar="TEXT", help="A note stored with the answer; the model reads the note of a denial.")
]


def approvals(question: OptionalQuestionArgument = None, json: JsonFlag = False) -> int:
    """List the tool calls that wait for approval in all runs, or show one of them in full."""
    return perform(_list(question, json=json))


def approve(question: QuestionArgument, note: NoteFlag = "", yes: DoNotAskFlag = False) -> int:
    """Approve a tool call that waits for approval; on a terminal, the call is shown first."""
    return perform(_answer(question, allow=True, note=note, ask=not yes))


def deny(question: QuestionArgument, note: NoteFlag = "") -> int:
    """Deny a tool call that waits for approval; the model reads the denial and continues."""
    return perform(_answer(question, allow=False, note=note, ask=False))


async def _list(name: str | None, *, json: bool) -> int:
    from retinue.app.open import open_read_only

    async with open_read_only() as client:
        questions = await client.approvals.open() if name is None else [await client.approvals.find(name.strip())]
        workspace = "" if name is None else await client.supervisor.folder(questions[0].run_id)
    if name is not None and not json:
        from retinue.cli.output.approval_prompt import question_lines

        answer_lines(*question_lines(questions[0], whole=True, workspace=workspace))
    elif json:
        answer_json([_row(question) for question in questions])
    elif not questions:
        say("no calls wait for approval")
    else:
        _table(questions)
    return 0


async def _answer(name: str, *, allow: bool, note: str, ask: bool) -> int:
    from retinue.app.open import open_read_only
    from retinue.cli.output.approval_prompt import argument_lines
    from retinue.cli.output.format import one_line

    async with open_read_only() as client:
        question = await client.approvals.find(name.strip())
        workspace = await client.supervisor.folder(question.run_id)
        if ask and sys.stdin.isatty() and sys.stderr.isatty() and not await _is_meant(question, workspace):
            say("nothing was answered")
            return 1
        # Before the answer: a run may end, and its call may have written its file, as soon as it has it.
        arguments = argument_lines(question, workspace=workspace)
        has_driver = await client.driver_of(question.run_id) is not None
        is_first = await client.approvals.answer(question, allow=allow, note=note)
        view = await client.look(question.run_id)
    if not is_first:
        say(f"error: {question.id} was already answered; the first answer counts")
        return 1
    verdict, may = ("approved", "may") if allow else ("denied", "may not")
    say(f"{verdict}: {one_line(question.path)} {may} call {one_line(question.tool)}")
    if allow:
        say(*arguments)
    if not has_driver:
        say(f"no process drives this run; go on with: retinue runs resume {view.root_id}")
    return 0


async def _is_meant(question: Approval, workspace: str) -> bool:
    """Show the whole call on the terminal, and ask whether it is to be approved."""
    from retinue.cli.output.approval_prompt import flush_typed_input, line_from_stdin, question_lines

    say(*question_lines(question, whole=True, workspace=workspace))
    flush_typed_input()
    prompt("Approve? [y]es, [n]o: ")
    return (await line_from_stdin()).strip().lower() in ("y", "yes")


def _row(question: Approval) -> dict[str, Any]:
    return {
        "id": question.id,
        "run_id": question.run_id,
        "path": question.path,
        "turn": question.turn,
        "index": question.index,
        "tool": question.tool,
        "arguments": _value(question.arguments),
        "reason": question.reason,
    }


def _value(arguments: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _table(questions: Sequence[Approval]) -> None:
    from retinue.cli.output.format import one_line, short
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[Approval]] = [
        Column(
            title="ID", cell=lambda each: f"{short(each.run_id)}/{each.turn}/{each.index}", piped=lambda each: each.id
        ),
        Column(title="RUN", cell=lambda each: one_line(each.path, 40), piped=lambda each: each.path),
        Column(title="TOOL", cell=lambda each: one_line(each.tool, 40)),
        Column(title="ARGUMENTS", cell=lambda each: each.arguments, shrinks=True, keeps_end=True),
    ]
    print_table(questions, columns)
