"""`retinue batch`: submit a file of tasks to the batch API of their vendor, follow it, and print the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform, perform_on_store
from retinue.cli.options import LIMITS, OUTPUT, option
from retinue.cli.output.terminal import (
    INTERRUPTED,
    answer,
    answer_json,
    answer_lines,
    json_line,
    say,
    stdout_for_answers_alone,
    write,
)
from retinue.core.text import plural
from retinue.core.usage import money

if TYPE_CHECKING:
    import asyncio

    from retinue.app.launch.start import Launch, LaunchOptions
    from retinue.app.read_only import ReadOnlyClient
    from retinue.app.retinue import Retinue
    from retinue.app.task_batches import BatchProgress, BatchTask, TaskBatch
    from retinue.config.precedence import Flags
    from retinue.config.settings import Settings
    from retinue.core.agent import Output

MIB = 1024 * 1024
MAX_BYTES = 64 * MIB
"""Bytes of a file of tasks."""

REPORT_SECONDS = 5.0
"""Seconds between two lines about the progress."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at a batch that another process drives."""

app = typer.Typer(
    name="batch",
    help="Many tasks at half the price, within hours: submit, list, status, wait, results, cancel.",
    epilog="Examples:\n\nretinue batch submit tasks.jsonl --name nightly --model anthropic:claude-sonnet-5\n\n"
    "retinue batch status nightly\n\nretinue batch wait nightly -o results.jsonl",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the batch.")]
ResultsFlag = Annotated[
    Path | None,
    option("--output", "-o", metavar="FILE", help="The file for the results. [stdout]", panel=OUTPUT),
]


@app.command(
    epilog='Examples:\n\nretinue batch submit tasks.txt --system "Answer in one word."\n\n'
    "retinue batch submit tasks.jsonl --name nightly --hours 12 --max-cost 0.05\n\n"
    "retinue batch submit - --wait -o results.jsonl < tasks.txt"
)
def submit(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='A task in each line, or an object such as {"id": "a", "task": "Sum up."}; - reads stdin.',
        ),
    ],
    name: Annotated[
        str | None,
        option("--name", metavar="NAME", help="The name of the batch; the same file under it goes on. [a new one]"),
    ] = None,
    hours: Annotated[
        float, option("--hours", metavar="H", min=0, help="Hours that each reply may take. [24]", panel=LIMITS)
    ] = 24.0,
    wait: Annotated[bool, option("--wait", help="Wait for the results, as retinue batch wait does.")] = False,
    file_of_results: ResultsFlag = None,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    dialect: Annotated[
        list[str] | None,
        option("--dialect", metavar="D", help="Delegation tools to offer. Repeatable. [none]"),
    ] = None,
    agent: Annotated[
        str | None,
        options.agent_flag("The agent of the settings to run."),
    ] = None,
    system: Annotated[str, option("--system", metavar="TEXT", help="The system prompt.")] = "",
    tools: options.ToolsFlag = None,
    max_turns: Annotated[int | None, options.max_turns_flag("Replies for each task. [50]")] = None,
    max_tokens: Annotated[int | None, options.max_tokens_flag("Tokens for each task.")] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars for each task.")] = None,
    unpriced: options.UnpricedFlag = None,
    timeout: Annotated[float | None, options.timeout_flag("Seconds for each task.")] = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    yes: options.YesFlag = False,
    effort: options.EffortFlag = None,
    temperature: options.TemperatureFlag = None,
    top_p: options.TopPFlag = None,
    max_output_tokens: options.MaxOutputTokensFlag = None,
    output_schema: options.OutputSchemaFlag = None,
    output_json: options.OutputJsonFlag = False,
    quiet: options.QuietFlag = False,
) -> int:
    """Submit the tasks of a file together, print the name of the batch, and leave it to the vendor.

    The results are fetched with retinue batch wait, from any process on the same store; with --wait, at once. Fields of
    an object besides id and task: agent, model, system, max_turns, max_tokens, max_cost, timeout.

    Exit status: 0 submitted (with --wait: all completed), 1 a task failed, 2 bad usage or settings, 130 interrupted.
    """
    import secrets

    from retinue.app.launch.start import LaunchOptions, LimitOptions, default_tools_for, settings_for
    from retinue.app.task_batches import TaskBatch, check_name, digest_of, read_tasks
    from retinue.config.precedence import Flags
    from retinue.core.ids import SystemClock
    from retinue.core.model_options import MAX_BATCH_HOURS

    if file_of_results is not None and not wait:
        raise typer.BadParameter("--output has the results: give --wait, too, or use retinue batch wait")
    if not 0 < hours <= MAX_BATCH_HOURS:
        raise typer.BadParameter(f"--hours: found {hours:g}; expected a number above 0 and up to {MAX_BATCH_HOURS}")
    name = check_name(name if name is not None else f"batch-{secrets.token_hex(4)}")
    settings = settings_for(config, agent=agent, profile=profile)
    common = agent or settings.default_agent
    tasks = read_tasks(_text_of(file), "stdin" if file == "-" else file)
    model_options = options.model_options_of(effort, temperature, top_p, max_output_tokens, hours)
    dialects = options.dialects_of(dialect) or ()

    def options_for(task: BatchTask) -> LaunchOptions:
        own = task.agent or common
        if own is not None and own not in settings.agents:
            settings_for(config, agent=own, profile=profile)  # which says what agents there are
        return LaunchOptions(
            flags=Flags(model=task.model or model, provider=provider, base_url=base_url, api_key_env=api_key_env),
            agent=own,
            dialects=dialects,
            session=name,
            system=options.utf8(system if task.system is None else task.system, "--system"),
            tools=options.tools_of(tools, agent=own),
            tools_are_ceiling=tools is not None,
            default_tools=default_tools_for(own, dialects, settings) if tools is None else (),
            model_options=model_options,
            limits=LimitOptions(
                max_turns=task.max_turns or max_turns,
                max_tokens=task.max_tokens or max_tokens,
                max_cost=task.max_cost or options.countable("--max-cost", max_cost),
                timeout=task.timeout or options.countable("--timeout", timeout, zero=False),
            ),
            unpriced_ok=options.accepts_unpriced(unpriced),
        )

    batch = TaskBatch(
        name=name, at=SystemClock().now(), hours=hours, ids=tuple(task.id for task in tasks), digest=digest_of(tasks)
    )
    work = _submit(
        batch,
        tasks,
        {task.options: options_for(task) for task in tasks},
        settings,
        options.required_output(output_schema, output_json),
        approval=options.ApprovalOptions("deny", yes),
        wait=wait,
        results=file_of_results,
        quiet=quiet,
    )
    return perform(work)


