"""`retinue chat`: a conversation with an agent in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from retinue.cli.options import (
    LIMITS,
    ApiKeyEnvFlag,
    ApprovalsFlag,
    BaseUrlFlag,
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
    tools_of,
)
from retinue.dialects.registry import CHAT

__all__ = ["chat"]


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
    from retinue.app.chat.delegation import delegation_for
    from retinue.app.launch.start import LaunchOptions, LimitOptions, settings_for
    from retinue.cli.chat.repl import run_chat
    from retinue.config.precedence import Flags

    dialects = dialects_of(dialect)
    limits = LimitOptions(max_turns=max_turns, max_tokens=max_tokens, max_cost=countable("--max-cost", max_cost))
    approval = approval_options(approvals, yes=yes)
    settings = settings_for(config, agent=agent)
    delegation = delegation_for(dialects, settings)
    options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        agent=agent,
        dialects=delegation.chosen,  # also while it is off: it can be switched on at any time
        session=session,
        system=system,
        tools=tools_of(tools, agent=agent),
        think=think,
        limits=limits,
        no_sandbox=no_sandbox,
    )
    return run_chat(settings, options, delegation, approval, OutputOptions(quiet=quiet, verbose=verbose))
