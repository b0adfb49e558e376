"""`retinue runs`: what was run, here or elsewhere. Looking starts nothing; only `resume` works on a run."""

from __future__ import annotations

from typing import Annotated

import typer

from retinue.cli.options import (
    ApiKeyEnvFlag,
    ApprovalsFlag,
    BaseUrlFlag,
    ConfigFlag,
    JsonFlag,
    ModelFlag,
    ProviderFlag,
    QuietFlag,
    RunArgument,
    VerboseFlag,
    YesFlag,
)

app = typer.Typer(
    name="runs",
    help="List runs, look into them, go on with them, stop them.",
    epilog="Examples:\n\nretinue runs\n\nretinue runs show 3f2a9c01\n\nretinue runs resume 3f2a9c01",
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    everyone: Annotated[
        bool, typer.Option("--all", metavar="", help="Every run, not only the roots of trees.")
    ] = False,
    session: Annotated[str | None, typer.Option("--session", metavar="NAME", help="Those of one session.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The newest N. [all of them]")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """List runs, newest first; with a command, look into one, go on with it or stop it."""
    if context.invoked_subcommand is not None:
        if everyone or session is not None or limit is not None or json:
            raise typer.BadParameter(f"put flags after the command: retinue runs {context.invoked_subcommand} ...")
        return 0
    from retinue.cli.event_loop import perform
    from retinue.cli.runs.list_show import list_runs

    return perform(list_runs(everyone=everyone, session=session, limit=limit, json=json))


@app.command(epilog="Example: retinue runs show 3f2a9c01 --json")
def show(run: RunArgument, json: JsonFlag = False) -> int:
    """Show a run as a conversation: what it was asked, said, called and was told."""
    from retinue.cli.event_loop import perform
    from retinue.cli.runs.list_show import show_run

    return perform(show_run(run, json=json))


@app.command(epilog="Example: retinue runs tree 3f2a9c01")
def tree(run: RunArgument, json: JsonFlag = False) -> int:
    """Show a run with everything below it: who worked, and what each and all of them used."""
    from retinue.cli.event_loop import perform
    from retinue.cli.runs.list_show import show_tree

    return perform(show_tree(run, json=json))


@app.command(epilog="Example: retinue runs resume 3f2a9c01 --base-url http://localhost:8000/v1")
def resume(
    run: RunArgument,
    provider: ProviderFlag = None,
    base_url: BaseUrlFlag = None,
    api_key_env: ApiKeyEnvFlag = None,
    model: ModelFlag = None,
    config: ConfigFlag = None,
    approvals: ApprovalsFlag = None,
    yes: YesFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Go on with an interrupted run and print its answer, as `retinue run` does.

    It needs no flags, and no model call that was answered is made again. Of a run that has ended, the stored answer is
    printed.
    """
    from retinue.cli.event_loop import perform
    from retinue.cli.output.approval_prompt import mode_of
    from retinue.cli.runs.resume import Again, resume_run
    from retinue.config.precedence import Flags

    if json and quiet:
        raise typer.BadParameter("--json and --quiet exclude each other")
    flags = Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env)
    again = Again(
        run=run,
        flags=flags,
        config=config,
        approvals=mode_of(approvals, yes=yes),
        yes=yes,
        json=json,
        quiet=quiet,
        verbose=verbose,
    )
    return perform(resume_run(again))


@app.command(epilog="Example: retinue runs cancel 3f2a9c01")
def cancel(run: RunArgument) -> int:
    """Stop a run and everything below it, for good."""
    from retinue.cli.event_loop import perform
    from retinue.cli.runs.list_show import cancel_run

    return perform(cancel_run(run))


@app.command(epilog="Example: retinue runs prune --older-than 30d")
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="D", help="How long ago a run must have ended: 12h, 30d, 8w.")
    ],
) -> int:
    """Forget trees of runs that ended long ago."""
    from retinue.cli.event_loop import perform
    from retinue.cli.runs.list_show import prune_runs

    return perform(prune_runs(older_than))
