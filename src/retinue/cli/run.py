"""`retinue run`: one task for one agent, and its answer on stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import (
    LIMITS,
    OUTPUT,
    ApiKeyEnvFlag,
    ApprovalOptions,
    ApprovalsFlag,
    BaseUrlFlag,
    BriefFlag,
    ConfigFlag,
    ModelFlag,
    NoSandboxFlag,
    OutputOptions,
    ProviderFlag,
    QuietFlag,
    VerboseFlag,
    YesFlag,
    approval_options,
    countable,
    dialects_of,
    exclude,
    tools_of,
)
from retinue.dialects.registry import DEFAULT, prompt_named

if TYPE_CHECKING:
    from retinue.app.launch.start import LaunchOptions
    from retinue.core.agent import Output


def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be done; - reads it from stdin.")],
    provider: ProviderFlag = None,
    base_url: BaseUrlFlag = None,
    api_key_env: ApiKeyEnvFlag = None,
    model: ModelFlag = None,
    dialect: Annotated[
        list[str] | None,
        typer.Option(
            "--dialect",
            metavar="D",
            help=f"How it may delegate: {DEFAULT} (default), another dialect, or none. Repeatable.",
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="An agent of the settings to do the work.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="NAME", help="Where its agents and shared context live; a new one by default."
        ),
    ] = None,
    system: Annotated[
        str,
        typer.Option(
            "--system",
            metavar="TEXT",
            help="What the model is told first: a text, or the name of a prompt such as codesearch.",
        ),
    ] = "",
    tools: Annotated[
        str | None,
        typer.Option("--tools", metavar="a,b", help="Tools to offer, with commas; retinue tools lists them."),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option("--max-turns", metavar="N", min=1, help="Replies of the model. [50]", rich_help_panel=LIMITS),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", min=1, help="Tokens, input and output.", rich_help_panel=LIMITS),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="USD", min=0, help="Dollars.", rich_help_panel=LIMITS)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0, help="Seconds.", rich_help_panel=LIMITS)
    ] = None,
    config: ConfigFlag = None,
    approvals: ApprovalsFlag = None,
    yes: YesFlag = False,
    no_sandbox: NoSandboxFlag = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", metavar="", help="Print the run's id and leave; a background process does the work."),
    ] = False,
    think: Annotated[bool, typer.Option("--think", metavar="", help="Ask the model to reason, where it can.")] = False,
    output_schema: Annotated[
        str | None,
        typer.Option(
            "--output-schema",
            metavar="FILE",
            help="Demand an answer that is JSON of the JSON Schema in this file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    output_json: Annotated[
        bool,
        typer.Option("--output-json", metavar="", help="Demand a JSON object as the answer.", rich_help_panel=OUTPUT),
    ] = False,
    sse: Annotated[
        bool,
        typer.Option(
            "--sse", metavar="", help="Print what happens in the run as server-sent events.", rich_help_panel=OUTPUT
        ),
    ] = False,
    brief: BriefFlag = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", metavar="", help="Print one JSON object, also for a failed run.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Give a task to an agent and print its answer.

    The answer alone goes to stdout. Exit status: 0 answered, 1 failed, 2 bad usage or settings, 130 interrupted.
    """
    from retinue.app.launch.start import LaunchOptions, LimitOptions
    from retinue.cli.event_loop import perform
    from retinue.config.precedence import Flags

    output = OutputOptions(json=json, sse=sse, brief=brief, quiet=quiet, verbose=verbose)
    exclude({"--sse": sse, "--detach": detach})
    exclude({"--output-schema": output_schema is not None, "--output-json": output_json})
    task = _prompt(prompt)
    dialects = dialects_of(dialect)
    system, more_tools = _system(system)
    options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        agent=agent,
        dialects=(DEFAULT,) if dialects is None else dialects,
        session=session,
        system=system,
        tools=tools_of(tools, agent=agent),
        more_tools=more_tools,
        think=think,
        limits=LimitOptions(
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_cost=countable("--max-cost", max_cost),
            timeout=countable("--timeout", timeout, zero=False),
        ),
        no_sandbox=no_sandbox,
    )
    approval = approval_options(approvals, yes=yes, detach=detach)
    demand = _demand(output_schema, output_json)
    return perform(_run(task, options, config, approval, demand, output, detach=detach))


async def _run(
    task: str,
    options: LaunchOptions,
    config: str | None,
    approval: ApprovalOptions,
    demand: Output | None,
    output: OutputOptions,
    *,
    detach: bool,
) -> int:
    """Start the run, and follow it to its end or leave it to a background process; the exit code."""
    from retinue.app.launch.start import prepare, settings_for
    from retinue.cli.event_loop import interrupts
    from retinue.cli.output.progress import approver_for, follow, print_interrupted, print_outcome
    from retinue.cli.output.terminal import say, stdout_for_answers_alone

    settings = settings_for(config, agent=options.agent)
    with interrupts() as stop, stdout_for_answers_alone():
        launch = await prepare(settings, options)
        if not output.quiet:
            say(str(launch.model_choice))
        for warning in launch.warnings():
            say(f"warning: {warning}")
        approver = approver_for(approval)
        async with launch.open(approvals=approver) as retinue:
            root = await launch.spawn(retinue, task, output=demand, detached=detach)
            outcome = None
            if not detach:
                work = follow(retinue, root, stop, approver=approver, output=output)
                if output.sse:
                    from retinue.cli.output.sse import stream_run

                    wire, structured = launch.model_choice.provider_config.wire, demand is not None
                    work = stream_run(root, work, structured=structured, brief=output.brief, wire=wire)
                outcome = await work
    if detach:
        return _detach(root.run_id, approval, output)
    return print_interrupted(root.run_id) if outcome is None else print_outcome(root.run_id, outcome, output.form)


def _prompt(prompt: str) -> str:
    text = _text(sys.stdin.buffer.read().decode(errors="surrogateescape") if prompt == "-" else prompt, "the prompt")
    if not text.strip():
        where = "stdin has no prompt" if prompt == "-" else "the prompt is empty"
        raise typer.BadParameter(f"{where}: say what is to be done")
    return text


def _system(system: str) -> tuple[str, tuple[str, ...]]:
    """The system prompt and the tools that belong to it; a name such as `codesearch` stands for both."""
    if not _text(system, "--system"):
        return "", ()
    named = prompt_named(system)
    return named.text, named.tools


def _text(given: str, what: str) -> str:
    """The text, checked to be UTF-8: a command line and a pipe can hold any bytes."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{what} is not UTF-8 text") from None
    return given


def _demand(schema: str | None, any_object: bool) -> Output | None:
    """The demand for JSON output, if there is one."""
    if schema is None and not any_object:
        return None
    from retinue.app.structured_output import demanded

    return demanded(dict if schema is None else Path(schema))


def _detach(run_id: str, approval: ApprovalOptions, output: OutputOptions) -> int:
    """Leave the run to a background process, and print its id."""
    from retinue.app.launch.resume import resume_in_background
    from retinue.cli.output.terminal import answer, answer_json, say

    log = resume_in_background(run_id, *approval.flags())
    if not output.quiet:
        say(f"running in the background; see: retinue runs show {run_id}  (its output: {log})")
    if output.json:
        answer_json({"run_id": run_id})
    else:
        answer(run_id)
    return 0