def _text_of(file: str) -> str:
    """The text of a file of tasks, or of stdin."""
    from retinue.core.errors import BadInput
    from retinue.local.bounded_file import read_bounded

    if file == "-":
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadInput(f"stdin has more than {MAX_BYTES // MIB} MiB: divide it")
    else:
        try:
            content = read_bounded(Path(file), MAX_BYTES)
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{'stdin' if file == '-' else file} is not UTF-8 text") from None


async def _submit(
    batch: TaskBatch,
    tasks: Sequence[BatchTask],
    options_by_task: dict[BatchTask, LaunchOptions],
    settings: Settings,
    required: Output | None,
    *,
    approval: options.ApprovalOptions,
    wait: bool,
    results: Path | None,
    quiet: bool,
) -> int:
    """Start the runs of a batch and stay until the vendor has their requests; the exit code."""
    from retinue.app.follow import unless_stopped
    from retinue.app.launch.start import prepare
    from retinue.app.task_batches import record_batch, until_submitted
    from retinue.cli.output.progress import approver_for

    with interrupts() as stop, stdout_for_answers_alone():
        launches: dict[BatchTask, Launch] = {}
        for kind, launch_options in options_by_task.items():
            launches[kind] = await prepare(settings, launch_options)
        first = launches[tasks[0].options]
        if not quiet:
            say(str(first.model_choice))
            for warning in first.warnings():
                say(f"warning: {warning}")
        async with first.open(approvals=approver_for(approval)) as retinue:
            for launch in launches.values():
                launch.run_spec(retinue)  # raises for a wire without batches, before anything is recorded

            async def start() -> None:
                run_ids: list[str] = []
                for task in tasks:
                    root = await launches[task.options].spawn(
                        retinue, task.task, key=known.key(task.id), label=known.label(task.id), output=required
                    )
                    run_ids.append(root.run_id)
                await until_submitted(retinue, run_ids)

            known = await record_batch(retinue.supervisor, batch)
            if not await unless_stopped(start(), stop):
                say(f"interrupted; go on with the same file and --name {batch.name}")
                return INTERRUPTED
            if wait:
                code = await _drive_here(retinue, batch.name, stop, quiet=quiet)
                if code is not None:
                    return code
    if wait:
        return await _print_results(batch.name, results, quiet=quiet)
    if not quiet:
        say(f"{plural(len(tasks), 'task')} submitted; the results: retinue batch wait {batch.name}")
    answer(batch.name)
    return 0


