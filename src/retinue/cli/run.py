"""`retinue run`: one task for one agent, and its answer on stdout."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import (
    LIMITS,
    OUTPUT,
    ApiKeyEnvFlag,
    ApprovalsFlag,
    BaseUrlFlag,
    BriefFlag,
    ConfigFlag,
    ModelFlag,
    NoSandboxFlag,
    ProviderFlag,
    QuietFlag,
    VerboseFlag,
    YesFlag,
    countable,
    dialects_of,
    listed,
)
from retinue.dialects.registry import DEFAULT, prompt_named

if TYPE_CHECKING:
    from retinue.cli.output.approval_prompt import Mode
    from retinue.config.precedence import Flags
    from retinue.config.settings import Settings
    from retinue.core.agent import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for, flag by flag."""

    prompt: str
    flags: Flags
    dialects: tuple[str, ...]
    agent: str | None
    session: str | None
    system: str
    tools: tuple[str, ...] | None
    max_turns: int | None
    max_tokens: int | None
    max_cost: float | None
    timeout: float | None
    config: str | None
    approvals: Mode
    yes: bool
    no_sandbox: bool
    detach: bool
    think: bool
    output: Output | None
    sse: bool
    brief: bool
    json: bool
    quiet: bool
    verbose: bool


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
    from retinue.cli.event_loop import perform
    from retinue.cli.output.approval_prompt import mode_of
    from retinue.config.precedence import Flags

    _exclude({"--sse": sse, "--json": json, "--quiet": quiet})
    _exclude({"--sse": sse, "--detach": detach})
    _exclude({"--output-schema": output_schema is not None, "--output-json": output_json})
    order = Order(
        prompt=_prompt(prompt),
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        dialects=(DEFAULT,) if (chosen := dialects_of(dialect)) is None else chosen,
        agent=agent,
        session=session,
        system=_text(system, "--system"),
        tools=listed(tools),
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_cost=countable("--max-cost", max_cost),
        timeout=countable("--timeout", timeout, zero=False),
        config=config,
        approvals=mode_of(approvals, yes=yes, detach=detach),
        yes=yes,
        no_sandbox=no_sandbox,
        detach=detach,
        think=think,
        output=_output(output_schema, output_json),
        sse=sse,
        brief=brief,
        json=json,
        quiet=quiet,
        verbose=verbose,
    )
    return perform(carry_out(order))


async def carry_out(order: Order) -> int:
    """Find out who answers, start the run, and see it through or leave it to a background process."""
    from retinue.app.launch.limits import limits_for, settings_for, uncounted
    from retinue.app.launch.model_choice import choose_model
    from retinue.app.launch.open import open_new
    from retinue.cli.event_loop import interrupts
    from retinue.cli.follow import see_through, tell, tell_interrupted, told_as_sse
    from retinue.cli.output.approval_prompt import approver_for
    from retinue.cli.output.terminal import say, stdout_for_answers_alone

    settings = settings_for(order.config, agent=order.agent)
    with interrupts() as asked_to_stop, stdout_for_answers_alone():
        model_choice = await choose_model(order.flags, settings, agent=order.agent)
        if not order.quiet:
            say(str(model_choice))
        limits = limits_for(
            settings,
            order.agent,
            wrap_up=not order.dialects,  # a dialect's limits are exact; without one, the last turn is for an answer
            max_turns=order.max_turns,
            max_tokens=order.max_tokens,
            max_cost=order.max_cost,
            timeout=order.timeout,
        )
        for warning in uncounted(model_choice, settings, limits, agent=order.agent, delegates=bool(order.dialects)):
            say(warning)
        approver = approver_for(order.approvals, yes=order.yes)
        async with open_new(
            model_choice,
            settings,
            dialects=order.dialects,
            session=order.session,
            approvals=approver,
            no_sandbox=order.no_sandbox,
        ) as retinue:
            root = await retinue.spawn(
                order.prompt,
                agent=order.agent,
                limits=limits,
                tools=tools_of(order, settings),
                model=f"{model_choice.provider_config.name}:{model_choice.model}",
                system=prompt_named(order.system).text,
                think=order.think,
                output=order.output,
                detached=order.detach,
            )
            outcome = None
            if not order.detach:
                work = see_through(
                    retinue, root, asked_to_stop, approver=approver, quiet=order.quiet, verbose=order.verbose
                )
                if order.sse:
                    wire, structured = model_choice.provider_config.wire, order.output is not None
                    work = told_as_sse(root, work, structured=structured, brief=order.brief, wire=wire)
                outcome = await work
    if order.detach:
        return _leave_to_background(root.run_id, order)
    if outcome is None:
        return tell_interrupted(root.run_id)
    form = "json" if order.json else "sse" if order.sse else "bare" if order.quiet else "text"
    return tell(root.run_id, outcome, form=form)


def tools_of(order: Order, settings: Settings) -> tuple[str, ...] | None:
    """What the root is offered: what the flags say, else what its agent has (None); a named prompt adds its own."""
    added = prompt_named(order.system).tools
    if order.tools is None and order.agent is not None:
        return (*(settings.agents[order.agent].tools or ()), *added) if added else None
    return (*(order.tools or ()), *added)


def _prompt(prompt: str) -> str:
    text = _text(sys.stdin.buffer.read().decode(errors="surrogateescape") if prompt == "-" else prompt, "the prompt")
    if not text.strip():
        where = "stdin has no prompt" if prompt == "-" else "the prompt is empty"
        raise typer.BadParameter(f"{where}: say what is to be done")
    return text


def _text(given: str, what: str) -> str:
    """What was given, if it is text: a command line and a pipe can hold any bytes."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{what} is not UTF-8 text") from None
    return given


def _exclude(flags: dict[str, bool]) -> None:
    given = [flag for flag, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other")


def _output(schema: str | None, any_object: bool) -> Output | None:
    if schema is None and not any_object:
        return None
    from retinue.app.structured_output import make_output

    return make_output(dict if schema is None else Path(schema))


def _leave_to_background(run_id: str, order: Order) -> int:
    from retinue.cli.detach import begin
    from retinue.cli.output.terminal import answer, answer_json, say

    log = begin(run_id, *(["--yes"] if order.yes else ["--approvals", order.approvals]))
    if not order.quiet:
        say(f"running in the background; see: retinue runs show {run_id}  (its output: {log})")
    if order.json:
        answer_json({"run_id": run_id})
    else:
        answer(run_id)
    return 0
