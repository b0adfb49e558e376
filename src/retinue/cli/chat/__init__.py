"""`retinue chat`: a conversation with an agent in the terminal."""

from __future__ import annotations

import os
from typing import Annotated

from retinue.cli import completion, options
from retinue.cli.options import option
from retinue.dialects.registry import CHAT, DEFAULT

__all__ = ["chat"]


def chat(
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    dialect: Annotated[
        list[str] | None,
        option(
            "--dialect",
            completed=completion.dialects,
            metavar="D",
            help=f"Enable delegation from the start, in this dialect, or none. "
            f"[{DEFAULT} if the settings have agents; else /subagents on enables {CHAT}]",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        options.agent_flag("The agent of the settings to run."),
    ] = None,
    session: Annotated[
        str | None,
        option(
            "--session",
            metavar="NAME",
            help="Continue the conversation of this session. [a new one]",
            completed=completion.sessions,
        ),
    ] = None,
    continued: options.ContinueFlag = False,
    system: Annotated[str, option("--system", metavar="TEXT", help="The system prompt.")] = "",
    tools: options.ToolsFlag = None,
    mcp_config: options.McpConfigFlag = None,
    max_turns: Annotated[
        int | None,
        options.max_turns_flag("Replies of the model for one answer. [50]"),
    ] = None,
    max_tokens: Annotated[int | None, options.max_tokens_flag("Tokens for one answer.")] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars for one answer.")] = None,
    unpriced: options.UnpricedFlag = None,
    agents: options.AgentsFlag = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    approvals: options.ApprovalsFlag = None,
    yes: options.YesFlag = False,
    preset: options.PresetFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
    think: options.ThinkFlag = False,
    effort: options.EffortFlag = None,
    temperature: options.TemperatureFlag = None,
    top_p: options.TopPFlag = None,
    max_output_tokens: options.MaxOutputTokensFlag = None,
    quiet: options.QuietFlag = False,
    plain: options.PlainFlag = False,
    verbose: options.VerboseFlag = False,
) -> int:
    """Chat with an agent; its answers are printed as they stream.

    /help lists the commands. Ctrl-C stops an answer, not the chat. With a pipe on stdin every line is one input, and
    the exit status is that of the last answer.
    """
    import asyncio

    from retinue.app.chat.delegation import delegation_for
    from retinue.app.launch.continuation import latest_chat
    from retinue.app.launch.start import LaunchOptions, default_tools_for, dialects_for, settings_for
    from retinue.app.retention import prune_at_end, prunes, store_settings
    from retinue.cli.chat.repl import run_chat
    from retinue.cli.event_loop import perform
    from retinue.config.precedence import Flags

    dialects = options.dialects_of(dialect)
    limits = options.limits_of(max_turns, max_tokens, max_cost)
    options.exclude({"--session": session is not None, "--continue": continued})
    if continued:
        session = asyncio.run(latest_chat(os.getcwd())).session_id
    approval = options.approval_options(approvals, yes=yes)
    settings = settings_for(config, agent=agent, profile=profile, agent_folders=agents or ())
    agent = agent or settings.default_agent
    chosen = options.preset_of(preset) or settings.default_preset
    offered = dialects_for(dialects, settings)
    delegation = delegation_for(dialects, settings)
    launch_options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        agent=agent,
        dialects=delegation.chosen,  # also while it is off: it can be switched on at any time
        session=session,
        system=system,
        tools=options.tools_of(tools, agent=agent),
        tools_are_ceiling=tools is not None,
        default_tools=() if tools is not None else default_tools_for(agent, offered, settings, chosen),
        think=think,
        model_options=options.model_options_of(effort, temperature, top_p, max_output_tokens),
        limits=limits,
        unpriced_ok=options.accepts_unpriced(unpriced),
        preset=chosen,
        no_sandbox=no_sandbox,
        mcp_config=tuple(mcp_config or ()),
    )
    output = options.OutputOptions(quiet=quiet, verbose=verbose, plain=plain)
    code = run_chat(settings, launch_options, delegation, approval, output)
    if prunes(store_settings(settings)):
        perform(prune_at_end(settings, code))
    return code
