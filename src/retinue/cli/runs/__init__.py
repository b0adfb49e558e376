"""`retinue runs`: list, show, follow, export, resume, cancel and prune runs. Only `resume` drives a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import completion, options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import say, stdout_for_answers_alone

if TYPE_CHECKING:
    from retinue.config.precedence import Flags

__all__ = ["app", "export", "html_page", "list_show"]

app = typer.Typer(
    name="runs",
    help="List, show, follow, wait for, export, resume, cancel and prune runs.",
    epilog="Examples:\n\nretinue runs\n\nretinue runs show 3f2a9c01\n\nretinue runs resume 3f2a9c01",
    rich_markup_mode="rich",
)


AllFlag = Annotated[bool, option("--all", help="All runs, not only root runs.")]
SessionFlag = Annotated[
    str | None, option("--session", metavar="NAME", help="The runs of one session.", completed=completion.sessions)
]
LimitFlag = Annotated[int | None, option("--limit", metavar="N", min=1, help="The newest N. [20, as JSON 1000]")]
InFlag = Annotated[
    str | None,
    option("--in", metavar="ID", help="Find the run by its name in this tree, as in: t_01 --in 3f2a9c01."),
]


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    all_runs: AllFlag = False,
    session: SessionFlag = None,
    limit: LimitFlag = None,
    json: options.JsonFlag = False,
) -> int:
    """List runs, newest first; commands show, follow, export, resume, cancel and prune them."""
    if context.invoked_subcommand is not None:
        if all_runs or session is not None or limit is not None or json:
            raise typer.BadParameter(f"put flags after the command: retinue runs {context.invoked_subcommand} ...")
        return 0
    return list_command(all_runs=all_runs, session=session, limit=limit, json=json)


@app.command("list", epilog="Examples:\n\nretinue runs list\n\nretinue runs list --limit 100")
def list_command(
    all_runs: AllFlag = False, session: SessionFlag = None, limit: LimitFlag = None, json: options.JsonFlag = False
) -> int:
    """List runs, newest first, with the beginning of their tasks; `retinue runs` is the same."""
    from retinue.cli.runs.list_show import list_runs

    return perform(list_runs(all_runs=all_runs, session=session, limit=limit, json=json))


@app.command(epilog="Examples:\n\nretinue runs show 3f2a9c01 --json\n\nretinue runs show t_01 --in 3f2a9c01")
def show(
    run: options.RunArgument,
    within: InFlag = None,
    everything: Annotated[
        bool, option("--all", help="The run and all its descendants, with long texts in full.")
    ] = False,
    json: options.JsonFlag = False,
) -> int:
    """Show a run as a conversation: messages, tool calls and results."""
    from retinue.cli.runs.list_show import show_run

    return perform(show_run(run, tree=within, everything=everything, json=json))


@app.command(epilog="Example: retinue runs tree 3f2a9c01")
def tree(run: options.RunArgument, within: InFlag = None, json: options.JsonFlag = False) -> int:
    """Show a run with its descendants: ids, tasks, usage, and reasons of failures."""
    from retinue.cli.runs.list_show import show_tree

    return perform(show_tree(run, tree=within, json=json))


@app.command(epilog="Examples:\n\nretinue runs follow 3f2a9c01\n\nretinue runs follow 3f2a9c01 --tree --json")
def follow(
    run: options.RunArgument,
    within: InFlag = None,
    tree: Annotated[bool, option("--tree", help="The descendants of the run, too.")] = False,
    json: Annotated[bool, option("--json", help="Print a JSON object for each event.", panel=options.OUTPUT)] = False,
) -> int:
    """Print what a run does, from its start to its end; any process may drive it.

    Exit status: 0 if the run completed, 1 if not.
    """
    from retinue.cli.runs.follow import follow_run

    return perform(follow_run(run, within=within, tree=tree, json=json))


@app.command(epilog="Example: retinue runs wait 3f2a9c01 8b1d04aa")
def wait(
    runs: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Runs, by ids or parts of ids.", autocompletion=completion.runs)
    ],
) -> int:
    """Wait for the end of runs; any process may drive them. Exit status: 0 if all completed, 1 if not."""
    from retinue.cli.runs.follow import wait_for_runs

    return perform(wait_for_runs(runs))


@app.command(
    epilog="Examples:\n\nretinue runs export 3f2a9c01 --format html -o tree.html\n\nretinue runs export 3f2a9c01"
)
def export(
    run: options.RunArgument,
    within: InFlag = None,
    format: Annotated[
        str,
        option("--format", metavar="jsonl|html|md", help="A line of JSON for each event, or a page to read. [jsonl]"),
    ] = "jsonl",
    file: Annotated[str | None, option("--output", "-o", metavar="FILE", help="The file to write. [stdout]")] = None,
    replayable: Annotated[
        bool, option("--replayable", help="A recording of the tree, for tests; needs -o. See retinue record.")
    ] = False,
) -> int:
    """Write a run and its descendants with everything they did to one file."""
    from retinue.cli.runs.export import WRITERS, export_recording, export_run

    if replayable:
        if file is None:
            raise typer.BadParameter("--replayable needs the file to write: give -o FILE")
        return perform(export_recording(run, within=within, file=file))
    if format not in WRITERS:
        raise typer.BadParameter(f"--format {format!r}: expected one of: {', '.join(WRITERS)}")
    return perform(export_run(run, within=within, write_runs=WRITERS[format], file=file))


@app.command(epilog="Example: retinue runs resume 3f2a9c01 --base-url http://localhost:8000/v1")
def resume(
    run: options.RunArgument,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    config: options.ConfigFlag = None,
    approvals: options.ApprovalsFlag = None,
    yes: options.YesFlag = False,
    json: options.JsonFlag = False,
    quiet: options.QuietFlag = False,
    plain: options.PlainFlag = False,
    verbose: options.VerboseFlag = False,
) -> int:
    """Resume an interrupted run and print its answer, as `retinue run` does.

    No flags are needed, and answered model calls are not repeated. The stored answer of an ended run is printed.
    """
    from retinue.config.precedence import Flags

    output = options.OutputOptions(json=json, quiet=quiet, verbose=verbose, plain=plain)
    flags = Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env)
    return perform(_resume(run, flags, config, options.approval_options(approvals, yes=yes), output))


async def _resume(
    name: str, flags: Flags, config: str | None, approval: options.ApprovalOptions, output: options.OutputOptions
) -> int:
    """Drive the tree of the run to its end, or print its stored outcome; the exit code is that of the run."""
    from retinue.app.launch.resume import find_stored, reopen, resume
    from retinue.cli.output.plain_lines import Refusals
    from retinue.cli.output.progress import approver_for, follow, print_followed, print_outcome

    with interrupts() as stop, stdout_for_answers_alone():
        stored = await find_stored(name, flags, config=config)
        view = stored.view
        if view.outcome is not None:
            return print_outcome(view.run_id, view.outcome, output.form, task=view.task)
        if view.root_id != view.run_id:
            say(f"run {view.run_id} is part of a tree: resuming its root {view.root_id}")
        approver = approver_for(approval)
        retinue, model_choice = reopen(
            stored, flags, config=config, approvals=approver, warn=lambda warning: say(f"warning: {warning}")
        )
        if not output.quiet:
            say(str(model_choice))
        refusals = Refusals()
        async with retinue:
            retinue.supervisor.on_call(refusals.receive)
            root = await resume(retinue, stored)
            before = await retinue.supervisor.replay(root.run_id)
            followed = await follow(
                retinue, root, stop, approver=approver, output=output, refusals=refusals, after=before.seq
            )
    return print_followed(root.run_id, followed, output, task=before.accepted.task)


@app.command(epilog="Example: retinue runs cancel 3f2a9c01")
def cancel(run: options.RunArgument) -> int:
    """Cancel a run and its descendants."""
    from retinue.cli.runs.list_show import cancel_run

    return perform(cancel_run(run))


@app.command(epilog="Example: retinue runs prune --older-than 30d")
def prune(
    older_than: Annotated[str, option("--older-than", metavar="D", help="The least age of their end: 12h, 30d, 8w.")],
) -> int:
    """Remove trees of runs that ended long ago."""
    from retinue.cli.runs.list_show import prune_runs

    return perform(prune_runs(older_than))
