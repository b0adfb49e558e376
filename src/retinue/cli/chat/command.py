"""`retinue chat`: a conversation with an agent in the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import (
    LIMITS,
    ApiKeyEnvFlag,
    ApprovalsFlag,
    BaseUrlFlag,
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
from retinue.dialects.registry import CHAT

if TYPE_CHECKING:
    from retinue.app.chat.conversation import Manners
    from retinue.app.chat.delegation import Delegation
    from retinue.app.chat.history import Past
    from retinue.app.chat.open_chats import Presence
    from retinue.app.launch.model_choice import ModelChoice
    from retinue.app.retinue import Retinue
    from retinue.cli.chat.loop_thread import Room
    from retinue.cli.output.approval_prompt import Mode
    from retinue.config.precedence import Flags
    from retinue.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for, flag by flag."""

    flags: Flags
    dialects: tuple[str, ...] | None
    agent: str | None
    session: str | None
    system: str
    tools: tuple[str, ...] | None
    max_turns: int | None
    max_tokens: int | None
    max_cost: float | None
    config: str | None
    approvals: Mode
    yes: bool
    no_sandbox: bool
    think: bool
    quiet: bool
    verbose: bool


def chat(
    provider: ProviderFlag = None,
    base_url: BaseUrlFlag = None,
    api_key_env: ApiKeyEnvFlag = None,
    model: ModelFlag = None,
    dialect: Annotated[
        list[str] | None,
        typer.Option(
            "--dialect",
            metavar="D",
            help=f"Let it delegate from the start, in this dialect, or none. [/subagents on switches {CHAT} on]",
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="An agent of the settings to talk to.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Go on with the conversation of this session; else a new one."),
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="What the model is told first.")] = "",
    tools: Annotated[
        str | None,
        typer.Option("--tools", metavar="a,b", help="Tools to offer, with commas; retinue tools lists them."),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(
            "--max-turns", metavar="N", min=1, help="Replies of the model for one answer. [50]", rich_help_panel=LIMITS
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", min=1, help="Tokens for one answer.", rich_help_panel=LIMITS),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="USD", min=0, help="Dollars for one answer.", rich_help_panel=LIMITS),
    ] = None,
    config: ConfigFlag = None,
    approvals: ApprovalsFlag = None,
    yes: YesFlag = False,
    no_sandbox: NoSandboxFlag = False,
    think: Annotated[bool, typer.Option("--think", metavar="", help="Ask the model to reason, where it can.")] = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Talk with an agent: its answers as they come, and its children at work.

    /help lists what can be said besides words. Ctrl-C stops an answer and not the chat. Of a pipe on stdin every line
    is one input, and the exit status is that of the last answer.
    """
    from retinue.cli.output.approval_prompt import mode_of
    from retinue.config.precedence import Flags

    order = Order(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        dialects=dialects_of(dialect),
        agent=agent,
        session=session,
        system=system,
        tools=listed(tools),
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_cost=countable("--max-cost", max_cost),
        config=config,
        approvals=mode_of(approvals, yes=yes),
        yes=yes,
        no_sandbox=no_sandbox,
        think=think,
        quiet=quiet,
        verbose=verbose,
    )
    return carry_out(order)


def carry_out(order: Order) -> int:
    """Open a room, find out who answers, and let the person talk until they leave."""
    from retinue.app.launch.limits import settings_for
    from retinue.cli.chat.loop_thread import open_room
    from retinue.cli.event_loop import leave_at_once

    settings = settings_for(order.config, agent=order.agent)
    with open_room() as room:
        code = _talk(order, settings, room)
    if room.cannot_close:
        leave_at_once(code)
    return code


def _talk(order: Order, settings: Settings, room: Room) -> int:
    from retinue.app.chat.conversation import Conversation
    from retinue.app.chat.open_chats import Presence
    from retinue.app.launch.limits import uncounted
    from retinue.app.launch.model_choice import choose_model
    from retinue.app.launch.open import open_new
    from retinue.app.open import default_home
    from retinue.cli.chat.input import FILE, HistoryFile, lines_of_stdin
    from retinue.cli.chat.repl import Sitting
    from retinue.cli.chat.turn import with_a_floor
    from retinue.cli.output.approval_prompt import approver_for
    from retinue.cli.output.terminal import say

    with room.listening(str):  # whoever looks for a server may take a while
        model_choice = room.do(choose_model(order.flags, settings, agent=order.agent))
    manners = manners_of(order, settings, model_choice)
    delegation = delegation_of(order, settings)
    if not order.quiet:
        say(str(model_choice))
    # With all of its agents: delegation can be switched on in the middle.
    for warning in uncounted(model_choice, settings, manners.limits, agent=order.agent, delegates=True):
        say(warning)
    approver, floor = with_a_floor(approver_for(order.approvals, yes=order.yes))
    if floor is not None:
        room.do(floor.take())
    retinue = open_new(
        model_choice,
        settings,
        dialects=delegation.chosen,
        session=order.session,
        approvals=approver,
        no_sandbox=order.no_sandbox,
    )
    room.do(retinue.__aenter__())
    presence = Presence(retinue)
    try:
        room.do(_check_tools(retinue, manners, delegation))
        past = room.do(_look_back(retinue, order, presence))
        sitting = Sitting(
            room=room,
            lines=lines_of_stdin(HistoryFile(default_home() / FILE)),
            retinue=retinue,
            conversation=Conversation(retinue, manners, past),
            delegation=delegation,
            presence=presence,
            model=manners.model,
            agent=order.agent,
            tools=manners.tools,
            floor=floor,
            quiet=order.quiet,
            verbose=order.verbose,
        )
        code = sitting.hold()
        sitting.leave()
        return code
    finally:
        room.do(presence.go())
        room.do(retinue.__aexit__(None, None, None))


async def _check_tools(retinue: Retinue, manners: Manners, delegation: Delegation) -> None:
    """A tool that does not exist is found now, and not with the first words."""
    retinue.offers(agent=manners.agent, dialects=delegation.dialects, tools=manners.tools)


async def _look_back(retinue: Retinue, order: Order, presence: Presence) -> Past | None:
    """The conversation that the session has had, and a line about it, and about others who have it open."""
    from retinue.app.chat.history import earlier_chat
    from retinue.cli.output.format import clean, many, moment
    from retinue.cli.output.terminal import say

    if not order.quiet and sys.stdin.isatty():
        say("/help lists the commands; Ctrl-D leaves")
    is_shared = await presence.come()
    past = None if order.session is None else await earlier_chat(retinue)
    name = clean(retinue.session_id)
    if past is None:
        if is_shared:
            say(f"warning: session {name} is open in another process; neither chat hears what is said in the other")
        return None
    last = past.last
    if not order.quiet:
        since = moment(last.ended_at or last.started_at)
        say(f"going on with session {name}: {many(past.messages, 'message')}, last run {last.run_id} of {since}")
    if last.state == "interrupted" and past.is_answering:
        say(
            f"its last answer was interrupted: your next words go on without it, or leave and have it finished with: "
            f"retinue runs resume {last.run_id}"
        )
    elif is_shared or last.state not in ("interrupted", "ended"):
        say(
            f"warning: session {name} is open in another process; this chat goes on from what was said there until "
            "now, and neither hears what is said in the other from then on"
        )
    return past


def manners_of(order: Order, settings: Settings, model_choice: ModelChoice) -> Manners:
    """How every run of the chat is started: what the flags say, on top of what the settings say about the agent."""
    from retinue.app.chat.conversation import Manners
    from retinue.app.launch.limits import limits_for

    settled = settings.agents.get(order.agent) if order.agent is not None else None
    limits = limits_for(
        settings, order.agent, max_turns=order.max_turns, max_tokens=order.max_tokens, max_cost=order.max_cost
    )
    # An agent's turns and everything that is counted hold for whole runs, and here they are meant for each answer.
    whole = (limits.max_tokens, limits.max_input_tokens, limits.max_output_tokens, limits.max_cost, limits.max_calls)
    return Manners(
        agent=order.agent,
        model=f"{model_choice.provider_config.name}:{model_choice.model}",
        system=order.system,
        tools=order.tools if order.tools is not None or order.agent is not None else (),
        think=order.think,
        limits=limits,
        one_run_each=settled is not None or any(each is not None for each in (*whole, limits.seconds)),
    )


def delegation_of(order: Order, settings: Settings) -> Delegation:
    """Whether the chat begins with delegation: when a dialect is named, or the settings say so."""
    from retinue.app.chat.delegation import Delegation, texts
    from retinue.app.settings_file import dialect_settings

    if order.dialects is None:
        return Delegation(is_on=texts().starts_on(dialect_settings(settings)[CHAT]))
    return Delegation(chosen=order.dialects or (CHAT,), is_on=bool(order.dialects), hears_words=bool(order.dialects))
