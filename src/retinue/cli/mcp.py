"""`retinue mcp`: delegation tools for hosts that speak the Model Context Protocol."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import say
from retinue.dialects.registry import MCP

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from retinue.app.launch.model_choice import ModelChoice
    from retinue.app.launch.start import LaunchOptions
    from retinue.config.settings import Settings
    from retinue.mcp_server.http import Connect

FIRST_LIST_SECONDS = 5.0
"""How long MCP servers that were never listed are awaited: hosts leave out a server that keeps them waiting."""

MISSING = "the MCP server needs the package mcp: install the extra retinue[mcp]"


def mcp(
    dialect: Annotated[
        list[str] | None,
        option(
            "--dialect", metavar="D", help=f"The delegation tools to offer: {MCP} (default), or others. Repeatable."
        ),
    ] = None,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    tools: options.ToolsFlag = None,
    mcp_config: options.McpConfigFlag = None,
    session: Annotated[
        str, option("--session", metavar="NAME", help="The session whose runs the client can name.")
    ] = "mcp",
    max_turns: Annotated[int | None, options.max_turns_flag("Replies of each model.")] = None,
    max_tokens: Annotated[int | None, options.max_tokens_flag("Tokens of all runs together.")] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars of all runs together.")] = None,
    timeout: Annotated[float | None, options.timeout_flag("Seconds of the whole session.")] = None,
    unpriced: options.UnpricedFlag = None,
    agents: options.AgentsFlag = None,
    http: Annotated[
        str | None,
        option(
            "--http", metavar="HOST:PORT", help="Serve many clients over HTTP at /mcp, in place of stdin and stdout."
        ),
    ] = None,
    token_env: Annotated[
        list[str] | None,
        option(
            "--token-env",
            metavar="NAME",
            help="The environment variable of a bearer token for --http; needed beyond loopback. Repeatable.",
        ),
    ] = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
) -> int:
    """Serve delegation tools over MCP: on stdin and stdout for one client, or over HTTP.

    Runs that still work when the client goes are continued by the next server with the same state folder.
    """
    from retinue.app.launch.start import LaunchOptions, default_tools_for, settings_for
    from retinue.config.precedence import Flags
    from retinue.core.errors import BadInput

    if find_spec("mcp") is None:
        raise BadInput(MISSING)
    dialects = options.dialects_of(dialect) or (MCP,)
    settings = settings_for(config, agent=None, profile=profile, agent_folders=agents or ())
    launch_options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        dialects=dialects,
        session=session,
        tools=options.tools_of(tools, agent=None),
        tools_are_ceiling=tools is not None,
        default_tools=default_tools_for(None, dialects, settings) if tools is None else (),
        limits=options.limits_of(max_turns, max_tokens, max_cost, timeout),
        unpriced_ok=options.accepts_unpriced(unpriced),
        no_sandbox=no_sandbox,
        mcp_config=tuple(mcp_config or ()),
        model_choice=_sampled(provider, model) if http is None else None,
    )
    if http is None and token_env:
        raise BadInput("--token-env is for --http")
    return perform(_serve(launch_options, settings, http, token_env or []))


async def _serve(
    launch_options: LaunchOptions, settings: Settings, http: str | None, token_variables: Sequence[str]
) -> int:
    import asyncio

    from retinue.app.launch.start import prepare
    from retinue.app.surface import host
    from retinue.config.mcp import MCP as SECTION
    from retinue.config.mcp import McpSettings
    from retinue.core.run import MCP_HOST
    from retinue.mcp_server import SAMPLING, ClientConnection, SamplingProvider, adopt_orphans, serve_stdio

    if http is not None:
        from retinue.mcp_server.http import HttpAddress, check_access

        check_access(HttpAddress.parse(http), [_token(name) for name in token_variables])
    launch = await prepare(settings, launch_options)
    sampling = SamplingProvider() if http is None else None
    max_wait = settings.section(SECTION.name, McpSettings).max_wait
    retinue = launch.open(approvals="wait", providers={SAMPLING: sampling} if sampling else None)
    if retinue.mcp_tools is not None:
        retinue.mcp_tools.first_list_timeout = FIRST_LIST_SECONDS
    orphans: asyncio.Task[None] | None = None

    async def connect(session: str | None = None, *, identified: bool = True) -> ClientConnection:
        nonlocal orphans
        surface = await host(
            retinue,
            dialects=launch_options.dialects,
            tools=launch.tools,
            model=launch.model_choice.full_name,
            limits=launch.limits,
            session=session,
            ceiling=launch.has_ceiling,
            label=MCP_HOST,
            identified=identified,
        )
        orphans = orphans or asyncio.get_running_loop().create_task(adopt_orphans(retinue))
        return ClientConnection(retinue, surface, max_wait=max_wait, sampling=sampling)

    with interrupts() as stop:
        async with AsyncExitStack() as opened:

            async def open_and_connect() -> ClientConnection:
                # The client waits for the handshake already, and opening may mean to start MCP servers.
                await opened.enter_async_context(retinue)
                return await connect()

            try:
                if http is None:
                    await serve_stdio(open_and_connect, stop)
                else:
                    await opened.enter_async_context(retinue)
                    await _serve_http(http, connect, stop, token_variables, launch_options.dialects)
            finally:
                if orphans is not None:
                    orphans.cancel()
                    with suppress(asyncio.CancelledError):
                        await orphans
    return 0


def _sampled(provider: str | None, model: str | None) -> ModelChoice | None:
    """The model of the MCP client, if the flags name it: `--model mcp-sampling:NAME`, where NAME is a hint."""
    from retinue.app.launch.model_choice import ModelChoice
    from retinue.mcp_server import SAMPLING
    from retinue.providers.catalog import ProviderConfig

    prefix, _, name = (model or "").partition(":")
    if SAMPLING not in (provider, prefix):
        return None
    hint = name if prefix == SAMPLING else model or ""
    return ModelChoice(provider_config=ProviderConfig(name=SAMPLING, wire=SAMPLING), model=hint or "client")


async def _serve_http(
    http: str, connect: Connect, stop: asyncio.Event, token_variables: Sequence[str], dialects: Sequence[str]
) -> None:
    from retinue.mcp_server.http import HttpAddress, serve_http

    await serve_http(
        HttpAddress.parse(http),
        connect,
        stop,
        tokens=[_token(name) for name in token_variables],
        shares=tuple(dialects) == (MCP,),
        announce=lambda url: say(f"MCP server at {url}"),
    )


def _token(variable: str) -> str:
    import os

    from retinue.core.errors import BadInput

    if not (token := os.environ.get(variable, "").strip()):
        raise BadInput(f"the variable {variable} of --token-env is not set")
    return token