@app.command("list", epilog="Example: retinue batch list --json")
def list_batches(json: options.JsonFlag = False) -> int:
    """List batches, newest first."""

    async def work(client: ReadOnlyClient) -> None:
        from retinue.app.task_batches import batches, progress

        found = [await progress(client.supervisor, batch) for batch in await batches(client.supervisor)]
        if json:
            answer_json([each.row() for each in found])
        elif not found:
            say("no batches yet; submit one with: retinue batch submit FILE")
        else:
            _print_table(found)

    return perform_on_store(work)


def _print_table(found: Sequence[BatchProgress]) -> None:
    from retinue.cli.output.format import moment
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[BatchProgress]] = [
        Column(title="NAME", cell=lambda each: each.batch.name, style="cyan"),
        Column(title="STATE", cell=lambda each: each.state),
        Column(title="TASKS", cell=lambda each: str(len(each.batch.ids)), right=True),
        Column(title="COMPLETED", cell=lambda each: str(each.completed), right=True),
        Column(title="FAILED", cell=lambda each: str(each.ended - each.completed), right=True),
        Column(title="COST", cell=lambda each: money(each.cost), right=True),
        Column(title="SUBMITTED", cell=lambda each: moment(each.batch.at), least_width=90),
    ]
    print_table(found, columns)


@app.command(epilog="Examples:\n\nretinue batch status nightly\n\nretinue batch status nightly --json")
def status(name: NameArgument, json: options.JsonFlag = False) -> int:
    """Show how many tasks of a batch have ended, and its batches at the vendor as of the last look."""

    async def work(client: ReadOnlyClient) -> None:
        from retinue.app.task_batches import find_batch, progress

        found = await progress(client.supervisor, await find_batch(client.supervisor, name))
        if json:
            answer_json(found.row())
        else:
            _print_status(found)

    return perform_on_store(work)


def _print_status(found: BatchProgress) -> None:
    from retinue.cli.output.format import moment

    batch, failed = found.batch, found.ended - found.completed
    answer_lines(
        f"{batch.name}: {found.state}, {found.ended} of {plural(len(batch.ids), 'task')} ended, {failed} failed, "
        f"{money(found.cost)}"
    )
    for each in found.vendor_batches:
        state = "ended" if each.ended else "at work" if each.batch_id else "not submitted"
        shown = f"{each.provider} {each.batch_id or '-'}: {state}, {plural(len(each.calls), 'request')}"
        answer_lines(f"{shown} to {each.model}, since {moment(each.at)}")
    _say_missing(found)
    if found.state == "waiting":
        say(f"no process waits for its answers; fetch them with: retinue batch wait {batch.name}")


def _say_missing(found: BatchProgress) -> None:
    if found.missing:
        tasks = plural(found.missing, "task")
        say(f"{tasks} did not begin: submit the same file again with --name {found.batch.name}")


@app.command(epilog="Examples:\n\nretinue batch wait nightly\n\nretinue batch wait nightly -o results.jsonl")
def wait(
    name: NameArgument,
    file_of_results: ResultsFlag = None,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    config: options.ConfigFlag = None,
    yes: options.YesFlag = False,
    quiet: options.QuietFlag = False,
) -> int:
    """Wait for the results of a batch, and print them as JSON, a line for each task.

    After Ctrl-C the batch goes on at the vendor, and the same command waits again. Exit status: 0 all tasks completed,
    1 one has not, 2 bad usage or settings, 130 interrupted.
    """
    from retinue.config.precedence import Flags

    flags = Flags(provider=provider, base_url=base_url, api_key_env=api_key_env)
    approval = options.ApprovalOptions("deny", yes)
    return perform(_wait(name, flags, config, approval, file_of_results, quiet=quiet))


async def _wait(
    name: str,
    flags: Flags,
    config: str | None,
    approval: options.ApprovalOptions,
    results: Path | None,
    *,
    quiet: bool,
) -> int:
    """Drive the runs of a batch that no other process drives, wait for the others, and print the results."""
    import asyncio

    from retinue.app.launch.resume import find_stored, reopen
    from retinue.app.open import open_read_only
    from retinue.cli.output.progress import approver_for
    from retinue.core.errors import NotAdoptable

    with interrupts() as stop, stdout_for_answers_alone():
        is_followed = False
        while True:
            async with open_read_only() as client:
                unfinished = (await _progress(client, name)).unfinished
            left = [view.run_id for view in unfinished if view.state == "interrupted"]
            if not unfinished:
                break
            if stop.is_set():
                return _interrupted(name)
            if not left:
                if not is_followed and not quiet:
                    say("another process drives it; waiting for that one")
                is_followed = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
                continue
            try:
                stored = await find_stored(left[0], flags, config=config)
                retinue, model_choice = reopen(
                    stored,
                    flags,
                    config=config,
                    approvals=approver_for(approval),
                    warn=lambda warning: say(f"warning: {warning}"),
                )
                if not quiet:
                    say(str(model_choice))
                async with retinue:
                    for run_id in left:
                        await retinue.resume(run_id)
                    code = await _drive_here(retinue, name, stop, quiet=quiet)
                    if code is not None:
                        return code
            except NotAdoptable:
                continue  # another process has taken it
    return await _print_results(name, results, quiet=quiet)


