"""`retinue runs`: list, show, resume, cancel and prune the runs of the store. Only `resume` drives a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import say, stdout_for_answers_alone

if TYPE_CHECKING:
    from retinue.config.precedence import Flags

__all__ = ["app", "list_show"]

app = typer.Typer(
    name="runs",
    help="List, show, resume, cancel and prune runs.",
    epilog="Examples:\n\nretinue runs\n\nretinue runs show 3f2a9c01\n\nretinue runs resume 3f2a9c01",
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    all_runs: Annotated[bool, option("--all", help="All runs, not only root runs.")] = False,
    session: Annotated[str | None, option("--session", metavar="NAME", help="The runs of one session.")] = None,
    limit: Annotated[int | None, option("--limit", metavar="N", min=1, help="The newest N. [1000]")] = None,
    json: options.JsonFlag = False,
) -> int:
    """List runs, newest first; commands show, resume, cancel and prune them."""
    if context.invoked_subcommand is not None:
        if all_runs or session is not None or limit is not None or json:
            raise typer.BadParameter(f"put flags after the command: retinue runs {context.invoked_subcommand} ...")
        return 0
    from retinue.cli.runs.list_show import list_runs

    return perform(list_runs(all_runs=all_runs, session=session, limit=limit, json=json))


@app.command(epilog="Example: retinue runs show 3f2a9c01 --json")
def show(run: options.RunArgument, json: options.JsonFlag = False) -> int:
    """Show a run as a conversation: messages, tool calls and results."""
    from retinue.cli.runs.list_show import show_run

    return perform(show_run(run, json=json))


@app.command(epilog="Example: retinue runs tree 3f2a9c01")
def tree(run: options.RunArgument, json: options.JsonFlag = False) -> int:
    """Show a run with its descendants and their usage."""
    from retinue.cli.runs.list_show import show_tree

    return perform(show_tree(run, json=json))


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
    verbose: options.VerboseFlag = False,
) -> int:
    """Resume an interrupted run and print its answer, as `retinue run` does.

    No flags are needed, and answered model calls are not repeated. The stored answer of an ended run is printed.
    """
    from retinue.config.precedence import Flags

    output = options.OutputOptions(json=json, quiet=quiet, verbose=verbose)
    flags = Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env)
    return perform(_resume(run, flags, config, options.approval_options(approvals, yes=yes), output))


async def _resume(
    name: str, flags: Flags, config: str | None, approval: options.ApprovalOptions, output: options.OutputOptions
) -> int:
    """Drive the tree of the run to its end, or print its stored outcome; the exit code is that of the run."""
    from retinue.app.launch.resume import find_stored, reopen, resume
    from retinue.cli.output.progress import approver_for, follow, print_interrupted, print_outcome

    with interrupts() as stop, stdout_for_answers_alone():
        stored = await find_stored(name, flags, config=config)
        view = stored.view
        if view.outcome is not None:
            return print_outcome(view.run_id, view.outcome, output.form)
        if view.root_id != view.run_id:
            say(f"run {view.run_id} is part of a tree: resuming its root {view.root_id}")
        approver = approver_for(approval)
        retinue, model_choice = reopen(
            stored, flags, config=config, approvals=approver, warn=lambda warning: say(f"warning: {warning}")
        )
        if not output.quiet:
            say(str(model_choice))
        async with retinue:
            root = await resume(retinue, stored)
            outcome = await follow(retinue, root, stop, approver=approver, output=output)
    return print_interrupted(root.run_id) if outcome is None else print_outcome(root.run_id, outcome, output.form)


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
