"""`retinue run`: one task for one agent, and its answer on stdout."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from retinue.cli import completion, options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import LIMITS, OUTPUT, option, utf8
from retinue.cli.output.terminal import answer, answer_json, say, say_wrapped, stdout_for_answers_alone
from retinue.dialects.registry import prompt_named

if TYPE_CHECKING:
    from retinue.app.engine_types import Approver
    from retinue.app.launch.start import Launch, LaunchOptions
    from retinue.app.retinue import Retinue
    from retinue.config.settings import Settings
    from retinue.config.store import StoreSettings
    from retinue.core.agent import Output
    from retinue.core.attachments import Attachment
    from retinue.core.ids import RunId

MIB = 1024 * 1024
MAX_CONTEXT = 16 * MIB
"""Bytes of stdin that are read as context."""

HINT_SECONDS = 3.0
"""Seconds after which a command that waits for stdin says so."""


class Tape(Protocol):
    """What `retinue record` does with a run: record it, or play a recording in place of its models."""

    def options(self, settings: Settings, options: LaunchOptions) -> LaunchOptions:
        """The options of the run."""
        ...

    def open(self, launch: Launch, approver: Approver) -> Retinue:
        """The retinue in which it runs."""
        ...

    async def finish(self, retinue: Retinue, run_id: RunId) -> None:
        """Write the recording of the ended tree, or compare with it."""
        ...


TAPE: ContextVar[Tape | None] = ContextVar("TAPE", default=None)
"""Set by `retinue record` around this command."""


def run(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="The task; - reads it from stdin. Other text on stdin is added to it as context."
        ),
    ],
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    dialect: options.DialectFlag = None,
    agent: Annotated[
        str | None,
        options.agent_flag("The agent of the settings to run."),
    ] = None,
    session: Annotated[
        str | None,
        option(
            "--session",
            metavar="NAME",
            help="The session with its agents and shared context. [a new one]",
            completed=completion.sessions,
        ),
    ] = None,
    continued: options.ContinueFlag = False,
    system: Annotated[
        str,
        option("--system", metavar="TEXT", help="The system prompt: a text, or a prompt's name such as codesearch."),
    ] = "",
    tools: options.ToolsFlag = None,
    attach: Annotated[
        list[Path] | None,
        option("--attach", metavar="FILE", help="An image or a file that belongs to the task. Repeatable."),
    ] = None,
    mcp_config: options.McpConfigFlag = None,
    max_turns: Annotated[int | None, options.max_turns_flag("Replies of the model. [50]")] = None,
    max_tokens: Annotated[int | None, options.max_tokens_flag("Tokens, input and output.")] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars.")] = None,
    unpriced: options.UnpricedFlag = None,
    timeout: Annotated[float | None, options.timeout_flag("Seconds.")] = None,
    agents: options.AgentsFlag = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    approvals: options.ApprovalsFlag = None,
    yes: options.YesFlag = False,
    preset: options.PresetFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
    detach: Annotated[
        bool, option("--detach", help="Print the run's id and exit; a worker or a background process drives the run.")
    ] = False,
    tag: Annotated[
        list[str] | None,
        option("--tag", metavar="T", help="With --detach: only a worker with this tag drives the run. Repeatable."),
    ] = None,
    priority: Annotated[
        int,
        option(
            "--priority",
            metavar="N",
            min=-100,
            max=100,
            help="With --detach: workers take waiting runs of a higher priority first. [0]",
        ),
    ] = 0,
    workspace: Annotated[
        str | None,
        option(
            "--workspace",
            metavar="W",
            help="Where the tools of the tree work, on any machine: git+https://HOST/REPOSITORY@REF, "
            "s3://BUCKET/FOLDER or shared:///FOLDER. [the current folder]",
        ),
    ] = None,
    think: options.ThinkFlag = False,
    effort: options.EffortFlag = None,
    temperature: options.TemperatureFlag = None,
    top_p: options.TopPFlag = None,
    max_output_tokens: options.MaxOutputTokensFlag = None,
    batch_hours: Annotated[
        float | None,
        option(
            "--batch-hours",
            metavar="H",
            min=0,
            help="Hours that each reply of the tree may take in the vendor's batches, at half the price.",
            panel=LIMITS,
        ),
    ] = None,
    output_schema: options.OutputSchemaFlag = None,
    output_json: options.OutputJsonFlag = False,
    sse: Annotated[bool, option("--sse", help="Print the run's events as server-sent events.", panel=OUTPUT)] = False,
    brief: Annotated[
        bool, option("--brief", "-b", help="With --sse: without tool calls and their results.", panel=OUTPUT)
    ] = False,
    tree: Annotated[
        bool, option("--tree", help="With --sse: the events of all runs, each with its run, as JSON.", panel=OUTPUT)
    ] = False,
    json: Annotated[bool, option("--json", help="Print one JSON object, also for a failed run.", panel=OUTPUT)] = False,
    quiet: options.QuietFlag = False,
    plain: options.PlainFlag = False,
    verbose: options.VerboseFlag = False,
    otel: Annotated[
        bool, option("--otel", help="Send traces to OpenTelemetry, and print where they go.", panel=OUTPUT)
    ] = False,
) -> int:
    """Give a task to an agent and print its answer.

    The answer alone goes to stdout. Exit status: 0 answered, 1 failed, 2 bad usage or settings, 130 interrupted.
    """
    from retinue.app.launch.start import LaunchOptions, default_tools_for, dialects_for, settings_for
    from retinue.config.precedence import Flags
    from retinue.core.attachments import checked, read_attachment

    structured = output_json or output_schema is not None
    output = options.OutputOptions(
        json=json, sse=sse, brief=brief, tree=tree, quiet=quiet, verbose=verbose, plain=plain, structured=structured
    )
    options.exclude({"--sse": sse, "--detach": detach})
    tags = options.tags_of(tag)
    if tags and not detach:
        raise typer.BadParameter("--tag chooses among workers: give --detach, too")
    if priority and not detach:
        raise typer.BadParameter("--priority is an order among waiting runs: give --detach, too")
    task = prompt_with_context(prompt)
    required = options.required_output(output_schema, output_json)
    approval = options.approval_options(approvals, yes=yes, detach=detach)
    settings = settings_for(config, agent=agent, profile=profile, agent_folders=agents or ())
    agent = agent or settings.default_agent
    chosen = options.preset_of(preset) or settings.default_preset
    dialects = dialects_for(options.dialects_of(dialect), settings)
    system, more_tools = _system(system)
    launch_options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        agent=agent,
        dialects=dialects,
        session=session,
        system=system,
        tools=options.tools_of(tools, agent=agent),
        tools_are_ceiling=tools is not None,
        default_tools=default_tools_for(agent, dialects, settings, chosen) if tools is None else (),
        more_tools=more_tools,
        think=think,
        model_options=options.model_options_of(effort, temperature, top_p, max_output_tokens, batch_hours),
        limits=options.limits_of(max_turns, max_tokens, max_cost, timeout),
        unpriced_ok=options.accepts_unpriced(unpriced),
        preset=chosen,
        tags=tags,
        priority=priority,
        workspace=workspace,
        no_sandbox=no_sandbox,
        mcp_config=tuple(mcp_config or ()),
    )
    attachments = checked(map(read_attachment, attach)) if attach else ()
    work = _run(
        task,
        launch_options,
        settings,
        approval,
        required,
        output,
        attachments=attachments,
        detach=detach,
        continued=continued,
        otel=otel,
    )
    return perform(work)


async def _run(
    task: str,
    launch_options: LaunchOptions,
    settings: Settings,
    approval: options.ApprovalOptions,
    required: Output | None,
    output: options.OutputOptions,
    *,
    attachments: Sequence[Attachment],
    detach: bool,
    continued: bool,
    otel: bool,
) -> int:
    """Start the run, and follow it to its end or leave it to a background process; the exit code."""
    from retinue.app.chat.conversation import history_of
    from retinue.app.launch.continuation import latest_run
    from retinue.app.launch.start import prepare
    from retinue.app.retention import prune_at_end, store_settings
    from retinue.cli.output.format import one_line
    from retinue.cli.output.plain_lines import Refusals
    from retinue.cli.output.progress import Followed, approver_for, follow, print_followed

    earlier = await latest_run(os.getcwd(), session=launch_options.session) if continued else None
    if earlier is not None:
        launch_options = replace(launch_options, session=earlier.session_id)
        if not output.quiet:
            say(f"continuing run {earlier.run_id}: {one_line(earlier.task, 60)}")
    tape = TAPE.get()
    if tape is not None:
        launch_options = tape.options(settings, launch_options)
    with interrupts() as stop, stdout_for_answers_alone():
        launch = await prepare(settings, launch_options)
        if not output.quiet:
            say(str(launch.model_choice))
        for warning in launch.warnings():
            say_wrapped(f"warning: {warning}")
        approver = approver_for(approval)
        refusals = Refusals()
        if otel:
            _export_by_default()
        opened = launch.open(approvals=approver) if tape is None else tape.open(launch, approver)
        async with opened as retinue:
            retinue.supervisor.on_call(refusals.receive)
            named = launch_options.session
            if named is not None and not output.quiet and await retinue.sessions.is_archived(named):
                say(f"session {named} is archived: it can be read, and not changed")
            inherits = None if earlier is None else await history_of(retinue, earlier.run_id)
            detached = approval.detached if detach else ""
            root = await launch.spawn(
                retinue, task, output=required, detached=detached, inherits=inherits, attachments=attachments
            )
            if otel:
                say(await _traces_of(retinue, root.run_id))
            await launch.save_message(retinue, root.run_id, task, launch_options.dialects)
            followed, handed_over = Followed(None), None
            if output.sse:
                from retinue.cli.output.sse import stream_run

                wire, structured = launch.model_choice.provider_config.wire, required is not None
                work = follow(retinue, root, stop, approver=approver, output=output, refusals=refusals)
                followed = await stream_run(
                    root, work, structured=structured, brief=output.brief, wire=wire, tree=output.tree
                )
            elif detach:
                handed_over = await _workers_of(retinue)
                if not output.quiet:
                    await _say_where(retinue, root.run_id)
            else:
                followed = await follow(retinue, root, stop, approver=approver, output=output, refusals=refusals)
            if tape is not None and followed.outcome is not None:
                await tape.finish(retinue, root.run_id)
    if detach:
        return _detach(root.run_id, approval, output, store_settings(settings), handed_over)
    await prune_at_end(settings)
    return print_followed(root.run_id, followed, output, task=task)


def _export_by_default() -> None:
    """Ask for traces by the standard variables, which processes that this one starts inherit."""
    for signal in ("TRACES", "METRICS"):
        os.environ.setdefault(f"OTEL_{signal}_EXPORTER", "otlp")


async def _traces_of(retinue: Retinue, run_id: str) -> str:
    """Where the traces of a run go."""
    exporting = retinue.exporting
    if exporting is None:
        return "no traces: OTEL_SDK_DISABLED or [telemetry] turns them off, or the extra otel is not installed"
    accepted = await retinue.supervisor.acceptance(run_id)
    trace = "" if accepted is None else f", as trace {exporting.tracing.context_of_run(accepted).split('-')[1]}"
    return f"traces go to {exporting.destination}{trace}"


def _system(system: str) -> tuple[str, tuple[str, ...]]:
    """The system prompt and the tools that belong to it; a name such as `codesearch` stands for both."""
    if not options.utf8(system, "--system"):
        return "", ()
    named = prompt_named(system)
    return named.text, named.tools


async def _say_where(retinue: Retinue, run_id: str) -> None:
    """Say so if only workers on this machine can drive a run, because its tools work in a folder here."""
    import platform

    from retinue.core.workspace import host_tag

    row = await retinue.supervisor.row(run_id)
    run_spec = await retinue.supervisor.stored.run_spec(row.run_spec)
    tag = host_tag(platform.node())
    if tag in run_spec.tags:
        say(
            f"its tools work in {run_spec.workspace}: only workers on this machine drive it (tag {tag}); "
            "for any machine name a --workspace"
        )


async def _workers_of(retinue: Retinue) -> int | None:
    """The number of workers that a detached run is left to; None if a process of its own has to drive it.

    On a store that machines share it is left to workers even if none runs at the moment: one will be started.
    """
    from retinue.app.state_folder import chosen_url, is_postgres
    from retinue.dispatch.worker import live_workers

    number = len(await live_workers(retinue.supervisor))
    return number if number or is_postgres(chosen_url()) else None


def _detach(
    run_id: str,
    approval: options.ApprovalOptions,
    output: options.OutputOptions,
    limits: StoreSettings,
    workers: int | None,
) -> int:
    """Leave the run to a worker or to a background process, and print its id."""
    if workers is None:
        from retinue.app.launch.resume import resume_in_background

        log = resume_in_background(run_id, approval.detached, limits)
        where = f"running in the background; see: retinue runs show {run_id}  (its output: {log})"
    elif workers:
        where = f"left to the workers of the store; see: retinue runs show {run_id}"
    else:
        where = f"it waits for a worker, and none runs: start one with: retinue worker; see: retinue runs show {run_id}"
    if not output.quiet:
        say(where)
    if output.json:
        answer_json({"run_id": run_id})
    else:
        answer(run_id)
    return 0


def prompt_text(prompt: str) -> str:
    """The prompt of a command line; `-` reads it from stdin."""
    text = utf8(sys.stdin.buffer.read().decode(errors="surrogateescape") if prompt == "-" else prompt, "the prompt")
    if not text.strip():
        where = "stdin has no prompt" if prompt == "-" else "the prompt is empty"
        raise typer.BadParameter(f"{where}: write the task")
    return text


def prompt_with_context(prompt: str) -> str:
    """The prompt of a command line, with the text of a pipe below it; `-` reads the prompt itself from stdin."""
    text = prompt_text(prompt)
    return text if prompt == "-" else with_context(text, piped_context())


def piped_context() -> str:
    """The text on stdin, if stdin is not a terminal; empty if there is none.

    A hint is printed where nothing arrives: a program may have left its own stdin to this command.
    """
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin.isatty():
        return ""
    hint = threading.Timer(HINT_SECONDS, say, ["reading stdin as context; </dev/null leaves it out"])
    hint.daemon = True
    hint.start()
    try:
        content = stdin.buffer.read(MAX_CONTEXT + 1)
    except OSError:  # stdin is closed, or a folder
        return ""
    finally:
        hint.cancel()
    if len(content) > MAX_CONTEXT:
        raise typer.BadParameter(f"stdin has more than {MAX_CONTEXT // MIB} MiB: give the model a part of it")
    return content.decode(errors="replace")


def with_context(prompt: str, context: str) -> str:
    """A prompt with text of stdin below it, marked as such.

    >>> with_context("Sum this up.", "one\\ntwo\\n")
    'Sum this up.\\n\\n<stdin>\\none\\ntwo\\n</stdin>'
    """
    return f"{prompt}\n\n<stdin>\n{context.rstrip()}\n</stdin>" if context.strip() else prompt