async def _progress(client: ReadOnlyClient | Retinue, name: str) -> BatchProgress:
    from retinue.app.task_batches import find_batch, progress

    return await progress(client.supervisor, await find_batch(client.supervisor, name))


def _interrupted(name: str) -> int:
    say(f"interrupted; the batch goes on at the vendor; wait again with: retinue batch wait {name}")
    return INTERRUPTED


async def _drive_here(retinue: Retinue, name: str, stop: asyncio.Event, *, quiet: bool) -> int | None:
    """Wait for the runs of a batch that this process drives; the exit code if it was interrupted."""
    import asyncio

    from retinue.app.follow import tree_outcome

    found = await _progress(retinue, name)
    total, before = len(found.batch.ids), found.ended
    waiting = [view.run_id for view in found.unfinished]
    ended = 0

    async def wait_for(run_id: str) -> None:
        nonlocal ended
        ended += await tree_outcome(retinue, retinue.handle(run_id), stop) is not None

    async def report() -> None:
        reported = -1
        while True:
            if ended != reported:
                reported = ended
                say(f"{before + ended} of {plural(total, 'task')} ended")
            await asyncio.sleep(REPORT_SECONDS)

    reporting = None if quiet else asyncio.ensure_future(report())
    try:
        await asyncio.gather(*map(wait_for, waiting))
    finally:
        if reporting is not None:
            reporting.cancel()
    return _interrupted(name) if stop.is_set() and ended < len(waiting) else None


@app.command(epilog="Example: retinue batch results nightly -o results.jsonl")
def results(name: NameArgument, file_of_results: ResultsFlag = None, quiet: options.QuietFlag = False) -> int:
    """Print the results so far as JSON, a line for each task that has ended, and ask no vendor.

    Exit status: 0 all tasks completed, 1 one has not.
    """
    return perform(_print_results(name, file_of_results, quiet=quiet))


async def _print_results(name: str, file: Path | None, *, quiet: bool) -> int:
    import asyncio

    from retinue.app.open import open_read_only
    from retinue.core.errors import BadInput

    async with open_read_only() as client:
        found = await _progress(client, name)
    text = "".join(map(json_line, found.results()))
    if file is None:
        write(text)
    else:
        try:
            await asyncio.to_thread(file.write_text, text, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{file} cannot be written: {error.strerror}; see retinue batch results {name}") from None
    if not quiet:
        failed = found.ended - found.completed
        tasks = plural(len(found.batch.ids), "task")
        say(f"{found.completed} of {tasks} completed, {failed} failed, {money(found.cost)}")
        _say_missing(found)
        if found.unfinished:
            say(f"{plural(len(found.unfinished), 'task')} not ended; wait with: retinue batch wait {name}")
    return 0 if found.completed == len(found.batch.ids) else 1


@app.command(epilog="Example: retinue batch cancel nightly")
def cancel(
    name: NameArgument,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    config: options.ConfigFlag = None,
) -> int:
    """Cancel the tasks of a batch that have not ended, and its batches at the vendor."""
    from retinue.config.precedence import Flags

    return perform(_cancel(name, Flags(provider=provider, base_url=base_url, api_key_env=api_key_env), config))


async def _cancel(name: str, flags: Flags, config: str | None) -> int:
    from retinue.app.launch.resume import find_stored, reopen
    from retinue.app.open import open_read_only

    async with open_read_only() as client:
        found = await _progress(client, name)
        left = [view.run_id for view in found.unfinished if view.state == "interrupted"]
        stored = await find_stored(left[0], flags, config=config) if left else None
        for view in found.unfinished:
            await client.cancel(view.run_id, "its batch was cancelled")
    if stored is not None:
        # A process that drives runs cancels their batches itself; there is none for these.
        retinue, _ = reopen(stored, flags, config=config, warn=lambda warning: say(f"warning: {warning}"))
        async with retinue:
            await retinue.providers.cancel_batches()
    say(f"cancelled {plural(len(found.unfinished), 'task')} of {name}")
    return 0
